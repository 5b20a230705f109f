"""AllReduce beside two-process nccl-tests on the same GPUs: python plugin/benchmarks/bench_nccl_tests.py PATH.

PATH: all_reduce_perf of NVIDIA/nccl-tests, built with MPI=1 against the NCCL that the ranks load. Both time 122 calls
in a CUDA graph, in turn, at every size that decoding sends. Exit code 1 if one differs by more than MOST_DIFFERENCE;
without a binary, or without two GPUs, it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_decodegate.gang.controller import GangOptions
from pytest_decodegate.machine.watch import Telemetry
from pytest_decodegate.measure.bench import Bench
from pytest_decodegate.measure.gang_source import GangSource
from pytest_decodegate.measure.sampling import Plan
from pytest_decodegate.workloads.collectives.allreduce import allreduce
from pytest_decodegate.workloads.kimi import BF16_BYTES, KIMI_K25

RANKS = 2
ROUNDS = 3
GANGS = 2
TOKENS = tuple(2**power for power in range(8))
TOKEN_BYTES = KIMI_K25.hidden * BF16_BYTES
MOST_DIFFERENCE = 0.02

OUT_OF_PLACE, IN_PLACE = 5, 9
"""Columns of a row of nccl-tests that hold the time in microseconds."""

IN_PLACE_PATHS = ("gloo", "eager", "graph")
DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class NcclTests:
    """all_reduce_perf under a launcher of `RANKS` processes. column: of its rows that counts."""

    launcher: list[str]
    binary: str
    column: int

    def microseconds(self) -> dict[int, float]:
        """Time of a call by size in bytes, of one run over all sizes; the slowest rank counts."""
        sizes = ["-b", str(TOKEN_BYTES), "-e", str(TOKEN_BYTES * TOKENS[-1]), "-f", "2"]
        timing = ["-d", "bfloat16", "-o", "sum", "-g", "1", "-n", str(KIMI_K25.layer_allreduces), "-G", "40", "-a", "3"]
        command = [*self.launcher, self.binary, *sizes, *timing]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        rows = [line.split() for line in ran.stdout.splitlines() if line.strip()[:1].isdigit()]
        found = {int(row[0]): float(row[self.column]) for row in rows if len(row) > self.column}
        if ran.returncode or set(found) != {TOKEN_BYTES * tokens for tokens in TOKENS}:
            tail = "\n".join([*ran.stdout.splitlines()[-5:], *ran.stderr.splitlines()[-10:]])
            sys.exit(f"{shlex.join(command)} ended with {ran.returncode} and {len(found)} sizes:\n{tail}")

        return found


@dataclass
class Ours:
    """Fresh gangs of this project, on which every size is measured once in a round."""

    path: str
    folder: Path
    values: dict[int, list[float]] = field(default_factory=dict)

    def round(self, number: int) -> None:
        """Start GANGS gangs, measure every size on each, and end them."""
        options = GangOptions(log_root=self.folder / f"gangs{number}")
        options.log_root.mkdir()
        bench = Bench(RANKS, options, progress=lambda _: None)
        try:
            for tokens in TOKENS:
                self.values.setdefault(tokens, []).extend(self._measured(bench, tokens))
        finally:
            bench.close()

    def _measured(self, bench: Bench, tokens: int) -> Iterator[float]:
        said: Any = SimpleNamespace(say=lambda _: None, tick=lambda _: None)
        params = {"path": self.path, "tokens": tokens}
        with GangSource(
            f"allreduce[m={tokens}]",
            bench,
            allreduce,
            params,
            plan=Plan(),
            watch=unwatched,
            progress=said,
            deadline=lambda: DEADLINE_SECONDS,
        ) as source:
            taken = source.take(GANGS)

        if taken.wrong or taken.broken:
            sys.exit(f"m={tokens}: {taken.wrong or taken.broken[0]}")

        yield from (replicate.value * 1e6 for replicate in taken.replicates)


def unwatched() -> AbstractContextManager[Any]:
    """A watch over nothing: what is compared runs on the same cards in the same minutes."""
    return nullcontext(SimpleNamespace(report=lambda: Telemetry((), {})))


def compared(ours: dict[int, list[float]], theirs: list[dict[int, float]]) -> bool:
    """Print a line for each size; whether all are kept."""
    kept = True
    for tokens, values in ours.items():
        other = statistics.median(run[TOKEN_BYTES * tokens] for run in theirs)
        apart = statistics.median(values) / other - 1
        kept = kept and abs(apart) <= MOST_DIFFERENCE
        verdict = "ok" if abs(apart) <= MOST_DIFFERENCE else "MISSED"
        each = " ".join(f"{value:.2f}" for value in values)
        print(f"m={tokens:<4} nccl-tests {other:7.2f} us, here {each} us: {100 * apart:+.1f} % {verdict}", flush=True)

    return kept


def skipped(binary: str | None, path: str) -> str | None:
    """Why nothing is measured, None if it is."""
    if not binary or not shutil.which(binary):
        return f"no nccl-tests: {binary or 'give the path of all_reduce_perf'} cannot be run; build it with MPI=1"

    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return None if gpus >= RANKS or path == "gloo" else f"{RANKS} GPUs are needed, this machine has {gpus}"


def main() -> int:
    """Print how far the two are apart at each size; 1 if one is too far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("all_reduce_perf", nargs="?")
    parser.add_argument("--launcher", default=f"mpirun -n {RANKS}", help="what starts two processes of it")
    parser.add_argument("--path", default="pynccl_graph", help="of AllReduce here; pynccl_graph needs vLLM")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if why := skipped(given.all_reduce_perf, given.path):
        print(f"skipped: {why}")
        return 0

    column = IN_PLACE if given.path in IN_PLACE_PATHS else OUT_OF_PLACE
    theirs = NcclTests(shlex.split(given.launcher), given.all_reduce_perf, column)
    with tempfile.TemporaryDirectory() as folder:
        ours, runs = Ours(given.path, Path(folder)), []
        for number in range(given.rounds):
            runs.append(theirs.microseconds())
            ours.round(number)

    return 0 if compared(ours.values, runs) else 1


if __name__ == "__main__":
    sys.exit(main())
