"""Verdicts: what a measurement is worth against its baseline, decided once and in one order of precedence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ..machine.provenance import ABSENT, Difference
from ..metric import Level, Measurement, Metric
from . import advice
from .noise import mean
from .published import as_told, decide_by_band, told, untold
from .rules import POCOCK_ALPHA, compare, decide, worse_logs
from .validity import broken_rules

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
    reasons: what broke, confounds or is missing.
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


def judge(
    measurement: Measurement,
    selection: Selection,
    *,
    invalid: Sequence[str] = (),
    wrong: str | None = None,
    looks: int = 1,
) -> Judgement:
    """Judge a measurement; the first that holds wins: wrong, invalid, no baseline, confounded, then the statistics.

    invalid: rules that watchers and workloads saw broken; those that samples show are added here.
    wrong: how the numbers are wrong. looks: planned looks at this metric, a key of POCOCK_ALPHA.
    """
    judgement = Judgement(
        metric=measurement.metric,
        verdict=Verdict.WRONG_RESULT,
        level=measurement.level,
        replicates=len(measurement.replicates),
        measured=_geometric_mean(measurement.values),
        looks=looks,
        baseline=selection.baseline.path if selection.baseline else None,
        choice=selection.choice,
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
    if stored.level == "published":
        judgement = replace(judgement, untold=untold((*another, *selection.differences)))
        another, selection = told(another), as_told(selection)

    identity = tuple(f"{one.field}: {one.base!r} in the baseline, {one.new!r} now" for one in another)
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

    return _weigh(judgement, measurement, stored, baseline)


def beside_point(judgement: Judgement, new: Sequence[float], base: Sequence[float]) -> Judgement:
    """Complete the judgement of values (in the metric's unit) of which one side is a published figure."""
    metric = judgement.metric
    change = fmean(worse_logs(new, metric.better)) - fmean(worse_logs(base, metric.better))
    outcome = decide_by_band(change, metric.tolerance)
    return replace(
        judgement,
        verdict=Verdict(outcome),
        base=_geometric_mean(base),
        change=math.expm1(change),
        advice=advice.beside_published(outcome),
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
        advice=advice.compared(outcome, comparison, metric.tolerance, judgement.changed),
    )


def session_logs(stored: StoredMetric) -> list[tuple[float, ...]]:
    """Log process values of the sessions that gate, + is worse."""
    return [worse_logs(session.values, stored.metric.better) for session in stored.current]


def level_of(sessions: Sequence[Sequence[float]], metric: Metric) -> float:
    """Geometric mean of what `session_logs` gave, in the metric's unit: every session weighs the same."""
    level = math.exp(mean(list(map(mean, sessions))))
    return level if metric.better == "lower" else 1 / level


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(fmean(map(math.log, values))) if values else None


def identity_differences(stored: StoredMetric, metric: Metric, level: Level) -> Iterator[Difference]:
    """Fields in which the stored metric is another measurement than `metric` taken at `level`.

    The level of a published figure is no field: it only says that there are no samples.
    """
    known = stored.metric
    if (known.unit, known.kind, known.contract, stored.level) == (metric.unit, metric.kind, metric.contract, level):
        return

    base, new = known.identity, metric.identity
    if "published" not in (stored.level, level):
        base, new = {**base, "level": stored.level}, {**new, "level": level}

    for field in sorted({*base, *new}):
        if base.get(field, ABSENT) != new.get(field, ABSENT):
            yield Difference(field, base.get(field, ABSENT), new.get(field, ABSENT), declarable=False)
