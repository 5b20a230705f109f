"""`decodegate profile` on a trace of hundreds of megabytes beside json.load on the same file, as ratios within one run.

python plugin/benchmarks/bench_profile.py [MEGABYTES]; exit code 1 if a promise is missed.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MEGABYTES = 600
SMALL_MEGABYTES = 100  # json.load holds 15 times the file
REPEATS = 3
MOST_SECONDS = 120.0
MOST_BYTES = 2e9
MOST_TIME_RATIO = 1.25  # in a thirteenth of the memory
MOST_MEMORY_RATIO = 0.25
OURS = (
    "import sys; from pathlib import Path; from pytest_decodegate.profile.reading import read_profile;"
    " print(read_profile([Path(sys.argv[1])]).profile.steps)"
)
THEIRS = "import json, sys; print(len(json.load(open(sys.argv[1]))['traceEvents']))"

_NAMES = (
    *("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "_fwd_grouped_kernel_stage1"),
    "void marlin_moe_wna16::Marlin<1125899906909960l, 1125899907892224l, 256, 1, 8, 8, true>(int4 const*, int4 const*)",
    *("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "triton_red_fused_fused_add_rms_norm_2"),
)
_HEAD = (
    '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n'
    '  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": ['
)


def write_trace(path: Path, megabytes: int) -> None:
    """A trace as torch.profiler lays it out: 61 layers a step, each kernel with its launch, arrow and Python calls."""
    with path.open("w") as file:
        file.write(_HEAD)
        separator, step = "", 0
        while file.tell() < megabytes * 1e6:
            for event in _step(step):
                file.write(separator + event)
                separator = ","
            step += 1

        file.write('\n  ],\n  "traceName": "generated"\n}\n')


def _step(step: int) -> Iterator[str]:
    at = 1e6 + step * 12_000.0
    yield _event("gpu_user_annotation", "execute_context_0(0)_generation_1(1)", at, 11_000.0, f'"External id": {step}')
    for number in range(61 * len(_NAMES)):
        name, correlation = _NAMES[number % len(_NAMES)], step * 1000 + number
        arguments = f'"device": 0, "stream": 7, "correlation": {correlation}, "grid": [132, 1, 1], "block": [256, 1, 1]'
        yield _event("kernel", name, at, 6.5, arguments)
        yield _event("cuda_runtime", "cudaLaunchKernel", at - 50, 4.0, f'"cbid": 211, "correlation": {correlation}')
        yield f'\n  {{\n    "ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {at}, "cat": "ac2g"\n  }}'
        for depth in range(6):
            call = f"vllm/model_executor/layers/linear.py({100 + depth}): forward"
            yield _event("python_function", call, at - 60, 40.0, f'"Python id": {number}, "Python parent id": {depth}')
        at += 30.0


def _event(category: str, name: str, start: float, duration: float, arguments: str) -> str:
    return (
        f'\n  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 0, "tid": 7,\n'
        f'    "ts": {start:.3f}, "dur": {duration},\n    "args": {{\n      {arguments}\n    }}\n  }}'
    )


class Cost(NamedTuple):
    """Seconds of CPU and the most memory (bytes) of one process."""

    seconds: float
    wall_seconds: float
    most_bytes: float


def cost(code: str, path: Path) -> Cost:
    """What a fresh Python needs to run `code` on `path`; a helper process, so that its children's peak is its own."""
    command = [sys.executable, __file__, "--cost", code, str(path)]
    seconds, wall, peak = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return Cost(float(seconds), float(wall), float(peak))


def _print_cost(code: str, path: str) -> None:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, path], check=True, stdout=subprocess.DEVNULL)
    wall, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime, wall, used.ru_maxrss * 1024)


def main() -> int:
    """Print the figures; 1 if a promise is missed."""
    if sys.argv[1:2] == ["--cost"]:
        _print_cost(*sys.argv[2:])
        return 0

    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name) / "small.json", Path(name) / "large.json"
        write_trace(small, SMALL_MEGABYTES)
        pairs = [(cost(OURS, small), cost(THEIRS, small)) for _ in range(REPEATS)]
        write_trace(large, megabytes)
        whole = cost(OURS, large)

    mine, other = (min(side) for side in zip(*pairs, strict=True))
    print(f"{SMALL_MEGABYTES} MB: decodegate {mine.seconds:.1f} s, json.load {other.seconds:.1f} s of CPU")
    print(f"{megabytes} MB: {whole.seconds:.1f} s of CPU, {megabytes / whole.seconds:.0f} MB/s")
    ratio = statistics.median(ours.seconds / theirs.seconds for ours, theirs in pairs)
    promises = (
        ("CPU time of json.load", ratio, MOST_TIME_RATIO),
        ("memory of json.load", mine.most_bytes / other.most_bytes, MOST_MEMORY_RATIO),
        (f"seconds for {megabytes} MB", whole.wall_seconds, MOST_SECONDS),
        (f"bytes of memory for {megabytes} MB", whole.most_bytes, MOST_BYTES),
    )
    for what, found, limit in promises:
        print(f"{what:<40} {found:>10.3g}   at most {limit:<8.3g} {'MISSED' if found > limit else 'ok'}")

    return int(any(found > limit for _, found, limit in promises))


if __name__ == "__main__":
    sys.exit(main())
