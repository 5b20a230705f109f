"""The upgrade gate on noise recorded on two H200s, beside the rules that people use, on the same samples.

python plugin/benchmarks/bench_upgrade.py [RUNS]; exit code 1 if a promise is missed. data/h200_aa.json holds ten fresh
processes (AllReduce: ten fresh pairs of ranks, the slower rank sample by sample) of 100 samples each in microseconds,
nothing changed between them.

One run: pairs of processes are drawn from the recorded ones, the candidate's times are multiplied by the true change,
and the gate stops at 6, 12 or 24 pairs. The other rules then see the very samples that the gate has seen.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

from pytest_decodegate.gate.pairs import FIRST_PAIRS, MOST_PAIRS, PairedComparison
from pytest_decodegate.gate.stats.looks import planned_looks
from pytest_decodegate.gate.stats.rules import decide
from pytest_decodegate.metric import DEFAULT_TOLERANCE, Kind

DATA = Path(__file__).with_name("data") / "h200_aa.json"
RUNS = 1000
SAMPLES = 50
"""Of each process; more add nothing, because processes differ (facts: within-process noise is averaged out)."""

SMOOTHING = 0.5
"""Of the recorded scatter between processes, added to each drawn one: ten values repeat, real processes do not. It
makes noise 12 % larger than recorded."""

MOST_FALSE_ALARMS = 0.01
LEAST_DETECTED = 0.95
MOST_FALSE_PASSES = 0.025
"""With a change as large as the band: being inside of it must be shown, one-sided over all looks."""

BEYOND_BAND: Mapping[Kind, float] = {"kernel": 0.01, "collective": 0.03}
"""The promise: a change so much larger than the band is found."""

METRICS: Mapping[str, Kind] = {
    "moe_m1": "kernel",
    "moe_m64": "kernel",
    "gemm_m1": "kernel",
    "gemm_m64": "kernel",
    "copy256": "kernel",
    "pynccl_graph": "collective",
    "custom_graph": "collective",
}
NOT_PROMISED: Mapping[str, Kind] = {"torch_eager": "collective"}
"""Processes of an eager burst scatter by 5 %: shown, because the advice is to gate on graph replay instead."""

Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """What the gate said of one run, after how many pairs, and the samples of base and candidate that it saw."""

    outcome: str
    pairs: int
    base: Samples
    candidate: Samples


class Noise:
    """Draws processes as noisy as the recorded ones of one metric."""

    def __init__(self, processes: Samples, seed: int) -> None:
        self._processes = processes
        self._draw = np.random.default_rng(seed)
        self._process_sd = float(np.log(np.median(processes, axis=1)).std(ddof=1))

    def processes(self, count: int) -> Samples:
        """`count` processes of SAMPLES samples, in a row of their own each; neighbours stay together in time."""
        rows = self._draw.integers(len(self._processes), size=count)
        starts = self._draw.integers(self._processes.shape[1] - SAMPLES + 1, size=count)
        offsets = np.exp(self._draw.normal(0, SMOOTHING * self._process_sd, size=count))
        columns = starts[:, None] + np.arange(SAMPLES)
        drawn: Samples = self._processes[rows[:, None], columns] * offsets[:, None]
        return drawn


def run(noise: Noise, change: float, tolerance: float) -> Run:
    """One A/B of the gate, with the true `change` of the candidate as a fraction."""
    looks = planned_looks(FIRST_PAIRS, MOST_PAIRS)
    base, candidate = noise.processes(MOST_PAIRS), noise.processes(MOST_PAIRS) * (1 + change)
    differences = np.log(np.median(candidate, axis=1)) - np.log(np.median(base, axis=1))
    for pairs in looks:
        outcome = decide(PairedComparison(tuple(differences[:pairs].tolist()), len(looks)), tolerance)
        if outcome != "INCONCLUSIVE":
            break

    return Run(outcome, pairs, base[:pairs], candidate[:pairs])


def median_5_percent(one: Run) -> bool:
    """pytest-benchmark --benchmark-compare-fail=median:5%."""
    return bool(np.median(one.candidate) > 1.05 * np.median(one.base))


def welch(one: Run) -> bool:
    """Welch's t-test over all samples, p < .05, and the candidate is slower."""
    found = stats.ttest_ind(one.candidate.ravel(), one.base.ravel(), equal_var=False)
    return bool(found.pvalue < 0.05 and found.statistic > 0)


