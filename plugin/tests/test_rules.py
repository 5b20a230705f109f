"""The statistics: exact against tables and by-hand sums, by property, and in simulation."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm, t

from pytest_decodegate.gate.stats.looks import LOOK_LEVELS, MOST_LOOKS, levels_of_looks, planned_looks
from pytest_decodegate.gate.stats.noise import Noise, Spread, Variance, class_noise
from pytest_decodegate.gate.stats.recorded import NoiseClass, recorded
from pytest_decodegate.gate.stats.rules import (
    MOST_REPLICATES,
    MOST_SESSIONS,
    RARELY,
    Comparison,
    Outcome,
    compare,
    compare_sessions,
    confirmed,
    decide,
    foresee,
    narrowest_band,
    settle,
    surely_found,
    worse_logs,
)
from pytest_decodegate.gate.stats.student import t_quantile
from pytest_decodegate.metric import DEFAULT_TOLERANCE

GOODNESS = {"REGRESSED": 0, "INCONCLUSIVE": 1, "PASS": 2, "IMPROVED": 2}

values = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=6)
sessions = st.lists(values, min_size=1, max_size=4)
tolerances = st.floats(0.001, 0.5)
changes = st.floats(-1.0, 1.0)
noises = st.builds(
    Noise,
    session=st.builds(Variance, st.floats(1e-6, 1e-2), st.floats(4, 30)),
    process=st.builds(Variance, st.floats(0, 1e-2), st.floats(1, 100)),
)
comparisons = st.builds(
    Comparison,
    change=changes,
    noise=noises,
    new_counts=st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple),
    base_counts=st.lists(st.integers(1, 12), min_size=1, max_size=6).map(tuple),
    looks=st.sampled_from(sorted(LOOK_LEVELS)),
)


def logs(sessions: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return [worse_logs(session, "lower") for session in sessions]


KERNELS = NoiseClass("kernel", "graph", "gang")
ALIKE = recorded(KERNELS).session_df
SERVING = NoiseClass("serving", "host", "window")


def test_two_sessions_by_hand() -> None:
    base = [(0.00, 0.02), (0.06, 0.08)]
    new = (0.10, 0.12)

    comparison = compare(new, base, [], KERNELS, 1)
    fitted = class_noise([Spread.of(base, [new])], KERNELS)

    # Within sessions: three groups with squares 2 * 0.01**2 each, 3 df.
    process = (fitted.process.df * fitted.process.value + 3 * 0.0002) / (fitted.process.df + 3)
    assert tuple(comparison.noise.process) == pytest.approx((process, fitted.process.df + 3))
    # Between: the variance of (0.01, 0.07) is 0.0018, one df; half of the process variance is in each mean.
    means = (ALIKE * (fitted.session.value + process / 2) + 0.0018) / (ALIKE + 1)
    assert tuple(comparison.noise.session) == pytest.approx((means - process / 2, ALIKE + 1))
    assert comparison.change == pytest.approx(0.11 - 0.04)
    # Var(d) = v_s (1 + 1/2) + v_p (1/2 + (1/2 + 1/2) / 4), df by Satterthwaite.
    s, p = (means - process / 2) * 1.5, process * 0.75
    df = (s + p) ** 2 / (s**2 / (ALIKE + 1) + p**2 / (fitted.process.df + 3))
    assert comparison.error == pytest.approx(math.sqrt(s + p))
    assert comparison.df == pytest.approx(df)
    # What is added to a part of which less is known must not make the whole look surer.
    for half, level in ((comparison.change - comparison.lo, 0.975), (comparison.hi - comparison.change, 0.95)):
        whole, sessions = t_quantile(level, df) * math.sqrt(s + p), t_quantile(level, ALIKE + 1) * math.sqrt(s)
        assert half == pytest.approx(max(whole, sessions))


def chance_that_one_look_exceeds(edge: float, looks: int) -> float:
    """Of means of as many values more at each look, from scipy's normal distribution."""
    counts = [min(a, b) / math.sqrt(a * b) for a in range(1, looks + 1) for b in range(1, looks + 1)]
    correlations = [counts[row * looks : (row + 1) * looks] for row in range(looks)]
    law = multivariate_normal([0.0] * looks, correlations)
    return 1 - float(law.cdf([edge] * looks))


@pytest.mark.parametrize("looks", sorted(LOOK_LEVELS))
def test_the_levels_of_looks_are_pococks(looks: int) -> None:
    levels = LOOK_LEVELS[looks]
    # Both ends of a two-sided test: twice the chance of one, as both at once hardly ever happen.
    assert 2 * chance_that_one_look_exceeds(norm.isf(levels.worse), looks) == pytest.approx(0.05, abs=0.002)
    assert 2 * chance_that_one_look_exceeds(norm.isf(levels.stay), looks) == pytest.approx(0.1, abs=0.004)


