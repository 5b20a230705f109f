"""SQLite exports of Nsight Systems: `nsys export --type sqlite REPORT.nsys-rep`, all ranks of a host in one file.

Tables as nsys 2022 to 2025 writes them; names of kernels and ranges are in StringIds. Times are nanoseconds.
"""

from __future__ import annotations

import sqlite3
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ..errors import BadInput
from .trace import Kernel, Mark, RankTrace, ordered, read_mark

MAGIC: Final = b"SQLite format 3\x00"

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES: Final = "NVTX_EVENTS"
_COPIES: Final = {"CUPTI_ACTIVITY_KIND_MEMCPY": "Memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "Memset"}
_NS: Final = 1e-3
_PROCESS_BITS: Final = 24  # a globalTid is a globalPid with the thread in its low bits

_Place = tuple[int, int]  # globalPid and deviceId: one rank


def read(path: Path) -> list[RankTrace]:
    """One trace for each GPU that a process of the export used, ranked by device and then process.

    Raises BadInput for a database that is no export, holds no kernels, or CUDA graphs as a whole instead of kernels.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _Export(database, path).traces()
    except sqlite3.Error as error:
        raise BadInput(f"{path}: is no usable nsys export: {error}; export the report again") from error


class _Export:
    """An open export."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database = database
        self._path = path
        self._tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def traces(self) -> list[RankTrace]:
        """All ranks of the export."""
        self._check()
        work: defaultdict[_Place, list[Kernel]] = defaultdict(list)
        launched: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for place, correlation, kernel in self._kernels():
            work[place].append(kernel)
            earliest = launched[place[0]].get(correlation, kernel.start_us)
            launched[place[0]][correlation] = min(earliest, kernel.start_us)

        for place, kernel in self._copies():
            work[place].append(kernel)

        places = sorted(work, key=lambda place: (place[1], place[0]))
        marks = self._marks(launched)
        world = len(places)
        return [
            RankTrace(
                self._path, "nsys", ordered(work[place], self._path), marks.get(place[0], ()), rank, world, facts={}
            )
            for rank, place in enumerate(places)
        ]

    def _check(self) -> None:
        if "StringIds" not in self._tables:
            raise BadInput(f"{self._path}: is a database, but no export of nsys: it has no table StringIds")
        if _GRAPHS in self._tables and (graphs := self._count(_GRAPHS)):
            raise BadInput(
                f"{self._path}: holds {graphs} launches of CUDA graphs as a whole, and not the kernels in them; record "
                "again with nsys profile --cuda-graph-trace=node"
            )
        if _KERNELS not in self._tables or not self._count(_KERNELS):
            raise BadInput(
                f"{self._path}: no GPU events: record with nsys profile --trace=cuda,nvtx while streams decode"
            )

    def _count(self, table: str) -> int:
        (count,) = self._database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()  # noqa: S608 - a name of ours
        return int(count)

    def _kernels(self) -> Iterator[tuple[_Place, int, Kernel]]:
        rows = self._database.execute(
            "SELECT k.start, k.end, k.deviceId, k.streamId, k.correlationId, k.globalPid, s.value "  # noqa: S608
            f"FROM {_KERNELS} k JOIN StringIds s ON s.id = k.demangledName"
        )
        for start, end, device, stream, correlation, process, name in rows:
            yield (process or 0, device), correlation, _kernel(start, end, name, stream)

    def _copies(self) -> Iterator[tuple[_Place, Kernel]]:
        for table, name in _COPIES.items():
            if table not in self._tables:
                continue

            rows = self._database.execute(f"SELECT start, end, deviceId, streamId, globalPid FROM {table}")  # noqa: S608
            for start, end, device, stream, process in rows:
                yield (process or 0, device), _kernel(start, end, name, stream)

    def _marks(self, launched: Mapping[int, Mapping[int, float]]) -> dict[int, tuple[Mark, ...]]:
        """By process: where the iterations began on the GPU, which is the first kernel launched inside their range."""
        if not {_RANGES, _RUNTIME} <= self._tables:
            return {}

        ranges = self._ranges()
        firsts: dict[tuple[int, int], float] = {}
        for thread, start, correlation in self._database.execute(
            f"SELECT globalTid, start, correlationId FROM {_RUNTIME}"  # noqa: S608
        ):
            own = ranges.get(thread, [])
            number = bisect_right(own, (start, sys.maxsize)) - 1
            began = launched.get(_process(thread), {}).get(correlation)
            if began is not None and number >= 0 and start <= own[number][1]:
                key = (thread, number)
                firsts[key] = min(began, firsts.get(key, began))

        marks: defaultdict[int, list[Mark]] = defaultdict(list)
        for (thread, number), began in firsts.items():
            if mark := read_mark(ranges[thread][number][2], began):
                marks[_process(thread)].append(mark)

        return {process: tuple(sorted(found)) for process, found in marks.items()}

    def _ranges(self) -> dict[int, list[Any]]:
        """By thread: start, end and text of the engine's ranges, in order."""
        ranges: defaultdict[int, list[Any]] = defaultdict(list)
        for thread, start, end, text in self._database.execute(
            f"SELECT n.globalTid, n.start, n.end, COALESCE(n.text, s.value) FROM {_RANGES} n "  # noqa: S608
            "LEFT JOIN StringIds s ON s.id = n.textId WHERE n.end IS NOT NULL"
        ):
            if text and read_mark(text, 0.0):
                ranges[thread].append((start, end, text))

        return {thread: sorted(found) for thread, found in ranges.items()}


def _process(thread: int) -> int:
    return (thread >> _PROCESS_BITS) << _PROCESS_BITS


def _kernel(start: int, end: int, name: str, stream: int) -> Kernel:
    return Kernel(start * _NS, (end - start) * _NS, sys.intern(name), stream)
