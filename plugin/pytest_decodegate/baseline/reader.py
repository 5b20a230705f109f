"""`load` reads a baseline, and refuses a file that is not exactly what `benchmark_json.dumps` writes."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from ..errors import BadInput
from ..machine.provenance import Provenance
from ..metric import UNITS, Kind, Level, Metric, Replicate
from .schema import SCHEMA, Baseline, Session, StoredMetric

REMEDY = (
    "restore the file from version control, or move it away and record again with `pytest -m perf --perf-record=all`"
)

# Other tools may round the last digits of a float when they rewrite a file; an edit by hand is larger.
_CLOSE = 1e-9

# Nothing real lies outside, and inside no sum, square or inverse leaves the range of a float.
_Positive = Annotated[float, msgspec.Meta(gt=1e-30, lt=1e30)]


class _ReplicateEntry(msgspec.Struct, forbid_unknown_fields=True):
    samples: Annotated[list[_Positive], msgspec.Meta(min_length=1)]
    value: _Positive
    facts: dict[str, Any]


class _SessionEntry(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    recorded: str
    level: Level
    telemetry: dict[str, Any]
    replicates: Annotated[list[_ReplicateEntry], msgspec.Meta(min_length=1)]


class _ExtraInfo(msgspec.Struct, forbid_unknown_fields=True):
    unit: str
    better: str
    kind: Kind
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    contract: dict[str, Any]
    sessions: Annotated[list[_SessionEntry], msgspec.Meta(min_length=1)]


class _Stats(msgspec.Struct):
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


class _Benchmark(msgspec.Struct):
    name: str
    fullname: str
    extra_info: _ExtraInfo
    stats: _Stats


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    machine_class: Annotated[str, msgspec.Meta(min_length=1)]
    label: str
    provenance: dict[str, Any]


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
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from error

    return parse(path, content)


def parse(path: Path, content: bytes) -> Baseline:
    """The baseline that `content` of the file `path` says; raises BadInput as `load` does."""
    try:
        document = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON, perhaps cut short: {error}; {REMEDY}") from error

    try:
        return _baseline(path, document)
    except _Refusal as refusal:
        raise BadInput(f"{path}: {refusal}; {REMEDY}") from None


def _baseline(path: Path, document: Any) -> Baseline:
    _check_head(document)
    _check_finite(document, "")
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        _refuse_shape(document, error)

    try:
        provenance = Provenance.from_json(file.decodegate.provenance)
    except BadInput as error:
        raise _Refusal("/decodegate/provenance", str(error)) from None

    return Baseline(path, file.decodegate.machine_class, file.decodegate.label, provenance, _metrics(file.benchmarks))


def _check_head(document: Any) -> None:
    head = document.get("decodegate") if isinstance(document, dict) else None
    if not isinstance(head, dict):
        reason = "missing, so this is no decodegate baseline (a plain pytest-benchmark file knows no processes)"
        raise _Refusal("/decodegate", reason)
    if head.get("schema") != SCHEMA:
        reason = f"version {head.get('schema')!r} is not {SCHEMA}, the one that this decodegate reads and writes"
        raise _Refusal("/decodegate/schema", reason)


def _check_finite(value: Any, pointer: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _Refusal(pointer, f"{value!r} is no JSON number")

    for key, inner in _items(value):
        _check_finite(inner, f"{pointer}/{_escaped(key)}")


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
    stored = StoredMetric(_metric(entry, pointer), tuple(_sessions(entry.extra_info, f"{pointer}/extra_info")))
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
        yield Session(entry.id, entry.recorded, entry.level, tuple(_replicates(entry, here)), entry.telemetry)


def _replicates(session: _SessionEntry, pointer: str) -> Iterator[Replicate]:
    for index, entry in enumerate(session.replicates):
        replicate = Replicate(tuple(entry.samples), entry.facts)
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

    for index, (found, expected) in enumerate(zip(stats.data, data, strict=True)):
        _check_close(found, expected, f"{pointer}/data/{index}")

    total = math.fsum(data)
    expected_stats = {
        "min": min(data),
        "max": max(data),
        "mean": total / len(data),
        "median": statistics.median(data),
        "stddev": statistics.stdev(data) if len(data) > 1 else 0.0,
        "total": total,
        "ops": len(data) / total,
        "rounds": len(data),
        "iterations": 1,
    }
    for name, expected in expected_stats.items():
        _check_close(getattr(stats, name), expected, f"{pointer}/{name}")


def _check_close(found: float, expected: float, pointer: str) -> None:
    if not math.isclose(found, expected, rel_tol=_CLOSE):
        raise _Refusal(pointer, f"{found!r} does not follow from the samples; they give {expected!r} (edited by hand?)")
