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
from ..cause import Cause, Finding
from ..machine.provenance import Difference
from ..machine.reach import without_harmless
from ..metric import Measurement, Metric
from .evidence import speculation
from .evidence.apart import apart_findings, places
from .evidence.swaps import is_swap, swap_findings
from .evidence.validity import LEAST_REPLICATES, broken_rules, drift_between
from .published import MODEL
from .stats.looks import POCOCK_ALPHA
from .stats.noise import Variance
from .stats.recorded import NoiseClass, noise_class, recorded
from .stats.rules import Settlement, decide, worse_logs
from .stats.student import t_quantile, t_upper_tail
from .verdict import (
    Basis,
    Judgement,
    Numbers,
    Verdict,
    difference_finding,
    geometric_mean,
    identity_differences,
    with_apart,
)

FIRST_PAIRS = 6
"""Of the first look: with fewer the quantiles of t explode (power at +2 % is .62 with 4 pairs)."""

MOST_PAIRS = 24

PLANNED_LOOKS = 3
"""At most, as stats.looks.planned_looks plans them."""

MOST_FORESEEN = 100
"""Pairs up to which it is foreseen whether more would settle an open verdict."""


NO_PRIOR = Variance(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Log differences of pairs, candidate minus base, + is worse. looks: planned in all, a key of POCOCK_ALPHA.

    prior: the variance of a pair elsewhere, with its weight in degrees of freedom; of none there is no weight.
    half_width: half of the interval, Student's t over pairs, whose variance is drawn towards the prior (Smyth, "Linear
    models and empirical Bayes methods", SAGMB 3(1), 2004).
    """

    differences: tuple[float, ...]
    looks: int
    prior: Variance = NO_PRIOR
    change: float = field(init=False)
    half_width: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "change", fmean(self.differences))
        object.__setattr__(self, "half_width", _half_width(self, len(self.differences)))

    @property
    def lo(self) -> float:
        """Lower end of the interval."""
        return self.change - self.half_width

    @property
    def hi(self) -> float:
        """Upper end of the interval."""
        return self.change + self.half_width

    @property
    def alpha(self) -> float:
        """Two-sided level of the interval."""
        return POCOCK_ALPHA[self.looks]

    @property
    def confidence(self) -> float:
        """Nominal one of the interval."""
        return 1 - self.alpha

    @property
    def pair_sd(self) -> float:
        """Standard deviation of one pair, as a fraction."""
        return stdev(self.differences)

    @property
    def error(self) -> float:
        """Standard error of the change."""
        return math.sqrt(_variance(self, len(self.differences)).value / len(self.differences))

    @property
    def p_worse(self) -> float:
        """One-sided p of "the candidate is not slower", over all planned looks: that of this look times their number.

        Each look sees fresh pairs. Pocock's level, which decides about one metric, gains a little by how they overlap;
        far out, where many metrics are weighed together, nothing is left of that gain.
        """
        if self.error == 0:
            return 0.0 if self.change > 0 else 1.0

        df = _variance(self, len(self.differences)).df
        return min(1.0, self.looks * t_upper_tail(self.change / self.error, df))


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
        return any(difference not in self.undeclared for difference in self.differences)


@dataclass(frozen=True, slots=True)
class Side:
    """One stack's measurement of a metric.

    wrong: how its numbers are wrong. broken: rules that watchers saw broken. notes: what a reader should know.
    """

    measurement: Measurement
    wrong: str | None = None
    broken: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


def compare_pairs(base: Measurement, candidate: Measurement, looks: int) -> PairedComparison:
    """Compare the i-th replicate of both sides, for each i; `looks` are planned in all, a key of POCOCK_ALPHA."""
    better = candidate.metric.better
    sides = worse_logs(base.values, better), worse_logs(candidate.values, better)
    differences = tuple(new - old for old, new in zip(*sides, strict=True))
    return PairedComparison(differences, looks, _prior(noise_class(candidate.metric, candidate.level)))


def _prior(noise: NoiseClass) -> Variance:
    """What is known of a pair before any was measured, where pairs are so dear that there are few: of server starts."""
    if noise.level != "server":
        return NO_PRIOR

    known = recorded(noise)
    return Variance(2 * known.process_sd**2, known.process_df)


def judge_pairs(base: Side, candidate: Side, contrast: Contrast, looks: int) -> Judgement:
    """Judge a candidate against a base; the first that holds wins: wrong, invalid, confounded, then the statistics."""
    judgement = Judgement(
        metric=candidate.measurement.metric,
        verdict=Verdict.WRONG_RESULT,
        basis=Basis(candidate.measurement.level, len(candidate.measurement.replicates), reference="stack", looks=looks),
        numbers=Numbers(geometric_mean(candidate.measurement.values), geometric_mean(base.measurement.values)),
        notes=tuple(_by_side([(*side.notes, *apart_findings(side.measurement)) for side in (base, candidate)])),
    )
    if candidate.wrong is not None:
        wrong = Finding(f"candidate: {candidate.wrong}", Cause.WRONG_NUMBERS, candidate.wrong)
        return replace(judgement, reasons=(wrong,))
    broken = tuple(_invalid(base, candidate, contrast))
    if broken and not _are_few(broken, judgement):
        return _shown(replace(judgement, verdict=Verdict.INVALID, reasons=broken), base, candidate, looks)

    stored = _as_stored(base.measurement)
    another = tuple(_not_declared(identity_differences(stored, judgement.metric, judgement.basis.level), contrast))
    swaps = swap_findings(filter(is_swap, another))
    contrast, free = _that_counts(contrast, judgement.metric)
    judgement = replace(judgement, notes=(*swaps, *judgement.notes), differences=contrast.differences, harmless=free)
    if refused := [each for each in (*contrast.undeclared, *another) if not is_swap(each)]:
        reasons = tuple(map(difference_finding, refused))
        confounded = replace(judgement, verdict=Verdict.CONFOUNDED, reasons=reasons, undeclared=tuple(refused))
        return _shown(confounded, base, candidate, looks)
    if swaps and not contrast.changed:
        uncaused = replace(judgement, verdict=Verdict.CONFOUNDED, reasons=(UNCAUSED, *swaps))
        return _shown(uncaused, base, candidate, looks)
    if broken:
        return _shown(replace(judgement, verdict=Verdict.INVALID, reasons=broken), base, candidate, looks)

    judgement = replace(judgement, changed=tuple(map(str, contrast.differences)))
    sides = base.measurement, candidate.measurement
    return with_apart(_weighed(judgement, *sides), lambda: _weighed(judgement, *_rest(*sides)))


def _are_few(broken: Sequence[Finding], judgement: Judgement) -> bool:
    """Whether nothing but their number is wrong: more of them would not mend what differs, so that is said first."""
    return judgement.basis.replicates > 0 and all(each.cause is Cause.TOO_FEW for each in broken)


def _not_declared(another: Iterable[Difference], contrast: Contrast) -> Iterator[Difference]:
    """Fields that make it another measurement, without the model where that is what differs on purpose."""
    on_purpose = {each.field for each in contrast.differences if each not in contrast.undeclared}
    return (each for each in another if not (each.field == MODEL and "model" in on_purpose))


def _rest(base: Measurement, candidate: Measurement) -> tuple[Measurement, Measurement]:
    """Both sides without the pairs in which a process is apart from the others of its side."""
    gone = {*places(base.metric, base.replicates), *places(candidate.metric, candidate.replicates)}

    def rest(side: Measurement) -> Measurement:
        kept = (replicate for place, replicate in enumerate(side.replicates) if place not in gone)
        return replace(side, replicates=tuple(kept))

    return rest(base), rest(candidate)


def _weighed(judgement: Judgement, base: Measurement, candidate: Measurement) -> Judgement:
    """The judgement with the statistics of the pairs."""
    comparison = compare_pairs(base, candidate, judgement.basis.looks)
    outcome = decide(comparison, judgement.metric.tolerance)
    accepted = speculation.acceptance(candidate.replicates, _as_stored(base), math.expm1(comparison.change))
    numbers = judgement.numbers
    return replace(
        judgement,
        verdict=Verdict(outcome),
        basis=replace(judgement.basis, pair_noise=comparison.pair_sd),
        numbers=numbers.compared(judgement.metric, numbers.base, comparison),
        notes=(*accepted, *judgement.notes),
        settlement=_settlement(comparison, judgement.metric.tolerance) if outcome == "INCONCLUSIVE" else None,
    )


def _that_counts(contrast: Contrast, metric: Metric) -> tuple[Contrast, tuple[Difference, ...]]:
    """The contrast without what was not declared and cannot touch `metric`, and that."""
    differences, undeclared, free = without_harmless(contrast.differences, contrast.undeclared, metric, "PCIe")
    return replace(contrast, differences=differences, undeclared=undeclared), free


def _shown(judgement: Judgement, base: Side, candidate: Side, looks: int) -> Judgement:
    """The judgement with the numbers of the pairs that are whole, and its own verdict: they are shown, not judged."""
    numbers = judgement.numbers
    old, new = base.measurement, candidate.measurement
    if old.metric.unit != new.metric.unit:
        return replace(judgement, numbers=replace(numbers, base=None))

    pairs = min(len(old.replicates), len(new.replicates))
    if pairs < LEAST_REPLICATES:
        return judgement

    old, new = (replace(side, replicates=side.replicates[:pairs]) for side in (old, new))
    comparison = compare_pairs(old, new, looks)
    compared = numbers.compared(judgement.metric, numbers.base, comparison)
    basis = replace(judgement.basis, pair_noise=comparison.pair_sd)
    return replace(judgement, numbers=replace(compared, p_worse=None), basis=basis)


UNCAUSED = Finding("nothing that was declared differs, yet the two sides ran something else", Cause.UNCAUSED)
"""Why metrics of two equal stacks confound: declaring a change would not help."""


def _invalid(base: Side, candidate: Side, contrast: Contrast) -> Iterator[Finding]:
    """Why nothing can be judged; a base that computes wrong numbers is no measure for anybody."""
    if contrast.unused:
        yield from (Finding(text, Cause.UNUSED_CHANGE, text) for text in contrast.unused)
        return
    if base.wrong is not None:
        text = f"the base computes wrong numbers, so nothing can be measured against it: {base.wrong}"
        yield Finding(text, Cause.WRONG_BASE, base.wrong)
        return

    yield from _by_side([(*side.broken, *broken_rules(side.measurement, in_turn=True)) for side in (base, candidate)])
    yield from drift_between(base.measurement, candidate.measurement)


def _by_side(sides: Sequence[Sequence[Finding]]) -> Iterator[Finding]:
    """Findings about base and candidate with the side named, unless it is said of both."""
    base, candidate = (tuple(dict.fromkeys(side)) for side in sides)
    yield from (found for found in base if found in candidate)
    yield from (found.of("base", apart=True) for found in base if found not in candidate)
    yield from (found.of("candidate", apart=True) for found in candidate if found not in base)


def _as_stored(base: Measurement) -> StoredMetric:
    """The base as a baseline of one session, which is what identities and acceptance are compared with."""
    return StoredMetric(base.metric, (Session("", "", base.level, base.replicates),))


def _settlement(comparison: PairedComparison, tolerance: float) -> Settlement:
    return Settlement(pairs_that_settle(comparison, tolerance), None, math.expm1(comparison.hi))


def pairs_that_settle(comparison: PairedComparison, tolerance: float) -> int | None:
    """The fewest pairs that would have settled an open comparison, had change and noise stayed as they are."""
    band = math.log1p(tolerance)
    room = comparison.change if comparison.change > band else band - comparison.change
    counts = range(len(comparison.differences) + 1, MOST_FORESEEN + 1)
    return next((count for count in counts if _half_width(comparison, count) < room), None)


def foreseen_half_width(noise: NoiseClass, pairs: int) -> float:
    """Half of the interval of so many pairs at their first look, where processes scatter as they did elsewhere."""
    pair_sd = math.sqrt(2) * recorded(noise).process_sd
    df = pairs - 1 + _prior(noise).df
    return t_quantile(1 - POCOCK_ALPHA[PLANNED_LOOKS] / 2, df) * pair_sd / math.sqrt(pairs)


def _half_width(comparison: PairedComparison, pairs: int) -> float:
    value, df = _variance(comparison, pairs)
    return t_quantile(1 - comparison.alpha / 2, df) * math.sqrt(value / pairs)


def _variance(comparison: PairedComparison, pairs: int) -> Variance:
    """Of one pair, had there been so many that scatter as these do, and its degrees of freedom."""
    prior, df = comparison.prior, comparison.prior.df + pairs - 1
    return Variance((prior.df * prior.value + (pairs - 1) * comparison.pair_sd**2) / df, df)
