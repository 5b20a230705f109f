from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.stragglers import (
    LEAST_GANGS,
    LEAST_ROUNDS,
    Place,
    Straggler,
    finding,
    placed,
    seated,
    straggler_findings,
    stragglers,
    table,
)
from pytest_decodegate.metric import Json

HERE, THERE = "node-a", "node-b"

ROUNDS = 20
CARD, PROCESS, ROUND = 0.025, 0.0075, 0.02
"""Cards of one kind differ by 5 % at most; standard deviation of processes on one card, and of rounds of a process."""

seeds = st.integers(0, 2**32)
sizes = st.sampled_from([2, 4, 8])


def gangs_of(
    size: int, seed: int, count: int = 3, *, slow: dict[int, float] | None = None, cards: float = CARD
) -> list[list[list[float]]]:
    """Own seconds by gang, rank and round; slow: factor by rank. One round in fifty is hit by something else."""
    chance = random.Random(seed)
    places = [(slow or {}).get(rank, 1.0) * (1 + chance.uniform(-cards, cards)) for rank in range(size)]

    def spoilt() -> float:
        return chance.uniform(1, 4) if chance.random() < 1 / 50 else 1.0

    return [
        [
            [place * process * chance.lognormvariate(0, ROUND) * spoilt() * 1e-5 for _ in range(ROUNDS)]
            for place in places
            for process in [1 + chance.gauss(0, PROCESS)]
        ]
        for _ in range(count)
    ]


@given(sizes, seeds)
@settings(max_examples=150)
def test_equal_ranks_are_never_named(size: int, seed: int) -> None:
    assert stragglers(gangs_of(size, seed)) == ()


