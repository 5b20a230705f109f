"""What a gang costs, as ratios within one run: python plugin/benchmarks/bench_gang.py; exit code 1 if one is missed."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.gang.worker import STACKS
from pytest_decodegate.measure.bench import Bench

WORLD_SIZE = 2
DISPATCHES = 2_000
TESTS = 200
STARTS = 3
GANGS = 5

SCRIPTS = {
    "empty": "",
    "join": """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
""",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """`found` must not be above `limit`; a promise that this machine cannot be held to is `judged` False."""

    what: str
    found: float
    limit: float
    judged: bool = True

    @property
    def missed(self) -> bool:
        """Whether it was judged and is not kept."""
        return self.judged and self.found > self.limit

    def __str__(self) -> str:
        verdict = "MISSED" if self.missed else "ok" if self.judged else "not judged: too few cores"
        return f"{self.what:<66} {self.found:>9.3g}   at most {self.limit:<8.3g} {verdict}"


def nothing() -> None:
    """What the ranks do while the dispatch is timed."""


def seconds(action: Callable[[], object]) -> float:
    """Wall time of `action`."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def torchrun_seconds(folder: Path, name: str) -> float:
    """One plain torchrun of a script, from start to end."""
    script = folder / f"{name}.py"
    script.write_text(SCRIPTS[name])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    return seconds(lambda: subprocess.run([*command, str(script)], check=True, env=environment))


def gang_start_seconds(options: GangOptions) -> tuple[float, float]:
    """From nothing until all ranks run, and until all are in the process group."""
    started, clock = time.time(), time.perf_counter()
    with Gang(WORLD_SIZE, options, name="start") as gang:
        ready = time.perf_counter() - clock
        up = max(Path(hello.log_dir, STACKS).stat().st_mtime for hello in gang.hellos.values())  # its first act
        return up - started, ready


def bench_start_seconds(options: GangOptions, count: int) -> float:
    """Until `count` gangs that start together are ready."""
    bench = Bench(WORLD_SIZE, options, progress=lambda _: None)
    try:
        return seconds(lambda: bench.gangs(count))
    finally:
        bench.close()


def dispatch_seconds(options: GangOptions) -> tuple[float, float]:
    """Median of one empty call, and the time of TESTS calls with the log marks that a test takes."""
    with Gang(WORLD_SIZE, options, name="dispatch") as gang:

        def tests() -> None:
            for _ in range(TESTS):
                marks = gang.marks()
                gang.run(nothing)
                gang.output_since(marks)

        calls = [seconds(lambda: gang.run(nothing)) for _ in range(DISPATCHES)]
        return statistics.median(calls), seconds(tests)


def promises(folder: Path) -> list[Promise]:
    """Measure in turns, so that a change of the machine's load meets both sides of a ratio."""
    options = GangOptions(log_root=folder)
    rounds = [
        (torchrun_seconds(folder, "empty"), torchrun_seconds(folder, "join"), *gang_start_seconds(options))
        for _ in range(STARTS)
    ]
    empty, join, up, ready = (statistics.median(column) for column in zip(*rounds, strict=True))
    call, tests = dispatch_seconds(options)
    one, many = bench_start_seconds(options, 1), bench_start_seconds(options, GANGS)
    print(f"torchrun of an empty script {empty:.2f} s, of one that joins a process group {join:.2f} s")
    print(
        f"gang: ranks up {up:.2f} s, ready {ready:.2f} s; one call {call * 1e3:.3f} ms; {join / call:,.0f} calls a join"
    )
    cores = len(os.sched_getaffinity(0))
    return [
        Promise("one call, as a share of a torchrun per test", call / join, 1 / 10_000),
        Promise("one call to 2 ranks, ms", call * 1e3, 0.5),
        Promise(f"{TESTS} tests on a live gang, s", tests, 2.0),
        Promise("gang, until all ranks run, against torchrun of an empty script", up / empty, 1.3),
        Promise("gang, until ready, against torchrun of a script that joins", ready / join, 1.3),
        Promise(f"{GANGS} gangs started together, against one", many / one, 2.0, judged=cores >= GANGS * WORLD_SIZE),
    ]


def main() -> int:
    """Print the table; 1 if a promise was missed."""
    with tempfile.TemporaryDirectory() as folder:
        found = promises(Path(folder))

    print(*found, sep="\n")
    return int(any(promise.missed for promise in found))


if __name__ == "__main__":
    sys.exit(main())