@pytest.mark.parametrize("shared", [0.5, 0.7, 0.9, 0.96, 0.99])
def test_two_looks_that_share_their_noise_keep_the_levels_of_one(shared: float) -> None:
    law = multivariate_normal([0.0, 0.0], [[1.0, math.sqrt(shared)], [math.sqrt(shared), 1.0]])
    levels = levels_of_looks(2, shared)
    for level, over_all in zip(levels, LOOK_LEVELS[1], strict=True):
        edge = norm.isf(level)
        assert 1 - float(law.cdf([edge, edge])) == pytest.approx(over_all, rel=0.02)


@given(st.sampled_from(sorted(LOOK_LEVELS)), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_more_looks_share_the_less_each_pays(looks: int, little: float, much: float) -> None:
    little, much = sorted((little, much))
    for pocock, less, more, once in zip(
        LOOK_LEVELS[looks], levels_of_looks(looks, little), levels_of_looks(looks, much), LOOK_LEVELS[1], strict=True
    ):
        assert pocock <= less <= more <= once


def test_looks_at_one_session_err_no_more_often_than_one_look() -> None:
    """5 and 20 processes of a run beside a session of 5: over both looks as often beyond an edge as was promised."""
    draw, noise = random.Random(11), Noise(Variance(4e-6, 200.0), Variance(4e-6, 200.0))
    lower = upper = 0
    for _ in range(20_000):
        apart = draw.gauss(0, math.sqrt(2 * noise.session.value + noise.process.value / 5))
        values = [draw.gauss(0, math.sqrt(noise.process.value)) for _ in range(20)]
        looks = [Comparison(apart + sum(values[:n]) / n, noise, (n,), (5,), 2) for n in (5, 20)]
        lower += any(look.lo > 0 for look in looks)
        upper += any(look.hi < 0 for look in looks)

    assert 0.022 < lower / 20_000 < 0.028
    assert 0.045 < upper / 20_000 < 0.054


@given(st.integers(2, 50), st.integers(0, 200), st.integers(2, 9))
def test_there_are_never_more_looks_than_levels(first: int, more: int, most_looks: int) -> None:
    looks = planned_looks(first, first + more, most_looks)
    assert len(looks) <= min(most_looks, MOST_LOOKS)
    assert (looks[0], looks[-1]) == (first, first + more)


@given(comparison=comparisons)
def test_p_is_small_exactly_where_the_interval_lies_above_zero(comparison: Comparison) -> None:
    assume(abs(comparison.lo) > 1e-6 * comparison.error)  # at the very edge digits decide
    assert (comparison.p_worse < 0.025) == (comparison.lo > 0)


@given(comparison=comparisons, more=st.floats(1e-9, 0.1))  # of less than that digits decide
def test_the_slower_the_smaller_is_p(comparison: Comparison, more: float) -> None:
    assert replace(comparison, change=comparison.change + more).p_worse <= comparison.p_worse


def test_p_without_noise_is_certain() -> None:
    none = Noise(Variance(0.0, 8), Variance(0.0, 8))
    assert [Comparison(change, none, (5,), (5,), 1).p_worse for change in (0.1, 0.0, -0.1)] == [0, 1, 1]


@given(comparison=comparisons)
def test_more_looks_make_each_stricter(comparison: Comparison) -> None:
    once, thrice = replace(comparison, looks=1), replace(comparison, looks=3)
    assert thrice.lo <= once.lo
    assert thrice.hi >= once.hi
    assert thrice.p_worse >= once.p_worse


@given(comparison=comparisons)
def test_the_p_of_a_change_and_of_its_opposite_add_up_to_certainty(comparison: Comparison) -> None:
    once = replace(comparison, looks=1)
    assert once.p_worse + replace(once, change=-once.change).p_worse == pytest.approx(1)


def test_a_noisy_metric_is_believed_over_what_was_recorded() -> None:
    noise = compare((0.0, 0.2), [(0.0, 0.2)], [], KERNELS, 1).noise

    assert noise.process.value > 0.5 * 0.02


@given(new=values, base=sessions, factor=st.floats(1e-3, 1e3), tolerance=tolerances)
@example(new=[1.0, 1.0], base=[[1.0, 1.0, 1.0]], factor=467.0, tolerance=0.5)  # no scatter, and that of rounding
def test_units_do_not_matter(new: list[float], base: list[list[float]], factor: float, tolerance: float) -> None:
    plain = compare(worse_logs(new, "lower"), logs(base), [], KERNELS, 1)
    scaled_base = logs([[factor * value for value in session] for session in base])
    scaled = compare(worse_logs([factor * value for value in new], "lower"), scaled_base, [], KERNELS, 1)

    assert scaled.change == pytest.approx(plain.change, abs=1e-9)
    assert scaled.error == pytest.approx(plain.error, rel=1e-6)


@given(new=values, base=sessions)
def test_a_rate_is_judged_as_the_time_it_stands_for(new: list[float], base: list[list[float]]) -> None:
    times = compare(worse_logs(new, "lower"), logs(base), [], SERVING, 1)
    rates = [worse_logs([1 / value for value in session], "higher") for session in base]
    rate = compare(worse_logs([1 / value for value in new], "higher"), rates, [], SERVING, 1)

    assert rate.change == pytest.approx(times.change, abs=1e-9)
    assert rate.error == pytest.approx(times.error, rel=1e-6)


@given(comparison=comparisons, narrow=tolerances, wide=tolerances)
def test_a_wider_band_never_makes_a_verdict_worse(comparison: Comparison, narrow: float, wide: float) -> None:
    narrow, wide = sorted((narrow, wide))
    assert GOODNESS[decide(comparison, wide)] >= GOODNESS[decide(comparison, narrow)]


@given(comparison=comparisons)
def test_more_processes_narrow_the_interval(comparison: Comparison) -> None:
    more = tuple(count + 1 for count in comparison.new_counts)
    fewer = replace(comparison, new_counts=more)
    assert fewer.error <= comparison.error * (1 + 1e-12)
    # What is known of a sum of two variances is an approximation: the interval may widen by a hair.
    assert fewer.hi - fewer.lo <= 1.05 * (comparison.hi - comparison.lo)


@given(comparison=comparisons, more=st.floats(0, 1e-2), level=st.sampled_from([0.05, 0.0304, 0.0003]))
def test_what_processes_add_never_makes_the_noise_of_sessions_look_surer(
    comparison: Comparison, more: float, level: float
) -> None:
    session = comparison.noise.session
    still = replace(comparison, noise=Noise(session, Variance(0.0, 8.0)))
    noisy = replace(comparison, noise=Noise(session, Variance(more, 8.0)))
    assert noisy.reach(level) >= still.reach(level) * (1 - 1e-9)
    if comparison.change > 0:
        assert noisy.p_worse >= still.p_worse * (1 - 1e-9)


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
    change = comparison.change
    shrunk = Drawn(change - share * (change - comparison.lo), change, change + share * (comparison.hi - change))
    assert GOODNESS[decide(shrunk, tolerance)] == GOODNESS[outcome]


# One draw in seven is open, and only those have something to settle.
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(comparison=comparisons, tolerance=tolerances)
def test_what_settles_settles(comparison: Comparison, tolerance: float) -> None:
    assume(decide(comparison, tolerance) == "INCONCLUSIVE")
    settlement = settle(comparison, tolerance)

    assert settlement.tolerance is not None
    assert decide(comparison, settlement.tolerance * 1.001 + 1e-9) == "PASS"
    if settlement.replicates is not None:
        assert max(comparison.new_counts) < settlement.replicates <= MOST_REPLICATES
        more = (settlement.replicates,) * len(comparison.new_counts)
        assert decide(replace(comparison, new_counts=more), tolerance) != "INCONCLUSIVE"
    if settlement.sessions is not None:
        assert len(comparison.base_counts) < settlement.sessions <= MOST_SESSIONS


def test_settling_counts_the_fewest_replicates() -> None:
    noise = Noise(Variance(1e-6, 8), Variance(4e-4, 8))
    comparison = Comparison(0.0, noise, new_counts=(3,), base_counts=(12,), looks=1)
    wanted = settle(comparison, 0.02).replicates

    assert wanted is not None
    assert decide(replace(comparison, new_counts=(wanted - 1,)), 0.02) == "INCONCLUSIVE"


def test_a_likely_regression_is_settled_by_showing_it() -> None:
    noise = Noise(Variance(1e-6, 8), Variance(4e-3, 8))
    comparison = Comparison(math.log1p(0.08), noise, new_counts=(2,), base_counts=(12,), looks=1)
    wanted = settle(comparison, 0.05).replicates

    assert decide(comparison, 0.05) == "INCONCLUSIVE"
    assert wanted is not None
    assert decide(replace(comparison, new_counts=(wanted,)), 0.05) == "REGRESSED"


def test_session_noise_is_not_settled_by_replicates() -> None:
    noise = Noise(Variance(6e-4, 8), Variance(1e-6, 8))
    settlement = settle(Comparison(0.0, noise, new_counts=(5,), base_counts=(5,), looks=1), 0.05)

    assert settlement.replicates is None
    assert settlement.sessions == 5


def test_nothing_settles_a_change_at_the_edge_of_the_band() -> None:
    noise = Noise(Variance(1e-4, 8), Variance(1e-4, 8))
    comparison = Comparison(math.log1p(0.05), noise, new_counts=(5,), base_counts=(5,), looks=1)

    settlement = settle(comparison, 0.05)

    assert (settlement.replicates, settlement.sessions) == (None, None)


@pytest.mark.parametrize(
    ("first", "fresh", "together", "stands"),
    [
        ("REGRESSED", "REGRESSED", "REGRESSED", "REGRESSED"),
        ("IMPROVED", "IMPROVED", "PASS", "IMPROVED"),
        ("REGRESSED", "PASS", "PASS", "PASS"),
        ("REGRESSED", "PASS", "REGRESSED", "INCONCLUSIVE"),
        ("REGRESSED", "INCONCLUSIVE", "REGRESSED", "INCONCLUSIVE"),
        ("IMPROVED", "PASS", "IMPROVED", "INCONCLUSIVE"),
        ("REGRESSED", "IMPROVED", "INCONCLUSIVE", "INCONCLUSIVE"),
    ],
)
def test_what_fresh_replicates_do_not_confirm_does_not_stand(
    first: Outcome, fresh: Outcome, together: Outcome, stands: Outcome
) -> None:
    assert confirmed(first, fresh, together) == stands


def test_what_is_surely_found_is_about_twice_the_half_width() -> None:
    assert surely_found(0.02, -0.025, 0.025) == pytest.approx(0.05)
    assert surely_found(0.02, -0.005, 0.005) == pytest.approx(0.025)


@pytest.mark.parametrize("sessions", [1, 2, 5])
def test_an_unchanged_metric_stays_in_the_narrowest_band_of_its_noise(sessions: int) -> None:
    base = [(0.0, 0.002, -0.001, 0.001, -0.002)] * sessions
    foreseen = foresee([5], base, class_noise([Spread.of(base)], KERNELS), 2)
    band = math.log1p(narrowest_band(foreseen, RARELY))
    beyond = [1 - float(t(df, scale=error).cdf(band - foreseen.hi)) for error, df in foreseen.tails]
    assert max(beyond) == pytest.approx(RARELY, rel=1e-3)
    assert decide(replace(foreseen, change=band - foreseen.hi - 1e-9), math.expm1(band)) == "PASS"


def test_more_sessions_keep_a_narrower_band() -> None:
    one = (0.0, 0.002, -0.001, 0.001, -0.002)
    fitted = class_noise([Spread.of([one])], KERNELS)
    bands = [narrowest_band(foresee([5], [one] * sessions, fitted, 2), RARELY) for sessions in (1, 2, 3, 5)]
    assert bands == sorted(bands, reverse=True)


def drawn(draw: random.Random, found: NoiseClass, metrics: int, shift: float, sessions: int) -> list[str]:
    """Outcomes of the metrics of one run: 5 processes against `sessions` of 5, as noisy as was recorded of the class.

    The class is as unlike itself as was recorded, between its processes and between its sessions.
    """
    elsewhere = recorded(found)

    def true(variance: float, df: float) -> float:
        return math.sqrt(variance * df / draw.gammavariate(df / 2, 2))

    def values(session_sd: float, process_sd: float, level: float) -> list[float]:
        level += draw.gauss(0, session_sd)
        return [level + draw.gauss(0, process_sd) for _ in range(5)]

    session, process = (elsewhere.session_scale, elsewhere.session_df), (elsewhere.process_sd**2, elsewhere.process_df)
    sds = [(true(*session), true(*process)) for _ in range(metrics)]
    base = [[values(*sd, 0.0) for _ in range(sessions)] for sd in sds]
    new = [values(*sd, shift) for sd in sds]
    spreads = [Spread.of(old, [run]) for old, run in zip(base, new, strict=True)]
    fitted = class_noise(spreads, found)
    both = zip(new, base, spreads, strict=True)
    found_band = DEFAULT_TOLERANCE[found.kind]
    return [decide(compare_sessions([run], old, spread, fitted, 1), found_band) for run, old, spread in both]


@pytest.mark.parametrize("found", [KERNELS, NoiseClass("collective", "graph", "gang")])
@pytest.mark.parametrize("sessions", [1, 3])
def test_simulated_runs_alarm_rarely_and_find_what_is_there(found: NoiseClass, sessions: int) -> None:
    draw = random.Random(7)
    band = DEFAULT_TOLERANCE[found.kind]

    def outcomes(change: float) -> Counter[str]:
        runs = (drawn(draw, found, 80, math.log1p(change), sessions) for _ in range(10))
        return Counter(outcome for run in runs for outcome in run)

    unchanged, at_band, beyond = map(outcomes, (0.0, band, 2 * band))

    assert unchanged["REGRESSED"] <= 8  # of 800
    assert unchanged["PASS"] >= 700
    assert at_band["PASS"] <= 40 + 19  # nominal 5 %, and three standard deviations
    assert beyond["REGRESSED"] >= 700
