from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.serving import home
from pytest_decodegate.serving.command import UsersCommand, read_command
from pytest_decodegate.serving.server import ATTACHED_TOKEN_IDS, Server, ServerOptions, Starting
from pytest_decodegate.serving.spin_plugin import FRACTION


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerOptions]:
    """What would be launched; the launch itself is tested with a real server elsewhere."""
    options: list[ServerOptions] = []

    def note(given: ServerOptions) -> Starting:
        options.append(given)
        return Starting(given, None, None, None, 0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(home, "begin", note)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    return options


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> home.ServerLaunch:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return home.ServerLaunch(tmp_path, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 60.0)


def healthy(starting: Starting) -> Server:
    """What becomes of a server that answers."""
    return starting.finish(Server(endpoint=None, token_ids=range(1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [["--model", "kimi", "-tp", "8"], ["--model=kimi", "-tp", "8"], ["kimi", "-tp", "8"]])
def test_the_users_model_is_found_in_each_form(
    words: list[str], start: home.ServerLaunch, started: list[ServerOptions]
) -> None:
    server = healthy(home.launch_users(start, words, {}))
    assert started[0].model.folder == Path("kimi")
    assert started[0].model.arguments[:2] == ("-tp", "8")
    assert server.token_ids == ATTACHED_TOKEN_IDS


def test_the_users_flags_are_no_part_of_the_metric(start: home.ServerLaunch, started: list[ServerOptions]) -> None:
    words = ["kimi", "--hf-token", "hf-mine", "--load-format", "auto"]
    told = replace(start, flags={"max-num-seqs": "64", "enforce-eager": True})
    home.launch_users(told, words, {})
    assert started[0].model.arguments[:2] == ("--hf-token", "hf-mine")
    assert started[0].model.arguments[-2:] == ("--max-num-seqs=64", "--enforce-eager")
    assert started[0].model.facts == {"model": "kimi"}


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ('{"vocab_size": 20480}', range(1000, 20_480)),
        ('{"text_config": {"vocab_size": 163840}}', ATTACHED_TOKEN_IDS),
        ('{"vocab_size": 258}', range(258)),
        ('{"vocab_size": "many"}', ATTACHED_TOKEN_IDS),
        ("{}", ATTACHED_TOKEN_IDS),
        ("[]", ATTACHED_TOKEN_IDS),
        ("{", ATTACHED_TOKEN_IDS),
        (None, ATTACHED_TOKEN_IDS),
    ],
)
def test_prompts_for_the_users_model_stay_inside_its_vocabulary(
    start: home.ServerLaunch, started: list[ServerOptions], tmp_path: Path, config: str | None, ids: range
) -> None:
    """vLLM 0.26 does not refuse an id beyond it: the engine ends with an assert on the device (seen on H200s)."""
    folder = tmp_path / "mine"
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(config)

    server = healthy(home.launch_users(start, [str(folder)], {}))
    assert server.token_ids == ids
    assert not server.invented


def test_prefix_caching_is_off_whatever_the_user_serves(start: home.ServerLaunch, started: list[ServerOptions]) -> None:
    home.launch_users(start, ["kimi"], {})
    assert "--no-enable-prefix-caching" in started[0].model.arguments


@pytest.mark.parametrize("words", [[], ["-tp", "8"]])
def test_no_model_is_refused(words: list[str]) -> None:
    with pytest.raises(BadInput, match=r"--perf-launch: .* names no model"):
        read_command(words)


@pytest.mark.parametrize(
    "flag", ["--host=0.0.0.0", "--served-model-name=x", "--api-key=sk-mine", "--api_key=sk-mine", "--api-k=sk-mine"]
)
def test_what_decodegate_chooses_is_refused(flag: str) -> None:
    with pytest.raises(BadInput, match=r"leave out --(host|served-model-name|api-key)") as caught:
        read_command(["kimi", flag])

    assert "sk-mine" not in str(caught.value)


def test_a_port_is_the_users_to_choose() -> None:
    assert read_command(["kimi", "--port", "8123", "-tp", "8"]) == UsersCommand("kimi", 8123, ("-tp", "8"))
    with pytest.raises(BadInput, match=r"--perf-launch: .*'eighty'"):
        read_command(["kimi", "--port", "eighty"])


def test_a_relative_folder_is_found_from_where_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    assert read_command(["./local"]).model == str(tmp_path / "local")
    assert read_command(["org/model"]).model == "org/model"


def test_a_python_without_vllm_is_named(start: home.ServerLaunch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs 'vllm', which .* does not have; run pytest in the environment"):
        home.launch_own(start, gpus=0, memory_gib=0, pins={})


def test_pinned_backends_reach_whatever_is_launched(start: home.ServerLaunch, started: list[ServerOptions]) -> None:
    pins = {"moe": "marlin", "attention": "TRITON_MLA"}
    home.launch_own(start, gpus=1, memory_gib=96, pins=pins)
    home.launch_users(start, ["kimi"], pins)
    for options in started:
        assert options.model.arguments[-4:] == ("--attention-backend", "TRITON_MLA", "--moe-backend", "marlin")
        assert options.model.facts["pinned"] == pins


def test_a_slowdown_reaches_the_server_that_is_launched_and_is_checked(
    start: home.ServerLaunch, started: list[ServerOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[float] = []

    def check(server: Server, fraction: float) -> Server:
        checked.append(fraction)
        return server

    monkeypatch.setattr(home, "checked", check)
    for slowdown in ("tpot*=5%", "marlin*=5%"):
        slower = replace(start, environment={"DECODEGATE_SLOWDOWN": slowdown})
        healthy(home.launch_own(slower, gpus=0, memory_gib=0, pins={}))

    slowed, plain = started
    assert (slowed.environment[FRACTION], checked) == ("0.05", [0.05])
    assert FRACTION not in plain.environment


def test_a_depth_may_be_chosen(start: home.ServerLaunch, started: list[ServerOptions]) -> None:
    home.launch_own(start, gpus=1, memory_gib=96, pins={}, layers=8)
    assert "8 layers" in str(started[0].model.facts["model"])


def test_invented_models_report_no_usage_and_the_users_own_as_they_like(
    start: home.ServerLaunch, started: list[ServerOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    chosen = replace(start, environment={**start.environment, "VLLM_NO_USAGE_STATS": "0"})
    home.launch_own(start, gpus=1, memory_gib=96, pins={})
    home.launch_own(chosen, gpus=0, memory_gib=0, pins={})
    home.launch_users(start, ["kimi"], {})
    assert [options.environment.get("VLLM_NO_USAGE_STATS") for options in started] == ["1", "0", None]


def test_gpus_serve_the_slice_and_none_the_tiny_model(start: home.ServerLaunch, started: list[ServerOptions]) -> None:
    home.launch_own(start, gpus=2, memory_gib=24, pins={})
    home.launch_own(start, gpus=0, memory_gib=0, pins={})
    assert "12 layers" in str(started[0].model.facts["model"])
    assert "tiny" in str(started[1].model.facts["model"])
    assert started[0].environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "RANK" not in started[0].environment
