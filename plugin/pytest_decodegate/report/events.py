"""What a run on two stacks writes besides its verdicts, line by line: the stacks, tests without a verdict, its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..printable import printable_lines
from ..redaction import redact_text

if TYPE_CHECKING:
    import pytest

    from ..errors import DecodegateError
    from ..gate.pairs import Contrast
    from ..metric import Json, Metric
    from ..settings.stack import Stack

UNFINISHED = {
    2: "pytest was interrupted, or could not collect the tests",
    3: "pytest failed itself",
    4: "pytest refused its arguments",
    5: "no perf test was selected",
}
"""Why a run with this exit status says nothing about what was not measured."""


def stacks(pair: tuple[Stack, Stack], machine_class: str, contrast: Contrast) -> dict[str, Json]:
    """What is compared: base and candidate, and how what they loaded differs."""
    base, candidate = map(str, pair)
    return {
        "base": base,
        "candidate": candidate,
        "machine_class": machine_class,
        "differences": [str(one) for one in contrast.differences],
        "undeclared": [str(one) for one in contrast.undeclared],
        "unused": list(contrast.unused),
    }


def failed(
    report: pytest.TestReport, failure: tuple[Metric | None, DecodegateError] | None, *, advisory: bool
) -> dict[str, Json]:
    """A test that came to no verdict; failure: the metric that it measured and our error, if it was one."""
    told: dict[str, Json] = {"test": report.nodeid, "advisory": advisory, "metric": None, "unit": "s"}
    if failure is None:
        return {**told, **_of_error(None), "reason": _crash(report)}

    metric, error = failure
    if metric is not None:
        told |= {"metric": metric.name, "unit": metric.unit}

    return {**told, **_of_error(error)}


def _of_error(error: DecodegateError | None) -> dict[str, Json]:
    """Whose error it is, what the base gave before, and the error itself."""
    from ..gate.verdict import geometric_mean
    from ..measure.paired_source import StackFailed

    if not isinstance(error, StackFailed):
        return {"side": "", "base": None, "reason": _named(error) if error else ""}

    base = geometric_mean([replicate.value for replicate in error.base])
    return {"side": error.side, "base": base, "reason": _named(error.cause)}


def _named(error: DecodegateError) -> str:
    return f"{type(error).__name__}: {error}"


def _crash(report: pytest.TestReport) -> str:
    """What was raised; the whole text of pytest begins with lines of the test."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return printable_lines(redact_text(str(crash.message) if crash else report.longreprtext))


def skipped(report: pytest.TestReport) -> dict[str, Json]:
    """A test that was skipped, and why."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return {"test": report.nodeid, "reason": printable_lines(redact_text(reason.removeprefix("Skipped: ")))}


def end(exit_status: int, problem: str | None, left_out: int, seconds: float) -> dict[str, Json]:
    """The end of the run. problem: what went wrong outside of tests. left_out: perf tests that were never begun."""
    unfinished = problem or UNFINISHED.get(exit_status)
    if unfinished is None and left_out:
        unfinished = f"{left_out} of the selected perf tests were never begun: pytest was told to stop early"

    return {"unfinished": unfinished, "seconds": seconds}
