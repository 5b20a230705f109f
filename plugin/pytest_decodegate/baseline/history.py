"""The sessions of one metric over all files of a machine class, in the order of time, and what changed between them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..machine.cards import swapped
from ..machine.provenance import differences
from ..metric import Json, Metric
from .schema import Baseline, Session, StoredMetric

LOCALISED = 2
"""Sessions by which a change point may be misplaced (Otava's own tolerance): a stack change so near is named too."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A session of a series. accepted: its level was accepted as the new one by `decodegate baselines accept`."""

    baseline: Baseline
    metric: Metric
    session: Session
    accepted: bool

    @property
    def logs(self) -> list[float]:
        """Logs of the process values, signed so that a larger one is worse."""
        return [math.log(self.metric.seconds(value)) for value in self.session.values]

    @property
    def value(self) -> float:
        """Geometric mean of the process values, in the metric's unit."""
        return math.exp(fmean(map(math.log, self.session.values)))

    @property
    def spread(self) -> float | None:
        """Standard deviation between processes, as a fraction; None for a single one."""
        return statistics.stdev(self.logs) if len(self.session.values) > 1 else None


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one measurement: same unit, kind, contract and level, oldest first."""

    machine_class: str
    points: tuple[SeriesPoint, ...]

    @property
    def metric(self) -> Metric:
        """The metric as the newest session has it."""
        return self.points[-1].metric

    @property
    def levels(self) -> list[float]:
        """The mean of each session: logs, larger is worse."""
        return [fmean(point.logs) for point in self.points]

    @property
    def accepted(self) -> int:
        """Index of the newest point whose level was accepted; 0 when none was."""
        return max((index for index, point in enumerate(self.points) if point.accepted), default=0)

    def coincides(self, index: int) -> tuple[str, ...]:
        """The changes that came with the session at `index`, or with one so near that the step may belong there."""
        for offset in sorted(range(-LOCALISED, LOCALISED + 1), key=abs):
            if 0 < index + offset < len(self.points):
                before, after = self.points[index + offset - 1 : index + offset + 1]
                if found := _changes(before, after):
                    return tuple(f"{change}{_distance(offset)}" for change in found)

        return ()


def series(baselines: Sequence[Baseline], metric: str) -> list[Series]:
    """The histories of `metric` in the files of one machine class; several when its name stood for several things."""
    by_identity: dict[str, list[SeriesPoint]] = {}
    for baseline in baselines:
        if stored := baseline.metrics.get(metric):
            by_identity.setdefault(_identity(stored), []).extend(_points(baseline, stored))

    ordered = (sorted(points, key=lambda point: point.session.instant) for points in by_identity.values())
    return [Series(points[0].baseline.machine_class, tuple(points)) for points in ordered]


def _points(baseline: Baseline, stored: StoredMetric) -> Iterator[SeriesPoint]:
    for session in stored.sessions:
        yield SeriesPoint(baseline, stored.metric, session, accepted=session.id == stored.accepted)


def _identity(stored: StoredMetric) -> str:
    identity: Mapping[str, Json] = {**stored.metric.identity, "level": stored.level}
    return json.dumps(identity, sort_keys=True)


def _changes(before: SeriesPoint, after: SeriesPoint) -> list[str]:
    found = (
        *differences(before.baseline.provenance, after.baseline.provenance),
        *swapped(before.session.telemetry, after.session.telemetry),
    )
    return list(map(str, found))


def _distance(offset: int) -> str:
    if not offset:
        return ""

    sessions = "session" if abs(offset) == 1 else "sessions"
    return f" ({abs(offset)} {sessions} {'later' if offset > 0 else 'earlier'})"
