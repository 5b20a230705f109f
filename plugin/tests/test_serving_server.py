"""Launching: a scripted stand-in for vLLM's command line for each fault; the real thing is in test_real_servers.py."""

import re
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import wheels
from children import is_running, tree
from loops import windows
from scripted_vllm import launch, options

from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.measure.window import Load
from pytest_decodegate.serving.models import LocalModel


def test_launch_serve_and_stop_with_all_children(tmp_path: Path) -> None:
    script = "subprocess.Popen(['sleep', '600'], start_new_session=True); print('up', flush=True); serve()"
    said: list[str] = []
    with launch(options(tmp_path, script), on_wait=said.append) as server:
        assert server.endpoint.model.startswith("decodegate-")
        assert server.token_ids == range(100)
        pids = tree(server)
        assert len(pids) == 3
        assert all(map(is_running, pids))

    assert not any(map(is_running, pids))
    assert said[0] == "waiting for vLLM, 0 s: starting"
    server.stop()


def test_a_start_says_whether_the_compile_caches_were_warm(tmp_path: Path) -> None:
    script = "os.makedirs(os.path.join(os.environ['VLLM_CACHE_ROOT'], 'torch_compile_cache', 'f00'), exist_ok=True)"
    given = options(tmp_path, f"import os; {script}; serve()")
    # All that name a folder: torch sets its own in a process that compiled something.
    names = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
    quiet = {name: str(tmp_path / name) for name in names}
    given = replace(given, environment={**given.environment, **quiet})
    for state, before, added in (("cold", None, 1), ("warm", 1, 0)):
        with launch(given) as server:
            known = server.facts()["compile_caches"]

        assert known == {"vllm": {"state": state, "entries": before, "added": added}}


def test_a_start_is_told_with_what_its_log_explains(tmp_path: Path) -> None:
    said = "Model loading took 1.2 GiB memory and 7.31 seconds"
    with launch(options(tmp_path, f"print({said!r}, flush=True); serve()")) as server:
        assert re.fullmatch(r"the server started in \d+ s: weights 7 s", server.started())
        times = server.facts()["start_seconds"]

    assert isinstance(times, dict)
    assert times == {"whole": server.start_seconds, "weights": 7.31}
    assert replace(server, process=None).started() == ""


def test_stop_is_bounded_if_the_server_ignores_the_signal(tmp_path: Path) -> None:
    server = launch(options(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); serve()"))
    pids = tree(server)
    server.stop()
    assert not any(map(is_running, pids))


def test_a_server_that_dies_at_start_quotes_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"ended while starting \(exit code 3\)") as caught:
        launch(options(tmp_path, "print('ValueError: no such flag'); sys.exit(3)"))

    assert "    ValueError: no such flag" in str(caught.value)
    assert str(tmp_path / "logs" / "server.log") in str(caught.value)


def test_a_missing_interpreter(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"exit code 127") as caught:
        launch(options(tmp_path, "", python=str(tmp_path / "nowhere")))

    assert "nowhere" in str(caught.value)


def test_a_server_that_falls_silent(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="its log is silent for") as caught:
        launch(options(tmp_path, "print('loading', flush=True); time.sleep(600)", silent_seconds=1.0))

    assert "    loading" in str(caught.value)


def test_a_server_that_talks_but_never_gets_ready(tmp_path: Path) -> None:
    script = "while True: print('loading', flush=True); time.sleep(0.1)"
    with pytest.raises(ServerError, match="not ready after"):
        launch(options(tmp_path, script, start_seconds=2.0, silent_seconds=1.9))


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} cannot be used.*Address already in use"):
            launch(options(tmp_path, "serve()", port=port))

    assert not (tmp_path / "logs").exists()


def test_a_port_that_another_vllm_would_share(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="cannot be used"):
            launch(options(tmp_path, "serve()", port=taken.getsockname()[1]))


def test_somebody_elses_server_on_our_port(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="answered by another server, which serves 'theirs'"):
        launch(options(tmp_path, "name = 'theirs'; serve()"))


def test_our_arguments_and_environment_reach_the_server(tmp_path: Path) -> None:
    model = LocalModel(tmp_path / "model", 100, ("--dtype", "float32"), {"FROM_MODEL": "1"})
    script = "print(sys.argv[1:], os.environ['FROM_MODEL'], os.getcwd(), flush=True); serve()"
    with launch(options(tmp_path, script, model=model)) as server:
        first = server.log(0, server.log_size()).splitlines()[0]

    assert f"'--model', '{tmp_path / 'model'}'" in first
    assert "'float32'" in first
    assert first.endswith(f" 1 {tmp_path / 'logs'}")


def test_a_launched_server_gets_a_key_that_no_argument_shows_and_our_requests_send_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    print("key", open(arguments["--config"]).read(), os.environ["VLLM_API_KEY"], flush=True)
    def do_GET(self, get=Handler.do_GET):
        print(self.path, self.headers["Authorization"], flush=True)
        get(self)
    Handler.do_GET = do_GET
    serve()
    """
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    keys = set()
    for _ in range(2):
        with launch(options(tmp_path, script)) as server:
            assert server.process is not None
            key = server.endpoint.key
            raw = server.process.log_path.read_text()
            shown = [Path(f"/proc/{pid}/{file}").read_text() for pid in tree(server) for file in ("cmdline", "environ")]
            mode = server.process.log_path.with_name("server.yaml").stat().st_mode

        assert f'key api-key: "{key}"\n sk-mine\n' in raw
        assert stat.S_IMODE(mode) == 0o600
        assert f"/v1/models Bearer {key}\n" in raw
        assert len(key) >= 40
        assert not any(key in line for line in shown), "vLLM compiles anew for another variable, and writes them all"
        assert key not in repr(server)
        keys.add(key)

    assert len(keys) == 2


@pytest.mark.parametrize("flag", [("--config", "mine.yaml"), ("--config=mine.yaml",)])
def test_where_the_user_has_a_file_of_flags_the_key_goes_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: tuple[str, ...]
) -> None:
    """vLLM takes one file."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    script = """
    print(sum(word.startswith("--config") for word in sys.argv), "key", os.environ["VLLM_API_KEY"], flush=True)
    serve()
    """
    with launch(options(tmp_path, script, model=LocalModel(tmp_path / "model", 100, flag))) as server:
        assert server.process is not None
        assert f"1 key {server.endpoint.key}\n" in server.process.log_path.read_text()


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_vllm_reads_a_key_from_a_file_of_flags(version: str) -> None:
    """Also where no subcommand is given, and the key there comes before the variable's."""
    assert "No sub command (e.g., api_server entry point)" in wheels.source(version, "vllm/utils/argparse_utils.py")
    moved = "vllm/entrypoints/serve/middleware/register.py"
    server = wheels.source(version, moved if wheels.has(version, moved) else "vllm/entrypoints/openai/api_server.py")
    assert "(args.api_key or [envs.VLLM_API_KEY])" in server


def test_a_server_that_dies_under_load_is_named_with_its_log(tmp_path: Path) -> None:
    script = """
    def complete(handler):
        print("EngineCore: CUDA error", flush=True)
        os._exit(9)
    serve()
    """
    with launch(options(tmp_path, script)) as server, pytest.raises(ServerError) as caught:
        windows(server, Load(2, 4, 4, 2))

    assert "the server ended under load (concurrency 2) (exit code 9)" in str(caught.value)
    assert "    EngineCore: CUDA error" in str(caught.value)