@given(sizes, seeds, st.data())
@settings(max_examples=150)
def test_a_rank_that_is_15_percent_slower_is_named_and_no_other(size: int, seed: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    (found,) = stragglers(gangs_of(size, seed, slow={rank: 1.15}, cards=0.0))
    assert found.rank == rank
    assert found.ratio == pytest.approx(1.15, rel=0.05)


@given(seeds)
def test_two_of_eight_are_both_named(seed: int) -> None:
    found = stragglers(gangs_of(8, seed, slow={1: 1.3, 6: 1.5}))
    assert [one.rank for one in found] == [1, 6]


@pytest.mark.parametrize("socket", [range(4), range(4, 8)])
def test_a_whole_socket_of_four_is_named_and_nobody_else(socket: range) -> None:
    named = [stragglers(gangs_of(8, seed, slow=dict.fromkeys(socket, 1.4))) for seed in range(200)]
    assert all({one.rank for one in found} <= set(socket) for found in named)
    assert all(one.ratio == pytest.approx(1.4, rel=0.1) for found in named for one in found)
    # Half is the most that can be apart, and the middle of the others is then the slowest of the fast ones: where
    # something else hits one of these in many rounds, a rank of the socket may go unnamed.
    assert sum(len(found) == len(socket) for found in named) >= 195


@given(seeds)
def test_most_ranks_cannot_be_apart_from_the_others(seed: int) -> None:
    assert stragglers(gangs_of(8, seed, slow=dict.fromkeys(range(5), 1.4))) == ()


@given(seeds, sizes)
def test_a_fast_rank_among_many_is_no_reason_to_name_the_others(seed: int, size: int) -> None:
    # With two ranks nobody can tell which of them is the odd one: the slower is named.
    found = stragglers(gangs_of(size, seed, slow={0: 0.8}))
    assert [one.rank for one in found] == ([1] if size == 2 else [])


def test_a_rank_that_is_slow_in_one_gang_only_is_a_slow_process() -> None:
    slow, *others = gangs_of(4, 0, slow={2: 1.4})
    assert stragglers([slow, *others])
    assert stragglers([slow, *gangs_of(4, 1, count=2)]) == ()


def test_what_slows_all_ranks_at_once_names_nobody() -> None:
    waves = [1.0 if index % 2 else 9.0 for index in range(ROUNDS)]
    assert stragglers([[waves, waves]] * 3) == ()


def test_rounds_that_a_coarse_clock_does_not_see_are_left_out() -> None:
    blind, slow = [0.0] * ROUNDS, [1.5] * ROUNDS
    assert stragglers([[blind, slow]] * 3) == ()
    half = [0.0, 1.0] * (ROUNDS // 2)
    assert [one.rank for one in stragglers([[half, slow]] * 3)] == [1]


def test_few_rounds_of_many_do_not_name_a_rank() -> None:
    calm = [1.0] * ROUNDS
    spiky = [1.0 if index % 2 else 1.2 for index in range(ROUNDS)]
    assert stragglers([[calm, calm, spiky]] * 3) == ()


@pytest.mark.parametrize(
    "gangs",
    [
        [],
        [[[1.0] * ROUNDS, [2.0] * ROUNDS]] * (LEAST_GANGS - 1),
        [[[1.0] * (LEAST_ROUNDS - 1), [2.0] * (LEAST_ROUNDS - 1)]] * 3,
        [[[1.0] * ROUNDS]] * 3,
        [[[], []]] * 3,
    ],
    ids=["nothing", "one gang", "few rounds", "one rank", "no rounds"],
)
def test_too_little_to_tell(gangs: list[list[list[float]]]) -> None:
    assert stragglers(gangs) == ()


SEEN: dict[str, Json] = {
    "gpu": "GPU 3 (GPU-aa)",
    "bus_id": "0000:65:00.0",
    "sm_clock_mhz": {"min": 1395, "median": 1410, "max": 1980},
    "pcie": "gen 4 x16",
}


def place(host: str, local_rank: int, bus_id: str | None = None) -> dict[str, Json]:
    """What a rank says of itself; its own node numbers its GPUs from 0 and sees an idle clock."""
    gpu: dict[str, Json] = {
        "gpu": f"GPU {local_rank}",
        "bus_id": bus_id,
        "pcie": "32.0 GT/s x8",
        "sm_clock_mhz": {"median": 345},
    }
    return {"host": host, "local_rank": local_rank, **(gpu if bus_id else {})}


def test_the_sentence_names_the_place() -> None:
    assert finding(Straggler(3, 1.234), {"host": HERE, **SEEN}, HERE) == (
        "STRAGGLER: rank 3 (GPU 3, 0000:65:00.0, SM clock 1410 MHz, PCIe gen 4 x16) takes 1.23x the others' time for "
        "the same local work, in every gang"
    )


@pytest.mark.parametrize("where", [{}, {"host": HERE, "local_rank": 1}])
def test_the_sentence_without_a_gpu(where: Place) -> None:
    assert finding(Straggler(1, 1.5), where, HERE) == (
        "STRAGGLER: rank 1 takes 1.50x the others' time for the same local work, in every gang"
    )


def test_a_silent_gpu_is_still_named() -> None:
    assert "rank 0 (GPU 0 (GPU-b)) takes" in finding(
        Straggler(0, 1.2), {"gpu": "GPU 0 (GPU-b)", "sm_clock_mhz": None}, ""
    )


def test_a_rank_is_described_by_what_the_watch_saw_of_the_card_at_its_address() -> None:
    gpus: list[Json] = [{**SEEN, "bus_id": "0000:18:00.0", "gpu": "GPU 0 (GPU-bb)"}, SEEN]
    # CUDA_VISIBLE_DEVICES turned their order round: neither number is the other's.
    places = [place(HERE, 0, "0000:65:00.0"), place(HERE, 1, "0000:18:00.0")]
    assert [one["gpu"] for one in placed(places, gpus, HERE)] == ["GPU 3 (GPU-aa)", "GPU 0 (GPU-bb)"]


@pytest.mark.parametrize("gpus", [None, [], [{**SEEN, "bus_id": None}]])
def test_a_card_that_nobody_watched_is_described_by_its_rank(gpus: Json) -> None:
    places = [place(HERE, 0, "0000:65:00.0"), place(HERE, 1)]
    assert placed(places, gpus, HERE) == places


def test_a_straggler_on_a_second_node_is_described_by_that_node() -> None:
    """Both nodes have a card at the same address; the watch of the first has seen only its own."""
    places = [place(host, local, f"0000:{18 + local}:00.0") for host in (HERE, THERE) for local in range(4)]
    gpus: list[Json] = [{**SEEN, "bus_id": f"0000:{18 + local}:00.0", "gpu": f"GPU {local}"} for local in range(8)]
    (note,) = straggler_findings(gangs_of(8, 1, slow={6: 1.4}), placed(places, gpus, HERE), HERE)
    assert note.startswith(
        "STRAGGLER: rank 6 (on node-b, GPU 2, 0000:20:00.0, SM clock 345 MHz, PCIe 32.0 GT/s x8) takes 1.4"
    )


def test_places_are_compared_and_not_the_numbers_that_their_ranks_have_in_a_gang() -> None:
    slow, calm = [1.5] * ROUNDS, [1.0] * ROUNDS
    there_second = [place(HERE, 0), place(THERE, 0)]
    gangs = [([calm, slow], there_second), ([slow, calm], there_second[::-1])]
    assert stragglers([own for own, _ in gangs]) == ()
    assert [one.rank for one in stragglers(seated(gangs))] == [1]


def test_a_gang_at_other_places_is_left_as_it_is() -> None:
    own = [[1.0], [2.0]]
    assert seated([(own, [place(HERE, 0), place(HERE, 1)]), (own, [{}, {}])]) == [own, own]


@given(sizes, seeds)
def test_the_table_shows_every_rank_beside_the_others(size: int, seed: int) -> None:
    gangs = gangs_of(size, seed, slow={size - 1: 1.5}, cards=0.0)
    rows = table(gangs, [place(HERE, rank, "0000:18:00.0") for rank in range(size)])
    assert [row["rank"] for row in rows if isinstance(row, dict)] == list(range(size))
    relative = [row["relative"] for row in rows if isinstance(row, dict)]
    assert all(isinstance(one, float) for one in relative)
    *others, slow = (float(str(one)) for one in relative)
    assert max(others) < 1.1 < 1.3 < slow
    assert rows[0] == {
        "rank": 0,
        "host": HERE,
        "gpu": "GPU 0",
        "bus_id": "0000:18:00.0",
        "pcie": "32.0 GT/s x8",
        "sm_clock_mhz": 345.0,
        "own_s": rows[0]["own_s"] if isinstance(rows[0], dict) else None,
        "relative": relative[0],
    }


@pytest.mark.parametrize("gangs", [[], [[[], []]], [[[1.0]]]], ids=["no gang", "no rounds", "another size"])
def test_no_table_without_own_parts(gangs: list[list[list[float]]]) -> None:
    assert table(gangs, [{}, {}]) == []
