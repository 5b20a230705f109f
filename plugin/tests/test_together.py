"""Metrics weighed together: Holm, and the shift that all of them share."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.stats.rules import decide
from pytest_decodegate.gate.stats.together import (
    LEAST_SHIFTED,
    LEVEL,
    SHARED_SESSION_SD,
    SHIFT_BAND,
    JointChange,
    JointPart,
    common_shift,
    holm,
    settled,
    upheld_alone,
    uphold,
)

p_values = st.lists(st.floats(0, 1), max_size=12)
changes = st.lists(st.floats(-0.2, 0.2), min_size=LEAST_SHIFTED, max_size=30)


@given(p_values, st.randoms())
def test_holms_p_never_falls_below_p_and_keeps_the_order(p_values: list[float], draw: random.Random) -> None:
    adjusted = holm(p_values)
    assert all(one >= given for one, given in zip(adjusted, p_values, strict=True))
    assert [a for _, a in sorted(zip(p_values, adjusted, strict=True))] == sorted(adjusted)
    order = list(range(len(p_values)))
    draw.shuffle(order)
    assert holm([p_values[n] for n in order]) == [adjusted[n] for n in order]


def test_holms_own_numbers() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_one_of_many_needs_more_than_one_alone() -> None:
    assert uphold([LEVEL]) == [True]
    assert uphold([LEVEL, *[0.5] * 103]) == [False] * 104
    assert uphold([LEVEL / 105, *[0.5] * 103])[0]


@given(p_values)
def test_what_is_upheld_alone_is_upheld_together(p_values: list[float]) -> None:
    alone = [upheld_alone(p, len(p_values)) for p in p_values]
    assert all(together or not one for together, one in zip(uphold(p_values), alone, strict=True))


@given(p_values, st.integers(0, 11), st.floats(0, 1))
def test_a_smaller_p_is_never_upheld_less(p_values: list[float], index: int, factor: float) -> None:
    if index < len(p_values):
        smaller = [p * factor if n == index else p for n, p in enumerate(p_values)]
        assert uphold(smaller)[index] >= uphold(p_values)[index]


def test_a_regression_that_holm_may_refuse_is_as_open_as_noise() -> None:
    assert settled("PASS", 0.9, 104)
    assert settled("IMPROVED", 1.0, 104)
    assert not settled("INCONCLUSIVE", 0.3, 1)
    assert settled("REGRESSED", LEVEL / 104, 104)
    assert not settled("REGRESSED", LEVEL / 103, 104)


def moved(changes: list[float], errors: list[float], sessions: int = 1) -> JointChange:
    shift = common_shift(changes, list(map(JointPart, errors)), sessions)
    assert shift is not None
    return shift


def simulated(draw: random.Random, metrics: int, shift: float) -> JointChange:
    """Of a run of metrics as noisy as kernels, each with an error of its own, and what their session shares."""
    shared = draw.gauss(0, SHARED_SESSION_SD * math.sqrt(2))
    errors = [0.002 * math.exp(draw.gauss(0, 0.7)) for _ in range(metrics)]
    return moved([shift + shared + draw.gauss(0, error) for error in errors], errors)


def test_the_shift_of_all_kernels_is_seen_below_every_single_band() -> None:
    draw = random.Random(1)
    unchanged = [simulated(draw, 83, 0.0) for _ in range(400)]
    slower = [simulated(draw, 83, 0.015) for _ in range(400)]

    assert sum(decide(shift, SHIFT_BAND) == "PASS" for shift in unchanged) >= 398
    assert sum(decide(shift, SHIFT_BAND) == "REGRESSED" for shift in slower) >= 380
    assert sum(shift.lo > 0 for shift in unchanged) <= 400 * (LEVEL + 0.024)  # three standard deviations


def test_a_single_metric_moves_no_shift() -> None:
    torn = moved([0.5, *[0.0] * 8], [0.003] * 9)
    assert torn.change == 0
    assert decide(torn, SHIFT_BAND) == "PASS"


@given(changes, st.floats(-0.1, 0.1), st.integers(1, 5))
def test_a_shift_moves_with_all_metrics_and_turns_with_their_sign(
    changes: list[float], more: float, sessions: int
) -> None:
    errors = [0.003] * len(changes)
    here = moved(changes, errors, sessions)
    there = moved([change + more for change in changes], errors, sessions)
    back = moved([-change for change in changes], errors, sessions)
    assert there.change == pytest.approx(here.change + more, abs=1e-12)
    assert back.change == pytest.approx(-here.change, abs=1e-12)
    assert back.error == pytest.approx(here.error)
    assert (here.p_worse < LEVEL) == (here.lo > 0) or abs(here.lo) < 1e-9


def test_scatter_that_errors_do_not_explain_widens_the_interval() -> None:
    alike = moved([0.0, 0.001, -0.001, 0.001, -0.001], [0.001] * 5)
    apart = moved([0.0, 0.05, -0.05, 0.05, -0.05], [0.001] * 5)
    assert apart.error > 5 * alike.error


def test_few_metrics_have_no_common_shift() -> None:
    assert common_shift([0.1] * (LEAST_SHIFTED - 1), [JointPart(0.001)] * (LEAST_SHIFTED - 1), 1) is None
