"""The decode step as a table: what each category of kernels takes of it, and how long the GPU is busy at all."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..printable import printable
from ..workloads.runtime.kernel_names import short_name
from .categories import Category
from .ranks import KernelLaunch, RankStep, SteadySteps
from .trace import RankTrace

MOST_NAME: Final = 400
"""Characters of a kernel's name that are kept: its templates may take ten thousand."""

_LAYERS: Final = (Category.ATTENTION, Category.MOE_GEMM)


@dataclass(frozen=True, slots=True)
class CategoryTime:
    """What one category takes of a step: mean over steps, and over ranks.

    ms: kernel time a step, without waiting for other ranks. share: of the kernel time of all categories. calls: a step.
    ms_by_step: the time of each step, in order: what an interval can be made of.
    """

    category: Category
    ms: float
    share: float
    calls: float
    ms_by_step: tuple[float, ...]

    @property
    def us_per_call(self) -> float:
        """Mean time of one call; 0 without one."""
        return self.ms * 1e3 / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one kernel takes of a step; name: without its arguments, at most MOST_NAME characters."""

    name: str
    category: Category
    kind: str
    ms: float
    share: float
    calls: float

    @property
    def us_per_call(self) -> float:
        """Mean time of one launch."""
        return self.ms * 1e3 / self.calls


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The mean decode step of a profile. Shares can be trusted; period_ms holds the profiler's own cost: it is no TPOT.

    categories: all of Category, in its order. kernels: the longest first. ranks: with a trace; missing: without one, so
    that the profile is partial. streams, tokens: what a step decodes; None where unknown. steps: that the means are of.
    cut: what was left out, reason -> steps or kernels.
    kernel_ms: sum of all kernels without waiting. busy_ms: union of their intervals, less where streams overlap.
    waiting_ms: kernel time in which collectives waited for a later rank. idle_ms: no kernel at all; None, as period_ms
    is, where no step is followed by another. stream_ms: busy time of each stream that is used in every step.
    casts_in_layers: dtype casts a step between its first and last attention or MoE GEMM, where none should be.
    """

    source: str
    tool: str
    facts: Mapping[str, str | int]
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    streams: int | None
    tokens: int | None
    steps: int
    found_by: str
    cut: Mapping[str, int]
    categories: tuple[CategoryTime, ...]
    kernels: tuple[KernelTime, ...]
    kernel_ms: float
    busy_ms: float
    waiting_ms: float
    idle_ms: float | None
    period_ms: float | None
    stream_ms: Mapping[int, float]
    casts_in_layers: float

    @property
    def partial(self) -> bool:
        """Whether ranks of the run are missing: collectives then hold an unknown wait."""
        return bool(self.missing)

    def of(self, category: Category) -> CategoryTime:
        """What `category` takes; zeros where it has no kernel."""
        return next(found for found in self.categories if found.category == category)

    def launches(self, category: Category, kind: str) -> float:
        """Launches of one kind a step."""
        return sum(found.calls for found in self.kernels if (found.category, found.kind) == (category, kind))


def step_profile(steady: SteadySteps, traces: Sequence[RankTrace]) -> StepProfile:
    """The mean step of `steady`, which was made of `traces`."""
    steps = steady.steps
    count = len(steps) * len(steady.ranks)
    kernel_ms = _sum_ms(launch.duration_us for launch in _all(steps)) / count
    return StepProfile(
        source=", ".join(trace.source.name for trace in traces),
        tool=traces[0].tool,
        facts=dict(traces[0].facts),
        ranks=steady.ranks,
        missing=steady.missing,
        streams=steady.streams,
        tokens=steady.tokens,
        steps=len(steps),
        found_by=steady.found_by,
        cut=steady.cut,
        categories=_categories(steps, kernel_ms),
        kernels=_kernels(steps, kernel_ms),
        kernel_ms=kernel_ms,
        busy_ms=_mean([_union_us(step.launches) for row in steps for step in row]) / 1e3,
        waiting_ms=_sum_ms(launch.waiting_us for launch in _all(steps)) / count,
        idle_ms=_idle_ms(steps),
        period_ms=_period_ms(steps),
        stream_ms=_streams(steps),
        casts_in_layers=_mean([_casts_in_layers(step.launches) for row in steps for step in row]),
    )


