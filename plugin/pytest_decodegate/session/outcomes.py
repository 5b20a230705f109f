"""What a run on two stacks says besides its verdicts: tests without one, skips, and how the run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cause import Cause, Finding, cause_of_text
from ..gate.result import Ended, Failed, Skipped
from ..gate.verdict import geometric_mean
from ..measure.paired_source import StackFailed
from ..printable import printable_lines
from ..redaction import redact_text

if TYPE_CHECKING:
    import pytest

    from ..errors import DecodegateError
    from ..metric import Metric

UNFINISHED = {
    2: "pytest was interrupted, or could not collect the tests",
    3: "pytest failed itself",
    4: "pytest refused to run",
    5: "no perf test was selected",
}
"""Why a run with this exit status says nothing about what was not measured."""


def failed(
    report: pytest.TestReport, failure: tuple[Metric | None, DecodegateError] | None, *, advisory: bool
) -> Failed:
    """A test that came to no verdict; failure: the metric that it measured and our error, if it was one."""
    if failure is None:
        return Failed(report.nodeid, _crash(report), advisory=advisory)

    metric, error = failure
    if not isinstance(error, StackFailed):
        return Failed(report.nodeid, error.finding, metric, advisory=advisory)

    base = geometric_mean([replicate.value for replicate in error.base])
    return Failed(report.nodeid, error.error.finding, metric, error.side, base, advisory)


def _crash(report: pytest.TestReport) -> Finding:
    """What was raised; the whole text of pytest begins with lines of the test."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = printable_lines(redact_text(str(crash.message) if crash else report.longreprtext))
    return Finding(text, cause_of_text(text) or Cause.EXCEPTION, text, brief=text.partition("\n")[0])


def skipped(report: pytest.TestReport) -> Skipped:
    """A test that was skipped, and why."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return Skipped(report.nodeid, printable_lines(redact_text(reason.removeprefix("Skipped: "))))


def ended(exit_status: int, problem: str | None, left_out: int, seconds: float) -> Ended:
    """The end of the run. problem: what went wrong outside of tests. left_out: perf tests that were never begun."""
    unfinished = problem or UNFINISHED.get(exit_status)
    if unfinished is None and left_out:
        unfinished = f"{left_out} of the selected perf tests were never begun: pytest was told to stop early"

    return Ended(unfinished, seconds)
