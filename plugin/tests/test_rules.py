"""The statistics: exact against tables and by-hand sums, by property, and in simulation."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pytest_decodegate.gate.stats.noise import ASSUMED_PROCESS_SD, ASSUMED_SESSION_SD, PRIOR_DF, Noise, Variance
from pytest_decodegate.gate.stats.rules import (
    MOST_REPLICATES,
    MOST_SESSIONS,
    POCOCK_ALPHA,
    Comparison,
    compare,
    decide,
    settle,
    worse_logs,
)
from pytest_decodegate.gate.stats.student import t_quantile
from pytest_decodegate.metric import DEFAULT_TOLERANCE, Kind

GOODNESS = {"REGRESSED": 0, "INCONCLUSIVE": 1, "PASS": 2, "IMPROVED": 2}

values = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=6)
sessions = st.lists(values, min_size=1, max_size=4)
tolerances = st.floats(0.001, 0.5)
changes = st.floats(-1.0, 1.0)
noises = st.builds(
    Noise,
    session=st.builds(Variance, st.floats(1e-6, 1e-2), st.floats(PRIOR_DF, 30)),
    process=st.builds(Variance, st.floats(0, 1e-2), st.floats(1, 100)),
)
comparisons = st.builds(
    Comparison,
    change=changes,
    noise=noises,
    new_counts=st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple),
    base_counts=st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple),
    alpha=st.sampled_from(sorted(POCOCK_ALPHA.values())),
)


def logs(sessions: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return [worse_logs(session, "lower") for session in sessions]


def test_two_sessions_by_hand() -> None:
    base = [(0.00, 0.02), (0.06, 0.08)]
    new = (0.10, 0.12)

    comparison = compare(new, base, [], "kernel", 0.05)

    # Within sessions: three groups with squares 2 * 0.01**2 each, 3 df.
    assert comparison.noise.process.value == pytest.approx(0.0002)
    assert comparison.noise.process.df == 3
    # Between: variance of (0.01, 0.07) is 0.0018, of which 0.0002 / 2 is explained; 1 df of its own, 8 of the prior.
    expected = (8 * ASSUMED_SESSION_SD["kernel"] ** 2 + (0.0018 - 0.0001)) / 9
    assert comparison.noise.session.value == pytest.approx(expected)
    assert comparison.noise.session.df == 9
    assert comparison.change == pytest.approx(0.11 - 0.04)
    # Var(d) = v_s (1 + 1/2) + v_p (1/2 + (1/2 + 1/2) / 4), df by Satterthwaite.
    session, process = expected * 1.5, 0.0002 * 0.75
    df = (session + process) ** 2 / (session**2 / 9 + process**2 / 3)
    assert comparison.half_width == pytest.approx(t_quantile(0.975, df) * math.sqrt(session + process))


@given(comparison=comparisons)
def test_p_is_small_exactly_where_the_interval_lies_above_zero(comparison: Comparison) -> None:
    assume(abs(comparison.lo) > 1e-6 * comparison.half_width)  # at the very edge digits decide
    assert (comparison.p_worse < comparison.alpha / 2) == (comparison.lo > 0)


@given(comparison=comparisons)
def test_the_p_of_a_change_and_of_its_opposite_add_up_to_certainty(comparison: Comparison) -> None:
    assert comparison.p_worse + replace(comparison, change=-comparison.change).p_worse == pytest.approx(1)


def test_one_session_of_one_process_leans_on_the_assumptions() -> None:
    noise = compare((0.0,), [(0.0,)], [], "collective", 0.05).noise

    assert noise.session == Variance(ASSUMED_SESSION_SD["collective"] ** 2, PRIOR_DF)
    assert noise.process == Variance(ASSUMED_PROCESS_SD["collective"] ** 2, PRIOR_DF)


def test_a_noisy_metric_without_peers_is_believed() -> None:
    noise = compare((0.0, 0.2), [(0.0, 0.2)], [], "kernel", 0.05).noise

    assert noise.process.value == pytest.approx(0.02)
    assert noise.process.df == 2


def test_peers_lend_their_process_variance_but_at_most_the_weight_of_a_prior() -> None:
    peer = [(0.0, 0.02) * 50]
    noise = compare((0.0, 0.0), [(0.0, 0.0)], [peer], "kernel", 0.05).noise

    pooled = 100 * 0.01**2 / 99
    assert noise.process.value == pytest.approx(8 * pooled / 10)
    assert noise.process.df == 10


def test_peers_of_the_same_sessions_count_once() -> None:
    peer = [(0.0, 0.0), (0.1, 0.1)]
    quiet = [(0.0, 0.0)]

    one = compare((0.0, 0.0), quiet, [peer], "kernel", 0.05).noise.session
    many = compare((0.0, 0.0), quiet, [peer] * 20, "kernel", 0.05).noise.session

    assert one.value == pytest.approx((8 * ASSUMED_SESSION_SD["kernel"] ** 2 + 0.005) / 9)
    assert many.value == pytest.approx(one.value)
    assert many.df == one.df


@given(new=values, base=sessions, factor=st.floats(1e-3, 1e3), tolerance=tolerances)
def test_units_do_not_matter(new: list[float], base: list[list[float]], factor: float, tolerance: float) -> None:
    plain = compare(worse_logs(new, "lower"), logs(base), [], "kernel", 0.05)
    scaled_base = logs([[factor * value for value in session] for session in base])
    scaled = compare(worse_logs([factor * value for value in new], "lower"), scaled_base, [], "kernel", 0.05)

    assert scaled.change == pytest.approx(plain.change, abs=1e-9)
    assert scaled.half_width == pytest.approx(plain.half_width, rel=1e-6)


@given(new=values, base=sessions)
def test_a_rate_is_judged_as_the_time_it_stands_for(new: list[float], base: list[list[float]]) -> None:
    times = compare(worse_logs(new, "lower"), logs(base), [], "serving", 0.05)
    rates = [worse_logs([1 / value for value in session], "higher") for session in base]
    rate = compare(worse_logs([1 / value for value in new], "higher"), rates, [], "serving", 0.05)

    assert rate.change == pytest.approx(times.change, abs=1e-9)
    assert rate.half_width == pytest.approx(times.half_width, rel=1e-6)


@given(comparison=comparisons, narrow=tolerances, wide=tolerances)
def test_a_wider_band_never_makes_a_verdict_worse(comparison: Comparison, narrow: float, wide: float) -> None:
    narrow, wide = sorted((narrow, wide))
    assert GOODNESS[decide(comparison, wide)] >= GOODNESS[decide(comparison, narrow)]


@given(comparison=comparisons)
def test_more_processes_narrow_the_interval(comparison: Comparison) -> None:
    more = tuple(count + 1 for count in comparison.new_counts)
    assert replace(comparison, new_counts=more).half_width <= comparison.half_width * (1 + 1e-12)


@dataclass(frozen=True)
class Drawn:
    """An interval as one would draw it."""

    lo: float
    change: float
    hi: float


@pytest.mark.parametrize(
    ("drawn", "outcome"),
    [
        (Drawn(0.01, 0.06, 0.11), "REGRESSED"),
        (Drawn(-0.01, 0.06, 0.13), "INCONCLUSIVE"),  # perhaps no slower at all
        (Drawn(0.03, 0.04, 0.045), "PASS"),  # surely slower, and as surely within the band
        (Drawn(0.03, 0.04, 0.06), "INCONCLUSIVE"),
        (Drawn(-0.04, 0.0, 0.04), "PASS"),
        (Drawn(-0.1, 0.0, 0.1), "INCONCLUSIVE"),
        (Drawn(-0.05, -0.04, -0.03), "PASS"),  # surely faster, by less than the band
        (Drawn(-0.13, -0.06, 0.01), "PASS"),  # perhaps no faster
        (Drawn(-0.1, -0.06, -0.02), "IMPROVED"),
        (Drawn(-0.2, -0.06, 0.08), "INCONCLUSIVE"),
    ],
)
def test_the_outcome_of_an_interval_beside_a_band_of_five_percent(drawn: Drawn, outcome: str) -> None:
    assert decide(drawn, 0.05) == outcome


@given(comparison=comparisons, tolerance=tolerances, share=st.floats(0.0, 1.0))
def test_a_clear_outcome_stays_when_the_interval_shrinks(
    comparison: Comparison, tolerance: float, share: float
) -> None:
    outcome = decide(comparison, tolerance)
    assume(outcome != "INCONCLUSIVE")
    half = share * comparison.half_width
    shrunk = Drawn(comparison.change - half, comparison.change, comparison.change + half)
    assert GOODNESS[decide(shrunk, tolerance)] == GOODNESS[outcome]


# One draw in seven is open, and only those have something to settle.
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(comparison=comparisons, tolerance=tolerances)
def test_what_settles_settles(comparison: Comparison, tolerance: float) -> None:
    assume(decide(comparison, tolerance) == "INCONCLUSIVE")
    settlement = settle(comparison, tolerance)

    assert decide(comparison, settlement.tolerance * 1.001 + 1e-9) == "PASS"
    if settlement.replicates is not None:
        assert max(comparison.new_counts) < settlement.replicates <= MOST_REPLICATES
        more = (settlement.replicates,) * len(comparison.new_counts)
        assert decide(replace(comparison, new_counts=more), tolerance) != "INCONCLUSIVE"
    if settlement.sessions is not None:
        assert len(comparison.base_counts) < settlement.sessions <= MOST_SESSIONS


def test_settling_counts_the_fewest_replicates() -> None:
    noise = Noise(Variance(1e-6, 8), Variance(4e-4, 8))
    comparison = Comparison(0.0, noise, new_counts=(3,), base_counts=(12,), alpha=0.05)
    wanted = settle(comparison, 0.03).replicates

    assert wanted is not None
    assert decide(replace(comparison, new_counts=(wanted - 1,)), 0.03) == "INCONCLUSIVE"


def test_a_likely_regression_is_settled_by_showing_it() -> None:
    noise = Noise(Variance(1e-6, 8), Variance(4e-3, 8))
    comparison = Comparison(math.log1p(0.08), noise, new_counts=(2,), base_counts=(12,), alpha=0.05)
    wanted = settle(comparison, 0.05).replicates

    assert decide(comparison, 0.05) == "INCONCLUSIVE"
    assert wanted is not None
    assert decide(replace(comparison, new_counts=(wanted,)), 0.05) == "REGRESSED"


def test_session_noise_is_not_settled_by_replicates() -> None:
    noise = Noise(Variance(4e-4, 8), Variance(1e-6, 8))
    settlement = settle(Comparison(0.0, noise, new_counts=(5,), base_counts=(5,), alpha=0.05), 0.05)

    assert settlement.replicates is None
    assert settlement.sessions == 5


def test_nothing_settles_a_change_at_the_edge_of_the_band() -> None:
    noise = Noise(Variance(1e-4, 8), Variance(1e-4, 8))
    comparison = Comparison(math.log1p(0.05), noise, new_counts=(5,), base_counts=(5,), alpha=0.05)

    settlement = settle(comparison, 0.05)

    assert (settlement.replicates, settlement.sessions) == (None, None)


def simulated(seed: int, kind: Kind, shift: float, runs: int = 400) -> Counter[str]:
    """Outcomes of `runs` comparisons of 5 processes with 3 stored sessions of 5, at the assumed noise."""
    draw = random.Random(seed)

    def session(mean: float) -> list[float]:
        mean += draw.gauss(0, ASSUMED_SESSION_SD[kind])
        return [mean + draw.gauss(0, ASSUMED_PROCESS_SD[kind]) for _ in range(5)]

    outcomes: Counter[str] = Counter()
    for _ in range(runs):
        base = [session(0.0) for _ in range(3)]
        outcomes[decide(compare(session(shift), base, [], kind, 0.05), DEFAULT_TOLERANCE[kind])] += 1

    return outcomes


# Answers are judged by a rule of their own, gate.quality.
@pytest.mark.parametrize("kind", [kind for kind in DEFAULT_TOLERANCE if kind != "quality"])
def test_simulated_runs_alarm_rarely_and_find_what_is_there(kind: Kind) -> None:
    band = math.log1p(DEFAULT_TOLERANCE[kind])
    sd = math.sqrt(ASSUMED_SESSION_SD[kind] ** 2 * (1 + 1 / 3) + ASSUMED_PROCESS_SD[kind] ** 2 * (1 / 5 + 1 / 15))

    unchanged, at_band, beyond = (simulated(7, kind, shift) for shift in (0.0, band, band + 3 * sd))

    assert unchanged["REGRESSED"] <= 4
    assert unchanged["PASS"] >= 320
    assert at_band["PASS"] <= 20  # nominal 2.5 % is 10; 20 is three standard deviations more
    assert beyond["REGRESSED"] >= 392
