"""Verdicts: what a measurement is worth against its baseline, decided once and in one order of precedence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ..cause import Cause, Finding
from ..machine.clocks import clock_shift
from ..machine.provenance import ABSENT, Difference
from ..metric import Level, Measurement, Metric, Replicate
from .evidence import quality, speculation
from .evidence.apart import apart_findings, rest_of, rest_of_stored, stored_findings
from .evidence.swaps import is_swap, swap_findings
from .evidence.validity import broken_rules
from .other_cards import OtherCards, of_metric, unchanged_run
from .own_cards import class_of, metrics_on, on_cards, one_set_of_cards, ran_elsewhere
from .published import (
    MODEL,
    decide_by_band,
    is_measured_elsewhere,
    published_differences,
    published_part,
    renamed,
    unpublished,
)
from .stats.noise import Spread, class_noise, mean
from .stats.rules import Comparison, Settlement, Weighed, compare, decide, settle, worse_logs
from .stats.together import JointPart
from .text.quantity import format_percent

if TYPE_CHECKING:
    from ..baseline.schema import Baseline, StoredMetric
    from ..baseline.selection import Selection
    from .stats.recorded import NoiseClass


class Verdict(StrEnum):
    """The eight things that can be said about a metric; a crash or hang is an error, not a verdict."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    CONFOUNDED = "CONFOUNDED"
    INVALID = "INVALID"
    WRONG_RESULT = "WRONG_RESULT"

    @property
    def passes(self) -> bool:
        """Whether a test with this verdict passes."""
        return self in (Verdict.PASS, Verdict.IMPROVED)

    @property
    def judged(self) -> bool:
        """Whether the metric was judged; where it was not, numbers are shown and decide nothing."""
        return self not in (Verdict.NO_BASELINE, Verdict.CONFOUNDED, Verdict.INVALID)


BY_STATISTICS: Final = (Verdict.PASS, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.INCONCLUSIVE)
"""What times beside other times can come out as."""

UNFIT: Final = (Verdict.INVALID, Verdict.WRONG_RESULT)
"""What was measured under these verdicts is not to be put beside anything."""

Reference: TypeAlias = Literal["baseline", "stack", "file"]
"""What a metric is compared with: a stored baseline, another stack measured in the same minutes, or (of two stored
baselines) the other file."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Levels in the metric's unit, changes as fractions of the base: a time of +0.05 and a rate of -0.05 are worse.

    measured, base: geometric means of the process values; None when there are none. lo, hi: interval of the change.
    confidence: nominal one of the interval; with several planned looks it is stricter.
    p_worse: one-sided p of "not slower" over all looks, for whoever weighs several metrics together; None where the
    metric was not judged. standard_error: of the log change.
    base and what follows are None where there is nothing to compare with; of a published figure the change alone is
    known. CONFOUNDED and INVALID metrics have them too, shown and not judged.
    """

    measured: float | None = None
    base: float | None = None
    change: float | None = None
    lo: float | None = None
    hi: float | None = None
    confidence: float | None = None
    p_worse: float | None = None
    standard_error: float | None = None

    def compared(self, metric: Metric, base: float | None, comparison: Weighed) -> Numbers:
        """With a base level, and what a comparison gave on the log scale."""
        lo, hi = sorted((metric.change(comparison.lo), metric.change(comparison.hi)))
        return Numbers(
            measured=self.measured,
            base=base,
            change=metric.change(comparison.change),
            lo=lo,
            hi=hi,
            confidence=comparison.confidence,
            p_worse=comparison.p_worse,
            standard_error=comparison.error,
        )


