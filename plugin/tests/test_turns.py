"""Scatter that follows who was measured first is told from noise, whatever the stacks differ by."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.turns import first_was_slower

noise = st.floats(-0.01, 0.01)
orders = st.lists(st.booleans(), min_size=4, max_size=24).filter(lambda order: len(set(order)) == 2)


def scattered(order: Sequence[bool], change: float, effect: float, noise: Sequence[float]) -> list[float]:
    """Log differences of pairs of stacks that differ by `change`, where the first of a pair is slower by `effect`."""
    return [change + (effect if first else -effect) + each for first, each in zip(order, noise, strict=False)]


@given(orders, st.floats(-1, 1), st.floats(0.06, 0.5), st.data())
def test_it_is_found_whatever_the_stacks_differ_by(
    order: list[bool], change: float, effect: float, data: st.DataObject
) -> None:
    own = data.draw(st.lists(noise, min_size=len(order), max_size=len(order)))
    found = first_was_slower(scattered(order, change, effect, own), order)
    assert found == pytest.approx(math.expm1(effect), abs=0.02)


@given(orders, st.floats(-1, 1), st.floats(0.06, 0.5), st.data())
def test_whoever_is_called_candidate_makes_no_difference(
    order: list[bool], change: float, effect: float, data: st.DataObject
) -> None:
    own = data.draw(st.lists(noise, min_size=len(order), max_size=len(order)))
    differences = scattered(order, change, effect, own)
    swapped = first_was_slower([-each for each in differences], [not first for first in order])
    assert swapped == pytest.approx(first_was_slower(differences, order))


def test_noise_alone_is_seldom_taken_for_it() -> None:
    draw = random.Random(1)
    order = [True, False] * 3
    found = [first_was_slower([draw.gauss(0, 0.01) for _ in order], order) for _ in range(2000)]
    assert 0.07 < sum(each is not None for each in found) / len(found) < 0.13


@given(st.lists(noise, min_size=1, max_size=3))
def test_too_few_pairs_tell_nothing(differences: list[float]) -> None:
    assert first_was_slower(differences, [place % 2 == 0 for place in range(len(differences))]) is None


@given(st.lists(noise, min_size=4, max_size=9), st.booleans())
def test_nothing_is_told_where_one_side_was_always_first(differences: list[float], first: bool) -> None:
    assert first_was_slower(differences, [first] * len(differences)) is None


@given(orders, st.floats(-1, 1))
def test_pairs_that_do_not_scatter_have_no_such_effect(order: list[bool], change: float) -> None:
    found = first_was_slower([change] * len(order), order)
    assert found is None or found == pytest.approx(0, abs=1e-9)
