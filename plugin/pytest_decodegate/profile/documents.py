"""A profile as strict JSON, and back; what a stored profile of a baseline is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ..errors import BadInput, unreadable
from ..metric import Json
from .ranks import RankStep
from .step_profile import StepProfile

FORMAT: Final = "decodegate-profile-1"
"""Of the member `format`: a file of another is refused."""


def dumps(profile: StepProfile) -> bytes:
    """`profile` as JSON; every number as it is, so that loads gives an equal profile."""
    document = {"format": FORMAT, **msgspec.to_builtins(profile, str_keys=True)}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def loads(text: bytes, where: str) -> StepProfile:
    """The profile in `text`; raises BadInput that names `where`, the member and what is wrong with it."""
    try:
        document: Any = msgspec.json.decode(text)
        if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
            raise BadInput(f"{where}: is no profile of decodegate (`decodegate profile --json`): no format {FORMAT!r}")

        return msgspec.convert(document, StepProfile, str_keys=True)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{where}: is no usable profile: {error}; write it again with `decodegate profile`") from error


def read(path: Path) -> StepProfile:
    """The profile in the file `path`; raises BadInput."""
    try:
        return loads(path.read_bytes(), str(path))
    except OSError as error:
        raise unreadable(path, error) from error


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path`, all of it or nothing; its folder is made. Raises BadInput where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, content)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}; choose another place") from error


def replace_whole(path: Path, content: bytes) -> None:
    """Put `content` in the place of what `path` holds: a reader, and a run that is killed, see the one or the other.

    Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def slim_trace(step: Sequence[RankStep], ranks: Sequence[int]) -> bytes:
    """One step of all ranks as a Chrome trace that Perfetto loads: a process a rank, a thread a stream, in us."""
    began = min(launch.kernel.start_us for own in step for launch in own.launches)
    events: list[dict[str, Json]] = []
    for rank, own in zip(ranks, step, strict=True):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events += [
            {
                "ph": "X",
                "pid": rank,
                "tid": launch.kernel.stream,
                "ts": round(launch.kernel.start_us - began, 3),
                "dur": round(launch.kernel.duration_us, 3),
                "name": launch.kernel.name,
                "cat": launch.category.label,
                "args": {"kind": launch.kind, "waiting_us": round(launch.waiting_us, 3)},
            }
            for launch in own.launches
        ]

    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})
