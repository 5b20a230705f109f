"""Verdicts: what a measurement is worth against its baseline, decided once and in one order of precedence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ..metric import Level, Measurement, Metric
from . import advice
from .rules import POCOCK_ALPHA, compare, decide, worse_logs
from .validity import broken_rules

if TYPE_CHECKING:
    from ..baseline.schema import Baseline, StoredMetric
    from ..baseline.store import Selection


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
    changed: declared differences between the two sides. reasons: what broke, confounds or is missing.
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
    baseline: Path | None = None
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
    )
    if wrong is not None:
        return replace(judgement, reasons=(wrong,), advice=advice.wrong_result())
    if broken := (*invalid, *broken_rules(measurement)):
        return replace(judgement, verdict=Verdict.INVALID, reasons=broken, advice=advice.invalid())

    name = measurement.metric.name
    if selection.baseline is None or name not in selection.baseline.metrics:
        reason = f"{selection.baseline.path if selection.baseline else selection.folder} has no metric {name!r}"
        return replace(judgement, verdict=Verdict.NO_BASELINE, reasons=(reason,), advice=advice.no_baseline())

    stored = selection.baseline.metrics[name]
    identity = tuple(_identity_changes(stored, measurement))
    if identity or selection.undeclared:
        return replace(
            judgement,
            verdict=Verdict.CONFOUNDED,
            reasons=(*map(str, selection.undeclared), *identity),
            advice=advice.confounded(selection.differences, selection.undeclared, identity),
        )

    changed = tuple(map(str, selection.differences))
    return _weigh(replace(judgement, changed=changed), measurement, stored, selection.baseline)


def _weigh(judgement: Judgement, measurement: Measurement, stored: StoredMetric, baseline: Baseline) -> Judgement:
    """Compare with the stored sessions and complete the judgement."""
    metric = measurement.metric
    alpha = POCOCK_ALPHA[judgement.looks]
    sessions = _session_logs(stored)
    peers = [
        _session_logs(other)
        for other in baseline.metrics.values()
        if other.metric.kind == metric.kind and other.metric.name != metric.name
    ]
    comparison = compare(worse_logs(measurement.values, metric.better), sessions, peers, metric.kind, alpha)
    outcome = decide(comparison, metric.tolerance)
    base = math.exp(fmean(map(fmean, sessions)))
    return replace(
        judgement,
        verdict=Verdict(outcome),
        base=base if metric.better == "lower" else 1 / base,
        change=math.expm1(comparison.change),
        lo=math.expm1(comparison.lo),
        hi=math.expm1(comparison.hi),
        confidence=1 - alpha,
        sessions=len(sessions),
        session_noise=math.sqrt(comparison.noise.session.value),
        advice=advice.compared(outcome, comparison, metric.tolerance, judgement.changed),
    )


def _session_logs(stored: StoredMetric) -> list[tuple[float, ...]]:
    return [worse_logs(session.values, stored.metric.better) for session in stored.sessions]


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(fmean(map(math.log, values))) if values else None


def _identity_changes(stored: StoredMetric, measurement: Measurement) -> Iterator[str]:
    """Fields in which the stored metric is another measurement than this one, with both values."""
    base = {**stored.metric.identity, "level": stored.level}
    new = {**measurement.metric.identity, "level": measurement.level}
    for field in sorted({*base, *new}):
        if base.get(field) != new.get(field):
            yield f"{field}: {base.get(field)!r} in the baseline, {new.get(field)!r} now"
