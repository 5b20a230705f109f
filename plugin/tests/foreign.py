"""Files as other tools write them, and their import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_decodegate.importing.baseline import UserFacts, joined
from pytest_decodegate.importing.found import SourceFile

DATA = Path(__file__).parent / "data"
PUBLIC = DATA / "public"
PLAIN = (DATA / "vllm_bench_0.32.json").read_bytes()
DETAILED = (DATA / "vllm_bench_0.32_detailed.json").read_bytes()


def timed(size: int, time: float, ratio: float) -> dict[str, float]:
    algbw = size / time / 1e3
    return {"time": time, "alg_bw": algbw, "bus_bw": algbw * ratio, "nwrong": 0.0}


def nccl_json(*, gpus: int = 1, processes: int = 2, **changes: Any) -> bytes:
    """As -J writes it: a device for each process, which has `gpus` of them."""
    ranks = gpus * processes
    ratio = 2 * (ranks - 1) / ranks
    result = {"size": 14336, "count": 7168, "type": "bfloat16", "redop": "sum", "root": "    -1"}
    halves = {"out_of_place": timed(14336, 11.5, ratio), "in_place": timed(14336, 10.5, ratio)}
    devices = [
        {"rank": rank, "group": 0, "pid": 1 + rank, "hostname": "a", "device": rank, "device_info": "NVIDIA H200"}
        for rank in range(processes)
    ]
    counts = {"iterations": 20, "aggregated_iterations": 1, "graph": 0, "nthreads": 1, "ngpus": gpus}
    document = {
        "version": 3,
        "start_time": "2026-01-02 03:04:05",
        "args": ["./build/all_reduce_perf", "-J", "out.json"],
        "env": ["NCCL_ALGO=Ring", "API_KEY=secret", "NCCL_PROTO=LL"],
        "nccl_version": 22809,
        "config": {**counts, "devices": devices},
        "results": [{**result, **halves, "actual_iterations": 20}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 1.2, "okay": "unchecked"},
        "errors": [],
        **changes,
    }
    return json.dumps(document).encode()


def benchmark_json(*, with_data: bool) -> bytes:
    stats: dict[str, Any] = {"median": 0.02, "mean": 0.021, "data": [0.019, 0.02, 0.024]}
    entry = {
        "name": "test_sort[8]",
        "fullname": "tests/test_a.py::test_sort[8]",
        "options": {"timer": "perf_counter"},
        "stats": stats if with_data else {name: value for name, value in stats.items() if name != "data"},
    }
    machine = {"python_version": "3.12.1", "release": "6.5.0-1025-azure", "cpu": {"brand_raw": "A CPU"}}
    head = {"machine_info": machine, "datetime": "2026-01-02T03:04:05.678+00:00"}
    return json.dumps({**head, "benchmarks": [entry], "version": "5.3.1"}).encode()


def source(content: bytes, name: str = "result.json") -> SourceFile:
    return SourceFile(Path(name), content)


def changed(content: bytes, **changes: Any) -> bytes:
    values = {**json.loads(content), **changes}
    return json.dumps({name: value for name, value in values.items() if value is not ...}).encode()


def imported(*contents: bytes, user: UserFacts = UserFacts()) -> Mapping[str, Any]:  # noqa: B008 - frozen
    return joined([source(content, f"{n}.json") for n, content in enumerate(contents)], user).metrics
