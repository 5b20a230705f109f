"""Two stacks measured in turn: the group-sequential rule on pairs of processes, as pure functions.

A pair is one fresh process (gang) of each stack, sampled in the same minutes in the order A B B A, so that what warms
up, drifts or differs between sessions is the same on both sides and cancels. The difference of the two process values
is one observation, whatever the number of samples: processes differ, and t over pairs knows it. Looks are planned:
each is judged at Pocock's level, so that stopping early costs no false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from ..baseline.schema import Session, StoredMetric
from ..machine.provenance import Difference
from ..metric import Measurement
from .evidence import speculation
from .evidence.swaps import is_swap, told
from .evidence.validity import broken_rules, drift_between
from .stats.rules import POCOCK_ALPHA, Centred, Outcome, decide, worse_logs
from .stats.student import t_quantile, t_upper_tail
from .text import advice
from .text.quantity import format_band, format_percent, rounded_up_band
from .verdict import Judgement, Verdict, geometric_mean, identity_differences

FIRST_PAIRS = 6
"""Of the first look: with fewer the quantiles of t explode (power at +2 % is .62 with 4 pairs)."""

MOST_PAIRS = 24
MOST_FORESEEN = 100
"""Pairs up to which it is foreseen whether more would settle an open verdict."""


@dataclass(frozen=True, slots=True)
class PairedComparison(Centred):
    """Log differences of pairs, candidate minus base, + is worse. alpha: two-sided level of the interval."""

    differences: tuple[float, ...]
    alpha: float
    change: float = field(init=False)
    half_width: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "change", fmean(self.differences))
        object.__setattr__(self, "half_width", _half_width(self, len(self.differences)))

    @property
    def pair_sd(self) -> float:
        """Standard deviation of one pair, as a fraction."""
        return stdev(self.differences)

    @property
    def _error(self) -> float:
        return self.pair_sd / math.sqrt(len(self.differences))

    @property
    def p_worse(self) -> float:
        """One-sided p of "the candidate is not slower", over all planned looks.

        The nominal p of this look times what Pocock's level was lowered by: at most .025 where lo is above zero.
        """
        if self._error == 0:
            return 0.0 if self.change > 0 else 1.0

        tail = t_upper_tail(self.change / self._error, len(self.differences) - 1)
        return min(1.0, tail * POCOCK_ALPHA[1] / self.alpha)


@dataclass(frozen=True, slots=True)
class Contrast:
    """What is known of two stacks besides times.

    differences: everything that differs in provenance. undeclared: the part that confounds.
    unused: why a declared difference did not come about, in sentences.
    """

    differences: tuple[Difference, ...] = ()
    undeclared: tuple[Difference, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything that was declared differs: only then may something else run."""
        return any(one not in self.undeclared for one in self.differences)


@dataclass(frozen=True, slots=True)
class Side:
    """One stack's measurement of a metric.

    wrong: how its numbers are wrong. broken: rules that watchers saw broken. notes: what a reader should know.
    """

    measurement: Measurement
    wrong: str | None = None
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def planned_looks(first: int, most: int) -> tuple[int, ...]:
    """Numbers of pairs at which the verdict is looked at: at most three, at FIRST_PAIRS and MOST_PAIRS 6, 12, 24."""
    return tuple(sorted({first, min(2 * first, most), most}))


def compare_pairs(base: Measurement, candidate: Measurement, looks: int) -> PairedComparison:
    """Compare the i-th replicate of both sides, for each i; `looks` are planned in all, a key of POCOCK_ALPHA."""
    better = candidate.metric.better
    sides = worse_logs(base.values, better), worse_logs(candidate.values, better)
    return PairedComparison(tuple(new - old for old, new in zip(*sides, strict=True)), POCOCK_ALPHA[looks])


def judge_pairs(base: Side, candidate: Side, contrast: Contrast, looks: int) -> Judgement:
    """Judge a candidate against a base; the first that holds wins: wrong, invalid, confounded, then the statistics."""
    judgement = Judgement(
        metric=candidate.measurement.metric,
        verdict=Verdict.WRONG_RESULT,
        level=candidate.measurement.level,
        replicates=len(candidate.measurement.replicates),
        measured=geometric_mean(candidate.measurement.values),
        base=geometric_mean(base.measurement.values),
        looks=looks,
        paired=True,
        notes=tuple(_by_side((base.notes, candidate.notes))),
    )
    if candidate.wrong is not None:
        return replace(judgement, reasons=(f"candidate: {candidate.wrong}",), advice=advice.wrong_result())
    if broken := tuple(_invalid(base, candidate, contrast)):
        return replace(judgement, verdict=Verdict.INVALID, reasons=broken, advice=advice.invalid())

    stored = _as_stored(base.measurement)
    another = tuple(identity_differences(stored, judgement.metric, judgement.level))
    swaps = told(filter(is_swap, another))
    judgement = replace(judgement, notes=(*swaps, *judgement.notes))
    if refused := [str(one) for one in (*contrast.undeclared, *another) if not is_swap(one)]:
        advised = (_confounded(contrast.undeclared),)
        return replace(judgement, verdict=Verdict.CONFOUNDED, reasons=tuple(refused), advice=advised)
    if swaps and not contrast.changed:
        return replace(judgement, verdict=Verdict.CONFOUNDED, reasons=(UNCAUSED, *swaps), advice=(_CHOSEN_ANEW,))

    comparison = compare_pairs(base.measurement, candidate.measurement, looks)
    outcome = decide(comparison, judgement.metric.tolerance)
    accepted = speculation.notes(candidate.measurement.replicates, stored, math.expm1(comparison.change))
    return replace(
        judgement,
        verdict=Verdict(outcome),
        notes=(*accepted, *judgement.notes),
        change=math.expm1(comparison.change),
        lo=math.expm1(comparison.lo),
        hi=math.expm1(comparison.hi),
        confidence=1 - comparison.alpha,
        p_worse=comparison.p_worse,
        changed=tuple(map(str, contrast.differences)),
        advice=tuple(_advice(outcome, comparison, judgement.metric.tolerance)),
    )


