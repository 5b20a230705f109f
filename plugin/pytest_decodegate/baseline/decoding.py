"""The shape of a baseline file on disk, of version SCHEMA, and the way from bytes to it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import msgspec

from ..metric import Kind, Level
from ..printable import printable_values
from .schema import REWRITTEN, SCHEMA

MOST_DEPTH = 40
"""The format needs ten levels; contracts and facts of the user lie below them."""

_OPEN_DEPTH = 5  # levels above the deepest open object, /benchmarks/0/extra_info/facts/0

_REWRITE = "rewrite it once with `decodegate baselines rewrite FILE --why TEXT`"

_ESCAPED = re.compile(rb"\\[bfnrtu]")
_BEGINS_A_COMMAND = re.compile(rb'"\s*::')

# Nothing real lies outside, and inside no sum, square or inverse leaves the range of a float.
_Positive = Annotated[float, msgspec.Meta(gt=1e-30, lt=1e30)]
_Spread = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]


class MeasuredEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A session of one metric in a file: process values in the metric's unit, or the point of a published figure.

    facts: of each replicate, or none at all. telemetry, commit: as far as they are not the whole session's.
    """

    session: Annotated[str, msgspec.Meta(min_length=1)]
    recorded: str
    level: Level
    values: tuple[_Positive, ...] = ()
    point: _Positive | None = None
    facts: list[dict[str, Any]] = []
    telemetry: dict[str, Any] = {}
    commit: dict[str, Any] = {}


class Stats(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The statistics of all samples that other readers read, in seconds."""

    min: _Positive
    max: _Positive
    mean: _Positive
    stddev: _Spread
    rounds: Annotated[int, msgspec.Meta(ge=1)]
    median: _Positive
    iqr: _Spread
    q1: _Positive
    q3: _Positive
    iqr_outliers: int
    stddev_outliers: int
    outliers: str
    ld15iqr: _Positive
    hd15iqr: _Positive
    ops: _Positive
    total: _Positive
    iterations: int


class Benchmark(msgspec.Struct, gc=False):
    """A session of one metric in a file, as pytest-benchmark has it."""

    name: str
    fullname: str
    extra_info: MeasuredEntry
    stats: Stats


class MetricEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The identity of a metric in a file, its band, and the session from which on a new level was accepted."""

    unit: str
    better: str
    kind: Kind
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    contract: dict[str, Any]
    accepted: str | None = None


class SessionEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a file says once of a session: what was the same for all its metrics."""

    commit: dict[str, Any]
    telemetry: dict[str, Any]


class LogLine(msgspec.Struct, forbid_unknown_fields=True):
    """An edit in the log of a file."""

    when: str
    who: str
    what: str
    why: str


class DecodegateFields(msgspec.Struct, forbid_unknown_fields=True):
    """The object `decodegate` of a file: all that pytest-benchmark has no field for."""

    schema: int
    digest: str
    machine_class: Annotated[str, msgspec.Meta(min_length=1)]
    label: str
    provenance: dict[str, Any]
    metrics: dict[str, MetricEntry]
    sessions: dict[str, SessionEntry]
    log: list[LogLine]
    published: str = ""


class File(msgspec.Struct):
    """A baseline file; fields that only other readers know are left alone."""

    decodegate: DecodegateFields
    benchmarks: list[Benchmark]
    machine_info: dict[str, Any] = {}


class Refusal(Exception):
    """A file that is no baseline: where (a JSON pointer) and why."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: {reason}")


def decode(content: bytes) -> File:
    """The file that `content` is, as one of version SCHEMA; raises Refusal, or ValueError where it is no JSON.

    Every text in it is printable: whoever wrote the file must not command the terminal or the CI that shows it.
    """
    if _perhaps_unseen(content):
        content = json.dumps(printable_values(json.loads(content.decode()))).encode()

    return _decoded(content) or _walked(content)


