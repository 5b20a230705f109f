"""A whole perf run as one answer, on recorded noise: green when nothing changed, red for one slower metric.

python plugin/benchmarks/bench_gate.py [RUNS]; exit code 1 if a promise is missed.

The metrics are those of a run on two cards: the kernels and collectives of the shipped baselines, each with the level,
the band and the scatter between processes that it was recorded with. A run is simulated: sessions are recorded, each
metric is measured, looked at, weighed by what it means for the step, confirmed on fresh processes if it looks changed,
and all are put together, with the kernels' common shift and the steps, by the functions that a real run uses. Sessions
of one's own cards differ by what is assumed of them, sessions of other cards by as much as recorded sessions of one
contract do, with tails as heavy as theirs: `derive_noise.session_law`. Of the kernels that stream memory most of that
is one number, how fast the memory of a card is, which moves each by its share of the memory's ceiling.
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
from statistics import fmean, median
from typing import Literal

import numpy as np
import numpy.typing as npt
from derive_noise import BASELINES, Line, SessionLaw, class_means, lines, newest, session_law

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import StoredMetric
from pytest_decodegate.gate.decision import Decision, decide_all, is_together
from pytest_decodegate.gate.materiality import StepWeight, is_not_material, weighed
from pytest_decodegate.gate.other_cards import OtherCards, of_metric, unchanged_run
from pytest_decodegate.gate.own_cards import stored_memory_share, streams_memory
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.stats.looks import planned_looks
from pytest_decodegate.gate.stats.noise import Spread, class_noise
from pytest_decodegate.gate.stats.recorded import NoiseClass, recorded
from pytest_decodegate.gate.stats.rules import Comparison, compare, decide
from pytest_decodegate.gate.stats.together import JointPart
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict, level_of, session_logs
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.metric import Level, Metric, Replicate
from pytest_decodegate.profile.ledger import Time
from pytest_decodegate.profile.step_weights import step_weights
from pytest_decodegate.reference.settling import Settling, SettlingRules, TimeBudget
from pytest_decodegate.session.run_level import run_level

RUNS = 1000
SESSIONS = (1, 2, 3, 5)
"""Stored sessions."""

MOST_HOSTS = 3
"""That recorded the shipped kernels, each with one session, in one order."""

REPLICATES = 5
"""Of each stored session, and of the first look."""

LOOKS = planned_looks(REPLICATES, 20, 2)
RANKS = 2
"""Cards of the host, so that a step has its collectives."""

HALF_WIDTH = "kernels' half width"

TARGETS: Mapping[str, float] = {
    "GO": 0.95,
    "false NO-GO": 0.01,
    "NO-GO naming it": 0.95,
    HALF_WIDTH: 0.006,
}
"""What should be found: at most so much of the second and the last, at least so much of the others."""

AT_MOST = ("false NO-GO", HALF_WIDTH)

SLOWER_BY = 1.5
"""Times its band in force, of the one metric that is slower."""

Logs = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Between:
    """How metrics differ between sessions. laws: by FAMILIES, scale (an sd) and df of the scaled inverse chi-square
    distribution of their variances; few df are heavy tails. promised: whether the targets hold for it. why: where it
    comes from. cards: whether all sessions are of the cards that are measured, or none, as the gate knows. memory: sd
    of how fast the memory of a card is, by which a metric moves that is as fast as that; apart from its own variance.
    """

    laws: Mapping[str, tuple[float, float]]
    promised: bool
    why: str
    cards: Literal["same", "any"] = "any"
    memory: float = 0.0

    @property
    def targets(self) -> Mapping[str, float]:
        """What is asked of it: how fine the gate looks is promised where the cards are the same."""
        return {name: target for name, target in TARGETS.items() if self.cards == "same" or name != HALF_WIDTH}

    def drawn(self, draw: np.random.Generator, families: Sequence[str]) -> Logs:
        """The own sd between sessions of a metric of each of `families`: what differs much once, does so always."""
        scale, df = np.array([self.laws[family] for family in families]).T
        sds: Logs = scale * np.sqrt(df / draw.chisquare(df))
        return sds


KINDS = ("kernel", "collective")

STREAMING = "streaming kernel"
FAMILIES = (*KINDS, STREAMING)
"""Metrics that differ for the same reasons between sessions of other cards."""


@cache
def worlds() -> tuple[Between, ...]:
    """Sessions of one's own cards, for which the targets are promised, and of other cards of the same kind."""
    today, ever = _laws(ever=False), _laws(ever=True)
    fitted = {kind: (law.scale, law.df) for kind, law in today.items()}
    own = recorded(NoiseClass("kernel", "graph", "gang", "same"))
    own_law = math.sqrt(own.session_scale), own.session_df
    all_of_them = {kind: (law.scale, law.df) for kind, law in ever.items()}
    in_step = part_in_step()
    usual = math.sqrt(fmean(each.share**2 for each in metrics() if each.share))
    memory = today[STREAMING].sd * math.sqrt(in_step) / usual
    for laws in (fitted, all_of_them):
        scale, df = laws[STREAMING]
        laws[STREAMING] = scale * math.sqrt(1 - in_step), df

    mostly = f"{100 * in_step:.0f} % of the streaming ones' variance is their card's"
    return (
        Between(
            {**fitted, "kernel": own_law, STREAMING: own_law},
            True,
            f"{100 * own.session_sd:.2f} % at kernels, as is assumed of sessions on the same cards",
            "same",
        ),
        Between(
            fitted,
            True,
            f"what sessions of one contract do on the cards of several hosts ({_said(today)}; {mostly})",
            memory=memory,
        ),
        Between(
            all_of_them,
            False,
            f"what sessions do beside causes that are mended since ({_said(ever)}; {mostly})",
            memory=memory,
        ),
    )


