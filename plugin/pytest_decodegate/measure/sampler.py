"""One replicate on a gang that holds the opened workload: what its ranks measured, and whether their clocks ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..cause import Cause, Finding
from ..gate.evidence import sample_clocks
from ..metric import Json, Replicate
from ..workloads.runtime import rank
from ..workloads.runtime.timing import MOST_ALIGN_CYCLES

if TYPE_CHECKING:
    from ..gang.controller import Gang


class GangSampler:
    """One replicate: a gang that holds the opened workload. Keeps each rank's samples: the slowest of a sample hides
    the others.
    """

    def __init__(self, gang: Gang, key: str, deadline: Callable[[], float]) -> None:
        self.gang = gang
        self._key = key
        self._deadline = deadline
        self._by_rank: list[list[float]] = [[] for _ in range(gang.world_size)]
        self._mhz_by_rank: list[list[float | None]] = [[] for _ in range(gang.world_size)]

    def sample(self, count: int) -> list[float]:
        """`count` samples in seconds per call: sample by sample, the slowest rank counts."""
        per_rank = self.gang.run(rank.take_samples, self._key, count, deadline_seconds=self._deadline())
        for rank_number, taken in enumerate(per_rank):
            self._by_rank[rank_number].extend(taken.seconds)
            self._mhz_by_rank[rank_number].extend(taken.sm_mhz)

        return [max(samples) for samples in zip(*(taken.seconds for taken in per_rank), strict=True)]

    @property
    def taken(self) -> list[float]:
        """All samples so far, as `sample` gave them."""
        return [max(samples) for samples in zip(*self._by_rank, strict=True)]

    def forget(self) -> None:
        """Drop what was kept so far: warm-up samples are no facts."""
        ranks = range(self.gang.world_size)
        self._by_rank, self._mhz_by_rank = [[] for _ in ranks], [[] for _ in ranks]

    @property
    def clocks_mhz(self) -> list[float | None]:
        """The median SM clock of each rank's samples, None where no sample has one."""
        return [statistics.median(known) if (known := _known(kept)) else None for kept in self._mhz_by_rank]

    @property
    def broken_clock(self) -> Finding | None:
        """The first sample that is no duration, in words; None if all are.

        Looked for on each rank: `max` over ranks hides a zero always, and a NaN by the order of ranks.
        """
        for index, kept in enumerate(self._by_rank):
            for sample in kept:
                if not (math.isfinite(sample) and sample > 0):
                    return Finding(
                        f"rank {index} of {self.gang.name} took a sample of {sample!r} s; its clock stands still, runs "
                        "backwards or gives no number: check `clock` and `calls` of the workload",
                        Cause.BROKEN_CLOCK,
                    )

        return None

    def replicate(self, samples: Sequence[float], warmups: int) -> Replicate:
        """The replicate that this gang gave, with the median of each rank in seconds."""
        medians: list[Json] = [statistics.median(kept) for kept in self._by_rank]
        facts: dict[str, Json] = {"rank_medians": medians, "warmup_batches": warmups}
        # The slowest rank's time counts, and it is as slow as its clock.
        clocks = [min(_known(each), default=None) for each in zip(*self._mhz_by_rank, strict=True)]
        return Replicate(tuple(samples), {**facts, **sample_clocks.facts(clocks)})


def _known(clocks: Iterable[float | None]) -> list[float]:
    return [mhz for mhz in clocks if mhz is not None]


def late_host(align_cycles: int) -> Finding | None:
    """What to say where the sleep before a burst has grown to `align_cycles`; None unless it can grow no more."""
    if align_cycles < MOST_ALIGN_CYCLES:
        return None

    return Finding(
        f"the host was late with a burst although the GPU slept {MOST_ALIGN_CYCLES // 2:,} cycles first; its launches "
        "may be part of the time: see what else runs on the CPUs",
    )