def _perhaps_unseen(content: bytes) -> bool:
    """Whether a text in `content` may have to be made printable; of what we wrote hardly any, so that few are walked.

    Cheap things are asked first: a file may have 90 MiB.
    """
    if not content.isascii() or b"\x7f" in content or b"##[" in content:
        return True
    if b"\\" in content and _ESCAPED.search(content):
        return True

    return b"::" in content and _BEGINS_A_COMMAND.search(content) is not None


def _decoded(content: bytes) -> File | None:
    """The file if it is of this version and shape; else None, and `_walked`, ten times as slow, knows what is wrong."""
    try:
        file = msgspec.json.decode(content, type=File)
    except (msgspec.DecodeError, RecursionError):
        return None

    deepest = max(map(_depth, _open_objects(file)), default=0)
    return file if file.decodegate.schema == SCHEMA and deepest <= MOST_DEPTH - _OPEN_DEPTH else None


def _open_objects(file: File) -> Iterator[dict[str, Any]]:
    """Objects whose keys the format leaves open."""
    yield file.decodegate.provenance
    for metric in file.decodegate.metrics.values():
        yield metric.contract
    for session in file.decodegate.sessions.values():
        yield from (session.commit, session.telemetry)
    for entry in file.benchmarks:
        yield from (entry.extra_info.commit, entry.extra_info.telemetry, *entry.extra_info.facts)


def _depth(value: Any) -> int:
    """How many levels of objects and arrays lie in `value`; 0 if it is neither."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max([_depth(item) for item in inner if isinstance(item, dict | list)], default=0) if inner else 0


def _walked(content: bytes) -> File:
    """The file; raises Refusal where it is damaged, or of another version."""
    document = json.loads(content.decode())
    _check_head(document)
    _check_finite(document, "")
    try:
        return msgspec.json.decode(json.dumps(document).encode(), type=File)
    except msgspec.ValidationError as error:
        _refuse_shape(document, error)


def _check_head(document: Any) -> None:
    fields = document.get("decodegate") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        reason = "missing, so this is no decodegate baseline (a plain pytest-benchmark file knows no processes)"
        raise Refusal("/decodegate", reason)
    if fields.get("schema") != SCHEMA:
        reason = f"version {fields.get('schema')!r} is not {SCHEMA}, the only one that this decodegate reads; "
        old = fields.get("schema") == REWRITTEN
        reason += _REWRITE if old else "update decodegate, or record the baseline again"
        raise Refusal("/decodegate/schema", reason)


def _check_finite(value: Any, pointer: str, depth: int = 0) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Refusal(pointer, f"{value!r} is no JSON number")
    if depth > MOST_DEPTH:
        raise Refusal(f"{pointer:.200}", f"nested more than {MOST_DEPTH} levels deep, so this is no baseline")

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


_NAMED: dict[str, type[MetricEntry] | type[SessionEntry]] = {"metrics": MetricEntry, "sessions": SessionEntry}
"""The objects of `decodegate` whose keys are names; msgspec does not say which one it means."""


def _misshapen(entries: dict[str, Any], shape: type[MetricEntry] | type[SessionEntry]) -> str:
    """The first key of `entries` under which no `shape` stands."""
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, shape)
        except msgspec.ValidationError:
            return name

    raise AssertionError(f"all of {len(entries)} are well-formed")


def _refuse_shape(document: Any, error: msgspec.ValidationError) -> NoReturn:
    """Turn "... - at `$.benchmarks[3].stats.min`" into a pointer and quote what stands there."""
    reason, _, place = str(error).partition(" - at `$")
    keys: list[str] = []
    found = document
    for said in re.findall(r"\.\.\.|[^.\[\]`]+", place):
        key = _misshapen(found, _NAMED[keys[-1]]) if said == "..." else said
        keys.append(key)
        found = found[int(key) if isinstance(found, list) else key]

    quoted = f", found {found!r:.80}" if isinstance(found, str | int | float | None) else ""
    raise Refusal("".join(f"/{key}" for key in keys) or "/", reason + quoted)