def _laws(*, ever: bool) -> dict[str, SessionLaw]:
    families = {family: [line for line in _graphs() if family_of(line.noise_class) == family] for family in FAMILIES}
    return {family: session_law(class_means(members, ever=ever)) for family, members in families.items()}


def family_of(found: NoiseClass) -> str:
    """Which of FAMILIES a class is."""
    return STREAMING if found.streams else found.kind


def _said(laws: Mapping[str, SessionLaw]) -> str:
    return ", ".join(f"{kind}s {100 * law.sd:.2f} % with {law.df:.2g} df" for kind, law in laws.items())


@cache
def shares() -> Mapping[str, float]:
    """By metric, the share of the memory's ceiling that its newest shipped sessions reach, where they say it."""
    known = ((stored.metric.name, stored_memory_share(stored)) for stored in _stored_kernels())
    return {name: share for name, share in known if share is not None}


@cache
def _stored_kernels() -> list[StoredMetric]:
    files = [load(path) for path in sorted(BASELINES.glob("*-x1/*.json"))]
    return [stored for file in files for stored in file.metrics.values() if stored.metric.kind == "kernel"]


@cache
def part_in_step() -> float:
    """Of the variance between sessions of the streaming kernels, the part that one number for each host explains when
    it moves every kernel by its share of the memory's ceiling.
    """
    streaming = [stored for stored in _stored_kernels() if streams_memory(stored)]
    everywhere = max(len(stored.current) for stored in streaming)  # which every host has recorded
    rows = [
        (shares()[stored.metric.name], list(map(fmean, session_logs(stored))))
        for stored in streaming
        if len(stored.current) == everywhere
    ]
    share = np.array([share for share, _ in rows])
    apart = np.array([np.array(means) - fmean(means) for _, means in rows])
    explained = np.outer(share, share @ apart / (share @ share))
    return float(1 - ((apart - explained) ** 2).sum() / (apart**2).sum())


