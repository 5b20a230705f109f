"""Traces of invented decode steps, written as torch.profiler and nsys write them, with whatever is wrong with them."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "traces"
SLICE = [DATA / f"slice_tp2_rank{rank}.json.gz" for rank in (0, 1)]
"""Two ranks of an 8-layer slice of Kimi-K2.5 on H200s, cut by cut_trace.py; 31 decode steps of one stream."""

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_231 = "ncclDevKernel_AllReduce_bf16_RING(ncclDevKernelArgsStorage<4096ul>)"
MARLIN = "void marlin_moe_wna16::Marlin<1125899906909960l, 256, 1, 8, 8, true>(int4 const*, int)"
ATTENTION = "_fwd_grouped_kernel_stage1"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
DENSE = "nvjet_sm90_tst_192x8_64x8_1x1_h_bz_splitK_TNT"
PREFILL = {GEMM: "nvjet_sm90_tst_72x64_64x12_4x1_v_bz_TNN"}  # more tokens, other tiles
CAST = "void vllm::bfloat16tofloat32_copy_kernel(float*, __nv_bfloat16 const*)"

Kernel = tuple[str, float, float, int]  # name, start and duration in us, stream


@dataclass(frozen=True)
class Invented:
    """A rank's decode steps: one AllReduce, then layers of one attention, two MoE GEMMs and two AllReduces.

    The first layer is dense: one GEMM in the place of two.

    late_us: by how much this rank comes later to the first AllReduce of a step than the other. offset_us: of its clock.
    """

    rank: int = 0
    world: int = 2
    layers: int = 3
    steps: int = 4
    period_us: float = 1000.0
    late_us: float = 0.0
    offset_us: float = 0.0
    allreduce_us: float = 7.0
    allreduce: str = NCCL
    extra: tuple[tuple[str, float], ...] = ()  # name and duration, between the MoE GEMMs

    def step(self, start: float) -> list[Kernel]:
        """Kernels of one step; the first AllReduce ends at the same time on all ranks."""
        at = start + 100.0
        kernels = [("Memcpy HtoD (Pinned -> Device)", start + self.late_us, 1.0, 7)]
        kernels.append((self.allreduce, start + 10 + self.late_us, 90.0 - self.late_us, 7))
        for layer in range(self.layers):
            for name, duration in self._layer(layer):
                kernels.append((name, at, duration, 7))
                at += duration + 1.0

        return [*kernels, (GEMM, at, 20.0, 7), ("argmax_kernel", at + 21.0, 2.0, 7)]

    def _layer(self, number: int) -> Sequence[tuple[str, float]]:
        reduce = (self.allreduce, self.allreduce_us)
        experts = [(MARLIN, 14.0), *self.extra, (MARLIN, 10.0)] if number else [(DENSE, 30.0)]
        return [(ATTENTION, 11.0), reduce, *experts, reduce]

    @property
    def starts(self) -> list[float]:
        """Where the steps begin, uneven as they are; a prefill ran before them."""
        return [
            10_000.0 + self.offset_us + number * self.period_us + 37.0 * (number % 3) for number in range(self.steps)
        ]

    def kernels(self) -> list[Kernel]:
        """Those of a prefill and of all steps."""
        first = self.step(10_000.0 + self.offset_us)
        prefill = [
            (PREFILL.get(name, name), start - 5000.0, 3 * duration, stream) for name, start, duration, stream in first
        ]
        return [*prefill, *(kernel for start in self.starts for kernel in self.step(start))]

    def annotations(self) -> list[tuple[str, float]]:
        """Names and starts as vLLM marks its iterations."""
        decode = [("execute_context_0(0)_generation_1(1)", start + self.late_us) for start in self.starts]
        return [("execute_context_1(64)_generation_0(0)", 5_000.0 + self.offset_us + self.late_us), *decode]


Edit = Callable[[dict[str, Any]], None]


def torch_trace(path: Path, invented: Invented, *edits: Edit, annotated: bool = True) -> Path:
    """Write a trace of torch.profiler; `edits` change the document before it is written. Plain or gzip by its name."""
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"rank": invented.rank, "world_size": invented.world, "nccl_version": "2.28.9"},
        "cuda_driver_version": 13000,
        "baseTimeNanoseconds": 1_790_000_000_000_000_000,
        "traceEvents": [*_other_events(), *_work(invented), *(_annotated(invented) if annotated else [])],
        "traceName": path.name,
    }
    for edit in edits:
        edit(document)

    text = json.dumps(document, indent=2)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def two_ranks(folder: Path, late_us: float = 50.0, **fields: Any) -> list[Path]:
    """Traces of two ranks of which the second is late to each step."""
    return [
        torch_trace(folder / f"rank{rank}.json", Invented(rank=rank, late_us=rank * late_us, **fields))
        for rank in (0, 1)
    ]


def _other_events() -> Iterable[dict[str, Any]]:
    # An operator row of AllReduce: its kernels have rows of their own.
    yield {"ph": "X", "cat": "cpu_op", "name": "vllm::all_reduce", "pid": 9, "tid": 9, "ts": 10_010.0, "dur": 1125.0}
    yield {"ph": "X", "cat": "python_function", "name": "forward", "pid": 9, "tid": 9, "ts": 1.0, "dur": 2.0}
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": 'a "rank" {of, many]'}}


def _work(invented: Invented) -> Iterable[dict[str, Any]]:
    for number, (name, start, duration, stream) in enumerate(invented.kernels()):
        arguments = {"device": invented.rank, "stream": stream, "correlation": number}
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        times = {"ts": start, "dur": duration, "pid": invented.rank, "tid": stream}
        yield {"ph": "X", "cat": category, "name": name, **times, "args": arguments}


def _annotated(invented: Invented) -> Iterable[dict[str, Any]]:
    for number, (name, start) in enumerate(invented.annotations()):
        for later, stream in ((0.0, 7), (30.0, 8)):  # a row on each stream
            times = {"ts": start + later, "dur": 5.0, "pid": invented.rank, "tid": stream}
            yield {"ph": "X", "cat": "gpu_user_annotation", "name": name, **times, "args": {"External id": number}}


def nsys_export(path: Path, ranks: Sequence[Invented], *, ranges: bool = True) -> Path:
    """Write a SQLite export of nsys with all `ranks`, one process and device each."""
    names = sorted({kernel[0] for rank in ranks for kernel in rank.kernels()})
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
            " correlationId INTEGER, globalPid INTEGER);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,"
            " correlationId INTEGER);"
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);"
        )
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        for rank in ranks:
            _export_rank(database, rank, names, ranges)

    return path


def _export_rank(database: sqlite3.Connection, invented: Invented, names: list[str], ranges: bool) -> None:
    process = (100 + invented.rank) << 24
    for number, (name, start, duration, stream) in enumerate(invented.kernels()):
        times = (round(start * 1000), round((start + duration) * 1000))
        row = (*times, invented.rank, stream, number, process)
        if name.startswith("Memcpy"):
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?)", row)
        else:
            kernel = (*row, names.index(name), names.index(name))
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kernel)
        launch = (times[0] - 2000, times[0] - 1000, process | 7, number)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", launch)

    for name, start in invented.annotations() if ranges else []:
        marked = (round((start - 5) * 1000), round((start + 700) * 1000), name, None, process | 7)
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", marked)
