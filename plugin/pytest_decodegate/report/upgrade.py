"""What a run on two stacks says, as one table with one answer, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..gate.decision import Decision, decide_all, named
from ..gate.result import Ended, Failed, Result, Skipped, Stacks
from .fields import as_json
from .table import Column, Row, cells, table, unjudged

HEADER = ("metric", "base", "candidate", "change", "interval", "band", "verdict", "pairs")
COLUMNS: tuple[Column, ...] = ("name", "base", "measured", "change", "interval", "band", "verdict", "pairs")
"""What stands under HEADER."""

SCHEMA = 2
"""Version of the JSON document."""


@dataclass(slots=True)
class Run:
    """A run on two stacks: its outcomes in the order they came, what the stacks were, and what was skipped and why.

    unfinished: why it did not come to its end. seconds: how long it took, where it came to its end.
    """

    outcomes: list[Result | Failed] = field(default_factory=list)
    stacks: Stacks | None = None
    skipped: list[Skipped] = field(default_factory=list)
    unfinished: str | None = "pytest did not come to its end"
    seconds: float | None = None

    def add(self, outcome: object) -> None:
        """Take what the run says, as it comes; what having ranks cost is no finding."""
        match outcome:
            case Result() | Failed():
                self.outcomes.append(outcome)
            case Skipped():
                self.skipped.append(outcome)
            case Stacks():
                self.stacks = outcome
            case Ended(unfinished, seconds):
                self.unfinished, self.seconds = unfinished, seconds

    @property
    def decision(self) -> Decision:
        """The answer."""
        return decide_all(self.outcomes, self.unfinished)


def text(run: Run) -> str:
    """The table, the reasons by cause, and the answer in the last line."""
    return "\n".join([*_lines(run), ""])


def _lines(run: Run) -> Iterator[str]:
    if run.stacks:
        yield f"base:      {run.stacks.base}"
        yield f"candidate: {run.stacks.candidate}"
        yield from (f"differs:   {difference}" for difference in run.stacks.contrast.differences)
        yield ""
    if run.outcomes:
        yield from table([HEADER, *map(_cells, run.outcomes)])
        yield from unjudged(map(_row, run.outcomes))
        yield ""

    yield from _skipped(run.skipped)
    decision = run.decision
    yield from (f"{'NO-GO' if ground.blocks else 'open'}: {ground}" for ground in decision.grounds)
    if run.seconds is not None:
        yield f"took: {run.seconds / 60:.1f} min"

    yield f"answer: {decision.answer}"


def _skipped(skipped: Sequence[Skipped]) -> Iterator[str]:
    """One line for each reason: a host with few GPUs skips dozens of tests for one."""
    for why in dict.fromkeys(test.reason for test in skipped):
        yield f"skipped: {named([test.nodeid for test in skipped if test.reason == why])}: {why}"


def _cells(outcome: Result | Failed) -> tuple[str, ...]:
    return cells(_row(outcome), COLUMNS, ", advisory" if outcome.advisory else "")


def _row(outcome: Result | Failed) -> Row:
    return outcome.judgement if isinstance(outcome, Result) else outcome


def document(run: Run) -> str:
    """The same as strict JSON: values in the metric's unit, changes as fractions of the base."""
    decision = run.decision
    whole = {
        "schema": SCHEMA,
        "answer": decision.answer,
        "exit_status": decision.answer.status,
        "unfinished": run.unfinished,
        "seconds": run.seconds,
        "stacks": as_json(run.stacks) if run.stacks else {},
        "causes": [as_json(ground) for ground in decision.grounds],
        "metrics": [as_json(outcome) for outcome in run.outcomes],
        "skipped": [as_json(test) for test in run.skipped],
    }
    return json.dumps(whole, allow_nan=False, indent=1) + "\n"
