"""Runs that a FAIL of the host ends before anything is started, and those that go on despite it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_nvml import FakeGpu, FakeNvml
from scripted_cards import cards

from pytest_decodegate.machine import fingerprint as fingerprint_module
from pytest_decodegate.machine import nvml
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.machine.nvml import open_sensor

GATED = """
    import pytest

    @pytest.mark.perf
    def test_never_started(perf):
        raise AssertionError("it was started")
"""


def on(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu) -> None:
    """Let a run in this process see these GPUs."""
    seen, sensor = machine({}, FakeNvml(*gpus), Path("/nowhere")), open_sensor(FakeNvml(*gpus))
    monkeypatch.setattr(fingerprint_module, "machine", lambda: seen)
    monkeypatch.setattr(nvml, "open_sensor", lambda: sensor)


def test_a_fail_ends_a_run_before_anything_is_started(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, *cards({}, {"nvmlDeviceGetComputeMode": 2}))
    pytester.makepyfile(GATED)
    result = pytester.runpytest("-m", "perf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: this host is not fit to gate, and nothing was started:",
            "  FAIL compute-mode: GPU 1: prohibited",
            "       costs: *",
            "       mend:  sudo nvidia-smi -i 1 -c DEFAULT",
            "see `decodegate doctor`; to measure all the same: --perf-despite=compute-mode",
        ]
    )
    result.stdout.no_fnmatch_line("*it was started*")


@pytest.mark.parametrize("despite", ["compute-mode", "room,compute-mode", "all"])
def test_a_run_goes_on_despite_what_is_named_and_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, despite: str
) -> None:
    on(monkeypatch, *cards({"nvmlDeviceGetComputeMode": 2}))
    pytester.makepyfile(GATED)
    result = pytester.runpytest("-m", "perf", f"--perf-despite={despite}")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["perf: despite compute-mode: GPU 0: prohibited: ranks of several replicates *"])


@pytest.mark.parametrize("despite", ["room", "weather"])
def test_naming_another_check_does_not_help(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, despite: str
) -> None:
    on(monkeypatch, *cards({"nvmlDeviceGetComputeMode": 2}))
    pytester.makepyfile(GATED)
    result = pytester.runpytest("-m", "perf", f"--perf-despite={despite}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    known = "ERROR: --perf-despite: 'weather' is no check that ends a run; those are memory-errors, throttling, *"
    result.stderr.fnmatch_lines([known if despite == "weather" else "  FAIL compute-mode: *"])


def test_a_warning_ends_no_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, *cards({"nvmlDeviceGetPersistenceMode": 0}))
    pytester.makepyfile(GATED)
    pytester.runpytest("-m", "perf").assert_outcomes(failed=1)
