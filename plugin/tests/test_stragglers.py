from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.gate.stragglers import LEAST_GANGS, LEAST_ROUNDS, Straggler, notes, stragglers, told
from pytest_decodegate.metric import Json

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


def test_the_sentence_names_the_place() -> None:
    gpu: dict[str, Json] = {
        "gpu": "GPU 3 (GPU-aa)",
        "bus_id": "0000:65:00.0",
        "sm_clock_mhz": {"min": 1395, "median": 1410, "max": 1980},
        "pcie": "gen 4 x16",
    }
    assert told(Straggler(3, 1.234), gpu) == (
        "STRAGGLER: rank 3 (GPU 3, 0000:65:00.0, SM clock 1410 MHz, PCIe gen 4 x16) takes 1.23x the others' time for "
        "the same local work, in every gang"
    )


@pytest.mark.parametrize(
    ("gpus", "place"),
    [
        ([{"gpu": "GPU 0 (a)"}, {"gpu": "GPU 1 (b)"}], " (GPU 1 (b))"),
        ([{"gpu": "GPU 0 (a)"}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_a_rank_is_placed_by_its_number_as_far_as_gpus_are_known(gpus: Json, place: str) -> None:
    (note,) = notes([[[1.0] * ROUNDS, [1.5] * ROUNDS]] * 2, gpus)
    assert note.startswith(f"STRAGGLER: rank 1{place} takes 1.50x")


@pytest.mark.parametrize("gpu", [None, {}])
def test_the_sentence_without_a_gpu(gpu: dict[str, str] | None) -> None:
    assert told(Straggler(1, 1.5), gpu) == (
        "STRAGGLER: rank 1 takes 1.50x the others' time for the same local work, in every gang"
    )


def test_a_silent_gpu_is_still_named() -> None:
    assert "rank 0 (GPU 0 (GPU-b)) takes" in told(Straggler(0, 1.2), {"gpu": "GPU 0 (GPU-b)", "sm_clock_mhz": None})
