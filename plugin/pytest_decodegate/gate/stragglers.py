"""Which ranks are apart from the others in local work that is the same on all of them: a card, a slot, a core.

A rank is a straggler if, in every gang, the median of its ratio to the others is more than LEAST_APART above 1, and
most of its rounds are more than half of that above. The ratio is taken round by round against the median of the other
ranks, so that what slows all ranks at once cancels, and one slow rank does not make the others look fast. A process
that happens to be slow is replaced with its gang; what is slow in every gang is the place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..metric import Json

LEAST_APART = 0.08
"""Cards of one kind differ by 2 to 5 % and nothing is wrong with them; a downtrained link or a hot card costs 10 % and
more."""

LEAST_ROUNDS = 8
"""Below that a median of rounds is chance."""

MOST_ROUNDS_SHARE = 0.75
"""Of the rounds that must be slower: a burst of interrupts can move a median, not three quarters of the rounds."""

LEAST_GANGS = 2
"""One gang cannot tell a slow place from a slow process."""

Own = Sequence[Sequence[float]]
"""Seconds of the own part of every rank of a gang: by rank, round by round."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is apart; `ratio` is its time over the others', the median over the gangs."""

    rank: int
    ratio: float


def stragglers(gangs: Sequence[Own]) -> tuple[Straggler, ...]:
    """The ranks that are apart in every one of `gangs`, by rank; () where there is too little to tell."""
    if len(gangs) < LEAST_GANGS or len({len(own) for own in gangs}) > 1:
        return ()

    return tuple(_apart(gangs))


def _apart(gangs: Sequence[Own]) -> Iterator[Straggler]:
    for rank in range(len(gangs[0])):
        ratios = [_ratios(own, rank) for own in gangs]
        if all(map(_is_apart, ratios)):
            yield Straggler(rank, median(median(one) for one in ratios))


def _ratios(own: Own, rank: int) -> list[float]:
    """Time of `rank` over the median of the others, round by round; [] without others.

    A round that took the others no time is left out: their clock is too coarse for it.
    """
    others = [rounds for index, rounds in enumerate(own) if index != rank]
    rounds = zip(own[rank], *others, strict=True) if others else ()
    return [mine / level for mine, *theirs in rounds if (level := median(theirs)) > 0]


def _is_apart(ratios: Sequence[float]) -> bool:
    if len(ratios) < LEAST_ROUNDS or median(ratios) <= 1 + LEAST_APART:
        return False

    return sum(ratio > 1 + LEAST_APART / 2 for ratio in ratios) >= MOST_ROUNDS_SHARE * len(ratios)


def notes(gangs: Sequence[Own], gpus: Json) -> list[str]:
    """A sentence for each straggler. gpus: `facts["gpus"]` of the watch, in the order of the ranks; may be short."""
    places = dict(enumerate(gpus)) if isinstance(gpus, list) else {}
    return [told(one, place if isinstance(place := places.get(one.rank), dict) else None) for one in stragglers(gangs)]


def told(straggler: Straggler, gpu: Mapping[str, Json] | None) -> str:
    """The sentence for the report. gpu: what the watch saw of the rank's GPU (`GpuTally.facts`), None on a CPU."""
    place = f" ({', '.join(_place(gpu))})" if gpu else ""
    return (
        f"STRAGGLER: rank {straggler.rank}{place} takes {straggler.ratio:.2f}x the others' time for the same local "
        "work, in every gang"
    )


def _place(gpu: Mapping[str, Json]) -> Iterator[str]:
    name, bus_id = str(gpu["gpu"]), gpu.get("bus_id")
    # The address says which card it is as well as the unique id that stands behind the number.
    yield f"{name.partition(' (')[0]}, {bus_id}" if bus_id else name
    if isinstance(clock := gpu.get("sm_clock_mhz"), Mapping):
        yield f"SM clock {clock['median']:g} MHz"
    if link := gpu.get("pcie"):
        yield f"PCIe {link}"
