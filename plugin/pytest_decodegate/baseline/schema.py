"""Baselines as data: sessions of metrics of one stack on one machine class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from ..machine.provenance import Provenance
from ..metric import Json, Level, Metric, Replicate

SCHEMA = 3
"""Version of the `decodegate` object; a file of another one is refused, never guessed at."""

UNDATED = datetime.min.replace(tzinfo=UTC)
"""Stands for a date that nobody knows, where things are put in order."""

REWRITTEN = 2
"""Version of the files that `decodegate baselines rewrite` reads, and nothing else."""

RECORDER_FIELDS = ("processor", "machine", "system", "python_implementation", "python_version")
"""Fields of pytest-benchmark's `machine_info` that an edit of the file, maybe on another machine, must not change."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One edit of a file that was no recording. when: ISO 8601 with offset. why: in the words of who did it."""

    when: str
    who: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Session:
    """One recording of one metric. telemetry: seen meanwhile, never compared.

    recorded: ISO 8601 with offset; "" of an imported result that does not say when it was measured.

    point: the figure of a session of level "published", in the metric's unit; such a session has no replicates.
    commit: of the repository under which it was recorded, as pytest-benchmark tells it; empty where nobody knows.
    stats: what other tools read of all its samples, in seconds; empty until it is condensed for a file, which keeps no
    samples.
    """

    id: str
    recorded: str
    level: Level
    replicates: tuple[Replicate, ...]
    telemetry: Mapping[str, Json] = field(default_factory=dict)
    point: float | None = None
    commit: Mapping[str, Json] = field(default_factory=dict)
    stats: Mapping[str, Json] = field(default_factory=dict)

    @property
    def instant(self) -> datetime:
        """When it was recorded; comparable, whatever the offset was. Without a date: before all others."""
        return datetime.fromisoformat(self.recorded) if self.recorded else UNDATED

    @property
    def values(self) -> tuple[float, ...]:
        """Process values, one per replicate, in the metric's unit; of a published session its point."""
        return tuple([replicate.value for replicate in self.replicates]) if self.point is None else (self.point,)

    @property
    def samples(self) -> list[float]:
        """All samples in order, in the metric's unit; where a file kept none, the values stand in."""
        return list(chain.from_iterable([replicate.samples for replicate in self.replicates])) or list(self.values)


@dataclass(frozen=True, slots=True)
class StoredMetric:
    """A metric and its sessions, oldest first; all have one level.

    accepted: id of the session from which on a new level was accepted; None while all sessions count.
    """

    metric: Metric
    sessions: tuple[Session, ...]
    accepted: str | None = None

    @property
    def level(self) -> Level:
        """The level of its replicates: process, gang, window, server, or a published figure."""
        return self.sessions[0].level

    @property
    def current(self) -> tuple[Session, ...]:
        """The sessions that a run is gated against; older ones are history."""
        if self.accepted is None:
            return self.sessions

        ids = [session.id for session in self.sessions]
        return self.sessions[ids.index(self.accepted) :] if self.accepted in ids else self.sessions


@dataclass(frozen=True, slots=True)
class Baseline:
    """One file: a stack on a machine class. Telemetry lies with the sessions, so `provenance.telemetry` is empty.

    log: edits other than recordings, oldest first.
    published: where the figures come from if they are published ones; "" in a file that was recorded.
    recorder: platform and Python that recorded it, as pytest-benchmark names these; empty until it is written.
    """

    path: Path
    machine_class: str
    label: str
    provenance: Provenance
    metrics: Mapping[str, StoredMetric]
    log: tuple[LogEntry, ...] = ()
    published: str = ""
    recorder: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def newest(self) -> Session | None:
        """The session that was recorded last; None in a file without metrics."""
        sessions = (session for stored in self.metrics.values() for session in stored.sessions)
        return max(sessions, key=lambda session: session.instant, default=None)
