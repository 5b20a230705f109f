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

from ...cause import Cause, Finding
from ...metric import Json

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

Place = Mapping[str, Json]
"""Where a rank works: "host", "local_rank"; with a GPU "gpu", "bus_id", "pcie", "sm_clock_mhz" as `GpuTally.facts`."""

Seat = tuple[str, str]
"""Host and local rank, which tell places apart."""


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
            yield Straggler(rank, median(median(own) for own in ratios))


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


def seated(gangs: Sequence[tuple[Own, Sequence[Place]]]) -> list[Own]:
    """The own parts of every gang, in the order in which the ranks of the first one sit.

    With several nodes a rank's number may be at another place in each gang, and it is the place that is compared.
    Gangs on other places than the first are left as they are.
    """
    (_, first), *_ = gangs
    order = [seat(place) for place in first]
    return [_reseated(own, [seat(place) for place in places], order) for own, places in gangs]


def _reseated(own: Own, seats: Sequence[Seat], order: Sequence[Seat]) -> Own:
    by_seat = dict(zip(seats, own, strict=True))
    same = len(by_seat) == len(own) and by_seat.keys() == set(order)
    return [by_seat[seat] for seat in order] if same else own


def seat(place: Place) -> Seat:
    """Where a rank sits: its host, and its number there."""
    return str(place.get("host")), str(place.get("local_rank"))


def placed(places: Sequence[Place], gpus: Json, host: str) -> list[Place]:
    """`places` of the ranks, with what the watch on `host` saw of the GPU of each rank there.

    gpus: `facts["gpus"]` of the watch, which looked while the samples were taken; what a rank says of itself is later,
    and all there is of another node.
    """
    seen = {gpu.get("bus_id"): gpu for gpu in gpus if isinstance(gpu, dict)} if isinstance(gpus, list) else {}
    return [
        {**place, **(seen.get(place["bus_id"], {}) if place.get("host") == host and place.get("bus_id") else {})}
        for place in places
    ]


def straggler_findings(gangs: Sequence[Own], places: Sequence[Place], host: str) -> list[Finding]:
    """A finding for each straggler. places: of the ranks, as `placed` gives them on the controller's `host`."""
    return [finding(straggler, places[straggler.rank], host) for straggler in stragglers(gangs)]


def finding(straggler: Straggler, place: Place, host: str) -> Finding:
    """What the report says of it. place: host and GPU of the rank; the host is said if it is not `host`.

    It is about the card, or else the rank: the same slow card is one cause in every metric.
    """
    text = (
        f"STRAGGLER: {placed_rank(straggler.rank, place, host)} takes {straggler.ratio:.2f}x the others' "
        "time for the same local work, in every gang"
    )
    return Finding(text, Cause.STRAGGLER, card(straggler.rank, place, host))


def placed_rank(rank: int, place: Place, host: str) -> str:
    """A rank with its place in brackets, as far as that is known; the host is said if it is not `host`."""
    where = ", ".join(_where(place, host))
    return f"rank {rank}{f' ({where})' if where else ''}"


def card(rank: int, place: Place, host: str) -> str:
    """The card of a rank, by host and address, or else the rank itself: the same in every metric."""
    return f"{place.get('host') or host} {place.get('bus_id') or place.get('gpu') or f'rank {rank}'}"


def _where(place: Place, host: str) -> Iterator[str]:
    if (other := place.get("host")) and other != host:
        yield f"on {other}"
    if gpu := place.get("gpu"):
        # The address says which card it is as well as the unique id that stands behind the number.
        yield str(gpu).partition(" (")[0] if place.get("bus_id") else str(gpu)
    if bus_id := place.get("bus_id"):
        yield str(bus_id)
    if (clock := _clock_mhz(place)) is not None:
        yield f"SM clock {clock:g} MHz"
    if link := place.get("pcie"):
        yield f"PCIe {link}"


def _clock_mhz(place: Place) -> float | None:
    clock = place.get("sm_clock_mhz")
    median_mhz = clock.get("median") if isinstance(clock, Mapping) else None
    return float(median_mhz) if isinstance(median_mhz, int | float) else None


def table(gangs: Sequence[Own], places: Sequence[Place]) -> list[Json]:
    """Of each rank: "rank", where it works, "own_s" and that over the median of the others', "relative".

    own_s: the median over gangs of the medians of its rounds, in seconds. [] without own parts.
    """
    if not gangs or not all(len(own) == len(places) and all(own) for own in gangs):
        return []

    own_s = [median(median(own[rank]) for own in gangs) for rank in range(len(places))]
    return [
        {
            "rank": rank,
            "host": place.get("host"),
            "gpu": place.get("gpu"),
            "bus_id": place.get("bus_id"),
            "pcie": place.get("pcie"),
            "sm_clock_mhz": _clock_mhz(place),
            "own_s": seconds,
            "relative": _over_others(own_s, rank),
        }
        for rank, (place, seconds) in enumerate(zip(places, own_s, strict=True))
    ]


def _over_others(own_s: Sequence[float], rank: int) -> float | None:
    others = [seconds for index, seconds in enumerate(own_s) if index != rank]
    level = median(others) if others else 0.0
    return own_s[rank] / level if level > 0 else None
