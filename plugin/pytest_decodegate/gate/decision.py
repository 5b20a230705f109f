"""May it go in? One answer from the verdicts of all metrics, with its reasons by cause. Pure functions.

GO: every gating metric is shown to stay inside its band. NO-GO: the candidate is wrong, slower or fails. NOT PROVEN:
anything else, such as noise, a broken measurement, or a base that fails. Several metrics are weighed together by Holm:
one of thirty will look slower by chance. Passing needs no such care, because all must pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter

from .pairs import UNCAUSED, holm
from .text.brief import alike, brief
from .text.quantity import format_percent

ERROR = "ERROR"
"""In place of a verdict: a crash, a hang, or a stack that cannot run the test."""

LEVEL = 0.025
"""One-sided level at which metrics are called slower, for all of them together."""

MOST_NAMES = 5
MOST_REASONS = 3

_OUT_OF_MEMORY = re.compile(
    r"out[ _]of[ _]memory|out-of-memory killer struck|OutOfMemory|cannot allocate memory", re.IGNORECASE
)
"""Of a GPU, of NCCL and of the host; a killer that may have struck (gang.exit_reasons) is no evidence."""

_WHY = re.compile(r"a kernel (appeared|is gone|runs)\b|\w changed: |STRAGGLER|acceptance length|speculative decoding")
"""In notes that may say why a metric is slower (gate.swaps, stragglers, speculation); others say how it was taken."""


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
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for the answer, and the metrics that it speaks for. blocks: whether it says no, or only not yet."""

    blocks: bool
    text: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{named(self.names)}: {self.text}"


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer with its causes, those that block first."""

    answer: Answer
    causes: tuple[Cause, ...]


def named(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


def decide_all(rows: Sequence[Row], unfinished: str | None = None) -> Decision:
    """The answer to a run; unfinished: why it did not come to its end, None if it did."""
    causes = [*_causes(rows)]
    if unfinished:
        causes.append(Cause(False, unfinished, ("the run",)))
    if not any(row.verdict in ("PASS", "IMPROVED") and not row.advisory for row in rows) and not causes:
        causes.append(Cause(False, "no gating metric was measured", ("the run",)))

    causes.sort(key=lambda cause: not cause.blocks)
    if not causes:
        return Decision(Answer.GO, ())

    return Decision(Answer.NO_GO if causes[0].blocks else Answer.NOT_PROVEN, tuple(causes))


def _causes(rows: Sequence[Row]) -> Iterator[Cause]:
    """Rows that do not pass, grouped by what is behind them: ten red metrics with one cause are one."""
    slower = _slower(rows)
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        if row.verdict not in ("PASS", "IMPROVED") and (not row.advisory or row.verdict == "WRONG_RESULT"):
            blocks = _blocks(row, slower)
            groups.setdefault((blocks, _kind_of_cause(row)), []).append(row)

    for (blocks, _), group in groups.items():
        yield Cause(blocks, _text(group, blocks), tuple(row.name for row in group))


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


def _kind_of_cause(row: Row) -> str:
    """Equal for rows with one cause: numbers in a sentence are what differs between metrics.

    What slows kernels down is not what slows collectives down, and neither may hide behind the other's names.
    """
    said = {"INCONCLUSIVE": (), "REGRESSED": (row.kind, _why(row))}.get(row.verdict, row.reasons)
    return " ".join(dict.fromkeys([row.verdict, *map(alike, said)]))


def _text(group: Sequence[Row], blocks: bool) -> str:
    first = group[0]
    if first.verdict == "REGRESSED":
        return _regressed(group, blocks)
    if first.verdict == "INCONCLUSIVE":
        return (
            f"noise hides the answer ({_range(group)}); more pairs (--perf-max-replicates) or a wider band "
            "(perf_tolerance) would settle it"
        )

    reasons = [brief(one) for one in first.reasons[:MOST_REASONS]] or ["no reason was given"]
    more = len(first.reasons) - MOST_REASONS
    return f"{first.verdict}: {'; '.join(reasons)}{f' and {more} more' if more > 0 else ''}{_hint(first)}"


def _hint(row: Row) -> str:
    if row.verdict == "CONFOUNDED" and UNCAUSED not in row.reasons:
        return "; the metric's own text says what may be declared as part of the change"
    if row.verdict == ERROR and _out_of_memory(row):
        return "; beside the other stack there is less memory: --perf-replicates 3 keeps fewer gangs alive"

    return ""


def _regressed(group: Sequence[Row], blocks: bool) -> str:
    chance = "" if blocks else "; weighed with all other metrics it may be chance, so measure it again"
    why = f"; {note}" if (note := _why(group[0])) else ""
    return f"slower by more than the band ({_range(group)}){why}{chance}"


def _why(row: Row) -> str:
    return next(filter(_WHY.search, row.notes), "")


def _range(group: Sequence[Row]) -> str:
    changes = sorted(((row.change, row.tolerance) for row in group if row.change is not None), key=itemgetter(0))
    ends = dict.fromkeys(format_percent(change, beside=band) for change, band in changes[:1] + changes[-1:])
    return " to ".join(ends) or "no change known"


def _out_of_memory(row: Row) -> bool:
    return any(_OUT_OF_MEMORY.search(reason) for reason in row.reasons)
