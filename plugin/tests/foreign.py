"""Files as other tools write them, and their import."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_decodegate.importing.baseline import Told, joined
from pytest_decodegate.importing.found import Source

DATA = Path(__file__).parent / "data"
THEN = datetime(2026, 1, 2, tzinfo=UTC)
PLAIN = (DATA / "vllm_bench_0.32.json").read_bytes()
DETAILED = (DATA / "vllm_bench_0.32_detailed.json").read_bytes()


TABLE_HEAD = """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: ./build/all_reduce_perf
# nThread 1 nGpus 2 minBytes 14336 maxBytes 28672 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 \
graph: 10 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on       host device  0 [0000:18:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4711 on       host device  1 [0000:2a:00] NVIDIA H200
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
"""  # noqa: W291 - as it prints it
TABLE_END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.2 \n#\n"


def row(size: int, times: tuple[float, ...], *, wrong: str = "0", per_iteration: bool = False, stamp: str = "") -> str:
    line = f"{size:12d}  {size // 2:12d}  {'bfloat16':>8}  {'sum':>6}  {'-1':>6}"
    for time in times:
        line += f"  {time:7.2f}  {size / time / 1e3:6.2f}  {size / time / 1e3:6.2f}  {wrong:>6}"
        line += f"  {time:7.2f}  {time:7.2f}  {time:7.2f}  {0.1:7.2f}" if per_iteration else ""

    return f"{line}{stamp}\n"


def nccl_json(**changes: Any) -> bytes:
    timed = {"time": 11.5, "alg_bw": 1.2, "bus_bw": 1.2, "nwrong": 0.0}
    result = {"size": 14336, "count": 7168, "type": "bfloat16", "redop": "sum", "root": "    -1"}
    devices = [{"rank": rank, "pid": 1, "device": rank, "device_info": "NVIDIA H200"} for rank in range(2)]
    document = {
        "version": 3,
        "start_time": "2026-01-02 03:04:05",
        "args": ["./build/all_reduce_perf", "-J", "out.json"],
        "env": ["NCCL_ALGO=Ring", "API_KEY=secret", "NCCL_PROTO=LL"],
        "nccl_version": 22809,
        "config": {"iterations": 20, "aggregated_iterations": 1, "graph": 0, "devices": devices},
        "results": [{**result, "out_of_place": timed, "in_place": {**timed, "time": 10.5}, "actual_iterations": 20}],
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
    head = {"machine_info": {"cpu": {"brand_raw": "A CPU"}}, "datetime": "2026-01-02T03:04:05.678+00:00"}
    return json.dumps({**head, "benchmarks": [entry], "version": "5.3.1"}).encode()


def source(content: bytes, name: str = "result.json") -> Source:
    return Source(Path(name), content, THEN)


def changed(content: bytes, **changes: Any) -> bytes:
    values = {**json.loads(content), **changes}
    return json.dumps({name: value for name, value in values.items() if value is not ...}).encode()


def imported(*contents: bytes, told: Told = Told()) -> Mapping[str, Any]:  # noqa: B008 - frozen
    return joined([source(content, f"{n}.json") for n, content in enumerate(contents)], told).metrics
