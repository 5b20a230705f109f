"""Noise pooled over peers, and the rule for two stored sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_decodegate.gate.stats.noise import Peers, noise, others
from pytest_decodegate.gate.stats.rules import Comparison, compare, compare_sessions, decide, sessions_that_settle
from pytest_decodegate.metric import Kind

logs = st.floats(-5, 5)
session = st.lists(logs, min_size=1, max_size=5)
sessions = st.lists(session, min_size=1, max_size=4)
peers = st.lists(sessions, max_size=4)


def two_sides(
    new: Sequence[Sequence[float]], base: Sequence[Sequence[float]], peers: Peers, kind: Kind = "kernel"
) -> Comparison:
    return compare_sessions(new, base, Peers.of(base, new), peers, kind, 0.05)


def pooled(some: Sequence[Sequence[Sequence[float]]]) -> Peers:
    return sum(map(Peers.of, some), start=Peers())


@given(new=sessions, base=sessions, peers=peers)
def test_swapping_the_sides_turns_the_sign_and_nothing_else(
    new: list[list[float]], base: list[list[float]], peers: list[list[list[float]]]
) -> None:
    there = two_sides(new, base, pooled(peers))
    back = two_sides(base, new, pooled(peers))

    assert there.change == -back.change
    assert there.half_width == pytest.approx(back.half_width, rel=1e-9)


@given(new=session, base=sessions, peers=peers)
def test_a_run_is_one_new_session(new: list[float], base: list[list[float]], peers: list[list[list[float]]]) -> None:
    run = compare(new, base, peers, "serving", 0.05)
    stored = two_sides([new], base, pooled(peers), "serving")

    assert (run.change, run.half_width) == (stored.change, stored.half_width)


def test_two_sides_by_hand() -> None:
    base, new = [(0.00, 0.02), (0.06, 0.08)], [(0.10, 0.12), (0.20, 0.22)]

    comparison = two_sides(new, base, Peers())

    # Within: four sessions with squares 2 * 0.01**2 each, 4 df.
    assert comparison.noise.process.value == pytest.approx(0.0002)
    # Between: variances 0.0018 and 0.005 of two means each, 0.0002 / 2 explained in both; 2 df, 8 of the prior.
    assert comparison.noise.session.value == pytest.approx((8 * 0.003**2 + 0.0018 + 0.005 - 2 * 0.0001) / 10)
    assert comparison.noise.session.df == 10
    assert comparison.change == pytest.approx(0.16 - 0.04)


def test_peers_of_the_same_sessions_add_no_session() -> None:
    one = Peers.of([(0.0,), (0.1,), (0.2,)])
    joined = one + Peers.of([(0.0,), (0.1,)]) + one

    assert joined.session.df == 2
    assert joined.weight == 5


def test_a_change_between_the_sides_is_no_noise() -> None:
    flat = [[0.0, 0.001], [0.0005, 0.0008]]
    moved = [[value + 1.0 for value in one] for one in flat]

    found = noise((flat, moved), Peers.of(flat, moved), Peers(), "kernel")

    assert math.sqrt(found.session.value) < 0.004


@given(st.lists(sessions, max_size=6))
def test_others_is_the_sum_without_oneself(all_sessions: list[list[list[float]]]) -> None:
    each = [Peers.of(some) for some in all_sessions]

    for index, rest in enumerate(others(each)):
        expected = sum(each[:index] + each[index + 1 :], start=Peers())
        assert rest.df == expected.df
        assert rest.squares == pytest.approx(expected.squares)
        assert rest.excess == pytest.approx(expected.excess)
        assert (rest.weight, rest.longest) == (expected.weight, expected.longest)


@given(new=sessions, base=sessions, tolerance=st.floats(0.01, 0.5))
def test_sessions_that_settle_settle(new: list[list[float]], base: list[list[float]], tolerance: float) -> None:
    comparison = two_sides(new, base, Peers())
    assume(decide(comparison, tolerance) == "INCONCLUSIVE")
    wanted = sessions_that_settle(comparison, tolerance)
    assert wanted is None or min(len(new), len(base)) < wanted <= 10


def test_the_nearer_to_the_edge_of_the_band_the_more_sessions_settle_it() -> None:
    base = [[0.00, 0.02, -0.02], [0.015, 0.03, -0.005]]

    def wanted(change: float) -> int | None:
        new = [[value + change for value in one] for one in base]
        comparison = two_sides(new, base, Peers())
        assert decide(comparison, 0.03) == "INCONCLUSIVE"
        return sessions_that_settle(comparison, 0.03)

    near, nearer = wanted(0.005), wanted(0.015)
    assert near is not None
    assert nearer is not None
    assert 2 < near < nearer
    assert wanted(0.029) is None
