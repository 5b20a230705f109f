from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.measure.sampling import Plan, half_width, interleave, is_steady, warm_up


class Scripted:
    """A sampler whose values come from a function of how many samples it has given; it logs its turns."""

    def __init__(self, name: str, value: object, log: list[str]) -> None:
        self.name, self._value, self._log, self.given = name, value, log, 0

    def sample(self, count: int) -> list[float]:
        self._log.append(self.name)
        taken = [self._value(self.given + index) for index in range(count)]  # type: ignore[operator]
        self.given += count
        return taken


def constant(_: int) -> float:
    return 1.0


def noisy(seed: int, spread: float) -> object:
    draw = random.Random(seed)
    return lambda _: draw.gauss(1.0, spread)


def no_turn(_taken: int, _most: int) -> None:
    return None


def test_quiet_replicates_stop_at_the_minimum() -> None:
    log: list[str] = []
    taken = interleave([Scripted(name, constant, log) for name in "abc"], Plan(), no_turn)
    assert [len(samples) for samples in taken] == [30, 30, 30]


def test_order_is_reversed_every_other_round() -> None:
    log: list[str] = []
    interleave([Scripted(name, constant, log) for name in "abc"], Plan(), no_turn)
    assert "".join(log) == "abccbaabc"


def test_one_noisy_replicate_keeps_all_sampling_equally_up_to_the_cap() -> None:
    log: list[str] = []
    samplers = [Scripted("a", constant, log), Scripted("b", noisy(1, 0.2), log)]
    taken = interleave(samplers, Plan(max_samples=70), no_turn)
    assert [len(samples) for samples in taken] == [70, 70]


def test_sampling_stops_when_precise() -> None:
    taken = interleave([Scripted("a", noisy(2, 0.01), [])], Plan(max_samples=10_000, precision=0.002), no_turn)
    assert 30 < len(taken[0]) < 10_000
    assert half_width(taken[0]) <= 0.002


def test_budget_ends_sampling_but_never_below_the_minimum() -> None:
    ticks = iter(range(0, 100_000, 100))
    taken = interleave([Scripted("a", noisy(3, 0.5), [])], Plan(), no_turn, clock=lambda: next(ticks))
    assert len(taken[0]) == Plan().min_samples


def test_progress_is_told_before_each_round() -> None:
    turns: list[tuple[int, int]] = []
    interleave([Scripted("a", constant, [])], Plan(), lambda taken, most: turns.append((taken, most)))
    assert turns == [(0, 100), (10, 100), (20, 100)]


def test_warm_up_goes_on_until_steady() -> None:
    cooling = Scripted("a", lambda index: 10.0 if index < 10 else 1.0, [])
    assert warm_up(cooling, Plan()) == 5


def test_warm_up_of_a_host_that_never_settles_is_bounded() -> None:
    drifting = Scripted("a", lambda index: 1.1**index, [])
    assert warm_up(drifting, Plan(max_warmups=6)) == 6


@given(st.lists(st.floats(min_value=0.5, max_value=2.0), min_size=3, max_size=40), st.floats(0.01, 100))
def test_half_width_does_not_depend_on_the_unit(samples: list[float], factor: float) -> None:
    scaled = half_width([factor * sample for sample in samples])
    assert abs(scaled - half_width(samples)) <= 1e-9 + 1e-6 * scaled


def test_half_width_covers_the_difference_of_two_medians() -> None:
    # The source's claim: intervals of two samples of the same population overlap about 95 times in 100.
    draw = random.Random(4)
    apart = 0
    for _ in range(400):
        one, other = ([draw.gauss(1, 0.1) for _ in range(50)] for _ in range(2))
        reach = half_width(one) * statistics.median(one) + half_width(other) * statistics.median(other)
        apart += abs(statistics.median(one) - statistics.median(other)) > reach

    assert apart / 400 < 0.08


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("share", [1, 2, 30])
def test_a_clock_that_stands_still_or_is_no_clock_ends_sampling_at_the_minimum(bad: float, share: int) -> None:
    broken = Scripted("a", lambda index: 1.0 if index % share else bad, [])
    assert warm_up(broken, Plan()) <= Plan().max_warmups
    broken.given = 0
    taken = interleave([broken, Scripted("b", constant, [])], Plan(), no_turn)
    assert [len(samples) for samples in taken] == [30, 30]
    assert math.isnan(half_width(taken[0]))


def test_steady_needs_three_batches() -> None:
    assert not is_steady([1.0, 1.0], 0.02)
    assert is_steady([5.0, 1.0, 1.01, 1.0], 0.02)
    assert not is_steady([1.0, 1.05, 1.0], 0.02)