@cache
def _graphs() -> list[Line]:
    return [line for line in lines() if line.mode == "graph" and line.kind in KINDS]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A metric. level: in seconds. scatter: sd between its processes. found: its class. metric: with its band.

    share: of the memory's ceiling; 0 of what does not stream memory.
    """

    metric: Metric
    level: float
    found: NoiseClass
    scatter: float
    share: float

    @property
    def is_kernel(self) -> bool:
        """Rather than a collective."""
        return self.found.kind == "kernel"


@cache
def metrics() -> tuple[Simulated, ...]:
    """The kernels and collectives of a run as they were recorded last."""
    groups: dict[str, list[Line]] = {}
    for line in newest(line for line in _graphs() if line.sd is not None and line.metric in _names()):
        groups.setdefault(line.metric, []).append(line)

    return tuple(_simulated(group) for group in groups.values())


@cache
def _names() -> frozenset[str]:
    """Of what a run on one or two cards measures without --perf-extended: all kernels, and the collectives that ship as
    they are timed today, or that a host measured which had not recorded.
    """
    return frozenset(
        line.metric
        for line in _graphs()
        if line.kind == "kernel" or ".json" in line.timing or line.host == "third pair of H200"
    )


def _simulated(group: Sequence[Line]) -> Simulated:
    last = group[-1]
    squares = [line.sd**2 for line in group if line.sd is not None]
    metric = Metric(last.metric, "s", last.kind, last.band, {"mode": last.mode})
    share = shares().get(last.metric, 0.0) if last.streams else 0.0
    return Simulated(metric, last.level, last.noise_class, math.sqrt(sum(squares) / len(squares)), share)


@cache
def weights() -> Mapping[str, StepWeight]:
    """By metric, what it takes of the step."""
    return step_weights({each.metric.name: Time(each.level) for each in metrics()}, RANKS)


class World:
    """A host with its stored sessions, and a run on it. base: of each metric the sessions' log process values."""

    def __init__(self, draw: np.random.Generator, between: Between, sessions: int) -> None:
        self._draw = draw
        self._cards = between.cards
        self._memory = between.memory
        self._between = between.drawn(draw, [family_of(each.found) for each in metrics()])
        recorded = [self._session() for _ in range(sessions)]
        self.base = [
            [self._processes(index, float(offsets[index]), REPLICATES) for offsets in recorded]
            for index in range(len(metrics()))
        ]
        self._offsets = self._session()

    def _session(self) -> Logs:
        """How far each metric is off in one session, on a card whose memory is as fast as it happens to be."""
        shares = np.array([each.share for each in metrics()])
        offsets: Logs = self._draw.normal(0, self._between) + shares * self._draw.normal(0, self._memory)
        return offsets

    def _processes(self, index: int, level: float, count: int) -> tuple[float, ...]:
        known = metrics()[index]
        return tuple((math.log(known.level) + self._draw.normal(level, known.scatter, count)).tolist())

    def measure(self, index: int, change: float, count: int) -> tuple[float, ...]:
        """So many fresh processes of a metric in this run."""
        return self._processes(index, float(self._offsets[index]) + change, count)

    @cached_property
    def spreads(self) -> list[Spread]:
        """What the stored sessions of each metric say."""
        return [Spread.of(sessions) for sessions in self.base]

    def class_of(self, known: Simulated) -> NoiseClass:
        """The class of a metric beside these sessions: cards that are the same have one memory."""
        return known.found._replace(cards="same", streams=False) if self._cards == "same" else known.found

    def peers(self, index: int) -> list[Spread]:
        """Of a metric: the other metrics of its class."""
        own = self.class_of(metrics()[index])
        return [
            spread
            for other, (each, spread) in enumerate(zip(metrics(), self.spreads, strict=True))
            if other != index and self.class_of(each) == own
        ]

    @cached_property
    def unchanged(self) -> list[Comparison]:
        """What is foreseen of each metric if it has not changed."""
        classes = [self.class_of(each) for each in metrics()]
        members: dict[NoiseClass, list[Spread]] = {}
        for found, own in zip(classes, self.spreads, strict=True):
            members.setdefault(found, []).append(own)

        fitted = {found: class_noise(spreads, found) for found, spreads in members.items()}
        return [unchanged_run(base, fitted[found], len(LOOKS)) for base, found in zip(self.base, classes, strict=True)]

    @cached_property
    def other_cards(self) -> list[OtherCards | None]:
        """The band of each metric on other cards than those that recorded; None on these."""
        return [
            None if self._cards == "same" else of_metric(each.metric.tolerance, unchanged, each.found, fixed=False)
            for each, unchanged in zip(metrics(), self.unchanged, strict=True)
        ]

    def band(self, index: int) -> float:
        """The band in force of a metric."""
        known = self.other_cards[index]
        return known.band if known else metrics()[index].metric.tolerance


