"""Traces of several ranks laid side by side: the same steps, the same collectives, and what of them is waiting."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from ..errors import BadInput
from .categories import Category, Rules
from .steps import Step, find
from .trace import Kernel, RankTrace

_BODY: Final = (
    Category.ALLREDUCE,
    Category.COLLECTIVES,
    Category.ATTENTION,
    Category.MOE_GEMM,
    Category.GEMM,
)
"""What a step of one batch size runs every time; copies and fills come and go with the block tables."""

_MOST_SHIFT: Final = 8
"""Steps that one rank may have been recorded earlier or longer than another: start and stop reach them in turn."""

_MOST_CLOCK_S: Final = 1.0
"""Between clocks of two hosts; files of one run that count from further apart are of two runs."""

_LEAST_SPREAD_US: Final = 50.0
_MOST_SPREAD: Final = 0.02
"""Of a step: how far the ends of one collective may lie apart on two ranks, past a constant difference of clocks."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel of a step. waiting_us: of its time, what it waited for a later rank; always 0 for no collective."""

    kernel: Kernel
    category: Category
    kind: str
    waiting_us: float = 0.0

    @property
    def duration_us(self) -> float:
        """Time without the waiting."""
        return self.kernel.duration_us - self.waiting_us

    @property
    def start_us(self) -> float:
        """Start of the work proper: who waits does so first."""
        return self.kernel.start_us + self.waiting_us


