"""A whole perf run as one answer, on recorded noise: green when nothing changed, red for one slower metric.

python plugin/benchmarks/bench_gate.py [RUNS]; exit code 1 if a promise is missed.

The metrics are those that were measured on a host that had not recorded them (data/noise_spreads.json): 83 kernels and
21 collectives, each with the processes' scatter that it had when it was recorded. A run is simulated: sessions are
recorded, each metric is given a band that it can keep, measured, looked at, confirmed on fresh processes if it looks
changed, and all are weighed together, by the functions that a real run uses. Sessions differ by as much as sessions
that were timed by the same code did, with tails as heavy as any that were seen: see `session_sds`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import median

import numpy as np
import numpy.typing as npt
from derive_noise import Line, lines
from scipy import stats

from pytest_decodegate.gate.stats.looks import planned_looks
from pytest_decodegate.gate.stats.noise import Spread, class_noise
from pytest_decodegate.gate.stats.recorded import NoiseClass
from pytest_decodegate.gate.stats.rules import (
    Comparison,
    Outcome,
    compare,
    confirmed,
    decide,
    foresee,
    narrowest_band,
)
from pytest_decodegate.gate.stats.together import settled, uphold

RUNS = 400
SESSIONS = (1, 2, 3, 5)
"""Stored sessions."""

REPLICATES = 5
"""Of each stored session, and of the first look."""

LOOKS = planned_looks(REPLICATES, 20, 2)
WIDEST_BAND = 0.05
"""What collectives had from an older clock, 15 %, was never needed."""

TARGETS: Mapping[str, float] = {
    "GO": 0.95,
    "false NO-GO": 0.01,
    "NO-GO naming it": 0.95,
    "kernels' half width": 0.006,
}
"""What should be found: at most so much of the second and the last, at least so much of the others."""

AT_MOST = ("false NO-GO", "kernels' half width")

ONE_SESSION: Mapping[str, float] = {"GO": 0.90, "false NO-GO": 0.03, "kernels' half width": 0.007}
"""What is promised instead with one stored session, which misses three targets. Two sessions of a kernel differ by
.38 %, and which kernels differ more nobody knows yet: one of 83 is as noisy as 1.3 %, and of a hundred metrics one is
then off by more than its band allows for in a tenth of all runs. A rule that forgave this would find no slowdown of 1.5
bands. The half width is 1.7 times .38 %, whatever the number of processes. The second session shows which they are."""

SLOWER_BY = 1.5
"""Times its band, of the one metric that is slower."""

SESSION_SD: Mapping[str, float] = {"kernel": 0.0027, "collective": 0.0060}
"""Root mean square between sessions of the same timing code; of collectives the largest that was seen (.22 to .6 %)."""

Logs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tails:
    """How heavy the tails are of how much metrics differ between sessions. df: of Student's t, the kernels' one.

    cut: whether no metric is noisier than the noisiest of as many as were seen. promised: whether the targets hold for
    it. why: where it comes from.
    """

    df: float
    cut: bool
    promised: bool
    why: str


TAILS = (
    Tails(2.4, True, True, "t of 2.4 df as between hosts across a change of the clock, to the noisiest of 83"),
    Tails(5.0, False, False, "t of 5 df, without an end"),
    Tails(2.4, False, False, "t of 2.4 df, without an end"),
)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A metric. scatter: sd between its processes. found: its class. band: as it is stored."""

    name: str
    found: NoiseClass
    scatter: float
    band: float


@cache
def metrics() -> tuple[Simulated, ...]:
    """The kernels and collectives of a run, with the scatter that was recorded."""
    known = lines()
    scatter = {line.metric: line.sd for line in reversed(known) if line.host == "first pair of H200"}
    run = [line for line in known if line.host in ("third H200", "third pair of H200")]
    return tuple(Simulated(line.metric, line.noise_class, scatter[line.metric] or 0.0, _band(line)) for line in run)


def _band(line: Line) -> float:
    return min(line.band, WIDEST_BAND)


def session_sds(draw: np.random.Generator, tails: Tails) -> Logs:
    """Each metric's own sd between sessions: a metric that differs much between two differs much between any two.

    Of kernels, such that the difference of two sessions is Student's t with `tails.df`, and its root mean square over
    all kernels the recorded one (of 1e5 of them, where the tails have no end). Collectives showed no heavy tails.
    """
    kernels = np.array([metric.found.kind == "kernel" for metric in metrics()])
    rms = np.array([SESSION_SD[metric.found.kind] for metric in metrics()])
    return np.where(kernels, rms * np.sqrt(_spread(draw, tails, len(rms)) / _mean_spread(tails)), rms)


def _spread(draw: np.random.Generator, tails: Tails, count: int) -> Logs:
    spread: Logs = tails.df / draw.chisquare(tails.df, count)
    noisiest = tails.df / float(stats.chi2(tails.df).ppf(1 / 83))
    return np.minimum(spread, noisiest) if tails.cut else spread