class Processes:
    """A Source: fresh processes of a metric that is slower by `change`, a log ratio."""

    level: Level = "gang"

    def __init__(self, world: World, index: int, change: float) -> None:
        self._world, self._index, self._change = world, index, change
        self._taken = Taken(self.level)

    def take(self, count: int) -> Taken:
        """See Source."""
        fresh = self._world.measure(self._index, self._change, count)
        replicates = (*self._taken.replicates, *(Replicate((math.exp(log),)) for log in fresh))
        self._taken = replace(self._taken, replicates=replicates)
        return self._taken


class Silence:
    """A Progress that is told in vain."""

    def say(self, text: str) -> None:
        """See Progress."""

    def tick(self, text: str) -> None:
        """See Progress."""


def judged(world: World, index: int, replicates: Sequence[Replicate]) -> Judgement:
    """What a look at a metric says: as `gate.verdict.judge` and the session do, of what can be judged."""
    known, base = metrics()[index], world.base[index]
    values = [math.log(replicate.value) for replicate in replicates]
    found = world.class_of(known)
    comparison, unchanged = compare(values, base, world.peers(index), found, len(LOOKS)), world.unchanged[index]
    metric = replace(known.metric, tolerance=world.band(index))
    judgement = Judgement(
        metric=metric,
        verdict=Verdict(decide(comparison, metric.tolerance)),
        basis=Basis("gang", len(replicates), looks=len(LOOKS), sessions=len(base), streams=found.streams),
        other_cards=world.other_cards[index],
        foreseen=JointPart(unchanged.error, unchanged.df, found.streams),
        numbers=Numbers(math.exp(fmean(values))).compared(known.metric, level_of(base, known.metric), comparison),
    )
    return weighed(judgement, weights())


def answered(world: World, index: int, change: float) -> Result:
    """One metric measured as in a run: looked at until it is settled, then on fresh processes if it changed."""
    rules = SettlingRules(LOOKS, REPLICATES, len(metrics()), TimeBudget(math.inf, clock=float))
    source = Processes(world, index, change)
    settling = Settling(source, lambda taken: judged(world, index, taken.replicates), rules, Silence())
    judgement, _ = settling.settle()
    return Result("run", judgement)


@dataclass(frozen=True, slots=True)
class Run:
    """A run. slower: the metric that was made slower, None of none. blamed: the metrics that are called slower."""

    answer: str
    slower: str | None
    blamed: tuple[str, ...]
    outcomes: Counter[str]
    replicates: float
    half_width: float
    not_material: int


def run(world: World, slower: int | None) -> Run:
    """One run over all metrics and its answer."""
    changes = [0.0] * len(metrics())
    if slower is not None:
        changes[slower] = math.log1p(SLOWER_BY * world.band(slower))

    results = [answered(world, index, change) for index, change in enumerate(changes)]
    together = [each for each in run_level(results, lambda _, band: band) if isinstance(each, Result)]
    decision = decide_all([*results, *together])
    judgements = [each.judgement for each in results]
    return Run(
        str(decision.answer),
        None if slower is None else metrics()[slower].metric.name,
        _blamed(decision),
        Counter(str(each.verdict) for each in judgements),
        sum(each.basis.replicates for each in judgements) / len(judgements),
        median(_half_width(each) for each in judgements if each.metric.kind == "kernel"),
        sum(map(is_not_material, judgements)),
    )


def _blamed(decision: Decision) -> tuple[str, ...]:
    return tuple(name for ground in decision.grounds if ground.blocks for name in ground.names)


def _half_width(one: Judgement) -> float:
    change, worst = one.numbers.change, one.numbers.hi
    assert change is not None
    assert worst is not None
    return math.log1p(worst) - math.log1p(change)