def u_test(one: Run) -> bool:
    """Mann and Whitney's U over all samples, p < .05, and the candidate is slower."""
    candidate, base = one.candidate.ravel(), one.base.ravel()
    found = stats.mannwhitneyu(candidate, base)
    return bool(found.pvalue < 0.05 and np.median(candidate) > np.median(base))


def gate(one: Run) -> bool:
    """The rule of this project."""
    return one.outcome == "REGRESSED"


RULES: Mapping[str, Callable[[Run], bool]] = {
    "decodegate": gate,
    "median:5%": median_5_percent,
    "Welch t": welch,
    "U test": u_test,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One metric at one true change: the share of runs in which each rule said "slower", and what the gate needed."""

    metric: str
    kind: Kind
    change: float
    alarms: Mapping[str, float]
    passed: float
    pairs: float
    runs: int

    @property
    def kept(self) -> bool:
        """Whether the gate keeps its promise here."""
        alarms = self.alarms["decodegate"]
        if self.change == DEFAULT_TOLERANCE[self.kind]:
            return self.passed <= MOST_FALSE_PASSES + self.chance

        return alarms >= LEAST_DETECTED if self.change else alarms <= MOST_FALSE_ALARMS

    @property
    def chance(self) -> float:
        """Three standard errors of a share near MOST_FALSE_PASSES."""
        return 3 * math.sqrt(MOST_FALSE_PASSES / self.runs)

    def row(self, promised: bool) -> str:
        """One line of the table."""
        rates = "".join(f"{self.alarms[name]:>12.3f}" for name in RULES)
        verdict = ("CONFIRMED" if self.kept else "MISSED") if promised else "not promised"
        return f"{self.metric:<14}{100 * self.change:>+7.1f} %{rates}{self.passed:>9.3f}{self.pairs:>8.1f}   {verdict}"


def cells(metrics: Mapping[str, Kind], runs: int) -> Iterable[Cell]:
    """Each metric with nothing changed, with a change as large as the band, and with one that must be found."""
    recorded = json.loads(DATA.read_text())
    for number, (metric, kind) in enumerate(metrics.items()):
        noise = Noise(np.array(recorded[metric]), seed=number)
        tolerance = DEFAULT_TOLERANCE[kind]
        for change in (0.0, tolerance, tolerance + BEYOND_BAND[kind]):
            done = [run(noise, change, tolerance) for _ in range(runs)]
            alarms = {name: sum(map(rule, done)) / runs for name, rule in RULES.items()}
            passed = sum(one.outcome in ("PASS", "IMPROVED") for one in done) / runs
            yield Cell(metric, kind, change, alarms, passed, sum(one.pairs for one in done) / runs, runs)


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a promise is missed."""
    runs = int(arguments[0]) if arguments else RUNS
    print(f"{runs} runs a line; share of runs in which a rule says 'slower', then the gate's PASS and pairs used")
    names = "".join(f"{name:>12}" for name in RULES)
    print(f"{'metric':<14}{'change':>9}{names}{'PASS':>9}{'pairs':>8}")
    promised = True
    for cell in cells(METRICS, runs):
        print(cell.row(promised=True), flush=True)
        promised = promised and cell.kept
    for cell in cells(NOT_PROMISED, runs):
        print(cell.row(promised=False), flush=True)

    print(
        f"promises: false alarms <= {MOST_FALSE_ALARMS:.0%}, detected >= {LEAST_DETECTED:.0%}, PASS with a change as "
        f"large as the band <= {MOST_FALSE_PASSES:.1%} (and three standard errors)"
    )
    return int(not promised)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