@cache
def _mean_spread(tails: Tails) -> float:
    return float(_spread(np.random.default_rng(0), tails, 100_000).mean())


class World:
    """A host with its stored sessions, and a run on it."""

    def __init__(self, draw: np.random.Generator, tails: Tails, sessions: int) -> None:
        self._draw = draw
        self._between = session_sds(draw, tails)
        self.metrics = metrics()
        self.base = [self._session(sessions, index) for index in range(len(self.metrics))]
        self.bands = self._bands()
        self._offsets = draw.normal(0, self._between)

    def _session(self, sessions: int, index: int) -> list[tuple[float, ...]]:
        levels = self._draw.normal(0, self._between[index], sessions)
        return [self._processes(index, level, REPLICATES) for level in levels]

    def _processes(self, index: int, level: float, count: int) -> tuple[float, ...]:
        return tuple(self._draw.normal(level, self.metrics[index].scatter, count).tolist())

    def measure(self, index: int, change: float, count: int) -> tuple[float, ...]:
        """So many fresh processes of a metric in this run."""
        return self._processes(index, float(self._offsets[index]) + change, count)

    @cached_property
    def spreads(self) -> list[Spread]:
        """What the stored sessions of each metric say."""
        return [Spread.of(sessions) for sessions in self.base]

    def peers(self, index: int) -> list[Spread]:
        """Of a metric: the other metrics of its class."""
        own = self.metrics[index].found
        return [
            spread
            for other, (metric, spread) in enumerate(zip(self.metrics, self.spreads, strict=True))
            if other != index and metric.found == own
        ]

    def _bands(self) -> list[float]:
        """As stored, or wider in steps of half a percent where a metric could not keep that."""
        members: dict[NoiseClass, list[Spread]] = {}
        for metric, spread in zip(self.metrics, self.spreads, strict=True):
            members.setdefault(metric.found, []).append(spread)

        fitted = {found: class_noise(spreads, found) for found, spreads in members.items()}
        bands = []
        for metric, sessions in zip(self.metrics, self.base, strict=True):
            foreseen = foresee(LOOKS[-1], sessions, fitted[metric.found], len(LOOKS))
            bands.append(max(metric.band, math.ceil(200 * narrowest_band(foreseen)) / 200))

        return bands


@dataclass(frozen=True, slots=True)
class Answered:
    """What a run said of one metric. replicates: that it took."""

    outcome: Outcome
    comparison: Comparison
    replicates: int


def answered(world: World, index: int, change: float) -> Answered:
    """One metric measured as in a run: looked at until it is settled, then on fresh processes if it changed."""
    peers, band = world.peers(index), world.bands[index]
    found, base = world.metrics[index].found, world.base[index]

    def look(values: Sequence[float]) -> Comparison:
        return compare(values, base, peers, found, len(LOOKS))

    values: tuple[float, ...] = ()
    for count in LOOKS:
        values += world.measure(index, change, count - len(values))
        comparison = look(values)
        outcome = decide(comparison, band)
        if settled(outcome, comparison.p_worse, len(world.metrics)):
            break

    if outcome in ("PASS", "INCONCLUSIVE"):
        return Answered(outcome, comparison, len(values))

    fresh = world.measure(index, change, REPLICATES)
    together = look((*values, *fresh))
    stands = confirmed(outcome, decide(look(fresh), band), decide(together, band))
    return Answered(stands, together, len(values) + REPLICATES)


@dataclass(frozen=True, slots=True)
class Run:
    """A run. slower: the metric that was made slower, None of none. blamed: the metrics that are called slower."""

    answer: str
    slower: int | None
    blamed: tuple[int, ...]
    outcomes: Counter[str]
    replicates: float
    half_width: float
    wider: int


def run(world: World, slower: int | None) -> Run:
    """One run over all metrics and its answer."""
    changes = [0.0] * len(world.metrics)
    if slower is not None:
        changes[slower] = math.log1p(SLOWER_BY * world.bands[slower])

    found = [answered(world, index, change) for index, change in enumerate(changes)]
    upheld = uphold(each.comparison.p_worse for each in found)
    blamed = [n for n, (each, slow) in enumerate(zip(found, upheld, strict=True)) if slow and _regressed(each)]
    passes = all(each.outcome in ("PASS", "IMPROVED") for each in found)
    return Run(
        "NO-GO" if blamed else "GO" if passes else "NOT PROVEN",
        slower,
        tuple(blamed),
        Counter(each.outcome for each in found),
        sum(each.replicates for each in found) / len(found),
        median(_half_width(each) for each, metric in zip(found, world.metrics, strict=True) if _is_kernel(metric)),
        sum(band > metric.band for band, metric in zip(world.bands, world.metrics, strict=True)),
    )


def _regressed(one: Answered) -> bool:
    return one.outcome == "REGRESSED"


def _half_width(one: Answered) -> float:
    return one.comparison.hi - one.comparison.change