@dataclass(frozen=True, slots=True)
class Basis:
    """What a verdict rests on.

    level: what one replicate is. replicates: pairs if the reference is a stack. looks: planned at this metric.
    sessions, new_sessions: of the base and of what was measured, which is one unless it was stored. session_noise:
    standard deviation between sessions that was used, a fraction; assumed when there are few. pair_noise: of one pair.
    same_cards: whether all its sessions ran on the very cards that were measured. foreign_cards: whether all are known
    to have run on others. streams: whether it was weighed as a kernel that is as fast as the memory of its card.
    fixed_band: whether the user set the band, so that no cards widen it.
    unpublished: what a published figure does not say; None where the baseline was recorded. elsewhere: whether it names
    no part of a stack, so that the metric is shown beside it and gated by nothing.
    baseline: its file. choice: why this one, and what else was there.
    """

    level: Level
    replicates: int = 0
    reference: Reference = "baseline"
    looks: int = 1
    sessions: int = 0
    new_sessions: int = 1
    session_noise: float | None = None
    same_cards: bool = False
    foreign_cards: bool = False
    streams: bool = False
    fixed_band: bool = False
    pair_noise: float | None = None
    unpublished: tuple[str, ...] | None = None
    elsewhere: bool = False
    baseline: Path | None = None
    choice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepShare:
    """What a change means for the decode step. step: which one. change, worst: fractions of it, + is slower; worst: at
    the worse end of the interval.
    """

    step: str
    change: float
    worst: float


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What fresh replicates said by themselves of a metric that seemed to have changed.

    first, fresh: verdicts on those that were measured first and on the fresh ones. first_change, fresh_change: of the
    metric, fractions. replicates: fresh ones.
    """

    first: Verdict
    first_change: float | None
    fresh: Verdict
    fresh_change: float | None
    replicates: int

    @property
    def repeats(self) -> bool:
        """Whether the change was there again."""
        return self.fresh is self.first


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with everything that a report needs to defend it.

    reasons: what broke, confounds or is missing. notes: what a reader should know whatever the verdict is.
    changed: declared differences between the two sides, as sentences. differences, undeclared: in provenance, those
    that count and those that confound. harmless: those that cannot touch the metric. another: fields that make it
    another measurement than the base.
    settlement: what would have settled an INCONCLUSIVE metric, without its processes that are apart if there are some;
    None for other verdicts, and where the rest is settled.
    confirmation: what fresh replicates said of a change, None where there was none to confirm.
    metric: with the band in force. other_cards: how it came to that where the metric was compared with sessions of
    other cards alone, None otherwise. foreseen: the noise of its change by its stored sessions alone, where statistics
    compared it with some.
    """

    metric: Metric
    verdict: Verdict
    basis: Basis
    numbers: Numbers = field(default_factory=Numbers)
    reasons: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    changed: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    undeclared: tuple[Difference, ...] = ()
    harmless: tuple[Difference, ...] = ()
    another: tuple[Difference, ...] = ()
    settlement: Settlement | None = None
    step: StepShare | None = None
    confirmation: Confirmation | None = None
    other_cards: OtherCards | None = None
    foreseen: JointPart | None = None

    @property
    def name(self) -> str:
        """Of the metric."""
        return self.metric.name


def judge(
    measurement: Measurement,
    selection: Selection,
    *,
    invalid: Sequence[Finding] = (),
    wrong: str | None = None,
    looks: int = 1,
    notes: Sequence[Finding] = (),
    fixed_band: bool = False,
) -> Judgement:
    """Judge a measurement; the first that holds wins: wrong, invalid, no baseline, confounded, then the statistics.

    invalid: rules that watchers and workloads saw broken; those that samples show are added here.
    wrong: how the numbers are wrong. looks: planned looks at this metric, a key of LOOK_LEVELS. notes: of the source.
    fixed_band: whether the user set the band of the metric, which is then in force on whatever cards.
    """
    judgement = Judgement(
        metric=measurement.metric,
        verdict=Verdict.WRONG_RESULT,
        basis=Basis(
            measurement.level,
            len(measurement.replicates),
            looks=looks,
            fixed_band=fixed_band,
            baseline=selection.baseline.path if selection.baseline else None,
            choice=selection.choice,
        ),
        numbers=Numbers(geometric_mean(measurement.values)),
        notes=(*notes, *apart_findings(measurement)),
    )
    if wrong is not None:
        return replace(judgement, reasons=(Finding(wrong, Cause.WRONG_NUMBERS, wrong),))
    name = measurement.metric.name
    baseline = selection.baseline
    if broken := (*invalid, *broken_rules(measurement)):
        return _shown(replace(judgement, verdict=Verdict.INVALID, reasons=broken), measurement, baseline)

    if baseline is None or name not in baseline.metrics:
        where = baseline.path if baseline else selection.folder
        reason = Finding(f"{where} has no metric {name!r}", Cause.NO_BASELINE)
        return replace(judgement, verdict=Verdict.NO_BASELINE, reasons=(reason,))

    if selection.itself:
        itself = replace(judgement, verdict=Verdict.INVALID, reasons=(_itself(selection, baseline),))
        return _shown(itself, measurement, baseline)

    stored = baseline.metrics[name]
    another = tuple(identity_differences(stored, measurement.metric, measurement.level))
    if selection.differences and not selection.undeclared:
        judgement = replace(judgement, notes=(*judgement.notes, *swap_findings(filter(is_swap, another))))
        another = tuple(difference for difference in another if not is_swap(difference))

    if stored.level == "published":
        silent = unpublished((*another, *selection.differences))
        elsewhere = is_measured_elsewhere(baseline)
        judgement = replace(
            judgement,
            basis=replace(judgement.basis, unpublished=silent, elsewhere=elsewhere),
            notes=(*renamed(published_differences(another)), *judgement.notes),
        )
        another = tuple(each for each in published_differences(another) if each.field != MODEL)
        selection = published_part(selection)

    judgement = replace(judgement, differences=selection.differences, harmless=selection.harmless)
    if another or selection.undeclared:
        confounded = replace(
            judgement,
            verdict=Verdict.CONFOUNDED,
            reasons=(*map(difference_finding, selection.undeclared), *_another(another)),
            undeclared=selection.undeclared,
            another=another,
        )
        return _shown(confounded, measurement, baseline)

    judgement = replace(judgement, changed=tuple(map(str, selection.differences)))
    own = on_cards(stored, selection.cards)
    if own is not None:
        stored, judgement = own, _on_own_cards(judgement, own, stored)
    elif ran_elsewhere(stored, selection.cards):
        judgement = replace(judgement, basis=replace(judgement.basis, foreign_cards=True))

    compared = _at_one_clock(_compared(judgement, measurement, stored, baseline), measurement, stored)
    return with_apart(compared, lambda: _weigh(judgement, rest_of(measurement), rest_of_stored(stored), baseline))


