"""One run of pytest on two stacks, as the commands need it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..process.interrupts import interrupt_on_sigterm

if TYPE_CHECKING:
    from ..report.upgrade import Run
    from ..settings.stack import Stack


def measured(base: Stack, candidate: Stack, markers: str | None, arguments: Sequence[str]) -> Run:
    """Run the perf tests that match `markers` on both stacks; `arguments` are pytest's. Raises BadInput for bad ones.

    pytest runs in this process, so that whatever ends it ends the ranks. SIGTERM is as good as Ctrl-C.
    """
    import pytest

    from ..report.upgrade import read

    if any(argument.startswith("--perf-report") for argument in arguments):
        raise BadInput(
            "--perf-report: this command reads that file itself; `decodegate upgrade --json FILE` keeps it all"
        )

    with tempfile.TemporaryDirectory(prefix="decodegate-") as folder:
        report = Path(folder, "report.jsonl")
        stacks = (*_given("--perf-against", base), *_given("--perf-stack", candidate))
        selected = ("-m", f"perf and ({markers})" if markers else "perf")
        # The plugin runs already, as this command, and asserts nothing that would have to be rewritten.
        quiet = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
        uninterrupted = interrupt_on_sigterm()
        try:
            status = pytest.main([quiet, *selected, *stacks, f"--perf-report={report}", *arguments])
        finally:
            uninterrupted()

        if status == pytest.ExitCode.USAGE_ERROR:
            raise BadInput("pytest refused its arguments, see above")

        return read(report)


def _given(option: str, stack: Stack) -> Sequence[str]:
    """`stack` as option of pytest, a part at a time, because a value may hold a comma."""
    return [f"{option}={part}" for part in stack.parts]
