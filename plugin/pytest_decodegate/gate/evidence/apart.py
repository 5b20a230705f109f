"""The few processes that are far from all the others: one that took 3.2 ms where the others took 200 us.

They are named and counted like all others: software that makes one process of ten slow is slower. But a verdict that
they alone decide is none, and where it is open they are the finding, not a band or a number of replicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from ...cause import Cause, Finding
from ...machine.cards import gpus_seen
from ...metric import Json, Measurement, Metric, Replicate
from ..text.quantity import format_value

if TYPE_CHECKING:
    from ...baseline.schema import Session, StoredMetric

SHARE = 4
"""At most one process of so many is apart: more of them are a second mode, and nobody can say which one is right."""

GAPS = 4.0
"""How much farther from all the others than these are from each other: Dixon's ratio of .8 (Dean and Dixon, Analytical
Chemistry 23, 1951), which chance makes in about 1 % of five normal values."""

STORED = "stored"
"""What a finding is about that is of a stored session: a run that is repeated keeps it."""

LEAST_RATIO = 1.08
"""Of a rank's time to the other ranks' of its process: below that, the rank is not what made the process slow."""


def apart(logs: Sequence[float], least: float) -> tuple[int, ...]:
    """Places of the few in `logs` of process values that are farther than `least` from all others; () for fewer than 4.

    The others lie next to each other, and GAPS times their spread away. Of several such choices the fewest are apart.
    """
    order = sorted(range(len(logs)), key=logs.__getitem__)
    for outside in range(1, len(logs) // SHARE + 1):
        for first in range(outside + 1):
            last = first + len(logs) - outside
            below, inside, above = order[:first], order[first:last], order[last:]
            lowest, highest = logs[inside[0]], logs[inside[-1]]
            far = max(least, GAPS * (highest - lowest))
            gaps = [*(lowest - logs[place] for place in below), *(logs[place] - highest for place in above)]
            if min(gaps) > far:
                return tuple(sorted((*below, *above)))

    return ()


def apart_findings(measurement: Measurement) -> tuple[Finding, ...]:
    """A finding for each replicate of a run that is apart by more than its metric's band; of answers none."""
    texts = _texts(measurement.metric, measurement.replicates, measurement.facts)
    return tuple(Finding(text, Cause.PROCESS_APART) for text in texts)


def stored_findings(stored: StoredMetric, whose: str) -> tuple[Finding, ...]:
    """The same of the stored sessions that gate, about STORED; `whose` and a session's id say whose they are."""
    return tuple(
        Finding(f"{whose} {session.id}: {text}", Cause.PROCESS_APART, STORED)
        for session in stored.current
        for text in _texts(stored.metric, session.replicates, session.telemetry)
    )


def rest_of(measurement: Measurement) -> Measurement:
    """The measurement without the replicates that are apart."""
    return replace(measurement, replicates=_rest(measurement.metric, measurement.replicates))


def rest_of_stored(stored: StoredMetric) -> StoredMetric:
    """The stored metric without the replicates that are apart in their session."""

    def rest(session: Session) -> Session:
        return replace(session, replicates=_rest(stored.metric, session.replicates))

    return replace(stored, sessions=tuple(map(rest, stored.sessions)))


def places(metric: Metric, replicates: Sequence[Replicate]) -> tuple[int, ...]:
    """Places of the replicates that are apart by more than the band; of answers none."""
    if metric.kind == "quality":
        return ()

    return apart([math.log(replicate.value) for replicate in replicates], math.log1p(metric.tolerance))


def _rest(metric: Metric, replicates: Sequence[Replicate]) -> tuple[Replicate, ...]:
    found = places(metric, replicates)
    return tuple(replicate for place, replicate in enumerate(replicates) if place not in found)


def _texts(metric: Metric, replicates: Sequence[Replicate], facts: Mapping[str, Json]) -> Iterator[str]:
    found = places(metric, replicates)
    others = [replicate.value for place, replicate in enumerate(replicates) if place not in found]
    for place in found:
        replicate = replicates[place]
        lowest, highest = (format_value(value, metric.unit) for value in (min(others), max(others)))
        level = lowest if lowest == highest else f"{lowest} to {highest}"
        verb = "took" if metric.better == "lower" else "gave"
        where = _where(replicate.facts, facts)
        yield f"replicate {place + 1} {verb} {format_value(replicate.value, metric.unit)}, the others {level}{where}"


def _where(process: Mapping[str, Json], facts: Mapping[str, Json]) -> str:
    """Which rank was slow in this process, by the work that is the same on all, and the GPU, as far as it is known."""
    ranks = _numbers(process.get("own_medians")) or _numbers(process.get("rank_medians"))
    if len(ranks) < 2:
        return _named(_only_gpu(facts))

    slowest = max(range(len(ranks)), key=ranks.__getitem__)
    level = median(seconds for rank, seconds in enumerate(ranks) if rank != slowest)
    if level <= 0 or ranks[slowest] < LEAST_RATIO * level:
        return ""

    ratio = ranks[slowest] / level
    return f"; its rank {slowest}{_named(_gpu_of(facts, slowest))} took {ratio:.2f}x the other ranks' time"


def _named(gpu: str | None) -> str:
    return f" (on {gpu})" if gpu else ""


def _gpu_of(facts: Mapping[str, Json], rank: int) -> str | None:
    rows = facts.get("ranks")
    known = [row for row in rows if isinstance(row, dict) and row.get("rank") == rank] if isinstance(rows, list) else []
    return str(known[0]["gpu"]) if known and known[0].get("gpu") else None


def _only_gpu(facts: Mapping[str, Json]) -> str | None:
    """The GPU where the watch saw just one: a process of one rank does not say where it ran."""
    gpus = gpus_seen(facts)
    if len(gpus) != 1 or not isinstance(gpus[0], dict):
        return None

    return str(gpus[0]["gpu"]) if gpus[0].get("gpu") else None


def _numbers(values: Json) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)] if isinstance(values, list) else []
