"""The limit that keeps a hanging test from hanging the run; and SIGINT, which a run in the background ignores."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from backstop import Backstop

SECONDS = 240.0

CONFTEST = """
    from backstop import Backstop

    def pytest_configure(config):
        config.pluginmanager.register(Backstop({seconds}, {last_resort}))
"""


@pytest.fixture(autouse=True)
def support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def run(pytester: pytest.Pytester, test: str, *, seconds: float, last_resort: float) -> pytest.RunResult:
    pytester.makeini("[pytest]\n")
    pytester.makeconftest(CONFTEST.format(seconds=seconds, last_resort=last_resort))
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:decodegate", "-p", "no:cacheprovider", timeout=SECONDS)


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_a_phase_that_waits_for_ever_fails_by_name_and_the_run_goes_on(pytester: pytest.Pytester, phase: str) -> None:
    test = f"""
        import threading
        import pytest

        def wait(phase):
            if phase == {phase!r}:
                threading.Event().wait()

        @pytest.fixture
        def slow():
            wait("setup")
            yield
            wait("teardown")

        def test_hangs(slow):
            wait("call")

        def test_next():
            pass
    """
    result = run(pytester, test, seconds=0.5, last_resort=SECONDS)
    result.stdout.fnmatch_lines([f"*backstop: {phase} of *test_hangs was not over after 0.5 s*"])
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 1
    assert outcomes["passed"] == (2 if phase == "teardown" else 1)


def test_a_wait_for_a_child_that_nobody_ends_is_over_too(pytester: pytest.Pytester) -> None:
    """As `with subprocess.Popen` does after an assertion failed in its block."""
    test = """
        import subprocess

        def test_hangs():
            with subprocess.Popen(["sleep", "20"]):
                assert False, "what was to end the child failed"
    """
    result = run(pytester, test, seconds=0.5, last_resort=SECONDS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*what was to end the child failed*", "*backstop: call of *test_hangs was not over*"])


def test_a_test_that_no_alarm_can_end_ends_the_run_with_all_stacks(pytester: pytest.Pytester) -> None:
    test = """
        import signal, threading

        def test_deaf():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            threading.Event().wait()
    """
    result = run(pytester, test, seconds=0.2, last_resort=0.5)
    assert result.ret == 1
    result.stderr.fnmatch_lines(["Timeout (*)!", "*in test_deaf"])


def test_this_very_run_has_it(request: pytest.FixtureRequest) -> None:
    assert isinstance(request.config.pluginmanager.get_plugin("backstop"), Backstop)
    assert signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, signal.SIG_IGN, None)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
