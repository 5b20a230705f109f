"""How many ranks a collective had, by two witnesses: what nccl-tests says it ran on, and its own two bandwidths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import BadInput


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _once(_: int) -> float:
    return 1.0


FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda ranks: 2 * _share(ranks),
    "all_gather": _share,
    "reduce_scatter": _share,
    "alltoall": _share,
    "alltoallv": _share,
    "gather": _share,
    "scatter": _share,
    "broadcast": _once,
    "reduce": _once,
    "sendrecv": _once,
    "hypercube": _once,
}
"""Collective -> ratio of busbw to algbw on so many ranks: the GetBw functions in src/*.cu of nccl-tests."""

_SLACK: Final = 1e-4
"""Beyond the digits that were printed: doubles that were computed in another order."""

_TIME_SLACK: Final = 0.01
"""Size over time is only there to find numbers under a wrong title, which are off by far more."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A number of which only so many digits are known: `value` plus or minus `half`."""

    value: float
    half: float

    @property
    def low(self) -> float:
        """The least that it can be."""
        return max(0.0, self.value - self.half)

    @property
    def high(self) -> float:
        """The most that it can be."""
        return self.value + self.half

    def agrees(self, low: float, high: float, slack: float) -> bool:
        """Whether it can be a number from `low` to `high`."""
        return self.low <= high * (1 + slack) + 1e-12 and low * (1 - slack) - 1e-12 <= self.high


@dataclass(frozen=True, slots=True)
class Rates:
    """One time in microseconds, and the bandwidths in GB/s that were printed beside it."""

    bytes: int
    time: Printed
    algbw: Printed
    busbw: Printed

    def fit(self, factor: float) -> bool:
        """Whether busbw is algbw times `factor`."""
        return self.busbw.agrees(self.algbw.low * factor, self.algbw.high * factor, _SLACK)

    def timed(self, share: float) -> bool:
        """Whether algbw is `share` of the bytes over the time."""
        rate = self.bytes * share / 1e3
        return self.algbw.agrees(rate / self.time.high, rate / max(self.time.low, 1e-9), _TIME_SLACK)


@dataclass(frozen=True, slots=True)
class RankLine:
    """A line of the device report. device: its name, "" where it is not said (RCCL). group: of NCCL_TESTS_SPLIT."""

    host: str
    pid: str
    group: str
    device: str


def world(
    where: str,
    collective: str,
    ranks: Sequence[RankLine],
    rates: Sequence[tuple[str, Rates]],
    *,
    ranks_a_process: int,
    one_rank_a_process: bool,
) -> int:
    """The ranks of one collective, those of the first group where they are split; raises BadInput where it is unsure.

    ranks_a_process: threads times GPUs, 0 if that is not said. one_rank_a_process: `ranks` has a line for each process,
    as -J writes, not for each rank.
    """
    own = [rank for rank in ranks if rank.group == ranks[0].group]
    processes = len({(rank.host, rank.pid) for rank in own})
    computed = processes * ranks_a_process
    counted = len(own)
    if not own:
        raise BadInput(f"{where}: says neither its ranks ('# Rank 0 ...') nor its processes: how many took part?")

    candidates = {counted * (ranks_a_process or 1)} if one_rank_a_process else {counted, computed or counted}
    fitting = [
        size for size in sorted(candidates) if all(printed.fit(FACTORS[collective](size)) for _, printed in rates)
    ]
    if not fitting:
        _refuse(collective, candidates, rates)
    if len(fitting) > 1:
        raise BadInput(
            f"{where}: {counted} rank lines, but {processes} processes with {ranks_a_process} ranks each, and the "
            "bandwidths do not tell which is right: give the whole log"
        )

    _refuse_mistimed(collective, fitting[0], rates)
    return fitting[0]


def _refuse(collective: str, candidates: set[int], rates: Sequence[tuple[str, Rates]]) -> None:
    size = max(candidates)
    factor = FACTORS[collective](size)
    place, wrong = next(((place, printed) for place, printed in rates if not printed.fit(factor)), rates[0])
    ratio = f"{wrong.busbw.value / wrong.algbw.value:.4g}" if wrong.algbw.value else "no number"
    raise BadInput(
        f"{place}: busbw/algbw is {ratio} ({wrong.busbw.value:g}/{wrong.algbw.value:g}), but {collective} on {size} "
        f"ranks has {factor:.4g}: what the file says of its ranks and of its bandwidths disagrees"
    )


def _refuse_mistimed(collective: str, size: int, rates: Sequence[tuple[str, Rates]]) -> None:
    if collective == "alltoallv":  # its bytes are those of the busiest rank (alltoallv.cu, AlltoAllvGetBw)
        return

    share = _share(size) if collective == "hypercube" else 1.0
    for place, printed in rates:
        if not printed.timed(share):
            rate = printed.bytes * share / printed.time.value / 1e3
            raise BadInput(
                f"{place}: {printed.bytes} bytes in {printed.time.value:g} us are {rate:.4g} GB/s, but "
                f"algbw is {printed.algbw.value:g}: a number of this row is not what its title says"
            )
