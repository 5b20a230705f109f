"""One replicate on a gang that holds the opened workload: what its ranks measured, and whether their clocks ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cause import Cause, Finding
from ..gate.evidence import late_host, sample_clocks
from ..metric import Json, Replicate
from ..workloads.runtime import rank

if TYPE_CHECKING:
    from ..gang.controller import Gang


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sample of all ranks. late: whether the host of any of them was late with it."""

    seconds: tuple[float, ...]
    mhz: tuple[float | None, ...]
    late: bool

    @property
    def value(self) -> float:
        """Seconds per call: the slowest rank counts."""
        return max(self.seconds)


class GangSampler:
    """One replicate: a gang that holds the opened workload. Keeps each rank's samples: the slowest of a sample hides
    the others.

    A sample that the host of some rank was late with is left out and taken again, once: what is late then is kept, for
    a rule to judge by, so that a batch takes twice its time at most.
    """

    def __init__(self, gang: Gang, key: str, deadline: Callable[[], float]) -> None:
        self.gang = gang
        self._key = key
        self._deadline = deadline
        self._samples: list[_Sample] = []
        self._left_out = 0

    def sample(self, count: int) -> list[float]:
        """`count` samples in seconds per call: sample by sample, the slowest rank counts."""
        taken = self._take(count)
        late = sum(sample.late for sample in taken)
        if late:
            taken = _without_late(late, [*taken, *self._take(late)])

        self._left_out += late
        self._samples.extend(taken)
        return [sample.value for sample in taken]

    def _take(self, count: int) -> list[_Sample]:
        ranks = self.gang.run(rank.take_samples, self._key, count, deadline_seconds=self._deadline())
        seconds = zip(*(taken.seconds for taken in ranks), strict=True)
        mhz = zip(*(taken.sm_mhz for taken in ranks), strict=True)
        late = map(any, zip(*(taken.late for taken in ranks), strict=True))
        return [_Sample(*each) for each in zip(seconds, mhz, late, strict=True)]

    @property
    def taken(self) -> list[float]:
        """All samples so far, as `sample` gave them."""
        return [sample.value for sample in self._samples]

    def forget(self) -> None:
        """Drop what was kept so far: warm-up samples are no facts."""
        self._samples, self._left_out = [], 0

    @property
    def _by_rank(self) -> list[tuple[float, ...]]:
        return list(zip(*(sample.seconds for sample in self._samples), strict=True))

    @property
    def clocks_mhz(self) -> list[float | None]:
        """The median SM clock of each rank's samples, None where no sample has one."""
        ranks = zip(*(sample.mhz for sample in self._samples), strict=True)
        return [statistics.median(known) if (known := _known(kept)) else None for kept in ranks]

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
        clocks = [min(_known(sample.mhz), default=None) for sample in self._samples]
        late = late_host.facts(sum(sample.late for sample in self._samples), self._left_out)
        return Replicate(tuple(samples), {**facts, **late, **sample_clocks.facts(clocks)})


def _known(clocks: Iterable[float | None]) -> list[float]:
    return [mhz for mhz in clocks if mhz is not None]


def _without_late(most: int, samples: Iterable[_Sample]) -> list[_Sample]:
    """`samples` in order without the first `most` late ones."""
    kept = []
    for sample in samples:
        if sample.late and most:
            most -= 1
        else:
            kept.append(sample)

    return kept