@dataclass(frozen=True, slots=True)
class Job:
    """Runs of one cell of the table: so many unchanged ones, and as many in which one metric is slower."""

    world: int
    sessions: int
    seed: int
    runs: int


def simulate(job: Job) -> list[Run]:
    """The runs of a job, each on a host of its own. world: which of `worlds`."""
    draw = np.random.default_rng((job.seed, job.sessions, job.world))
    law, found = worlds()[job.world], []
    for _ in range(job.runs):
        found.append(run(World(draw, law, job.sessions), None))
        found.append(run(World(draw, law, job.sessions), int(draw.integers(len(metrics())))))

    return found


@dataclass(frozen=True, slots=True)
class Cell:
    """What the runs with so many stored sessions said, beside the targets."""

    between: Between
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
            HALF_WIDTH: median(each.half_width for each in unchanged),
        }

    @property
    def kept(self) -> bool:
        """Whether all targets were met, but for chance."""
        targets, runs = self.between.targets, len(self.runs) // 2
        return all(_meets(name, self.found[name], target, runs) for name, target in targets.items())

    def __str__(self) -> str:
        targets = self.between.targets
        found = "  ".join(_marked(name, value, targets.get(name)) for name, value in self.found.items())
        unchanged, changed = self._of(False), self._of(True)
        outcomes = sum((each.outcomes for each in unchanged), Counter[str]())
        total = sum(outcomes.values())
        alone = _share({name for name in each.blamed if not is_together(name)} == {each.slower} for each in changed)
        rest = (
            f"alone {100 * alone:.1f} %, PASS {100 * outcomes['PASS'] / total:.2f} % of metrics, "
            f"{sum(each.not_material for each in unchanged) / len(unchanged):.1f} of them not material, "
            f"{sum(each.replicates for each in unchanged) / len(unchanged):.1f} replicates"
        )
        return f"{self.sessions} stored   {found}   ({rest})"


def _marked(name: str, value: float, target: float | None) -> str:
    return f"{name} {100 * value:5.2f} %{'' if target is None or _meets(name, value, target) else '!'}"


def _meets(name: str, value: float, target: float, runs: int = 0) -> bool:
    """Whether a value meets a target; a share of so many `runs`, within two standard errors of the target."""
    chance = 0.0 if not runs or name == HALF_WIDTH else 2 * math.sqrt(target * (1 - target) / runs)
    return value <= target + chance if name in AT_MOST else value >= target - chance


def _share(some: Iterable[bool]) -> float:
    found = list(some)
    return sum(found) / len(found)


def cells(runs: int) -> Iterator[Cell]:
    """One for each world and number of stored sessions; what is not promised gets a fifth of the runs."""
    jobs = [
        Job(number, sessions, 0, runs if law.promised else runs // 5)
        for number, law in enumerate(worlds())
        for sessions in SESSIONS
    ]
    halves = [replace(job, seed=seed, runs=job.runs // 2) for job in jobs for seed in (1, 2)]
    with ProcessPoolExecutor() as pool:
        found = pool.map(simulate, halves)
        for job in jobs:
            yield Cell(worlds()[job.world], job.sessions, (*next(found), *next(found)))


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 if a promise is missed."""
    runs, started = int(arguments[0]) if arguments else RUNS, time.monotonic()
    count = Counter(each.found.kind for each in metrics())
    kinds = f"{count['kernel']} kernels and {count['collective']} collectives"
    print(f"{kinds}; {runs} unchanged runs a line, and as many with one metric slower by {SLOWER_BY} bands; looks at")
    print(f"{' and '.join(map(str, LOOKS))} replicates; ! misses a target")
    kept, shown = True, None
    for cell in cells(runs):
        if cell.between is not shown:
            shown = cell.between
            print(f"\nsessions differ by {shown.why}{'' if shown.promised else ' (not promised)'}")
        print(cell, flush=True)
        kept = kept and (cell.kept or not cell.between.promised)

    targets = ", ".join(f"{name} {100 * target:g} %" for name, target in TARGETS.items())
    print(f"\ntargets: {targets}; {time.monotonic() - started:.0f} s")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
