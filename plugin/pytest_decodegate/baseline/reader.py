"""`load` reads a baseline, and refuses a file that is not exactly what `benchmark_json.dumps` writes."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from ..errors import BadInput, unreadable
from ..machine.provenance import Provenance
from ..metric import UNITS, Metric, Replicate
from . import decoding
from .decoding import Refusal
from .schema import RECORDER_FIELDS, Baseline, LogEntry, Session, StoredMetric
from .seal import digest

REMEDY = (
    "restore the file from version control, or move it away and record again with `pytest -m perf --perf-record=all`"
)

MOST_BYTES = 90 * 2**20
"""Ten thousand metrics of five sessions take 50 MiB; what is larger is not read at all."""


def load(path: Path, *, sealed: bool = True) -> Baseline:
    """Read and check a baseline file; raises BadInput with path, JSON pointer, reason and what to do.

    sealed: whether its digest must be that of its content, as for every use of a file but sealing it again.
    """
    return parse(path, content_of(path), sealed=sealed)


def content_of(path: Path) -> bytes:
    """The bytes of the file `path`, at most one more than a baseline may have; raises BadInput where it cannot."""
    try:
        return _read(path)
    except OSError as error:
        raise unreadable(path, error) from error


def parse(path: Path, content: bytes, *, sealed: bool = True) -> Baseline:
    """The baseline that `content` of the file `path` says; raises BadInput as `load` does."""
    if len(content) > MOST_BYTES:
        raise BadInput(
            f"{path}: larger than {MOST_BYTES // 2**20} MiB, which no baseline may be; prune sessions before more are "
            f"recorded (`decodegate baselines prune`); if this file is there already, {REMEDY}"
        )

    try:
        file = decoding.decode(content)
        baseline = _baseline(path, file)
        if sealed:
            _check_seal(path, content, file.decodegate.digest)
    except Refusal as refusal:
        raise BadInput(f"{path}: {refusal}; {REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON, perhaps cut short: {error}; {REMEDY}") from error

    return baseline


def _check_seal(path: Path, content: bytes, held: str) -> None:
    """Raise BadInput unless the digest that the file holds is that of its content."""
    found = digest(content, held)
    if held != found:
        raise BadInput(
            f"{path}: /decodegate/digest: {held:.12} is not that of the content, {found:.12}: edited by hand, or "
            "merged by git. Restore it from version control and use `decodegate baselines`, whose edits are logged; "
            f"if all of it is meant, accept it with `decodegate baselines reseal {path} --why TEXT`"
        )


def _read(path: Path) -> bytes:
    """At most one byte more than a baseline may have, and nothing of a pipe or device, which may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadInput(f"{path}: not a regular file; give one of baselines/<machine class>/NNNN_*.json")

    with path.open("rb") as stream:
        return stream.read(MOST_BYTES + 1)


def _baseline(path: Path, file: decoding.File) -> Baseline:
    try:
        provenance = Provenance.from_json(file.decodegate.provenance)
    except BadInput as error:
        raise Refusal("/decodegate/provenance", str(error)) from None

    fields = file.decodegate
    metrics = _metrics(file)
    _check_published(fields.published, metrics)
    return Baseline(
        path=path,
        machine_class=fields.machine_class,
        label=fields.label,
        provenance=provenance,
        metrics=metrics,
        log=tuple(_log(fields.log)),
        published=fields.published,
        recorder={name: str(file.machine_info[name]) for name in RECORDER_FIELDS if name in file.machine_info},
    )


def _check_published(published: str, metrics: Mapping[str, StoredMetric]) -> None:
    for name, stored in metrics.items():
        if bool(published) != (stored.level == "published"):
            reason = f"{published!r}, but metric {name!r} is of level {stored.level!r}: a file is published as a whole"
            raise Refusal("/decodegate/published", reason)


def _log(entries: Sequence[decoding.LogLine]) -> Iterator[LogEntry]:
    for index, entry in enumerate(entries):
        if not _is_instant(entry.when):
            raise Refusal(f"/decodegate/log/{index}/when", f"{entry.when!r} is no ISO 8601 time with an offset")

        yield LogEntry(entry.when, entry.who, entry.what, entry.why)


