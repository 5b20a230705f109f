"""Progress while long steps run: a line that is rewritten on a terminal, spaced-out lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from _pytest.capture import CaptureManager
    from _pytest.terminal import TerminalReporter

LOG_PERIOD_SECONDS = 10.0
"""In a file, a step that repeats itself is written at most this often."""


class TerminalProgress:
    """Says what a perf run is doing. Silent under -q; never mixes with the output of tests.

    around: puts how far the run is around the word on a step.
    """

    def __init__(self, config: pytest.Config, around: Callable[[str], str]) -> None:
        self._config = config
        self._around = around
        self._written_at = 0.0
        self._transient = False

    def say(self, text: str) -> None:
        """One step, worth its own line: a gang started, a verdict."""
        self._write(text, transient=False)

    def tick(self, text: str) -> None:
        """Where a step stands: rewritten on a terminal, now and then in a file."""
        if self._rewrites or time.monotonic() - self._written_at >= LOG_PERIOD_SECONDS:
            self._write(self._around(text), transient=self._rewrites)

    @property
    def _reporter(self) -> TerminalReporter | None:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @property
    def _rewrites(self) -> bool:
        reporter = self._reporter
        return reporter is not None and bool(reporter.isatty) and self._config.get_verbosity() < 2

    def _write(self, text: str, *, transient: bool) -> None:
        reporter = self._reporter
        if reporter is None or self._config.get_verbosity() < 0:
            return

        self._written_at = time.monotonic()
        capture: CaptureManager | None = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            self._put(reporter, text, transient)
            return

        with capture.global_and_fixture_disabled():
            self._put(reporter, text, transient)

    def _put(self, reporter: TerminalReporter, text: str, transient: bool) -> None:
        if self._transient:
            reporter.rewrite("", erase=True)
        if transient:
            reporter.rewrite(text[: reporter._tw.fullwidth - 1], erase=True)
        else:
            reporter.ensure_newline()
            reporter.write_line(text)

        self._transient = transient