def median_step(steady: SteadySteps) -> tuple[RankStep, ...]:
    """The step, on all ranks, whose busy time is the median."""
    ordered = sorted(steady.steps, key=lambda row: sum(_union_us(step.launches) for step in row))
    return ordered[len(ordered) // 2]


_Rows = Sequence[tuple[RankStep, ...]]


def _all(rows: _Rows) -> Iterable[KernelLaunch]:
    return (launch for row in rows for step in row for launch in step.launches)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def _sum_ms(times_us: Iterable[float]) -> float:
    return sum(times_us) / 1e3


def _categories(rows: _Rows, kernel_ms: float) -> tuple[CategoryTime, ...]:
    by_step = [_by_category(row) for row in rows]
    return tuple(_category(category, by_step, kernel_ms) for category in Category)


_Totals = dict[Category, tuple[float, float]]  # ms and calls of one step


def _by_category(row: Sequence[RankStep]) -> _Totals:
    totals: defaultdict[Category, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for step in row:
        for launch in step.launches:
            ms, calls = totals[launch.category]
            totals[launch.category] = (ms + launch.duration_us / 1e3 / len(row), calls + 1 / len(row))

    return totals


def _category(category: Category, by_step: Sequence[_Totals], kernel_ms: float) -> CategoryTime:
    times = [totals.get(category, (0.0, 0.0)) for totals in by_step]
    ms = _mean([ms for ms, _ in times])
    calls = round(_mean([calls for _, calls in times]), 6)  # 1 / 3 of a call a rank adds up to 0.999...
    return CategoryTime(category, ms, _share(ms, kernel_ms), calls, tuple(ms for ms, _ in times))


def _share(ms: float, of_ms: float) -> float:
    return ms / of_ms if of_ms else 0.0


def _kernels(rows: _Rows, kernel_ms: float) -> tuple[KernelTime, ...]:
    totals: defaultdict[tuple[str, Category, str], list[float]] = defaultdict(list)
    for launch in _all(rows):
        totals[launch.kernel.name, launch.category, launch.kind].append(launch.duration_us)

    steps = len(rows) * len(rows[0])
    merged: defaultdict[tuple[str, Category, str], list[float]] = defaultdict(list)
    for (name, category, kind), times in totals.items():
        merged[_kept_name(name), category, kind] += times

    found = [
        KernelTime(*key, ms := sum(times) / 1e3 / steps, _share(ms, kernel_ms), len(times) / steps)
        for key, times in merged.items()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.ms))


def _kept_name(name: str) -> str:
    kept = printable(short_name(name))
    return kept if len(kept) <= MOST_NAME else f"{kept[: MOST_NAME - 3]}..."


def _union_us(launches: Sequence[KernelLaunch], *, waiting: bool = False, stream: int | None = None) -> float:
    """Length of the union of the intervals; those of collectives without their wait unless `waiting`."""
    spans = sorted(
        (launch.kernel.start_us if waiting else launch.start_us, launch.kernel.end_us)
        for launch in launches
        if stream is None or launch.kernel.stream == stream
    )
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        if end > reached:
            total += end - max(start, reached)
            reached = end

    return total


def _idle_ms(rows: _Rows) -> float | None:
    """Time of the period in which nothing ran; work of the last kernel past the period counts for the next."""
    idle = [
        max(0.0, step.period_us - _union_us(step.launches, waiting=True)) / 1e3
        for row in rows
        for step in row
        if step.period_us is not None
    ]
    return _mean(idle) if idle else None


def _period_ms(rows: _Rows) -> float | None:
    periods = [step.period_us / 1e3 for row in rows for step in row if step.period_us is not None]
    return _mean(periods) if periods else None


def _streams(rows: _Rows) -> dict[int, float]:
    """Busy time of the streams of the first rank; those that only some steps use are left to the sum over all."""
    own = [row[0].launches for row in rows]
    always = set.intersection(*({launch.kernel.stream for launch in launches} for launches in own))
    return {
        stream: _mean([_union_us(launches, waiting=True, stream=stream) for launches in own]) / 1e3
        for stream in sorted(always)
    }


def _casts_in_layers(launches: Sequence[KernelLaunch]) -> float:
    inside = [number for number, launch in enumerate(launches) if launch.category in _LAYERS]
    if not inside:
        return 0.0

    layers = launches[inside[0] : inside[-1] + 1]
    return float(sum(launch.category == Category.CAST for launch in layers))
