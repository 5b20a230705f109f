"""`load` reads a baseline, and refuses a file that is not exactly what `benchmark_json.dumps` writes."""

from __future__ import annotations

import json
import math
import re
import stat
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from ..errors import BadInput
from ..machine.provenance import Provenance
from ..metric import UNITS, Kind, Level, Metric, Replicate, middle
from .migrate import migrated
from .schema import SCHEMA, Baseline, LogEntry, Session, StoredMetric

REMEDY = (
    "restore the file from version control, or move it away and record again with `pytest -m perf --perf-record=all`"
)

MOST_BYTES = 90 * 2**20
"""Ten thousand metrics of five replicates with twenty samples take 60 MiB; what is larger is not read at all."""

MOST_DEPTH = 40
"""The format needs ten levels; contracts and facts of the user lie below them."""

_OPEN_DEPTH = 8  # levels above the deepest open object, /benchmarks/0/extra_info/sessions/0/replicates/0/facts

# Other tools may round the last digits of a float when they rewrite a file; an edit by hand is larger.
_CLOSE = 1e-9

# Nothing real lies outside, and inside no sum, square or inverse leaves the range of a float.
_Positive = Annotated[float, msgspec.Meta(gt=1e-30, lt=1e30)]


class _ReplicateEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    samples: Annotated[tuple[_Positive, ...], msgspec.Meta(min_length=1)]
    value: _Positive
    facts: dict[str, Any]


class _SessionEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    recorded: str
    level: Level
    telemetry: dict[str, Any]
    replicates: list[_ReplicateEntry] = []
    point: _Positive | None = None