def _on_own_cards(judgement: Judgement, own: StoredMetric, stored: StoredMetric) -> Judgement:
    """The judgement that rests on sessions of the cards that are measured; others are no base beside them."""
    others = len(stored.current) - len(own.current)
    left_out = Finding(
        f"compared with {len(own.current)} session(s) of these very cards; {others} of other cards left out",
        about="other cards",
    )
    basis = replace(judgement.basis, same_cards=True)
    return replace(judgement, basis=basis, notes=(*judgement.notes, *([left_out] if others else [])))


def _itself(selection: Selection, baseline: Baseline) -> Finding:
    names = ", ".join(sorted(selection.declared))
    text = (
        f"the declared change ({names}) does not show: {baseline.path.name} holds this very stack, and no stored stack "
        "differs in what was declared, so the stack would be compared with itself"
    )
    return Finding(text, Cause.UNUSED_CHANGE, names)


def _compared(judgement: Judgement, measurement: Measurement, stored: StoredMetric, baseline: Baseline) -> Judgement:
    """The judgement completed by the rule that is the metric's: of a published point, of answers, or of times."""
    if stored.level == "published":
        return beside_point(judgement, measurement.values, stored.sessions[-1].values)
    if measurement.metric.kind == "quality":
        return by_answers(judgement, measurement.replicates, stored)

    return _weigh(judgement, measurement, stored, baseline)


def with_apart(judgement: Judgement, rest: Callable[[], Judgement]) -> Judgement:
    """The judgement, open if the few processes that are apart decide whether it passes; then they are its reason.

    rest: judges without those that its notes name. What would settle an open metric is of the rest: one process that
    took sixteen times as long makes a noise of which no number of replicates gets the better.
    """
    found = tuple(note for note in judgement.notes if note.cause is Cause.PROCESS_APART)
    if not (found and judgement.verdict.judged):
        return judgement

    without = rest()
    if judgement.verdict is not Verdict.INCONCLUSIVE and without.verdict.passes == judgement.verdict.passes:
        return judgement

    change = without.numbers.change or 0.0
    text = f"without {'it' if len(found) == 1 else 'them'} this is {without.verdict}, {format_percent(change)}"
    return replace(
        judgement,
        verdict=Verdict.INCONCLUSIVE,
        reasons=(*found, Finding(text, Cause.PROCESS_APART)),
        notes=tuple(note for note in judgement.notes if note not in found),
        settlement=without.settlement,
    )


def _shown(judgement: Judgement, measurement: Measurement, baseline: Baseline | None) -> Judgement:
    """The judgement with the numbers that a comparison gives, and its own verdict: they are shown, not judged."""
    stored = baseline.metrics.get(judgement.name) if baseline else None
    if baseline is None or stored is None or not measurement.values or not comparable(stored.metric, judgement.metric):
        return judgement

    return unjudged(judgement, _compared(judgement, measurement, stored, baseline))