@dataclass(frozen=True, slots=True)
class RankStep:
    """One step of one rank, its launches by start. period_us: to the next iteration; None if that is no decode step."""

    period_us: float | None
    launches: tuple[KernelLaunch, ...]


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Steps of one batch size, on all ranks of `ranks`: steps[number][position of the rank].

    missing: ranks of the run of which there is no trace. cut: reason -> steps (or kernels) left out.
    """

    steps: tuple[tuple[RankStep, ...], ...]
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    streams: int | None
    tokens: int | None
    found_by: str
    cut: Mapping[str, int]


def align(
    traces: Sequence[RankTrace], rules: Rules, *, streams: int | None = None, missing_allowed: bool = False
) -> SteadySteps:
    """The steady decode steps of `traces`, one a rank, side by side.

    streams: of which batch size, the commonest unless given. missing_allowed: take what there is where ranks of the run
    have no trace. Raises BadInput for files of several runs, a rank twice or missing, and steps that do not pair.
    """
    traces = _by_rank(traces)
    missing = _missing(traces)
    if missing and not missing_allowed:
        raise BadInput(
            f"{traces[0].source}: its run has {traces[0].world_size} ranks, and rank(s) "
            f"{', '.join(map(str, missing))} have no file: without them AllReduce holds an unknown wait; give one file "
            "a rank, or take the table for partial with --allow-missing-ranks"
        )

    found = [find(trace) for trace in traces]
    cut = Counter(found[0].cut)
    rows = _paired(traces, [steps.steps for steps in found], rules)
    rows = _of_one_size(rows, streams, cut, traces[0])
    rows = _alike(rows, rules, cut, traces[0])
    chosen = rows[0][0]
    return SteadySteps(
        tuple(_row(row, rules) for row in rows),
        tuple(trace.rank or 0 for trace in traces),
        missing,
        chosen.streams,
        chosen.tokens,
        found[0].by,
        dict(cut),
    )


def _by_rank(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """In order of rank; raises BadInput where they are not one run's, or two of them one rank's."""
    if len(traces) > 1 and (unknown := [trace for trace in traces if trace.rank is None]):
        raise BadInput(
            f"{unknown[0].source}: does not say which rank it is of, neither in distributedInfo nor in its name; "
            "rename the files ...rank0..., ...rank1..."
        )

    ordered = sorted(traces, key=lambda trace: trace.rank or 0)
    for before, after in pairwise(ordered):
        if before.rank == after.rank:
            raise BadInput(f"{before.source} and {after.source} are both of rank {after.rank}; give each rank once")

    first = ordered[0]
    for other in ordered[1:]:
        _same_run(first, other)

    return ordered


def _same_run(first: RankTrace, other: RankTrace) -> None:
    sides = ({"ranks": first.world_size, **first.facts}, {"ranks": other.world_size, **other.facts})
    for name in sides[0].keys() & sides[1].keys():
        if sides[0][name] != sides[1][name]:
            raise BadInput(
                f"{first.source} and {other.source} are of two runs: {name} is {sides[0][name]!r} and "
                f"{sides[1][name]!r}; give files that one capture wrote"
            )


def _missing(traces: Sequence[RankTrace]) -> tuple[int, ...]:
    world = traces[0].world_size or len(traces)
    return tuple(sorted(set(range(world)) - {trace.rank or 0 for trace in traces}))


_Rows = list[tuple[Step, ...]]


def _paired(traces: Sequence[RankTrace], steps: Sequence[Sequence[Step]], rules: Rules) -> _Rows:
    """Step by step what all ranks have: who was recorded for longer is cut to the others."""
    shifts = [0] + [_shift(traces, steps, position, rules) for position in range(1, len(traces))]
    first = -min(shifts)
    last = min(len(own) - shift for own, shift in zip(steps, shifts, strict=True))
    return [
        tuple(own[number + shift] for own, shift in zip(steps, shifts, strict=True)) for number in range(first, last)
    ]


def _shift(traces: Sequence[RankTrace], steps: Sequence[Sequence[Step]], position: int, rules: Rules) -> int:
    """How many steps the rank at `position` began earlier than the first rank, so that their collectives end together.

    Raises BadInput if they never do: their clocks differ by no constant, so they did not run together.
    """
    ends = [
        [_collective_ends(step, rules, origin) for step in own]
        for own, origin in ((steps[0], traces[0].origin_us), (steps[position], traces[position].origin_us))
    ]
    if not any(ends[0]) and not any(ends[1]):
        return 0  # nothing ties these ranks to each other, as with data parallelism alone

    period_us = _usual_period_us(steps[0])
    tried = [_fit(ends[0], ends[1], shift) for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1)]
    fitting = [fit for fit in tried if fit.spread_us <= max(_LEAST_SPREAD_US, _MOST_SPREAD * period_us)]
    if not fitting:
        spread_us = min(fit.spread_us for fit in tried)
        raise BadInput(
            f"{traces[0].source} and {traces[position].source}: their collectives do not end together (differences "
            f"scatter by {_scatter(spread_us)}), so they are not of one run, or not of one group of ranks; give files "
            "that one capture of one group wrote"
        )

    # Even steps fit each other at any shift. On one clock they must also end at one time; on two, begin together.
    one_clock = [fit for fit in fitting if abs(fit.apart_us) < period_us / 2]
    return min(one_clock or fitting, key=lambda fit: abs(fit.shift)).shift


def _collective_ends(step: Step, rules: Rules, origin_us: float) -> tuple[float, ...]:
    return tuple(
        origin_us + kernel.end_us for kernel in step.kernels if rules.classify(kernel.name).category.is_collective
    )


class _Fit(NamedTuple):
    """How the ends of collectives pair, at a shift: their usual difference, and how far (p90) they are from that."""

    shift: int
    apart_us: float
    spread_us: float


def _fit(first: Sequence[tuple[float, ...]], other: Sequence[tuple[float, ...]], shift: int) -> _Fit:
    """The fit at `shift`; its spread is infinite if they do not pair at all, or only with clocks of two runs."""
    pairs = [
        (ours, theirs)
        for number, ours in enumerate(first)
        if 0 <= number + shift < len(other) and len(theirs := other[number + shift]) == len(ours)
    ]
    differences = [b - a for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    # A pairing of few steps always fits: it must hold most of what could pair.
    if not differences or len(pairs) < 0.5 * min(len(first), len(other)):
        return _Fit(shift, 0.0, float("inf"))

    usual = statistics.median(differences)
    apart = sorted(abs(difference - usual) for difference in differences)
    spread = apart[len(apart) * 9 // 10] if abs(usual) <= _MOST_CLOCK_S * 1e6 else float("inf")
    return _Fit(shift, usual, spread)


def _scatter(spread_us: float) -> str:
    return f"{spread_us / 1e3:.3g} ms" if math.isfinite(spread_us) else "more than a second, or in number"


def _usual_period_us(steps: Sequence[Step]) -> float:
    periods = [step.end_us - step.start_us for step in steps if step.end_us is not None]
    return statistics.median(periods) if periods else 0.0


def _of_one_size(rows: _Rows, streams: int | None, cut: Counter[str], trace: RankTrace) -> _Rows:
    """The steps that decode for `streams` sequences, or for the commonest number of tokens."""
    sizes = Counter((row[0].streams, row[0].tokens) for row in rows)
    if streams is not None:
        sizes = Counter({size: count for size, count in sizes.items() if size[0] == streams})
    if not sizes:
        have = ", ".join(map(str, sorted({row[0].streams or 0 for row in rows})))
        raise BadInput(f"{trace.source}: no step decodes {streams} streams; those in it decode {have or 'none'}")

    size, _ = sizes.most_common(1)[0]
    for row in rows:
        if (other := (row[0].streams, row[0].tokens)) != size:
            cut[f"steps of {other[0]} streams"] += 1

    return [row for row in rows if (row[0].streams, row[0].tokens) == size]


def _alike(rows: _Rows, rules: Rules, cut: Counter[str], trace: RankTrace) -> _Rows:
    """The steps with the commonest numbers of GEMMs, attentions and AllReduces on every rank: the others warm up."""
    shapes = [tuple(_shape(step, rules) for step in row) for row in rows]
    usual, count = Counter(shapes).most_common(1)[0]
    if len(set(usual)) > 1:
        raise BadInput(f"{trace.source}: {_disagreement(usual)}; the ranks did not run the same steps")

    if others := len(rows) - count:
        cut["steps of another shape (warm-up, or not whole)"] += others

    return [row for row, shape in zip(rows, shapes, strict=True) if shape == usual]


def _shape(step: Step, rules: Rules) -> tuple[int, ...]:
    counts = Counter(rules.classify(kernel.name).category for kernel in step.kernels)
    return tuple(counts[category] for category in _BODY)


def _disagreement(usual: Sequence[tuple[int, ...]]) -> str:
    first, other = usual[0], next(shape for shape in usual if shape != usual[0])
    category, ours, theirs = next(
        (category, a, b) for category, a, b in zip(_BODY, first, other, strict=True) if a != b
    )
    return f"a step has {ours} launches of {category.label} on one rank and {theirs} on another"


def _row(row: Sequence[Step], rules: Rules) -> tuple[RankStep, ...]:
    least = _least_of_collectives(row, rules)
    return tuple(_rank_step(step, rules, least) for step in row)


_Least = dict[Category, list[float]]


def _least_of_collectives(row: Sequence[Step], rules: Rules) -> _Least:
    """Category -> the least duration over ranks of its k-th collective: the last rank to come waits for nobody."""
    durations: defaultdict[Category, list[list[float]]] = defaultdict(list)
    for step in row:
        own: defaultdict[Category, list[float]] = defaultdict(list)
        for kernel in step.kernels:
            category = rules.classify(kernel.name).category
            if category.is_collective:
                own[category].append(kernel.duration_us)

        for category, times in own.items():
            durations[category].append(times)

    # Strict: _alike has seen to it that every rank launches as many.
    return {category: [min(times) for times in zip(*ranks, strict=True)] for category, ranks in durations.items()}


def _rank_step(step: Step, rules: Rules, least: _Least) -> RankStep:
    upcoming = {category: iter(times) for category, times in least.items()}
    launches = []
    for kernel in step.kernels:
        category, kind = rules.classify(kernel.name)
        own_us = next(upcoming[category]) if category in upcoming else kernel.duration_us
        launches.append(KernelLaunch(kernel, category, kind, kernel.duration_us - own_us))

    period_us = None if step.end_us is None else step.end_us - step.start_us
    return RankStep(period_us, tuple(launches))