UNCAUSED = "nothing that was declared differs, yet the two sides ran something else"
"""Why metrics of two equal stacks confound: declaring a change would not help."""

_CHOSEN_ANEW = (
    "a library chose anew in each process: find what the choice depends on (free memory, tuning, a cache), or pin it"
)


def _confounded(undeclared: Sequence[Difference]) -> str:
    """What to do; only what may be declared is advised to be."""
    names = dict.fromkeys(advice.declaration(one) for one in undeclared if one.declarable)
    declare = f", or say what else is part of the change under test: --perf-change {','.join(names)}" if names else ""
    return f"make the two stacks differ in one thing only{declare}"


def _invalid(base: Side, candidate: Side, contrast: Contrast) -> Iterator[str]:
    """Why nothing can be judged, in sentences; a base that computes wrong numbers is no measure for anybody."""
    if contrast.unused:
        yield from contrast.unused
        return
    if base.wrong is not None:
        yield f"the base computes wrong numbers, so nothing can be measured against it: {base.wrong}"
        return

    yield from _by_side([(*side.broken, *broken_rules(side.measurement, in_turn=True)) for side in (base, candidate)])
    yield from drift_between(base.measurement, candidate.measurement)


def _by_side(sides: Sequence[Sequence[str]]) -> Iterator[str]:
    """Sentences about base and candidate with the side named, unless it is said of both."""
    base, candidate = (tuple(dict.fromkeys(side)) for side in sides)
    yield from (one for one in base if one in candidate)
    yield from (f"base: {one}" for one in base if one not in candidate)
    yield from (f"candidate: {one}" for one in candidate if one not in base)


def _as_stored(base: Measurement) -> StoredMetric:
    """The base as a baseline of one session, which is what identities and acceptance are compared with."""
    return StoredMetric(base.metric, (Session("", "", base.level, base.replicates),))


def pairs_that_settle(comparison: PairedComparison, tolerance: float) -> int | None:
    """The fewest pairs that would have settled an open comparison, had change and noise stayed as they are."""
    band = math.log1p(tolerance)
    room = comparison.change if comparison.change > band else band - comparison.change
    counts = range(len(comparison.differences) + 1, MOST_FORESEEN + 1)
    return next((count for count in counts if _half_width(comparison, count) < room), None)


def surely_found(tolerance: float, lo: float, hi: float) -> float:
    """The smallest slowdown that is found almost surely where the interval is [lo, hi], a fraction.

    REGRESSED needs a change beyond the band and an interval above zero; chance hides half an interval of it at most.
    """
    half = (hi - lo) / 2
    return max(tolerance, half) + half


def _half_width(comparison: PairedComparison, pairs: int) -> float:
    return t_quantile(1 - comparison.alpha / 2, pairs - 1) * comparison.pair_sd / math.sqrt(pairs)


def _advice(outcome: Outcome, comparison: PairedComparison, tolerance: float) -> Iterator[str]:
    if outcome == "REGRESSED":
        yield "undo the change, or a part of it at a time, to find what costs; do not roll out until then"
    if outcome == "IMPROVED":
        yield "be suspicious first: is the same work still done (result checks, cache hits, skipped layers, clocks)?"
    if outcome == "INCONCLUSIVE":
        yield from _open_still(comparison, tolerance)


def _open_still(comparison: PairedComparison, tolerance: float) -> Iterator[str]:
    noise = f"one pair scatters by {format_percent(comparison.pair_sd, signed=False)}"
    if (pairs := pairs_that_settle(comparison, tolerance)) is not None:
        yield f"{noise}; {pairs} pairs would have settled it: --perf-max-replicates {pairs}"
    else:
        yield f"{noise}; not even {MOST_FORESEEN} pairs would have settled it: the change lies too near the band's edge"

    band = format_band(rounded_up_band(math.expm1(comparison.hi)))
    yield f"a band of {band} would have passed, if you accept that loss"


def holm(p_values: Iterable[float]) -> list[float]:
    """Holm's adjusted p, in the order given: below a level, each hypothesis is refused at that level for all together.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2), 1979.
    """
    given = list(p_values)
    adjusted = [0.0] * len(given)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(given)), key=given.__getitem__)):
        largest = max(largest, min(1.0, given[index] * (len(given) - rank)))
        adjusted[index] = largest

    return adjusted