def comparable(base: Metric, new: Metric) -> bool:
    """Whether their numbers can stand beside each other: in one unit; answers are no times, and have one question."""
    answers = "quality" in (base.kind, new.kind)
    return base.unit == new.unit and (not answers or base.identity == new.identity)


def unjudged(judgement: Judgement, compared: Judgement) -> Judgement:
    """The judgement with the numbers of `compared`, which decide nothing: nobody may weigh its p with others."""
    return replace(judgement, basis=compared.basis, numbers=replace(compared.numbers, p_worse=None))


def _at_one_clock(judgement: Judgement, measurement: Measurement, stored: StoredMetric) -> Judgement:
    """The judgement as it stands where the GPUs did not run at the baseline's clock: numbers that decide nothing."""
    if stored.level == "published" or judgement.metric.kind == "quality":
        return judgement

    shift = clock_shift([session.telemetry for session in stored.current], [measurement.facts])
    if shift is None:
        return judgement

    reason = Finding(shift, Cause.CLOCK_SHIFT)
    confounded = replace(judgement, verdict=Verdict.CONFOUNDED, reasons=(reason,), settlement=None)
    return unjudged(confounded, judgement)


def beside_point(judgement: Judgement, new: Sequence[float], base: Sequence[float]) -> Judgement:
    """Complete the judgement of values (in the metric's unit) of which one side is a published figure."""
    metric = judgement.metric
    change = fmean(worse_logs(new, metric.better)) - fmean(worse_logs(base, metric.better))
    outcome = decide_by_band(change, metric.tolerance)
    return replace(
        judgement,
        verdict=Verdict(outcome),
        numbers=replace(judgement.numbers, base=geometric_mean(base), change=metric.change(change)),
    )


def by_answers(judgement: Judgement, new: Sequence[Replicate], stored: StoredMetric) -> Judgement:
    """Complete the judgement of answers: right or wrong by the rule of gate.quality, whatever time they took."""
    metric = judgement.metric
    base = quality.passes(replicate for session in stored.current for replicate in session.replicates)
    now = quality.passes(new)
    if not (base and now):
        side = "run" if base else "baseline"
        reason = Finding(f"metric {metric.name!r} holds no answers on the side of the {side}", Cause.NO_BASELINE)
        return replace(judgement, verdict=Verdict.NO_BASELINE, reasons=(reason,))

    exact = metric.contract.get("batch_invariant") is True
    found = quality.compare(base, now, tolerance=metric.tolerance, exact=exact)
    return replace(
        judgement,
        verdict=Verdict.WRONG_RESULT if found.wrong else Verdict.PASS,
        numbers=replace(judgement.numbers, base=level_of(session_logs(stored), metric)),
        reasons=(Finding(found.wrong, Cause.WRONG_ANSWERS),) if found.wrong else (),
        notes=(Finding(found.note), *judgement.notes),
    )


def _weigh(judgement: Judgement, measurement: Measurement, stored: StoredMetric, baseline: Baseline) -> Judgement:
    """Compare with the stored sessions and complete the judgement."""
    metric, cards = measurement.metric, one_set_of_cards(stored) if judgement.basis.same_cards else frozenset()
    sessions, found = session_logs(stored), class_of(stored, same_cards=bool(cards))
    peers = [
        Spread.of(session_logs(other))
        for other in metrics_on(baseline.metrics.values(), cards)
        if other.metric.name != metric.name and class_of(other, same_cards=bool(cards)) == found
    ]
    new = worse_logs(measurement.values, metric.better)
    comparison = compare(new, sessions, peers, found, judgement.basis.looks)
    unchanged = unchanged_run(sessions, class_noise([Spread.of(sessions), *peers], found), judgement.basis.looks)
    other_cards = _on_other_cards(judgement, unchanged, found)
    metric = replace(metric, tolerance=other_cards.band) if other_cards else metric
    outcome = decide(comparison, metric.tolerance)
    return replace(
        judgement,
        metric=metric,
        other_cards=other_cards,
        foreseen=JointPart(unchanged.error, unchanged.df, found.streams),
        verdict=Verdict(outcome),
        basis=replace(
            judgement.basis,
            sessions=len(sessions),
            session_noise=comparison.noise.session_sd,
            streams=found.streams,
        ),
        numbers=judgement.numbers.compared(metric, level_of(sessions, metric), comparison),
        notes=(
            *speculation.acceptance(measurement.replicates, stored, math.expm1(comparison.change)),
            *judgement.notes,
            *stored_findings(stored, "stored session"),
        ),
        settlement=settle(comparison, metric.tolerance) if outcome == "INCONCLUSIVE" else None,
    )


