"""`load` reads a baseline, and refuses a file that is not exactly what `benchmark_json.dumps` writes."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ..errors import BadInput
from ..machine.provenance import Provenance
from ..metric import UNITS, Metric, Replicate
from . import decoding
from .consistency import check_stats, process_value
from .decoding import Refusal
from .schema import RECORDER_FIELDS, Baseline, LogEntry, Session, StoredMetric

REMEDY = (
    "restore the file from version control, or move it away and record again with `pytest -m perf --perf-record=all`"
)

MOST_BYTES = 90 * 2**20
"""Ten thousand metrics of five replicates with twenty samples take 75 MiB; what is larger is not read at all."""


def load(path: Path, *, statistics: bool = True) -> Baseline:
    """Read and check a baseline file; raises BadInput with path, JSON pointer, reason and what to do.

    statistics: also check that `stats`, which the file holds for other readers, follows from the samples. No verdict
    rests on it, and it is half of the work, so that whoever only compares may leave it at its shape.
    """
    try:
        content = _read(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from error

    return parse(path, content, statistics=statistics)


def parse(path: Path, content: bytes, *, statistics: bool = True) -> Baseline:
    """The baseline that `content` of the file `path` says; raises BadInput as `load` does."""
    if len(content) > MOST_BYTES:
        raise BadInput(
            f"{path}: larger than {MOST_BYTES // 2**20} MiB, which no baseline may be; prune sessions before more are "
            f"recorded (`decodegate baselines prune`); if this file is there already, {REMEDY}"
        )

    try:
        return _baseline(path, decoding.decode(content), statistics=statistics)
    except Refusal as refusal:
        raise BadInput(f"{path}: {refusal}; {REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON, perhaps cut short: {error}; {REMEDY}") from error


def _read(path: Path) -> bytes:
    """At most one byte more than a baseline may have, and nothing of a pipe or device, which may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadInput(f"{path}: not a regular file; give one of baselines/<machine class>/NNNN_*.json")

    with path.open("rb") as stream:
        return stream.read(MOST_BYTES + 1)


def _baseline(path: Path, file: decoding.File, *, statistics: bool) -> Baseline:
    try:
        provenance = Provenance.from_json(file.decodegate.provenance)
    except BadInput as error:
        raise Refusal("/decodegate/provenance", str(error)) from None

    fields = file.decodegate
    metrics = _metrics(file.benchmarks, statistics=statistics)
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


def _metrics(benchmarks: Sequence[decoding.Benchmark], *, statistics: bool) -> dict[str, StoredMetric]:
    metrics: dict[str, StoredMetric] = {}
    for index, entry in enumerate(benchmarks):
        pointer = f"/benchmarks/{index}"
        if entry.name in metrics:
            raise Refusal(f"{pointer}/name", f"metric {entry.name!r} occurs twice")

        metrics[entry.name] = _stored(entry, pointer, statistics=statistics)

    return metrics


def _stored(entry: decoding.Benchmark, pointer: str, *, statistics: bool) -> StoredMetric:
    extra = entry.extra_info
    stored = StoredMetric(_metric(entry, pointer), tuple(_sessions(extra, f"{pointer}/extra_info")), extra.accepted)
    if extra.accepted is not None and extra.accepted not in [session.id for session in stored.sessions]:
        raise Refusal(f"{pointer}/extra_info/accepted", f"{extra.accepted!r} is the id of no session")
    if entry.fullname != entry.name:
        raise Refusal(f"{pointer}/fullname", f"{entry.fullname!r} is not the name {entry.name!r}")

    if statistics:
        check_stats(entry.stats, stored.data, f"{pointer}/stats")

    return stored


def _metric(entry: decoding.Benchmark, pointer: str) -> Metric:
    extra = entry.extra_info
    if extra.unit not in UNITS:
        reason = f"unknown unit {extra.unit!r}; known units are {', '.join(UNITS)}"
        raise Refusal(f"{pointer}/extra_info/unit", reason)
    if extra.better != UNITS[extra.unit]:
        reason = f"{extra.better!r}, but {UNITS[extra.unit]!r} is better for {extra.unit!r}"
        raise Refusal(f"{pointer}/extra_info/better", reason)

    try:
        return Metric(entry.name, extra.unit, extra.kind, extra.tolerance, extra.contract)
    except BadInput as error:
        raise Refusal(f"{pointer}/name", str(error)) from None


def _sessions(extra: decoding.ExtraInfo, pointer: str) -> Iterator[Session]:
    known: set[str] = set()
    for index, entry in enumerate(extra.sessions):
        here = f"{pointer}/sessions/{index}"
        if entry.id in known:
            raise Refusal(f"{here}/id", f"session {entry.id!r} occurs twice")
        if entry.level != extra.sessions[0].level:
            raise Refusal(f"{here}/level", f"{entry.level!r} differs from {extra.sessions[0].level!r} of the first")
        if entry.recorded and not _is_instant(entry.recorded):
            raise Refusal(f"{here}/recorded", f"{entry.recorded!r} is no ISO 8601 time with an offset")

        known.add(entry.id)
        _check_point(entry, here)
        replicates = tuple(_replicates(entry, here))
        yield Session(entry.id, entry.recorded, entry.level, replicates, entry.telemetry, entry.point)


def _check_point(entry: decoding.SessionEntry, pointer: str) -> None:
    """A published figure is a point without samples; everything else has samples and no point."""
    published = entry.level == "published"
    if published != (entry.point is not None):
        raise Refusal(
            f"{pointer}/point", f"{entry.point!r} at level {entry.level!r}: only published figures are points"
        )
    if published == bool(entry.replicates):
        reason = "a published figure has none" if published else "no replicate, so nothing was measured"
        raise Refusal(f"{pointer}/replicates", reason)


def _replicates(session: decoding.SessionEntry, pointer: str) -> Iterator[Replicate]:
    for index, entry in enumerate(session.replicates):
        value = process_value(entry, f"{pointer}/replicates/{index}")
        yield Replicate.known(entry.samples, entry.facts, value)


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
