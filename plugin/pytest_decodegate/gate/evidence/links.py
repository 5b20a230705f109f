"""Which link between ranks is slow, and in which direction, from the time of a message between each pair.

A rank's way out is slow if even the fastest of its messages takes more than LEAST_APART longer than the fastest of
the other ranks do in the middle, in every gang; its way in likewise. With two ranks there is one message each way, and
the slower direction is told, as the way out of the one and into the other. Pairs of one socket are faster than pairs
across two, on a healthy host: the fastest are alike there, and only a pair of twice the usual time is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median
from typing import Literal, TypeAlias

from ...cause import Cause, Finding
from .stragglers import Place, card, placed_rank

LEAST_APART = 0.25
"""A link of half the width or generation doubles the time; what differs by less than a quarter is the topology."""

LEAST_APART_PAIR = 1.0

LEAST_GANGS = 2
"""One gang cannot tell a slow link from a moment's work of somebody else on it."""

Matrix: TypeAlias = Sequence[Sequence[float]]
"""Seconds of a message [from][to] of one gang."""

Direction = Literal["out of", "into"]


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A rank whose link is slow in one direction; peer: the other end where only one pair is. ratio: to the others."""

    rank: int
    direction: Direction
    ratio: float
    peer: int | None = None


def sent(received: Sequence[Sequence[float]]) -> Matrix:
    """The matrix of a gang, from what each rank says that it received from each: [to][from]."""
    return [list(row) for row in zip(*received, strict=True)]


def link_findings(gangs: Sequence[Matrix], places: Sequence[Place], host: str) -> list[Finding]:
    """A finding for each slow link. places: of the ranks, as `stragglers.placed` gives them on the host `host`."""
    return [_finding(link, places, host) for link in slow_links(gangs)]


def _finding(link: SlowLink, places: Sequence[Place], host: str) -> Finding:
    whose = placed_rank(link.rank, places[link.rank], host)
    way = f"{link.direction} {whose}"
    if link.peer is not None:
        way = f"from {whose} to {placed_rank(link.peer, places[link.peer], host)}"

    text = f"SLOW LINK: messages {way} take {link.ratio:.1f}x the others' time, in every gang"
    return Finding(text, Cause.STRAGGLER, f"link of {card(link.rank, places[link.rank], host)}")


def slow_links(gangs: Sequence[Matrix]) -> tuple[SlowLink, ...]:
    """The links that are slow in every one of `gangs`; () where there is too little to tell."""
    if len(gangs) < LEAST_GANGS or len({len(matrix) for matrix in gangs}) > 1 or len(gangs[0]) < 2:
        return ()

    ranks = len(gangs[0])
    if ranks == 2:
        return tuple(_slower_direction(gangs))

    ways = tuple(_slow_ways(gangs))
    return ways or tuple(_slow_pairs(gangs))


def _slow_ways(gangs: Sequence[Matrix]) -> Iterator[SlowLink]:
    for rank in range(len(gangs[0])):
        for direction in ("out of", "into"):
            ratios = [_over_others(_ways(matrix, direction), rank) for matrix in gangs]
            if min(ratios) > 1 + LEAST_APART:
                yield SlowLink(rank, direction, median(ratios))


def _ways(matrix: Matrix, direction: Direction) -> list[float]:
    """By rank, the time of the fastest of its messages in one direction."""
    ranks = range(len(matrix))
    pairs = [
        [(rank, peer) if direction == "out of" else (peer, rank) for peer in ranks if peer != rank] for rank in ranks
    ]
    return [min(matrix[source][target] for source, target in ways) for ways in pairs]


def _slow_pairs(gangs: Sequence[Matrix]) -> Iterator[SlowLink]:
    for source, target in permutations(range(len(gangs[0])), 2):
        ratios = [matrix[source][target] / _usual(matrix) for matrix in gangs]
        if min(ratios) > 1 + LEAST_APART_PAIR:
            yield SlowLink(source, "out of", median(ratios), peer=target)


def _usual(matrix: Matrix) -> float:
    return median(matrix[source][target] for source, target in permutations(range(len(matrix)), 2))


def _slower_direction(gangs: Sequence[Matrix]) -> Iterator[SlowLink]:
    for source, target in ((0, 1), (1, 0)):
        ratios = [matrix[source][target] / matrix[target][source] for matrix in gangs]
        if min(ratios) > 1 + LEAST_APART:
            yield SlowLink(source, "out of", median(ratios), peer=target)


def _over_others(times: Sequence[float], rank: int) -> float:
    return times[rank] / median(time for index, time in enumerate(times) if index != rank)