def _metrics(file: decoding.File) -> dict[str, StoredMetric]:
    recordings = _recordings(file)
    return {name: _stored(name, entry, recordings.get(name, ())) for name, entry in file.decodegate.metrics.items()}


def _recordings(file: decoding.File) -> dict[str, list[Session]]:
    """The sessions by metric, in the order of the file."""
    found: dict[str, list[Session]] = {}
    for index, entry in enumerate(file.benchmarks):
        pointer = f"/benchmarks/{index}"
        if entry.name not in file.decodegate.metrics:
            raise Refusal(f"{pointer}/name", f"{entry.name!r} is none of /decodegate/metrics")
        if entry.fullname != entry.name:
            raise Refusal(f"{pointer}/fullname", f"{entry.fullname!r} is not the name {entry.name!r}")

        sessions = found.setdefault(entry.name, [])
        sessions.append(_session(entry, file.decodegate.sessions, sessions, pointer))

    return found


def _stored(name: str, entry: decoding.MetricEntry, sessions: Sequence[Session]) -> StoredMetric:
    pointer = f"/decodegate/metrics/{name}"
    if not sessions:
        raise Refusal(pointer, "no benchmark has this name, so nothing was measured")
    if entry.accepted is not None and entry.accepted not in [session.id for session in sessions]:
        raise Refusal(f"{pointer}/accepted", f"{entry.accepted!r} is the id of no session")

    return StoredMetric(_metric(name, entry, pointer), tuple(sessions), entry.accepted)


def _metric(name: str, entry: decoding.MetricEntry, pointer: str) -> Metric:
    if entry.unit not in UNITS:
        raise Refusal(f"{pointer}/unit", f"unknown unit {entry.unit!r}; known units are {', '.join(UNITS)}")
    if entry.better != UNITS[entry.unit]:
        reason = f"{entry.better!r}, but {UNITS[entry.unit]!r} is better for {entry.unit!r}"
        raise Refusal(f"{pointer}/better", reason)

    try:
        return Metric(name, entry.unit, entry.kind, entry.tolerance, entry.contract)
    except BadInput as error:
        raise Refusal(pointer, str(error)) from None


def _session(
    entry: decoding.Benchmark,
    shared: Mapping[str, decoding.SessionEntry],
    earlier: Sequence[Session],
    pointer: str,
) -> Session:
    recording, here = entry.extra_info, f"{pointer}/extra_info"
    if recording.session not in shared:
        raise Refusal(f"{here}/session", f"{recording.session!r} is none of /decodegate/sessions")
    if any(session.id == recording.session for session in earlier):
        raise Refusal(f"{here}/session", f"session {recording.session!r} of {entry.name!r} occurs twice")
    if earlier and recording.level != earlier[0].level:
        raise Refusal(f"{here}/level", f"{recording.level!r} differs from {earlier[0].level!r} of the first")
    if recording.recorded and not _is_instant(recording.recorded):
        raise Refusal(f"{here}/recorded", f"{recording.recorded!r} is no ISO 8601 time with an offset")

    _check_point(recording, here)
    whole = shared[recording.session]
    return Session(
        recording.session,
        recording.recorded,
        recording.level,
        tuple(_replicates(recording, here)),
        {**whole.telemetry, **recording.telemetry},
        recording.point,
        recording.commit or whole.commit,
        msgspec.structs.asdict(entry.stats),
    )


def _check_point(recording: decoding.MeasuredEntry, pointer: str) -> None:
    """A published figure is a point without replicates; everything else has their values and no point."""
    published = recording.level == "published"
    if published != (recording.point is not None):
        raise Refusal(
            f"{pointer}/point", f"{recording.point!r} at level {recording.level!r}: only published figures are points"
        )
    if published == bool(recording.values):
        reason = "a published figure has none" if published else "no replicate, so nothing was measured"
        raise Refusal(f"{pointer}/values", reason)


def _replicates(recording: decoding.MeasuredEntry, pointer: str) -> list[Replicate]:
    facts = recording.facts or [{}] * len(recording.values)
    if len(facts) != len(recording.values):
        raise Refusal(f"{pointer}/facts", f"{len(facts)}, but there are {len(recording.values)} values")

    return [Replicate.known((), known, value) for known, value in zip(facts, recording.values, strict=True)]


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
