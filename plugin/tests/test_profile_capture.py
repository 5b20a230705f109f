"""A capture from a running server: what it is asked in which order, the files it leaves, and servers that cannot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import traces
from aiohttp import web
from scripted import Handler, ScriptedServer, answer, refusing, streaming
from traces import Invented

from pytest_decodegate import cli
from pytest_decodegate.errors import BadInput, ServerError, ServerHung
from pytest_decodegate.measure.capture import capture
from pytest_decodegate.serving import profiler
from pytest_decodegate.serving.models import LocalModel
from pytest_decodegate.serving.server import Server, attach

TOKENS = 12 + 9  # of an answer: the steps asked for and some to spare


class ProfiledServer:
    """A scripted server that writes traces when its profiler is stopped, as vLLM does."""

    def __init__(self, scripted: ScriptedServer, folder: Path, write: Callable[[Path], object]) -> None:
        self.calls: list[str] = []
        self._folder, self._write = folder, write
        self._scripted = scripted
        scripted.completion = self._noted(streaming(answer(TOKENS)), "answer")
        scripted.commands = {"start_profile": self._noted(self._ok, "start"), "stop_profile": self._stop}
        self.server: Server = attach(scripted.url)

    def _noted(self, handler: Handler, what: str) -> Handler:
        async def noted(request: web.Request) -> web.StreamResponse:
            self.calls.append(what)
            return await handler(request)

        return noted

    def slow_answers(self) -> None:
        """From now on answers take longer than the second after which a wait is said."""
        self._scripted.completion = self._noted(streaming(answer(TOKENS), pause_s=0.1), "answer")

    async def _ok(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _stop(self, request: web.Request) -> web.StreamResponse:
        self.calls.append("stop")
        self._write(self._folder)
        return web.Response()


def write_two_ranks(folder: Path) -> None:
    for rank in (0, 1):
        name = f"dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.17.pt.trace.json.gz"
        traces.torch_trace(folder / name, Invented(rank=rank, late_us=20 * rank))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "traces"
    found.mkdir()
    return found


@pytest.fixture
def profiled(scripted: ScriptedServer, folder: Path) -> ProfiledServer:
    return ProfiledServer(scripted, folder, write_two_ranks)


def test_only_steady_decode_is_recorded(profiled: ProfiledServer, folder: Path) -> None:
    files = capture(profiled.server, folder, streams=3, steps=12)
    assert profiled.calls == [*["answer"] * 3, "start", *["answer"] * 3, "stop"]
    assert [file.name[:14] for file in files] == ["dp0_pp0_tp0_dc", "dp0_pp0_tp1_dc"]


def test_older_traces_and_those_of_the_front_end_are_left_alone(profiled: ProfiledServer, folder: Path) -> None:
    write = write_two_ranks
    (folder / "old_rank0.1.pt.trace.json.gz").write_bytes(b"old")
    profiled._write = lambda path: (write(path), (path / "host_9.async_llm.1.pt.trace.json.gz").write_bytes(b"x"))
    assert len(capture(profiled.server, folder, steps=12)) == 2


def test_the_command_profiles_a_running_server(
    profiled: ProfiledServer, folder: Path, scripted: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--server", scripted.url, "--trace-dir", str(folder), "--steps", "12", "--layers", "3"]
    assert cli.main(["profile", *arguments]) == 0
    assert "AllReduce" in capsys.readouterr().out
    assert profiled.calls == ["answer", "start", "answer", "stop"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "http://127.0.0.1:9"], "say with --trace-dir"),
        (["--server", "http://127.0.0.1:9", "some.json"], "or --server URL, or --launch"),
    ],
)
def test_options_that_do_not_fit(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *arguments]) == cli.BAD_INPUT
    assert said in capsys.readouterr().err


def test_a_server_without_a_profiler(scripted: ScriptedServer, folder: Path) -> None:
    scripted.completion = streaming(answer(TOKENS))
    with pytest.raises(BadInput, match=r"/start_profile answers HTTP 404: it was started without a profiler"):
        capture(attach(scripted.url), folder, steps=12)


def test_a_profiler_that_does_not_start(profiled: ProfiledServer, scripted: ScriptedServer, folder: Path) -> None:
    scripted.commands["start_profile"] = refusing(500, "CUPTI is in use")
    with pytest.raises(ServerError, match="start_profile answers HTTP 500: 'CUPTI is in use'"):
        capture(profiled.server, folder, steps=12)


def test_the_profiler_is_stopped_when_the_load_fails(
    profiled: ProfiledServer, scripted: ScriptedServer, folder: Path
) -> None:
    async def start(request: web.Request) -> web.StreamResponse:
        scripted.completion = refusing(500, "out of memory")
        return web.Response()

    scripted.commands["start_profile"] = start
    with pytest.raises(ServerError, match="out of memory"):
        capture(profiled.server, folder, steps=12)

    assert profiled.calls[-1] == "stop"


def test_the_profiler_is_stopped_when_the_user_gives_up(profiled: ProfiledServer, folder: Path) -> None:
    def give_up(what: str) -> None:
        if "start" in profiled.calls:
            raise KeyboardInterrupt

    profiled.slow_answers()
    with pytest.raises(KeyboardInterrupt):
        capture(profiled.server, folder, steps=12, on_wait=give_up)

    assert profiled.calls[-1] == "stop"


def test_a_server_that_never_finishes_its_traces(
    profiled: ProfiledServer, scripted: ScriptedServer, folder: Path
) -> None:
    scripted.commands["stop_profile"] = streaming([b"x"], then_hang=True)
    with pytest.raises(ServerHung, match="/stop_profile"):
        capture(profiled.server, folder, steps=12, stop_seconds=0.3)


def test_a_folder_that_stays_empty(profiled: ProfiledServer, folder: Path) -> None:
    profiled._write = lambda path: None
    with pytest.raises(BadInput, match=r"none came within 0\.1 s; is this the folder of its profiler"):
        capture(profiled.server, folder, steps=12, settle_seconds=0.1)


def test_no_folder(profiled: ProfiledServer, folder: Path) -> None:
    with pytest.raises(BadInput, match="is no folder"):
        capture(profiled.server, folder / "none", steps=12)

    assert profiled.calls == []


MODEL = LocalModel(Path("model"), 100, ("--load-format", "dummy"), {"A": "1"})


def vllm_of(folder: Path, *, has_config: bool) -> str:
    """A Python whose vllm does or does not have the module that defines --profiler-config."""
    package = folder / "vllm"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('only to be found')\n")
    if has_config:
        (package / "config" / "profiler.py").write_text("")

    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_vllm_with_a_profiler_config_is_given_one(tmp_path: Path) -> None:
    model = profiler.profiled(MODEL, tmp_path / "traces", vllm_of(tmp_path, has_config=True))
    assert model.arguments[:3] == ("--load-format", "dummy", "--profiler-config")
    config = json.loads(model.arguments[3])
    assert config["torch_profiler_dir"] == str(tmp_path / "traces")
    assert config["torch_profiler_with_stack"] is False
    assert model.environment == {"A": "1"}


def test_an_older_vllm_is_told_by_its_environment(tmp_path: Path) -> None:
    model = profiler.profiled(MODEL, tmp_path / "traces", vllm_of(tmp_path, has_config=False))
    assert model.arguments == MODEL.arguments
    assert model.environment == {"A": "1", "VLLM_TORCH_PROFILER_DIR": str(tmp_path / "traces")}


def test_a_python_that_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be asked for its vllm"):
        profiler.profiled(MODEL, tmp_path, str(tmp_path / "none"))
