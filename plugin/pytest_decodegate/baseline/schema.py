"""Baselines as data: sessions of metrics of one stack on one machine class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..machine.provenance import Provenance
from ..metric import Json, Level, Metric, Replicate

SCHEMA = 1
"""Version of the `decodegate` object; a file of another version is refused, never guessed at."""


@dataclass(frozen=True, slots=True)
class Session:
    """One recording of one metric. recorded: ISO 8601 with offset. telemetry: seen meanwhile, never compared."""

    id: str
    recorded: str
    level: Level
    replicates: tuple[Replicate, ...]
    telemetry: Mapping[str, Json] = field(default_factory=dict)

    @property
    def values(self) -> tuple[float, ...]:
        """Process values, one per replicate, in the metric's unit."""
        return tuple(replicate.value for replicate in self.replicates)


@dataclass(frozen=True, slots=True)
class StoredMetric:
    """A metric and its sessions, oldest first; all have one level."""

    metric: Metric
    sessions: tuple[Session, ...]

    @property
    def level(self) -> Level:
        """What a replicate was."""
        return self.sessions[0].level

    @property
    def data(self) -> list[float]:
        """All samples of all sessions in seconds per unit: `stats.data` of the file."""
        replicates = (replicate for session in self.sessions for replicate in session.replicates)
        return [self.metric.seconds(sample) for replicate in replicates for sample in replicate.samples]


@dataclass(frozen=True, slots=True)
class Baseline:
    """One file: a stack on a machine class. Telemetry lies with the sessions, so `provenance.telemetry` is empty."""

    path: Path
    machine_class: str
    label: str
    provenance: Provenance
    metrics: Mapping[str, StoredMetric]
