"""What a profiler saw on one rank, whatever the file it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import BadInput

_ANNOTATION: Final = re.compile(
    r"^execute_(?:\d{1,9}_)?context_(\d{1,9})\(.{0,200}?\)_generation_(\d{1,9})\((?:sq)?(\d{1,9})"
)
"""vLLM's gpu_worker.annotate_profile (0.20 to 0.33), and its longer form under detailed_trace_annotation."""

_LONGEST_GAP_US: Final = 600e6
"""A profile of decode steps has no ten minutes without a kernel; a clock that wrapped has."""

_LATEST_US: Final = 1e16
"""300 years: later than any clock in microseconds; a count of nanoseconds, or one that ran below zero, is later."""


class Kernel(NamedTuple):
    """One piece of work on a GPU: a kernel, a copy or a fill. Times in us on the clock of the file."""

    start_us: float
    duration_us: float
    name: str
    stream: int

    @property
    def end_us(self) -> float:
        """When it was done."""
        return self.start_us + self.duration_us


class Mark(NamedTuple):
    """Where the engine began an iteration: start of its first work on the GPU, prefills, streams decoded, tokens."""

    start_us: float
    prefills: int
    streams: int
    tokens: int


def read_mark(name: str, start_us: float) -> Mark | None:
    """The mark that vLLM's annotation `name` makes; None for any other annotation."""
    if not (found := _ANNOTATION.match(name)):
        return None

    return Mark(start_us, *map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class RankTrace:
    """All work of one rank's GPU, by start, and where the engine's iterations began (empty if the file does not say).

    source: the file. rank: None where the file does not say. world_size: of the whole run; None where unknown.
    origin_us: what the times of the file count from, the same for files that share a clock. facts: of the stack,
    equal on all ranks of one run.
    """

    source: Path
    tool: str
    kernels: tuple[Kernel, ...]
    marks: tuple[Mark, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    origin_us: float = 0.0
    facts: Mapping[str, str | int] = field(default_factory=dict)


def ordered(kernels: list[Kernel], source: Path) -> tuple[Kernel, ...]:
    """`kernels` by start; raises BadInput where there are none, or where their times cannot be of one clock."""
    if not kernels:
        raise BadInput(
            f"{source}: no GPU events: nothing ran on a GPU while it was recorded, or the profiler did not record it "
            "(its activities must include CUDA, and no other profiler may be at work)"
        )

    for kernel in kernels:
        if not (0 <= kernel.start_us < _LATEST_US and 0 <= kernel.duration_us < _LONGEST_GAP_US):
            raise BadInput(
                f"{source}: {kernel.name[:80]!r} at {kernel.start_us!r} us for {kernel.duration_us!r} us: no such "
                "time; the profiler's clock wrapped or the file is damaged: record again"
            )

    kernels.sort()
    _check_gaps(kernels, source)
    return tuple(kernels)


def _check_gaps(kernels: list[Kernel], source: Path) -> None:
    for before, after in pairwise(kernels):
        if (gap_us := after.start_us - before.start_us) > _LONGEST_GAP_US:
            raise BadInput(
                f"{source}: {gap_us / 1e6:.0f} s without a kernel between {before.start_us:.0f} and "
                f"{after.start_us:.0f} us: timestamps wrapped or are of two clocks: record again"
            )
