"""What this host can resolve: known slowdowns beside what the gate found of them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from .decision import Row
from .pairs import surely_found

MARGIN = 0.5
"""Of the band: a slowdown larger than the band by so much must be found; nearer the edge it may stay open."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The rows of one run with a known slowdown of the candidate, a fraction; rank: the only one that has it.

    unfinished: why the run did not come to its end, None if it did.
    """

    slowdown: float
    rank: int | None
    rows: tuple[Row, ...]
    unfinished: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
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


def proven(trials: Sequence[Trial], found: Sequence[Found]) -> bool:
    """Whether the gate can be relied on here: it was right everywhere, and it does let through what did not change."""
    unjudged = any(trial.unfinished for trial in trials) or any(one.failed for one in found)
    passes = any(one.passed for one in found if one.expected == "pass")
    return passes and not unjudged and not any(one.wrong for one in found)


def findings(trials: Iterable[Trial]) -> Iterator[Found]:
    """One for each kind in each trial, and one more for what its slowdown does not reach."""
    for trial in trials:
        groups: dict[tuple[str, float], list[Row]] = {}
        for row in trial.rows:
            groups.setdefault((row.kind, _reaching(trial, row)), []).append(row)

        for (kind, slowdown), rows in groups.items():
            yield _found(kind, slowdown, trial.rank, rows)


def _reaching(trial: Trial, row: Row) -> float:
    """The slowdown of a row: it is put into bursts, where only collectives have other ranks than 0, and into servers
    as a whole.
    """
    if row.level == "gang":
        reached = trial.rank in (None, 0) or row.kind == "collective"
    else:
        reached = row.level == "server" and trial.rank is None

    return trial.slowdown if reached else 0.0


def failed(row: Row) -> bool:
    """Whether the row says nothing about slowdowns: an error, or a verdict without statistics."""
    return row.verdict not in ("PASS", "IMPROVED", "REGRESSED", "INCONCLUSIVE")


def _found(kind: str, slowdown: float, rank: int | None, rows: Sequence[Row]) -> Found:
    slower = sum(row.verdict == "REGRESSED" for row in rows)
    passed = sum(row.verdict in ("PASS", "IMPROVED") for row in rows)
    broken = sum(map(failed, rows))
    expected = {_expected(slowdown, row.tolerance or 0.0) for row in rows if not failed(row)}
    return Found(
        kind,
        slowdown,
        rank if slowdown else None,
        slower,
        passed,
        len(rows) - slower - passed - broken,
        broken,
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
    for trial in trials:
        for row in trial.rows:
            if trial.slowdown == 0 and row.hi is not None and row.lo is not None and row.tolerance is not None:
                smallest.setdefault(row.kind, []).append(surely_found(row.tolerance, row.lo, row.hi))

    return {kind: median(some) for kind, some in smallest.items()}
