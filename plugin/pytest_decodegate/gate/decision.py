"""May it go in? One answer from the verdicts of all metrics, with its reasons by cause. Pure functions.

GO: every gating metric is shown to stay inside its band. NO-GO: the candidate is wrong, slower or fails. NOT PROVEN:
anything else, such as noise, a broken measurement, or a base that fails. Several metrics are weighed together by Holm:
one of thirty will look slower by chance. Passing needs no such care, because all must pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..cause import Cause, Finding
from .pairs import holm
from .text.quantity import format_percent

ERROR = "ERROR"
"""In place of a verdict: a crash, a hang, or a stack that cannot run the test."""

LEVEL = 0.025
"""One-sided level at which metrics are called slower, for all of them together."""

MOST_NAMES = 5
MOST_REASONS = 3


class Answer(StrEnum):
    """The answer, and the exit status that stands for it."""

    GO = "GO"
    NO_GO = "NO-GO"
    NOT_PROVEN = "NOT PROVEN"

    @property
    def status(self) -> int:
        """0, 1 and 2."""
        return list(Answer).index(self)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of a run, or a test that came to no metric.

    verdict: of gate.verdict, or ERROR. kind: of metric.Kind, level: of metric.Level, "" where none is known.
    base, measured: in `unit`. change, lo, hi: fractions, + is worse. confidence: of the interval from lo to hi.
    advisory: shown, and blocks nothing but by wrong numbers. side: whose error it is, "" where nobody can tell.
    """

    name: str
    verdict: str
    kind: str = ""
    level: str = ""
    unit: str = "s"
    base: float | None = None
    measured: float | None = None
    change: float | None = None
    lo: float | None = None
    hi: float | None = None
    confidence: float | None = None
    tolerance: float | None = None
    pairs: int = 0
    p_worse: float | None = None
    advisory: bool = False
    side: str = ""
    reasons: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Ground:
    """One ground for the answer, and the metrics that it speaks for. blocks: whether it says no, or only not yet."""

    blocks: bool
    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{named(self.names)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer with its grounds, those that block first."""

    answer: Answer
    grounds: tuple[Ground, ...]


def named(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


def decide_all(rows: Sequence[Row], unfinished: str | None = None) -> Decision:
    """The answer to a run; unfinished: why it did not come to its end, None if it did."""
    grounds = [*_grounds(rows)]
    if unfinished:
        grounds.append(Ground(False, unfinished, ("the run",)))
    if not any(row.verdict in ("PASS", "IMPROVED") and not row.advisory for row in rows) and not grounds:
        grounds.append(Ground(False, "no gating metric was measured", ("the run",)))

    grounds.sort(key=lambda ground: not ground.blocks)
    if not grounds:
        return Decision(Answer.GO, ())

    return Decision(Answer.NO_GO if grounds[0].blocks else Answer.NOT_PROVEN, tuple(grounds))


def _grounds(rows: Sequence[Row]) -> Iterator[Ground]:
    """Rows that do not pass, grouped by what is behind them: ten red metrics with one cause are one."""
    slower = _slower(rows)
    groups: dict[tuple[bool, Hashable], list[Row]] = {}
    for row in rows:
        if row.verdict not in ("PASS", "IMPROVED") and (not row.advisory or row.verdict == "WRONG_RESULT"):
            blocks = _blocks(row, slower)
            groups.setdefault((blocks, _key(row)), []).append(row)

    for (blocks, _), group in groups.items():
        yield Ground(blocks, _text(group, blocks), tuple(row.name for row in group))


def _slower(rows: Sequence[Row]) -> set[str]:
    """Names of gating metrics that are slower when all are weighed together."""
    weighed = [(row, row.p_worse) for row in rows if row.p_worse is not None and not row.advisory]
    adjusted = holm(p for _, p in weighed)
    return {row.name for (row, _), p in zip(weighed, adjusted, strict=True) if p <= LEVEL}


def _blocks(row: Row, slower: set[str]) -> bool:
    if row.verdict == ERROR:
        # Beside the other stack there is less memory than the candidate would have alone.
        return row.side == "candidate" and not _out_of_memory(row)

    return row.verdict == "WRONG_RESULT" or (row.verdict == "REGRESSED" and row.name in slower)


def _key(row: Row) -> Hashable:
    """Equal for rows with one verdict for the same causes.

    What slows kernels down is not what slows collectives down, and neither may hide behind the other's names.
    """
    if row.verdict == "INCONCLUSIVE":
        return row.verdict
    if row.verdict == "REGRESSED":
        why = _why(row)
        return row.verdict, row.kind, why and why.key

    return row.verdict, tuple(dict.fromkeys(reason.key for reason in row.reasons))


def _text(group: Sequence[Row], blocks: bool) -> str:
    first = group[0]
    if first.verdict == "REGRESSED":
        return _regressed(group, blocks)
    if first.verdict == "INCONCLUSIVE":
        return (
            f"noise hides the answer ({_range(group)}); more pairs (--perf-max-replicates) or a wider band "
            "(perf_tolerance) would settle it"
        )

    reasons = [reason.brief for reason in first.reasons[:MOST_REASONS]] or ["no reason was given"]
    more = len(first.reasons) - MOST_REASONS
    return f"{first.verdict}: {'; '.join(reasons)}{f' and {more} more' if more > 0 else ''}{_hint(first)}"


def _hint(row: Row) -> str:
    if row.verdict == "CONFOUNDED" and not _has(row, Cause.UNCAUSED):
        return "; if that is part of the change, declare it with --perf-change"
    if row.verdict == ERROR and _out_of_memory(row):
        return "; beside the other stack there is less memory: --perf-replicates 3 keeps fewer gangs alive"

    return ""


def _regressed(group: Sequence[Row], blocks: bool) -> str:
    chance = "" if blocks else "; weighed with all other metrics it may be chance, so measure it again"
    why = _why(group[0])
    return f"slower by more than the band ({_range(group)}){f'; {why}' if why else ''}{chance}"


def _why(row: Row) -> Finding | None:
    """The first note that may say why the metric is slower; others say how it was measured."""
    return next((note for note in row.notes if note.cause.explains_times), None)


def _range(group: Sequence[Row]) -> str:
    changes = sorted(row.change for row in group if row.change is not None)
    ends = dict.fromkeys(map(format_percent, (changes[0], changes[-1]) if changes else ()))
    return " to ".join(ends) or "no change known"


def _out_of_memory(row: Row) -> bool:
    return _has(row, Cause.OUT_OF_MEMORY)


def _has(row: Row, cause: Cause) -> bool:
    return any(reason.cause is cause for reason in row.reasons)