def _is_kernel(metric: Simulated) -> bool:
    return metric.found.kind == "kernel"


@dataclass(frozen=True, slots=True)
class Job:
    """Runs of one cell of the table: so many unchanged ones, and as many in which one metric is slower."""

    tails: Tails
    sessions: int
    seed: int
    runs: int


def simulate(job: Job) -> list[Run]:
    """The runs of a job, each on a host of its own."""
    draw = np.random.default_rng((job.seed, job.sessions, round(10 * job.tails.df), job.tails.cut))
    found = []
    for _ in range(job.runs):
        found.append(run(World(draw, job.tails, job.sessions), None))
        found.append(run(World(draw, job.tails, job.sessions), int(draw.integers(len(metrics())))))

    return found


@dataclass(frozen=True, slots=True)
class Cell:
    """What the runs with so many stored sessions said, beside the targets."""

    tails: Tails
    sessions: int
    runs: tuple[Run, ...]

    def _of(self, changed: bool) -> list[Run]:
        return [each for each in self.runs if (each.slower is not None) == changed]

    @property
    def found(self) -> dict[str, float]:
        """By the names of TARGETS."""
        unchanged, changed = self._of(False), self._of(True)
        return {
            "GO": _share(each.answer == "GO" for each in unchanged),
            "false NO-GO": _share(each.answer == "NO-GO" for each in unchanged),
            "NO-GO naming it": _share(each.answer == "NO-GO" and each.slower in each.blamed for each in changed),
            "kernels' half width": median(each.half_width for each in unchanged),
        }

    @property
    def kept(self) -> bool:
        """Whether all that is promised of so many sessions was found, but for chance."""
        promises = {**TARGETS, **(ONE_SESSION if self.sessions == 1 else {})}
        return all(_meets(name, self.found[name], promises[name], len(self.runs) // 2) for name in TARGETS)

    def __str__(self) -> str:
        found = "  ".join(f"{name} {_marked(name, value)}" for name, value in self.found.items())
        unchanged, changed = self._of(False), self._of(True)
        outcomes = sum((each.outcomes for each in unchanged), Counter[str]())
        total = sum(outcomes.values())
        alone = _share(each.blamed == (each.slower,) for each in changed)
        rest = (
            f"alone {100 * alone:.1f} %, PASS {100 * outcomes['PASS'] / total:.2f} % of metrics, "
            f"{sum(each.replicates for each in unchanged) / len(unchanged):.1f} replicates, "
            f"{sum(each.wider for each in unchanged) / len(unchanged):.0f} wider bands"
        )
        return f"{self.sessions} stored   {found}   ({rest})"


def _marked(name: str, value: float) -> str:
    return f"{100 * value:5.2f} %{'' if _meets(name, value, TARGETS[name]) else '!'}"


def _meets(name: str, value: float, target: float, runs: int = 0) -> bool:
    """Whether a value meets a target; a share of so many `runs`, within two standard errors of the target."""
    chance = 0.0 if not runs or name == "kernels' half width" else 2 * math.sqrt(target * (1 - target) / runs)
    return value <= target + chance if name in AT_MOST else value >= target - chance


def _share(some: Iterable[bool]) -> float:
    found = list(some)
    return sum(found) / len(found)


def cells(runs: int) -> Iterator[Cell]:
    """One for each shape of tails and number of stored sessions; what is not promised gets half of the runs."""
    jobs = [Job(tails, sessions, 0, runs if tails.promised else runs // 2) for tails in TAILS for sessions in SESSIONS]
    halves = [replace(job, seed=seed, runs=job.runs // 2) for job in jobs for seed in (1, 2)]
    with ProcessPoolExecutor() as pool:
        found = pool.map(simulate, halves)
        for job in jobs:
            yield Cell(job.tails, job.sessions, (*next(found), *next(found)))


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 if a promise is missed."""
    runs, started = int(arguments[0]) if arguments else RUNS, time.monotonic()
    count = Counter(metric.found.kind for metric in metrics())
    kinds = f"{count['kernel']} kernels and {count['collective']} collectives"
    print(f"{kinds}; {runs} unchanged runs a line, and as many with one metric slower by {SLOWER_BY} bands; looks at")
    print(f"{' and '.join(map(str, LOOKS))} replicates; ! misses a target")
    kept, shown = True, None
    for cell in cells(runs):
        if cell.tails is not shown:
            shown = cell.tails
            print(f"\nsessions differ by {shown.why}{'' if shown.promised else ' (not promised)'}")
        print(cell, flush=True)
        kept = kept and (cell.kept or not cell.tails.promised)

    targets = ", ".join(f"{name} {100 * target:g} %" for name, target in TARGETS.items())
    loose = ", ".join(f"{name} {100 * target:g} %" for name, target in ONE_SESSION.items())
    print(f"\ntargets: {targets}; promised with one session: {loose}; {time.monotonic() - started:.0f} s")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
