"""Trends inside a window: what is called one, how often by chance, and that nothing depends on where parts are cut."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.client.stream import Arrival
from pytest_decodegate.measure.stationarity import FALSE_ALARMS, MOVED, PARTS, chance_of_order, parts, trend

VALUES = st.lists(st.floats(1, 2), min_size=2, max_size=10, unique=True)


@pytest.mark.parametrize("count", range(2, 8))
def test_chances_are_the_shares_of_permutations(count: int) -> None:
    orders = list(permutations(range(count)))
    against = [sum(a > b for i, a in enumerate(order) for b in order[i + 1 :]) for order in orders]
    pairs = math.comb(count, 2)
    for most in range(pairs // 2):
        share = sum(number <= most or number >= pairs - most for number in against) / len(orders)
        assert chance_of_order(count, most) == pytest.approx(share)

    assert chance_of_order(count, pairs) == 1


def test_22_pairs_of_16_parts_may_go_against_a_trend_and_no_more() -> None:
    assert chance_of_order(PARTS, 22) == pytest.approx(1 / 2974, rel=1e-3)
    assert chance_of_order(PARTS, 22) <= FALSE_ALARMS < chance_of_order(PARTS, 23)


@given(VALUES, st.floats(1e-6, 1e6))
def test_units_make_no_difference_and_time_turned_round_turns_the_sign(values: list[float], factor: float) -> None:
    found, scaled, turned = trend(values), trend([factor * value for value in values]), trend(values[::-1])
    assert scaled.change == pytest.approx(found.change, abs=1e-9)
    assert turned.change == pytest.approx(-found.change, abs=1e-9)
    assert turned.chance == found.chance


@given(st.floats(0.5, 50), st.floats(-0.5, 0.5))
def test_a_line_is_its_own_trend(level: float, change: float) -> None:
    values = [level * (1 + change * (part / (PARTS - 1) - 0.5)) for part in range(PARTS)]
    assert trend(values).change == pytest.approx(change, abs=1e-6)
    if abs(change) > 1.01 * MOVED:
        assert trend(values).is_real


def test_values_that_are_all_equal_have_no_trend() -> None:
    assert not trend([1.0] * PARTS).is_real
    assert trend([1.0] * PARTS).chance == 1


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "even": lambda draw: draw.gauss(),
    "heavy": lambda draw: draw.gauss() / math.sqrt(draw.gammavariate(1.2, 1 / 1.2)),  # t of 2.4 degrees of freedom
    "stalls": lambda draw: draw.gauss() + (20 if draw.random() < 0.1 else 0),
    "cauchy": lambda draw: math.tan(math.pi * (draw.random() - 0.5)),
}


@pytest.mark.parametrize("noise", DRAWS)
def test_false_alarms_are_as_rare_as_stated_whatever_the_noise(noise: str) -> None:
    """Scatter of 5 %, so that the size of a trend keeps nothing out; 20,000 windows, of which 7 are expected."""
    draw = random.Random(7)
    windows = ([math.exp(0.05 * max(-9, min(9, DRAWS[noise](draw)))) for _ in range(PARTS)] for _ in range(20_000))
    assert sum(trend(values).is_real for values in windows) <= 20_000 * FALSE_ALARMS + 4 * math.sqrt(8)


@pytest.mark.parametrize("noise", ["even", "heavy"])
def test_a_quiet_window_as_of_one_stream_never_seems_to_move(noise: str) -> None:
    """One stream on an H200 scatters by less than 0.1 % from answer to answer; here it is 0.3 %."""
    draw = random.Random(8)
    windows = ([math.exp(0.003 * max(-9, min(9, DRAWS[noise](draw)))) for _ in range(PARTS)] for _ in range(20_000))
    assert not any(trend(values).is_real for values in windows)


def test_a_real_trend_is_found_in_noise() -> None:
    """4 % through a window whose parts scatter by half a percent."""
    draw = random.Random(9)
    falling = [1 - 0.04 * part / (PARTS - 1) for part in range(PARTS)]
    windows = ([level * math.exp(draw.gauss(0, 0.005)) for level in falling] for _ in range(300))
    assert sum(trend(values).is_real for values in windows) > 290


def stream(first_s: float, step_s: float, tokens: int) -> list[Arrival]:
    return [(first_s + number * step_s, 1) for number in range(tokens)]


@given(st.floats(1e-3, 0.1), st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 0.5), st.integers(1, 9))
def test_a_steady_rate_is_the_same_in_every_part_wherever_it_is_cut(
    step_s: float, phases: list[float], shift: float, count: int
) -> None:
    streams = [stream(phase * step_s, step_s, 100) for phase in phases]
    found = parts(streams, (5 + shift) * step_s, (90 + shift) * step_s, count)
    assert found == pytest.approx([step_s] * count)


def test_a_prefill_of_another_stream_counts_where_it_stalls() -> None:
    stalled = [(number * 1.0 + (3.0 if number > 40 else 0.0), 1) for number in range(81)]
    assert parts([stalled], 0.0, 80.0, 4) == pytest.approx((1.0, 1.0, 20 / 17, 1.0))


def test_tokens_that_come_at_once_are_none_the_slower() -> None:
    bursts = [(float(number), 2) for number in range(41)]
    pieces = [(at_s, 1) for at_s, _ in bursts for _ in range(2)]
    assert parts([bursts], 0.0, 40.0, 4) == pytest.approx([0.5] * 4)
    assert parts([pieces], 0.0, 40.0, 4) == pytest.approx([0.5] * 4)


def test_a_part_in_which_nobody_decodes_leaves_nothing_to_compare() -> None:
    assert parts([stream(0.0, 1.0, 10)], 0.0, 20.0, 4) == ()
