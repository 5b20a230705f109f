"""What this host can resolve: known slowdowns beside what the gate found of them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from .result import Failed, Result
from .stats.rules import surely_found
from .verdict import BY_STATISTICS, Verdict

MARGIN = 0.5
"""Of the band: a slowdown larger than the band by so much must be found; nearer the edge it may stay open."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcomes of one run with a known slowdown of the candidate, a fraction; rank: the only one that has it.

    unfinished: why the run did not come to its end, None if it did.
    """

    slowdown: float
    rank: int | None
    outcomes: tuple[Result | Failed, ...]
    unfinished: str | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Of the metrics of one kind in one trial: how many were called slower, passed, stayed open, or were not judged.

    slowdown: what was done to these metrics, 0 where a trial's slowdown does not reach them.
    expected: "pass" or "slower" where that is what all should be; "" where the slowdown is too near the band to tell.
    """

    kind: str
    slowdown: float
    rank: int | None
    slower: int
    passed: int
    open: int
    failed: int
    expected: str

    @property
    def wrong(self) -> int:
        """Metrics that the gate got wrong: false alarms, or slowdowns that it did not see."""
        if self.expected == "pass":
            return self.slower

        return self.passed + self.open if self.expected == "slower" else 0


def proven(trials: Sequence[Trial], tallies: Sequence[Tally]) -> bool:
    """Whether the gate can be relied on here: it was right everywhere, and it does let through what did not change."""
    unjudged = any(trial.unfinished for trial in trials) or any(tally.failed for tally in tallies)
    passes = any(tally.passed for tally in tallies if tally.expected == "pass")
    return passes and not unjudged and not any(tally.wrong for tally in tallies)


def findings(trials: Iterable[Trial]) -> Iterator[Tally]:
    """One for each kind in each trial, and one more for what its slowdown does not reach."""
    for trial in trials:
        groups: dict[tuple[str, float], list[Result | Failed]] = {}
        for outcome in trial.outcomes:
            groups.setdefault(_group(trial, outcome), []).append(outcome)

        for (kind, slowdown), outcomes in groups.items():
            yield _found(kind, slowdown, trial.rank, outcomes)


def _group(trial: Trial, outcome: Result | Failed) -> tuple[str, float]:
    """Kind and slowdown of an outcome, of a test that came to no verdict "" and 0.

    A slowdown is put into bursts, where only collectives have other ranks than 0, and into servers as a whole.
    """
    if isinstance(outcome, Failed):
        return "", 0.0

    kind, level = outcome.judgement.metric.kind, outcome.judgement.basis.level
    if level == "gang":
        reached = trial.rank in (None, 0) or kind == "collective"
    else:
        reached = level == "server" and trial.rank is None

    return kind, trial.slowdown if reached else 0.0


def failed(outcome: Result | Failed) -> bool:
    """Whether it says nothing about slowdowns: an error, or a verdict without statistics."""
    return isinstance(outcome, Failed) or outcome.judgement.verdict not in BY_STATISTICS


def _found(kind: str, slowdown: float, rank: int | None, outcomes: Sequence[Result | Failed]) -> Tally:
    judged = [each.judgement for each in outcomes if isinstance(each, Result) and not failed(each)]
    slower = sum(judgement.verdict is Verdict.REGRESSED for judgement in judged)
    passed = sum(judgement.verdict.passes for judgement in judged)
    expected = {_expected(slowdown, judgement.metric.tolerance) for judgement in judged}
    return Tally(
        kind,
        slowdown,
        rank if slowdown else None,
        slower,
        passed,
        len(judged) - slower - passed,
        len(outcomes) - len(judged),
        expected.pop() if len(expected) == 1 else "",
    )


def _expected(slowdown: float, band: float) -> str:
    if slowdown == 0:
        return "pass"

    return "slower" if slowdown >= (1 + MARGIN) * band else ""


def resolved(trials: Iterable[Trial]) -> dict[str, float]:
    """By kind, the smallest slowdown that the gate would find here, a fraction; the middle metric of each kind counts.

    From the trials without a slowdown.
    """
    smallest: dict[str, list[float]] = {}
    judgements = [
        outcome.judgement
        for trial in trials
        for outcome in trial.outcomes
        if trial.slowdown == 0 and isinstance(outcome, Result) and outcome.judgement.verdict.judged
    ]
    for judgement in judgements:
        lo, hi = judgement.numbers.lo, judgement.numbers.hi
        if lo is not None and hi is not None:
            smallest.setdefault(judgement.metric.kind, []).append(surely_found(judgement.metric.tolerance, lo, hi))

    return {kind: median(some) for kind, some in smallest.items()}