class _ExtraInfo(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    unit: str
    better: str
    kind: Kind
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    contract: dict[str, Any]
    accepted: str | None
    sessions: Annotated[list[_SessionEntry], msgspec.Meta(min_length=1)]


class _Stats(msgspec.Struct, gc=False):
    min: _Positive
    max: _Positive
    mean: _Positive
    median: _Positive
    stddev: Annotated[float, msgspec.Meta(ge=0)]
    total: _Positive
    ops: _Positive
    rounds: int
    iterations: int
    data: list[_Positive]


class _Benchmark(msgspec.Struct, gc=False):
    name: str
    fullname: str
    extra_info: _ExtraInfo
    stats: _Stats


class _LogEntry(msgspec.Struct, forbid_unknown_fields=True):
    when: str
    who: str
    what: str
    why: str


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    machine_class: Annotated[str, msgspec.Meta(min_length=1)]
    label: str
    provenance: dict[str, Any]
    log: list[_LogEntry]
    published: str = ""


class _File(msgspec.Struct):
    decodegate: _Head
    benchmarks: list[_Benchmark]


class _Refusal(Exception):
    """Where (a JSON pointer) and why."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: {reason}")


def load(path: Path) -> Baseline:
    """Read and check a baseline file; raises BadInput with path, JSON pointer, reason and what to do."""
    try:
        content = _read(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from error

    return parse(path, content)


def parse(path: Path, content: bytes) -> Baseline:
    """The baseline that `content` of the file `path` says; raises BadInput as `load` does."""
    if len(content) > MOST_BYTES:
        raise BadInput(
            f"{path}: larger than {MOST_BYTES // 2**20} MiB, which no baseline may be; prune sessions before more are "
            f"recorded (`decodegate baselines prune`); if this file is there already, {REMEDY}"
        )

    try:
        return _baseline(path, _decoded(content) or _walked(content))
    except _Refusal as refusal:
        raise BadInput(f"{path}: {refusal}; {REMEDY}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON, perhaps cut short: {error}; {REMEDY}") from error


def _decoded(content: bytes) -> _File | None:
    """The file if it is of this version and shape; else None, and `_walked`, ten times as slow, knows what is wrong."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, RecursionError):
        return None

    deepest = max(map(_depth, _open_objects(file)), default=0)
    return file if file.decodegate.schema == SCHEMA and deepest <= MOST_DEPTH - _OPEN_DEPTH else None


def _open_objects(file: _File) -> Iterator[dict[str, Any]]:
    """Objects whose keys the format leaves open."""
    yield file.decodegate.provenance
    for entry in file.benchmarks:
        yield entry.extra_info.contract
        for session in entry.extra_info.sessions:
            yield session.telemetry
            yield from [replicate.facts for replicate in session.replicates if replicate.facts]


def _depth(value: Any) -> int:
    """How many levels of objects and arrays lie in `value`; 0 if it is neither."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max([_depth(one) for one in inner if isinstance(one, dict | list)], default=0) if inner else 0


def _walked(content: bytes) -> _File:
    """The file, brought to this version if it is an older one; raises _Refusal where it is damaged."""
    document = migrated(json.loads(content.decode()))
    _check_head(document)
    _check_finite(document, "")
    try:
        return msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        _refuse_shape(document, error)


def _read(path: Path) -> bytes:
    """At most one byte more than a baseline may have, and nothing of a pipe or device, which may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadInput(f"{path}: not a regular file; give one of baselines/<machine class>/NNNN_*.json")

    with path.open("rb") as stream:
        return stream.read(MOST_BYTES + 1)


def _baseline(path: Path, file: _File) -> Baseline:
    try:
        provenance = Provenance.from_json(file.decodegate.provenance)
    except BadInput as error:
        raise _Refusal("/decodegate/provenance", str(error)) from None

    head = file.decodegate
    metrics = _metrics(file.benchmarks)
    _check_published(head.published, metrics)
    log = tuple(_log(head.log))
    return Baseline(path, head.machine_class, head.label, provenance, metrics, log, head.published)


def _check_published(published: str, metrics: Mapping[str, StoredMetric]) -> None:
    for name, stored in metrics.items():
        if bool(published) != (stored.level == "published"):
            reason = f"{published!r}, but metric {name!r} is of level {stored.level!r}: a file is published as a whole"
            raise _Refusal("/decodegate/published", reason)


def _log(entries: Sequence[_LogEntry]) -> Iterator[LogEntry]:
    for index, entry in enumerate(entries):
        if not _is_instant(entry.when):
            raise _Refusal(f"/decodegate/log/{index}/when", f"{entry.when!r} is no ISO 8601 time with an offset")

        yield LogEntry(entry.when, entry.who, entry.what, entry.why)


def _check_head(document: Any) -> None:
    head = document.get("decodegate") if isinstance(document, dict) else None
    if not isinstance(head, dict):
        reason = "missing, so this is no decodegate baseline (a plain pytest-benchmark file knows no processes)"
        raise _Refusal("/decodegate", reason)
    if head.get("schema") != SCHEMA:
        reason = f"version {head.get('schema')!r} is not {SCHEMA}, the newest that this decodegate knows; update it"
        raise _Refusal("/decodegate/schema", reason)


def _check_finite(value: Any, pointer: str, depth: int = 0) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refusal(pointer, f"{value!r} is no JSON number")
    if depth > MOST_DEPTH:
        raise _Refusal(f"{pointer:.200}", f"nested more than {MOST_DEPTH} levels deep, so this is no baseline")

    for key, inner in _items(value):
        _check_finite(inner, f"{pointer}/{_escaped(key)}", depth + 1)


def _items(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def _escaped(key: str | int) -> str:
    """A key as a JSON pointer writes it (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _refuse_shape(document: Any, error: msgspec.ValidationError) -> NoReturn:
    """Turn "... - at `$.benchmarks[3].stats.min`" into a pointer and quote what stands there."""
    reason, _, place = str(error).partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+", place)
    found = document
    for key in keys:
        found = found[int(key) if isinstance(found, list) else key]

    quoted = f", found {found!r:.80}" if isinstance(found, str | int | float | None) else ""
    raise _Refusal("".join(f"/{key}" for key in keys) or "/", reason + quoted)


def _metrics(benchmarks: Sequence[_Benchmark]) -> dict[str, StoredMetric]:
    metrics: dict[str, StoredMetric] = {}
    for index, entry in enumerate(benchmarks):
        pointer = f"/benchmarks/{index}"
        if entry.name in metrics:
            raise _Refusal(f"{pointer}/name", f"metric {entry.name!r} occurs twice")

        metrics[entry.name] = _stored(entry, pointer)

    return metrics


def _stored(entry: _Benchmark, pointer: str) -> StoredMetric:
    extra = entry.extra_info
    stored = StoredMetric(_metric(entry, pointer), tuple(_sessions(extra, f"{pointer}/extra_info")), extra.accepted)
    if extra.accepted is not None and extra.accepted not in [session.id for session in stored.sessions]:
        raise _Refusal(f"{pointer}/extra_info/accepted", f"{extra.accepted!r} is the id of no session")
    if entry.fullname != entry.name:
        raise _Refusal(f"{pointer}/fullname", f"{entry.fullname!r} is not the name {entry.name!r}")

    _check_stats(entry.stats, stored.data, f"{pointer}/stats")
    return stored


def _metric(entry: _Benchmark, pointer: str) -> Metric:
    extra = entry.extra_info
    if extra.unit not in UNITS:
        reason = f"unknown unit {extra.unit!r}; known units are {', '.join(UNITS)}"
        raise _Refusal(f"{pointer}/extra_info/unit", reason)
    if extra.better != UNITS[extra.unit]:
        reason = f"{extra.better!r}, but {UNITS[extra.unit]!r} is better for {extra.unit!r}"
        raise _Refusal(f"{pointer}/extra_info/better", reason)

    try:
        return Metric(entry.name, extra.unit, extra.kind, extra.tolerance, extra.contract)
    except BadInput as error:
        raise _Refusal(f"{pointer}/name", str(error)) from None


def _sessions(extra: _ExtraInfo, pointer: str) -> Iterator[Session]:
    known: set[str] = set()
    for index, entry in enumerate(extra.sessions):
        here = f"{pointer}/sessions/{index}"
        if entry.id in known:
            raise _Refusal(f"{here}/id", f"session {entry.id!r} occurs twice")
        if entry.level != extra.sessions[0].level:
            raise _Refusal(f"{here}/level", f"{entry.level!r} differs from {extra.sessions[0].level!r} of the first")
        if not _is_instant(entry.recorded):
            raise _Refusal(f"{here}/recorded", f"{entry.recorded!r} is no ISO 8601 time with an offset")

        known.add(entry.id)
        _check_point(entry, here)
        replicates = tuple(_replicates(entry, here))
        yield Session(entry.id, entry.recorded, entry.level, replicates, entry.telemetry, entry.point)


def _check_point(entry: _SessionEntry, pointer: str) -> None:
    """A published figure is a point without samples; everything else has samples and no point."""
    published = entry.level == "published"
    if published != (entry.point is not None):
        raise _Refusal(
            f"{pointer}/point", f"{entry.point!r} at level {entry.level!r}: only published figures are points"
        )
    if published == bool(entry.replicates):
        reason = "a published figure has none" if published else "no replicate, so nothing was measured"
        raise _Refusal(f"{pointer}/replicates", reason)


def _replicates(session: _SessionEntry, pointer: str) -> Iterator[Replicate]:
    for index, entry in enumerate(session.replicates):
        replicate = Replicate(entry.samples, entry.facts)
        if entry.value != replicate.value:
            _check_close(entry.value, replicate.value, f"{pointer}/replicates/{index}/value")

        yield replicate


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _check_stats(stats: _Stats, data: list[float], pointer: str) -> None:
    """Compare what pytest-benchmark reads with the samples that the gate reads: an edit of either shows."""
    if len(stats.data) != len(data):
        raise _Refusal(f"{pointer}/data", f"{len(stats.data)} values, but the sessions hold {len(data)} samples")

    if stats.data != data:
        for index, (found, expected) in enumerate(zip(stats.data, data, strict=True)):
            _check_close(found, expected, f"{pointer}/data/{index}")

    total, ordered = math.fsum(data), sorted(data)
    mean = total / len(data)
    expected_stats = {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "median": middle(ordered),
        "stddev": _deviation(data, mean, stats.stddev),
        "total": total,
        "ops": len(data) / total,
        "rounds": len(data),
        "iterations": 1,
    }
    if not all(map(math.isclose, map(partial(getattr, stats), expected_stats), expected_stats.values())):
        for name, expected in expected_stats.items():
            _check_close(getattr(stats, name), expected, f"{pointer}/{name}")


def _deviation(data: Sequence[float], mean: float, found: float) -> float:
    """Standard deviation of `data`; exact arithmetic costs as much as all else, so only where `found` is doubted."""
    if len(data) < 2:
        return 0.0

    quick = math.dist(data, [mean] * len(data)) / math.sqrt(len(data) - 1)
    return quick if math.isclose(found, quick, rel_tol=_CLOSE) else statistics.stdev(data)


def _check_close(found: float, expected: float, pointer: str) -> None:
    if not math.isclose(found, expected, rel_tol=_CLOSE):
        raise _Refusal(pointer, f"{found!r} does not follow from the samples; they give {expected!r} (edited by hand?)")
