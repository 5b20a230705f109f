"""The decode steps of one rank, found in its trace: by the engine's annotations, or by the pattern of the kernels."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ..errors import BadInput
from .trace import Kernel, RankTrace

_LEAST_STEPS: Final = 3
"""Windows that a pattern must fill alike before it is called steps."""

_LEAST_ALIKE: Final = 0.6
"""Part of the windows between an anchor kernel that must hold the same kernels; prefills and a first step do not."""

_LEAST_HELD: Final = 0.5
"""Part of all kernels that the windows alike must hold: a loop of the warm-up is none of the steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of one rank: all work on its GPU from the first of this iteration to the first of the next.

    streams: sequences decoded, and tokens: all their tokens; None where the trace does not say. end_us: start of the
    next iteration; None for the last of a trace, whose end is not seen.
    """

    start_us: float
    end_us: float | None
    kernels: tuple[Kernel, ...]
    streams: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FoundSteps:
    """Decode steps in order, how they were found, and what of the trace is no decode step: reason -> kernels."""

    steps: tuple[Step, ...]
    by: str
    cut: dict[str, int]


def find(trace: RankTrace) -> FoundSteps:
    """The decode steps of `trace`; prefills, and what ran before the first step, are cut off and counted.

    Raises BadInput if there is none, or no pattern that could be steps.
    """
    found = _by_marks(trace) if trace.marks else _by_pattern(trace)
    if not found.steps:
        what = ", ".join(f"{kernels} kernels {reason}" for reason, kernels in found.cut.items())
        raise BadInput(f"{trace.source}: no decode step in it ({what}); profile while streams decode several tokens")

    return found


def _by_marks(trace: RankTrace) -> FoundSteps:
    kernels, marks = trace.kernels, trace.marks
    at = [*(bisect_left(kernels, (mark.start_us,)) for mark in marks), len(kernels)]
    steps: list[Step] = []
    cut = Counter({"before the first iteration": at[0]})
    for mark, following, (first, past) in zip(marks, [*marks[1:], None], pairwise(at), strict=True):
        if mark.prefills or not mark.streams:
            cut["of iterations with a prefill" if mark.prefills else "of iterations without a stream"] += past - first
        else:
            end_us = following.start_us if following else None
            steps.append(Step(mark.start_us, end_us, tuple(kernels[first:past]), mark.streams, mark.tokens))

    return FoundSteps(tuple(steps), "annotations", {reason: count for reason, count in cut.items() if count})


def _by_pattern(trace: RankTrace) -> FoundSteps:
    """Between the launches of an anchor: the rarest kernel between whose launches the same kernels recur."""
    kernels = trace.kernels
    where: defaultdict[str, list[int]] = defaultdict(list)
    for index, kernel in enumerate(kernels):
        where[kernel.name].append(index)

    for indices in sorted(where.values(), key=len):
        if len(indices) > _LEAST_STEPS and (alike := _alike(kernels, indices)):
            steps = [_step(kernels, indices, number) for number in alike]
            inside = sum(len(step.kernels) for step in steps)
            return FoundSteps(tuple(steps), "pattern", _outside(len(kernels) - inside))

    raise BadInput(
        f"{trace.source}: no decode steps found: it has no annotations of vLLM (execute_context_...), and no kernel "
        f"between whose launches the same kernels recur; profile at least {_LEAST_STEPS + 1} steps of steady decode"
    )


def _outside(kernels: int) -> dict[str, int]:
    return {"outside the recurring pattern": kernels} if kernels else {}


def _step(kernels: Sequence[Kernel], indices: Sequence[int], number: int) -> Step:
    first, following = indices[number], indices[number + 1]
    return Step(kernels[first].start_us, kernels[following].start_us, tuple(kernels[first:following]))


def _alike(kernels: Sequence[Kernel], indices: Sequence[int]) -> list[int]:
    """Which windows between `indices` hold the commonest set of kernels; none if they are too few to be steps."""
    sizes = Counter(after - before for before, after in pairwise(indices))
    size, count = sizes.most_common(1)[0]
    # Sizes first: they rule out nearly every kernel, and cost nothing.
    if count < max(_LEAST_STEPS, _LEAST_ALIKE * (len(indices) - 1)) or count * size < _LEAST_HELD * len(kernels):
        return []

    sets = [
        frozenset(Counter(kernel.name for kernel in kernels[before:after]).items())
        for before, after in pairwise(indices)
    ]
    commonest, count = Counter(sets).most_common(1)[0]
    enough = count >= max(_LEAST_STEPS, _LEAST_ALIKE * len(sets)) and len(commonest) > 1
    return [number for number, names in enumerate(sets) if names == commonest] if enough else []
