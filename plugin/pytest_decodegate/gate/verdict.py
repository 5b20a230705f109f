"""Verdicts: what a measurement is worth against its baseline, decided once and in one order of precedence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ..machine.clocks import clock_shift
from ..machine.provenance import ABSENT, Difference
from ..metric import Level, Measurement, Metric, Replicate
from .evidence import quality, speculation
from .evidence.swaps import is_swap
from .evidence.swaps import told as swaps_told
from .evidence.validity import broken_rules
from .published import as_told, decide_by_band, told, untold
from .stats.noise import mean
from .stats.rules import POCOCK_ALPHA, compare, decide, worse_logs
from .text import advice

if TYPE_CHECKING:
    from ..baseline.schema import Baseline, StoredMetric
    from ..baseline.selection import Selection


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


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with everything that a report needs to defend it.

    measured, base: geometric means of the process values in the metric's unit; None when there are none.
    change, lo, hi: fraction for the worse and its interval (0.05 is 5 % worse, whatever the unit).
    confidence: nominal confidence of [lo, hi]; with `looks` planned looks it is stricter than 95 %.
    session_noise: standard deviation between sessions that was used, a fraction; assumed when there are few.
    From base to session_noise all are None (sessions: 0) unless the statistics were reached.
    new_sessions: of `measured`, which is one session unless it was stored.
    untold: what a published figure does not say; None where the baseline was recorded. Against a published figure base
    and change are known, and no statistics.
    choice: why this baseline, and what else was there. changed: declared differences between the two sides.
    reasons: what broke, confounds or is missing. notes: what a reader should know whatever the verdict is.
    paired: `base` is the other stack, measured in the same minutes; `replicates` are then pairs.
    p_worse: one-sided p of "not slower" over all looks, for whoever weighs several metrics together; of pairs,
    and of stored baselines where a metric regressed.
    """

    metric: Metric
    verdict: Verdict
    level: Level
    replicates: int
    measured: float | None
    base: float | None = None
    change: float | None = None
    lo: float | None = None
    hi: float | None = None
    confidence: float | None = None
    looks: int = 1
    sessions: int = 0
    session_noise: float | None = None
    new_sessions: int = 1
    untold: tuple[str, ...] | None = None
    baseline: Path | None = None
    choice: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paired: bool = False
    p_worse: float | None = None


def judge(
    measurement: Measurement,
    selection: Selection,
    *,
    invalid: Sequence[str] = (),
    wrong: str | None = None,
    looks: int = 1,
    notes: Sequence[str] = (),
) -> Judgement:
    """Judge a measurement; the first that holds wins: wrong, invalid, no baseline, confounded, then the statistics.

    invalid: rules that watchers and workloads saw broken; those that samples show are added here.
    wrong: how the numbers are wrong. looks: planned looks at this metric, a key of POCOCK_ALPHA. notes: of the source.
    """
    judgement = Judgement(
        metric=measurement.metric,
        verdict=Verdict.WRONG_RESULT,
        level=measurement.level,
        replicates=len(measurement.replicates),
        measured=geometric_mean(measurement.values),
        looks=looks,
        baseline=selection.baseline.path if selection.baseline else None,
        choice=selection.choice,
        notes=tuple(notes),
    )
    if wrong is not None:
        return replace(judgement, reasons=(wrong,), advice=advice.wrong_result())
    if broken := (*invalid, *broken_rules(measurement)):
        return replace(judgement, verdict=Verdict.INVALID, reasons=broken, advice=advice.invalid())

    name = measurement.metric.name
    baseline = selection.baseline
    if baseline is None or name not in baseline.metrics:
        reason = f"{baseline.path if baseline else selection.folder} has no metric {name!r}"
        return replace(judgement, verdict=Verdict.NO_BASELINE, reasons=(reason,), advice=advice.no_baseline())

    stored = baseline.metrics[name]
    another = tuple(identity_differences(stored, measurement.metric, measurement.level))
    if selection.differences and not selection.undeclared:
        judgement = replace(judgement, notes=(*notes, *swaps_told(filter(is_swap, another))))
        another = tuple(one for one in another if not is_swap(one))

    if stored.level == "published":
        judgement = replace(judgement, untold=untold((*another, *selection.differences)))
        another, selection = told(another), as_told(selection)

    identity = tuple(_another(another))
    if identity or selection.undeclared:
        return replace(
            judgement,
            verdict=Verdict.CONFOUNDED,
            reasons=(*map(str, selection.undeclared), *identity),
            advice=advice.confounded(selection.differences, selection.undeclared, identity),
        )

    changed = tuple(map(str, selection.differences))
    judgement = replace(judgement, changed=changed)
    if stored.level == "published":
        return beside_point(judgement, measurement.values, stored.sessions[-1].values)

    if measurement.metric.kind == "quality":
        return by_answers(judgement, measurement.replicates, stored)

    return _at_one_clock(_weigh(judgement, measurement, stored, baseline), measurement, stored)


