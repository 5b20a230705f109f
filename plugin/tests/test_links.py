"""Links between ranks: which one is slow is told from times, and gloo's are measured between real ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import link_tasks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.gate.evidence.links import LEAST_APART, link_findings, sent, slow_links
from pytest_decodegate.metric import Json

RANKS = 3
seeds = st.integers(0, 2**32)
sizes = st.sampled_from([2, 4, 8])

Matrix = list[list[float]]


def gangs_of(ranks: int, seed: int, *, count: int = 3, near: float = 1.0) -> list[Matrix]:
    """Times of a healthy host: 3 % of noise; near: how much faster the pairs within one half are."""
    chance = random.Random(seed)
    same_half = [[(a < ranks // 2) == (b < ranks // 2) for b in range(ranks)] for a in range(ranks)]
    return [
        [
            [
                0.0 if a == b else 4e-5 * chance.uniform(1, 1.03) * (near if same_half[a][b] else 1.0)
                for b in range(ranks)
            ]
            for a in range(ranks)
        ]
        for _ in range(count)
    ]


def slowed(gangs: list[Matrix], factor: float, pairs: list[tuple[int, int]]) -> list[Matrix]:
    return [
        [[time * (factor if (a, b) in pairs else 1.0) for b, time in enumerate(row)] for a, row in enumerate(matrix)]
        for matrix in gangs
    ]


@given(sizes, seeds, st.sampled_from([1.0, 0.6]))
def test_a_healthy_host_names_nobody_also_with_two_sockets(ranks: int, seed: int, near: float) -> None:
    assert slow_links(gangs_of(ranks, seed, near=near if ranks > 2 else 1.0)) == ()


@given(st.sampled_from([4, 8]), seeds, st.data())
def test_a_way_of_half_the_width_is_named_with_its_direction(ranks: int, seed: int, data: st.DataObject) -> None:
    rank, out = data.draw(st.integers(0, ranks - 1)), data.draw(st.booleans())
    pairs = [(rank, peer) if out else (peer, rank) for peer in range(ranks)]
    (found,) = slow_links(slowed(gangs_of(ranks, seed), 2.0, pairs))
    assert (found.rank, found.direction, found.peer) == (rank, "out of" if out else "into", None)
    assert found.ratio == pytest.approx(2.0, rel=0.05)


@given(seeds, st.permutations(range(4)))
def test_a_slow_pair_alone_is_named_as_a_pair(seed: int, order: list[int]) -> None:
    source, target = order[:2]
    (found,) = slow_links(slowed(gangs_of(4, seed), 3.0, [(source, target)]))
    assert (found.rank, found.peer) == (source, target)


def test_of_two_ranks_the_slower_direction_is_named() -> None:
    found = slow_links(slowed(gangs_of(2, 1), 2.0, [(1, 0)]))
    assert [(each.rank, each.peer) for each in found] == [(1, 0)]


def test_the_sentence_names_the_slot() -> None:
    places: list[dict[str, Json]] = [
        {
            "host": "here",
            "local_rank": rank,
            "gpu": f"GPU {rank} (GPU-x)",
            "bus_id": f"0000:{rank}5:00.0",
            "pcie": "gen 5 x8",
        }
        for rank in range(4)
    ]
    into = slowed(gangs_of(4, 1), 2.0, [(peer, 3) for peer in range(4)])
    (found,) = link_findings(into, places, "here")
    assert found.startswith(
        "SLOW LINK: messages into rank 3 (GPU 3, 0000:35:00.0, PCIe gen 5 x8) take 2.0x the others'"
    )
    assert (found.cause, found.about) == (Cause.STRAGGLER, "link of here 0000:35:00.0")
    (pair,) = link_findings(slowed(gangs_of(2, 1), 2.0, [(1, 0)]), places[:2], "here")
    assert "from rank 1 (GPU 1, 0000:15:00.0, PCIe gen 5 x8) to rank 0 (GPU 0, 0000:05:00.0" in pair


@given(seeds)
def test_what_one_gang_alone_saw_is_chance(seed: int) -> None:
    calm, other, again = gangs_of(4, seed)
    (spoilt,) = slowed([calm], 5.0, [(0, peer) for peer in range(4)])
    assert slow_links([spoilt, other, again]) == ()
    assert slow_links([spoilt]) == ()
    assert slow_links([]) == ()


@given(sizes, seeds, st.floats(0.1, 10))
def test_a_faster_or_slower_host_is_no_slow_link(ranks: int, seed: int, factor: float) -> None:
    gangs = gangs_of(ranks, seed)
    every = [(a, b) for a in range(ranks) for b in range(ranks)]
    assert slow_links(slowed(gangs, factor, every)) == slow_links(gangs) == ()
    assert LEAST_APART > 0.03


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    with Gang(RANKS, GangOptions(log_root=tmp_path_factory.mktemp("gangs")), name="links") as gang:
        gang.ready()
        yield gang


def test_real_ranks_time_a_message_from_each_to_each(gang: Gang) -> None:
    matrix = sent(gang.run(link_tasks.times))
    assert [[bool(time) for time in row] for row in matrix] == [[a != b for b in range(RANKS)] for a in range(RANKS)]


def test_a_rank_whose_messages_are_held_up_is_named(gang: Gang) -> None:
    """Rank 1 sleeps before each message that it sends: a stand-in for a slow way out."""
    gangs = [sent(gang.run(link_tasks.times_while_held_up, 1)) for _ in range(2)]
    slowest = max(slow_links(gangs), key=lambda found: found.ratio)  # a busy machine may have slow messages of its own
    assert (slowest.rank, slowest.direction, slowest.peer) == (1, "out of", None)
