"""One run of pytest on two stacks, as the commands need it: stacks go in and outcomes come out as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..process.interrupts import interrupt_on_signals
from .suite import QUIET, SuiteSelection

if TYPE_CHECKING:
    from ..gate.run import Run
    from ..settings.stack import Stack


class StacksPlugin:
    """A plugin for one run of pytest: gives it the two stacks, and adds what it says to `run`."""

    def __init__(self, base: Stack, candidate: Stack, run: Run, typed: Sequence[str]) -> None:
        self._stacks = (base, candidate)
        self._typed = typed
        self._run = run

    def pytest_decodegate_stacks(self) -> tuple[Stack, Stack]:
        """Give base and candidate."""
        return self._stacks

    def pytest_decodegate_typed(self) -> Sequence[str]:
        """Give the words of the command."""
        return self._typed

    def pytest_decodegate_outcome(self, outcome: object) -> None:
        """Keep it: whatever ends the run, what was said before is known."""
        self._run.add(outcome)


def measured(
    base: Stack, candidate: Stack, markers: str | None, arguments: Sequence[str], typed: Sequence[str] = ()
) -> Run:
    """Run the perf tests that match `markers` on both stacks; `arguments` are pytest's, `typed` the command's words.

    Raises BadInput for bad ones.

    pytest runs in this process, so that whatever ends it ends the ranks. SIGTERM is as good as Ctrl-C.
    """
    import pytest

    from ..gate.run import Run

    run = Run()
    selected = ("-m", f"perf and ({markers})" if markers else "perf")
    plugins = [StacksPlugin(base, candidate, run, typed), SuiteSelection()]
    uninterrupted = interrupt_on_signals()
    try:
        status = pytest.main([QUIET, *selected, *arguments], plugins=plugins)
    finally:
        uninterrupted()

    if status == pytest.ExitCode.USAGE_ERROR:
        raise BadInput("pytest refused to run, see above")

    return run
