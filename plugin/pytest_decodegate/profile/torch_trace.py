"""Traces of torch.profiler: Chrome trace JSON, one file a rank, as vLLM and SGLang write them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import BadInput
from . import json_stream
from .trace import Kernel, Mark, RankTrace, ordered, read_mark

_WORK: Final = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_RANK_IN_NAME: Final = re.compile(r"rank[_-]?(\d{1,5})(?!\d)")
_FACTS: Final = ("cuda_driver_version", "cuda_runtime_version")


def read(path: Path) -> RankTrace:
    """The work of one rank from a trace of torch.profiler, plain or gzip, streamed.

    Operators and Python calls are passed over: a row of an operator is the sum of kernels that have rows of their own.
    Raises BadInput for a file that is none, ends early, holds several GPUs, no GPU events or impossible times.
    """
    events = _Events(path)
    head: dict[str, Any] = {}
    for key, value, is_item in json_stream.members(path, "traceEvents"):
        if is_item:
            events.add(value)
        else:
            head[key] = value

    if not events.any:
        raise BadInput(f"{path}: has no traceEvents, so it is no trace of torch.profiler")

    distributed = head.get("distributedInfo")
    run = distributed if isinstance(distributed, dict) else {}
    return RankTrace(
        source=path,
        tool="torch.profiler",
        kernels=ordered(events.kernels, path),
        marks=events.marks(),
        rank=_rank(run, path),
        world_size=_count(run.get("world_size")),
        origin_us=_origin_us(head.get("baseTimeNanoseconds")),
        facts=_facts(head, run),
    )


class _Events:
    """The events of a file that matter, as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.any = False
        self.kernels: list[Kernel] = []
        self._device: Any = None
        self._process: Any = None
        self._starts: dict[tuple[Any, str], float] = {}  # (External id, name) -> first work on the GPU

    def add(self, event: Any) -> None:
        """Keep `event` if it is work of a GPU, or says to which iteration such work belongs."""
        self.any = True
        if not isinstance(event, dict):
            raise BadInput(f"{self._path}: an event is {str(event)[:60]!r} where an object should be")

        category = event.get("cat")
        if category in _WORK:
            self._add_work(event)
        elif category == "gpu_user_annotation":
            self._add_annotation(event)
        elif event.get("name") == "process_labels" and (event.get("args") or {}).get("labels") == "CPU":
            self._add_process(event.get("pid"))

    def marks(self) -> tuple[Mark, ...]:
        """Where iterations began; an annotation has a row on each stream that it put work on, the earliest counts."""
        found = (read_mark(name, start_us) for (_, name), start_us in self._starts.items())
        return tuple(sorted(mark for mark in found if mark))

    def _add_process(self, process: Any) -> None:
        """Two ranks may each call their GPU 0: their processes tell them apart."""
        if self._process is None:
            self._process = process
        elif process != self._process:
            raise BadInput(
                f"{self._path}: is of processes {self._process!r} and {process!r}, so it is of several ranks; give the "
                "files as the profiler wrote them, one a rank"
            )

    def _add_work(self, event: Mapping[str, Any]) -> None:
        arguments = event.get("args") or {}
        device = arguments.get("device", event.get("pid"))
        if self._device is None:
            self._device = device
        elif device != self._device:
            raise BadInput(
                f"{self._path}: holds kernels of GPU {self._device!r} and of GPU {device!r}, so it is of several "
                "ranks; give the files as the profiler wrote them, one a rank"
            )

        try:
            stream = arguments["stream"] if "stream" in arguments else event["tid"]
            start_us, duration_us = float(event["ts"]), float(event["dur"])
            # Interned: a name comes thousands of times and may have thousands of characters.
            self.kernels.append(Kernel(start_us, duration_us, sys.intern(event["name"]), int(stream)))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{self._path}: a GPU event without usable ts, dur, name or stream: {str(event)[:200]}"
            ) from error

    def _add_annotation(self, event: Mapping[str, Any]) -> None:
        name, start_us = event.get("name"), event.get("ts")
        if isinstance(name, str) and isinstance(start_us, int | float):
            key = ((event.get("args") or {}).get("External id"), name)
            self._starts[key] = min(float(start_us), self._starts.get(key, float(start_us)))


def _rank(run: Mapping[str, Any], path: Path) -> int | None:
    if (rank := _count(run.get("rank"))) is not None:
        return rank

    found = _RANK_IN_NAME.findall(path.name)
    return int(found[-1]) if found else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _origin_us(nanoseconds: Any) -> float:
    return nanoseconds / 1000 if isinstance(nanoseconds, int) else 0.0


def _facts(head: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, str | int]:
    devices = head.get("deviceProperties")
    name = devices[0].get("name") if isinstance(devices, list) and devices and isinstance(devices[0], dict) else None
    facts = {"gpu": name, "nccl": run.get("nccl_version"), **{key: head.get(key) for key in _FACTS}}
    return {key: value for key, value in facts.items() if isinstance(value, str | int)}
