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
from .schema import SCHEMA

MOST_DEPTH = 40
"""The format needs ten levels; contracts and facts of the user lie below them."""

_OPEN_DEPTH = 8  # levels above the deepest open object, /benchmarks/0/extra_info/sessions/0/replicates/0/facts

_ESCAPED = re.compile(rb"\\[bfnrtu]")
_BEGINS_A_COMMAND = re.compile(rb'"\s*::')

# Nothing real lies outside, and inside no sum, square or inverse leaves the range of a float.
_Positive = Annotated[float, msgspec.Meta(gt=1e-30, lt=1e30)]


class ReplicateEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A replicate in a file: one process and its samples, in the metric's unit."""

    samples: Annotated[tuple[_Positive, ...], msgspec.Meta(min_length=1)]
    value: _Positive
    facts: dict[str, Any]


class SessionEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A session in a file: replicates, or the point of a published figure."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    recorded: str
    level: Level
    telemetry: dict[str, Any]
    replicates: list[ReplicateEntry] = []
    point: _Positive | None = None


class ExtraInfo(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of a metric that the gate reads."""

    unit: str
    better: str
    kind: Kind
    tolerance: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    contract: dict[str, Any]
    accepted: str | None
    sessions: Annotated[list[SessionEntry], msgspec.Meta(min_length=1)]


class Stats(msgspec.Struct, gc=False):
    """The statistics that other readers read, in seconds; `data` holds all samples and is decoded only on demand."""

    min: _Positive
    max: _Positive
    mean: _Positive
    median: _Positive
    stddev: Annotated[float, msgspec.Meta(ge=0)]
    total: _Positive
    ops: _Positive
    rounds: int
    iterations: int
    data: msgspec.Raw


class Benchmark(msgspec.Struct, gc=False):
    """A metric in a file, as pytest-benchmark has it."""

    name: str
    fullname: str
    extra_info: ExtraInfo
    stats: Stats


class LogLine(msgspec.Struct, forbid_unknown_fields=True):
    """An edit in the log of a file."""

    when: str
    who: str
    what: str
    why: str


class DecodegateFields(msgspec.Struct, forbid_unknown_fields=True):
    """The object `decodegate` of a file: all that pytest-benchmark has no field for."""

    schema: int
    machine_class: Annotated[str, msgspec.Meta(min_length=1)]
    label: str
    provenance: dict[str, Any]
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


def samples_of(raw: msgspec.Raw, pointer: str) -> list[float]:
    """The values of `Stats.data`, which lies at `pointer`; raises Refusal where they are no samples."""
    try:
        return msgspec.json.decode(raw, type=list[_Positive])
    except msgspec.ValidationError as error:
        _refuse_shape(json.loads(bytes(raw)), error, pointer)


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
    for entry in file.benchmarks:
        yield entry.extra_info.contract
        for session in entry.extra_info.sessions:
            yield session.telemetry
            yield from [replicate.facts for replicate in session.replicates if replicate.facts]


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
        reason += "update decodegate, or record the baseline again"
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


def _refuse_shape(document: Any, error: msgspec.ValidationError, above: str = "") -> NoReturn:
    """Turn "... - at `$.benchmarks[3].stats.min`" into a pointer below `above` and quote what stands there."""
    reason, _, place = str(error).partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+", place)
    found = document
    for key in keys:
        found = found[int(key) if isinstance(found, list) else key]

    quoted = f", found {found!r:.80}" if isinstance(found, str | int | float | None) else ""
    raise Refusal(above + "".join(f"/{key}" for key in keys) or "/", reason + quoted)
