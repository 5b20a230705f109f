"""A limit for each phase of a test, so that a test that waits for ever fails by name and the run goes on.

An alarm and not pytest-timeout: decodegate draws its own deadlines in before those of pytest-timeout and of
faulthandler_timeout, so that either of them, set for this repository, would change what its tests see.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

SECONDS = 900.0
"""No test needs a third of it on two busy cores."""

LAST_RESORT_SECONDS = 120.0
"""More, for a test that is stuck outside Python, where no alarm is heard, or that goes on in spite of it."""


class Backstop:
    """A plugin of pytest: fails a setup, call or teardown that takes `seconds`, and says so.

    last_resort_seconds: if the phase has not ended so long after that, the stacks of all threads are written and the
    whole run is ended.
    """

    def __init__(self, seconds: float = SECONDS, last_resort_seconds: float = LAST_RESORT_SECONDS) -> None:
        self._seconds = seconds
        self._last_resort_seconds = last_resort_seconds
        self._stderr = 2

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the stderr that nobody captures: the last resort writes there."""
        capture = config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            self._stderr = os.dup(2)
            return

        with capture.global_and_fixture_disabled():
            self._stderr = os.dup(2)

    def pytest_unconfigure(self) -> None:
        """Close it."""
        os.close(self._stderr)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit the fixtures of a test."""
        with self._limit(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit the test."""
        with self._limit(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit what ends its fixtures."""
        with self._limit(item, "teardown"):
            return (yield)

    @contextmanager
    def _limit(self, item: pytest.Item, phase: str) -> Iterator[None]:
        def fail(_signum: int, _frame: FrameType | None) -> None:
            # No Exception: what is under test may well survive those.
            raise pytest.fail.Exception(
                f"backstop: {phase} of {item.nodeid} was not over after {self._seconds:g} s; the traceback says where "
                "it waited"
            )

        before = signal.signal(signal.SIGALRM, fail)
        faulthandler.dump_traceback_later(self._seconds + self._last_resort_seconds, file=self._stderr, exit=True)
        # Again and again: the wait that hangs may be the one of a clean-up.
        signal.setitimer(signal.ITIMER_REAL, self._seconds, self._last_resort_seconds / 4)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, before)