def _at_one_clock(judgement: Judgement, measurement: Measurement, stored: StoredMetric) -> Judgement:
    """The judgement as it stands where the GPUs did not run at the baseline's clock: numbers that decide nothing."""
    shift = clock_shift([session.telemetry for session in stored.current], [measurement.facts])
    if shift is None:
        return judgement

    return replace(judgement, verdict=Verdict.CONFOUNDED, reasons=(str(shift),), advice=advice.other_clocks())


def beside_point(judgement: Judgement, new: Sequence[float], base: Sequence[float]) -> Judgement:
    """Complete the judgement of values (in the metric's unit) of which one side is a published figure."""
    metric = judgement.metric
    change = fmean(worse_logs(new, metric.better)) - fmean(worse_logs(base, metric.better))
    outcome = decide_by_band(change, metric.tolerance)
    return replace(
        judgement,
        verdict=Verdict(outcome),
        base=geometric_mean(base),
        change=math.expm1(change),
        advice=advice.beside_published(outcome),
    )


def by_answers(judgement: Judgement, new: Sequence[Replicate], stored: StoredMetric) -> Judgement:
    """Complete the judgement of answers: right or wrong by the rule of gate.quality, whatever time they took."""
    metric = judgement.metric
    base = quality.passes(replicate for session in stored.current for replicate in session.replicates)
    now = quality.passes(new)
    if not (base and now):
        reason = f"metric {metric.name!r} holds no answers on the side of the {'run' if base else 'baseline'}"
        return replace(judgement, verdict=Verdict.NO_BASELINE, reasons=(reason,), advice=advice.no_baseline())

    exact = metric.contract.get("batch_invariant") is True
    found = quality.compare(base, now, tolerance=metric.tolerance, exact=exact)
    return replace(
        judgement,
        verdict=Verdict.WRONG_RESULT if found.wrong else Verdict.PASS,
        base=level_of(session_logs(stored), metric),
        reasons=(found.wrong,) if found.wrong else (),
        notes=(found.note, *judgement.notes),
        advice=advice.other_answers() if found.wrong else (),
    )


def _weigh(judgement: Judgement, measurement: Measurement, stored: StoredMetric, baseline: Baseline) -> Judgement:
    """Compare with the stored sessions and complete the judgement."""
    metric = measurement.metric
    alpha = POCOCK_ALPHA[judgement.looks]
    sessions = session_logs(stored)
    peers = [
        session_logs(other)
        for other in baseline.metrics.values()
        if other.metric.kind == metric.kind and other.metric.name != metric.name
    ]
    comparison = compare(worse_logs(measurement.values, metric.better), sessions, peers, metric.kind, alpha)
    outcome = decide(comparison, metric.tolerance)
    return replace(
        judgement,
        verdict=Verdict(outcome),
        base=level_of(sessions, metric),
        change=math.expm1(comparison.change),
        lo=math.expm1(comparison.lo),
        hi=math.expm1(comparison.hi),
        confidence=1 - alpha,
        sessions=len(sessions),
        session_noise=math.sqrt(comparison.noise.session.value),
        notes=(*speculation.notes(measurement.replicates, stored, math.expm1(comparison.change)), *judgement.notes),
        advice=advice.compared(outcome, comparison, metric.tolerance, judgement.changed),
    )


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


_WHAT_CHANGED = {
    ("contract.formula", "tpot_client_v1", "tpot_client_v2"): (
        "; the older one charged no time for the tokens of an answer's first arrival, and what it was off by is not in "
        "the file"
    )
}
"""Why two values of a field of the contract are two measurements, where the values do not say it."""


def _another(differences: Sequence[Difference]) -> Iterator[str]:
    """Why this is another measurement; what ran instead is named kernel by kernel."""
    yield from swaps_told(filter(is_swap, differences))
    for one in differences:
        if not is_swap(one):
            why = _WHAT_CHANGED.get((one.field, str(one.base), str(one.new)), "")
            yield f"{one.field}: {one.base!r} in the baseline, {one.new!r} now{why}"


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

    for field in sorted({*base, *new}):
        difference = Difference(field, base.get(field, ABSENT), new.get(field, ABSENT), declarable=False)
        unknown = ABSENT in (difference.base, difference.new) and is_swap(difference)
        if difference.base != difference.new and not unknown:
            yield difference
