"""Servers that are slower on purpose: which are meant, and how vLLM comes to load it.

A real one is in test_real_servers.py, which starts vLLM once for all that it takes.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.serving import spin_plugin
from pytest_decodegate.serving.models import LocalModel
from pytest_decodegate.serving.server import Server, ServerOptions
from pytest_decodegate.serving.slowed import MODULE, checked, refuse_attached, server_slowdown, slowed_options
from pytest_decodegate.serving.spin_plugin import LEAST, LOADED, RECENT, Pace


def asks(slowdown: str) -> dict[str, str]:
    return {"DECODEGATE_SLOWDOWN": slowdown}


@pytest.mark.parametrize(
    ("slowdown", "fraction"),
    [
        ("*=5%", 0.05),
        ("tpot*=5%", 0.05),
        ("tpot_cpu*=5%", 0.05),
        ("tpot[c=*=5%", 0.05),
        ("throughput*=5%;marlin*=50%;*=1%", 0.06),
        ("marlin*=5%", 0.0),
        ("marlin*[m=8]=5%", 0.0),
        ("*=5%@0", 0.0),
        ("tpot[c=1]=5%@0", 0.0),
        ("", 0.0),
    ],
)
def test_servers_are_slowed_by_what_matches_their_metrics(slowdown: str, fraction: float) -> None:
    assert server_slowdown(asks(slowdown)) == pytest.approx(fraction)


@pytest.mark.parametrize("pattern", ["tpot[c=1]", "tpot[c=24]", "tpot*[c=8]", "*8]"])
def test_one_concurrency_of_a_server_cannot_be_slowed_down_alone(pattern: str) -> None:
    with pytest.raises(BadInput, match=r"a server is slowed down at all of them; write tpot\*"):
        server_slowdown(asks(f"{pattern}=5%"))


def test_an_attached_server_cannot_be_slowed_down() -> None:
    refuse_attached("http://a:1", asks("marlin*=5%"))
    with pytest.raises(BadInput, match=r"\*=5% is for servers too, and http://a:1 runs already"):
        refuse_attached("http://a:1", asks("*=5%"))


@settings(deadline=None)
@given(st.floats(1e-4, 0.5), st.floats(0.001, 3.0), st.integers(0, 3))
def test_steps_come_to_take_1_plus_the_fraction_of_their_time(step_s: float, fraction: float, pauses: int) -> None:
    """Whatever the fraction; pauses between requests, short or long, do not count."""
    pace, now_s, spin_s = Pace(fraction), 0.0, 0.0
    for number in range(12 * RECENT):
        spin_s = pace.step(now_s)
        now_s += step_s + spin_s
        if pauses and number % (RECENT // pauses) == 0:
            now_s += 1.0 if number % 2 else 3600.0

    assert spin_s == pytest.approx(fraction * step_s, rel=0.02)


def test_nothing_is_spun_before_the_pace_is_known_and_idleness_is_no_step() -> None:
    pace = Pace(0.5)
    assert [pace.step(second / 10) for second in range(LEAST)] == [0.0] * LEAST
    assert pace.step(3600.0) == 0.0
    assert pace.step(3600.1) == pytest.approx(0.1 / 3)
    assert (pace.steps, pace.stepping_s, pace.spun_s) == pytest.approx((LEAST, 0.8, 0.1 / 3))


@dataclass
class Worker:
    """Of vLLM's wrapper of its workers, what the plugin wraps and reads."""

    global_rank: int = 0
    steps: int = 0

    def init_device(self) -> str:
        return "ready"

    def execute_model(self, scheduler_output: Any) -> str:
        self.steps += 1
        return f"step {self.steps}"


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The wrapper after vLLM has registered the plugin, on a clock that goes on by 0.1 s with each step."""

    class Fresh(Worker):
        init_device, execute_model = Worker.init_device, Worker.execute_model

    fake_vllm.install(monkeypatch, {"vllm.v1.worker.worker_base": {"WorkerWrapperBase": Fresh}})
    monkeypatch.setenv(spin_plugin.FRACTION, "0.5")
    ticks = itertools.count()
    monkeypatch.setattr(spin_plugin, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 10))
    spin_plugin.register.cache_clear()
    spin_plugin.register()
    spin_plugin.register()  # as vLLM may, and once must be enough
    return Fresh


def test_each_step_of_a_worker_is_followed_by_a_spin(
    workers: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spun: list[float] = []
    monkeypatch.setattr(spin_plugin, "_spin", lambda: spun.append)
    worker = workers(global_rank=3)
    assert worker.init_device() == "ready"
    empty, step = SimpleNamespace(total_num_scheduled_tokens=0), SimpleNamespace(total_num_scheduled_tokens=8)
    assert worker.execute_model(empty) == "step 1"
    for number in range(2 * LEAST + 1):
        assert worker.execute_model(step) == f"step {number + 2}"

    assert spun == pytest.approx([0.1 / 3] * (LEAST + 1))
    assert capsys.readouterr().err.splitlines() == [
        f"{LOADED} by 50.0%: rank 3",
        "decodegate: 16 steps in 1.600 s, 0.300 s of it spun",
    ]


def test_a_host_spins_so_long_and_a_device_by_its_own_clock() -> None:
    """The device of this test counts 1 GHz by its events."""
    before = os.times().elapsed
    spin_plugin._host_spin(0.02)
    assert os.times().elapsed - before >= 0.01  # the clock of os.times ticks every 10 ms

    slept: list[int] = []
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: slept[-1] / 1e6)
    cuda = SimpleNamespace(Event=lambda enable_timing: event, _sleep=slept.append)
    spin_plugin._device_spin(cuda)(0.002)
    assert slept == [spin_plugin.PROBE_CYCLES, 2_000_000]


def options(tmp_path: Path, **environment: str) -> ServerOptions:
    return ServerOptions(sys.executable, LocalModel(tmp_path, 1, ()), environment, tmp_path / "server.log")


def test_vllm_finds_the_plugin_on_the_path_of_the_server_alone(tmp_path: Path) -> None:
    given = options(tmp_path, PYTHONPATH="/theirs", VLLM_PLUGINS="lora")
    slower = slowed_options(given, 0.05, tmp_path / "slowed").environment
    assert slower == {
        "PYTHONPATH": f"{tmp_path / 'slowed'}:/theirs",
        "VLLM_PLUGINS": f"lora,{MODULE}",
        spin_plugin.FRACTION: "0.05",
    }
    found = importlib.metadata.distributions(path=[str(tmp_path / "slowed")])
    (entry,) = (entry for one in found for entry in one.entry_points)
    assert (entry.group, entry.value) == ("vllm.general_plugins", f"{MODULE}:register")
    assert "VLLM_PLUGINS" not in slowed_options(options(tmp_path), 0.05, tmp_path / "again").environment


def test_a_server_that_did_not_load_it_is_stopped_and_refused() -> None:
    class Process:
        stopped, text = False, ""
        log = lambda self: self.text  # noqa: E731
        tail = lambda self: "the last lines"  # noqa: E731

        def stop(self) -> None:
            self.stopped = True

    process: Any = Process()
    server = Server(None, range(1), process)  # type: ignore[arg-type]
    with pytest.raises(ServerError, match=r"was to be 5\.0% slower .* none of its workers says that it is.*last lines"):
        checked(server, 0.05)

    assert process.stopped
    process.text = f"(EngineCore pid=1) {LOADED} by 5.0%: rank 0"
    assert checked(server, 0.05) is server
