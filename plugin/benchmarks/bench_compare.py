"""`decodegate compare` beside `pytest-benchmark compare` on the same files, as a ratio within one run.

python plugin/benchmarks/bench_compare.py; exit code 1 if a promise is missed.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.cli import BAD_INPUT
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Kind, Metric, Replicate

METRICS = 10_000
REPEATS = 5
MOST_RATIO = 0.9
"""It was 0.5 while files held samples, which both had to read; now the other only prints, and this one judges too."""
MOST_START_SECONDS = 0.3
OURS = "import sys; from pytest_decodegate.cli import main; sys.exit(main())"
KINDS: tuple[Kind, ...] = ("kernel", "collective", "serving")
SHAPES = {"3 processes": (3, 5), "10 processes": (10, 5)}
"""What a metric holds: its processes, and samples of each, of which a file keeps none."""


@dataclass(frozen=True, slots=True)
class Promise:
    """`found` must not be above `limit`."""

    what: str
    found: float
    limit: float

    @property
    def missed(self) -> bool:
        """Whether it is not kept."""
        return self.found > self.limit

    def __str__(self) -> str:
        return f"{self.what:<66} {self.found:>9.3g}   at most {self.limit:<8.3g} {'MISSED' if self.missed else 'ok'}"


def baseline(path: Path, nccl: str, metrics: int, shape: tuple[int, int]) -> Path:
    """Write a file of `metrics` metrics whose processes, and samples of a process, scatter by 0.3 %."""
    draw = random.Random(nccl)
    stored = (
        _stored(Metric.of(f"kernel[m={n}]", KINDS[n % len(KINDS)]), 1e-5 * (1 + n % 7), draw, shape)
        for n in range(metrics)
    )
    gpus: list[Json] = [{"name": "H200", "power_limit_w": 700} for _ in range(8)]
    provenance = Provenance({"gpus": gpus}, {"nccl": nccl}, {})
    path.write_bytes(
        dumps(Baseline(path, "NVIDIA-H200-x8-NVLink", "vllm", provenance, {one.metric.name: one for one in stored}))
    )
    return path


def _stored(metric: Metric, seconds: float, draw: random.Random, shape: tuple[int, int]) -> StoredMetric:
    processes, samples = shape
    replicates = tuple(_replicate(seconds * draw.gauss(1, 0.003), draw, samples) for _ in range(processes))
    return StoredMetric(metric, (Session("s1", "2026-01-01T12:00:00+00:00", "gang", replicates),))


def _replicate(seconds: float, draw: random.Random, samples: int) -> Replicate:
    return Replicate(tuple(seconds * draw.gauss(1, 0.003) for _ in range(samples)))


class Seconds(NamedTuple):
    """What a command took: from start to end, and of all processors, which a busy machine moves less."""

    wall: float
    cpu: float

    @classmethod
    def median(cls, some: Sequence[Seconds]) -> Seconds:
        """The median of each, on its own."""
        return cls(*map(statistics.median, zip(*some, strict=True)))

    def __str__(self) -> str:
        return f"{self.wall:.2f} s (CPU {self.cpu:.2f} s)"


def seconds(command: list[str], folder: Path) -> Seconds:
    """Run a command; its output is written to a file, as a CI log would be."""
    with (folder / "out.txt").open("w") as out:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, check=False)
        after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()

    took = Seconds(ended - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    if done.returncode >= BAD_INPUT:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {(folder / 'out.txt').read_text()[-500:]}")

    return took


def compared(folder: Path, metrics: int, shape: tuple[int, int]) -> tuple[list[Seconds], list[Seconds]]:
    """What decodegate and pytest-benchmark took on the same two files, run in turn."""
    stacks = (("0001_a.json", "2.28.3"), ("0002_b.json", "2.28.9"))
    files = [baseline(folder / name, nccl, metrics, shape).name for name, nccl in stacks]
    ours = [sys.executable, "-c", OURS, "compare", *files, "--change", "nccl"]
    theirs = [sys.executable, "-m", "pytest_benchmark", "compare", *files]
    pairs = [(seconds(ours, folder), seconds(theirs, folder)) for _ in range(REPEATS)]
    return [mine for mine, _ in pairs], [other for _, other in pairs]


def promises(folder: Path) -> list[Promise]:
    """Measure everything, and print the seconds behind each ratio."""
    kept = []
    for name, shape in SHAPES.items():
        mine, other = map(Seconds.median, compared(folder, METRICS, shape))
        size = (folder / "0001_a.json").stat().st_size / 2**20
        print(f"{METRICS} metrics, {name}, {size:.0f} MiB a file: decodegate {mine}, pytest-benchmark {other}")
        kept.append(Promise(f"time of pytest-benchmark compare, {name}", mine.wall / other.wall, MOST_RATIO))
        kept.append(Promise(f"the same in CPU time, {name}", mine.cpu / other.cpu, MOST_RATIO))

    # A busy machine only adds to the absolute time of a start, so the fastest counts.
    mine, other = map(min, compared(folder, 5, (5, 10)))
    print(f"5 metrics: decodegate {mine}, pytest-benchmark {other}")
    kept.append(Promise("seconds to compare two small files", mine.wall, MOST_START_SECONDS))
    return kept


def main() -> int:
    """Print the table; 1 if a promise is missed."""
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        found = promises(Path(name))

    print()
    for promise in found:
        print(promise)

    return int(any(promise.missed for promise in found))


if __name__ == "__main__":
    sys.exit(main())