def _on_other_cards(judgement: Judgement, unchanged: Comparison, found: NoiseClass) -> OtherCards | None:
    """The band in force where all stored sessions are of other cards, and only there; they alone decide it."""
    if not judgement.basis.foreign_cards:
        return None

    return of_metric(judgement.metric.tolerance, unchanged, found, fixed=judgement.basis.fixed_band)


def session_logs(stored: StoredMetric) -> list[tuple[float, ...]]:
    """Log process values of the sessions that gate, + is worse."""
    return [worse_logs(session.values, stored.metric.better) for session in stored.current]


def level_of(sessions: Sequence[Sequence[float]], metric: Metric) -> float:
    """Geometric mean of what `session_logs` gave, in the metric's unit: every session weighs the same."""
    level = math.exp(mean(list(map(mean, sessions))))
    return level if metric.better == "lower" else 1 / level


def geometric_mean(values: Sequence[float]) -> float | None:
    """The level of process values; None of none."""
    return math.exp(fmean(map(math.log, values))) if values else None


def worse_log(judgement: Judgement) -> float:
    """The log change of a metric that was compared, + is worse."""
    change = math.log1p(judgement.numbers.change or 0.0)
    return change if judgement.metric.better == "lower" else -change


def basis_together(parts: Sequence[Judgement]) -> Basis:
    """What a metric rests on that says something of all `parts` (one or more) at once, however often each was judged.

    It is as good as the least replicated of them, and no file holds it. One part that met other cards, or streams
    memory, is in it; that all ran on their own cards, or in bands that the user set, is true of all or not at all.
    """
    known = [part.basis for part in parts]
    return replace(
        known[0],
        same_cards=all(basis.same_cards for basis in known),
        foreign_cards=any(basis.foreign_cards for basis in known),
        streams=any(basis.streams for basis in known),
        fixed_band=all(basis.fixed_band for basis in known),
        replicates=min(basis.replicates for basis in known),
        sessions=min(basis.sessions for basis in known),
        session_noise=None,  # what sessions share is none of the noises of its parts
        looks=1,
        baseline=None,
        choice=(),
    )


def difference_finding(difference: Difference) -> Finding:
    """A difference that confounds, about its field."""
    return Finding(difference, Cause.DIFFERENCE, str(difference))


_WHAT_CHANGED = {
    ("contract.formula", "tpot_client_v1", "tpot_client_v2"): (
        "; the older one charged no time for the tokens of an answer's first arrival, and what it was off by is not in "
        "the file"
    )
}
"""Why two values of a field of the contract are two measurements, where the values do not say it."""

_VERSIONS = ("contract.clock_version", "contract.workload_version", "contract.places")
_TIMED_ANEW = "; the code times it in another way since, by more than noise"


def _another(differences: Sequence[Difference]) -> Iterator[Finding]:
    """Why this is another measurement; what ran instead is named kernel by kernel."""
    yield from swap_findings(filter(is_swap, differences))
    for other in differences:
        if not is_swap(other):
            said = _TIMED_ANEW if other.field in _VERSIONS else ""
            why = _WHAT_CHANGED.get((other.field, str(other.base), str(other.new)), said)
            text = f"{other.field}: {other.base!r} in the baseline, {other.new!r} now{why}"
            yield Finding(text, Cause.DIFFERENCE, other.field)


def identity_differences(stored: StoredMetric, metric: Metric, level: Level) -> Iterator[Difference]:
    """Fields in which the stored metric is another measurement than `metric` taken at `level`.

    The level of a published figure is no field: it only says that there are no samples. Nor is what ran on a side that
    does not know it: older files lack the kernels' names.
    """
    known = stored.metric
    if (known.unit, known.kind, known.contract, stored.level) == (metric.unit, metric.kind, metric.contract, level):
        return

    base, new = known.identity, metric.identity
    if "published" not in (stored.level, level):
        base, new = {**base, "level": stored.level}, {**new, "level": level}

    for name in sorted({*base, *new}):
        difference = Difference(name, base.get(name, ABSENT), new.get(name, ABSENT), declarable=False)
        unknown = ABSENT in (difference.base, difference.new) and is_swap(difference)
        if difference.base != difference.new and not unknown:
            yield difference
