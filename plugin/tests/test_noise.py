"""Noise fitted to a class: against scipy and by hand, in simulated classes, and by property."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, variance

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from pytest_decodegate.gate.stats.gamma import digamma, inverse_trigamma, trigamma
from pytest_decodegate.gate.stats.noise import (
    SESSION_DF,
    ClassNoise,
    Spread,
    Variance,
    class_noise,
    process_prior,
    session_variance,
)
from pytest_decodegate.gate.stats.recorded import NoiseClass, noise_class, recorded
from pytest_decodegate.gate.stats.rules import Comparison, compare, compare_sessions, decide, sessions_that_settle
from pytest_decodegate.metric import Metric

KERNELS = NoiseClass("kernel", "graph", "gang")
ALIKE = recorded(KERNELS).session_df
SERVING = NoiseClass("serving", "host", "window")

logs = st.floats(-5, 5)
session = st.lists(logs, min_size=2, max_size=5)
sessions = st.lists(session, min_size=1, max_size=4)
peers = st.lists(sessions, max_size=4)
variances = st.lists(st.builds(Variance, st.floats(1e-8, 1e-2), st.integers(1, 12).map(float)), min_size=2, max_size=8)


def two_sides(
    new: Sequence[Sequence[float]],
    base: Sequence[Sequence[float]],
    peers: Sequence[Sequence[Sequence[float]]] = (),
    found: NoiseClass = KERNELS,
) -> Comparison:
    own = Spread.of(base, new)
    return compare_sessions(new, base, own, class_noise([own, *map(Spread.of, peers)], found), 1)


# --- gamma


@given(st.floats(0.01, 1e4))
def test_the_derivatives_of_log_gamma_are_scipys(x: float) -> None:
    assert digamma(x) == pytest.approx(float(special.digamma(x)), rel=1e-9, abs=1e-10)
    assert trigamma(x) == pytest.approx(float(special.polygamma(1, x)), rel=1e-9)


@given(st.floats(1e-9, 1e9))
def test_the_inverse_of_trigamma_leads_back(y: float) -> None:
    assert float(special.polygamma(1, inverse_trigamma(y))) == pytest.approx(y, rel=1e-3 if y > 1e6 else 1e-6)


# --- processes: how alike the metrics of a class are


def simulated(draw: random.Random, sd: float, df: float, metrics: int, own_df: int) -> list[Variance]:
    """Estimated variances of metrics whose true ones come from a scaled inverse chi-square distribution."""

    def chi_square(n: float) -> float:
        return draw.gammavariate(n / 2, 2)

    true = [sd**2 * df / chi_square(df) for _ in range(metrics)]
    return [Variance(one * chi_square(own_df) / own_df, float(own_df)) for one in true]


@pytest.mark.parametrize(("sd", "df"), [(0.0015, 1.2), (0.0055, 2.9), (0.0005, 0.8), (0.003, 20.0)])
def test_the_fit_finds_how_alike_the_metrics_of_a_simulated_class_are(sd: float, df: float) -> None:
    draw = random.Random(5)
    fits = [process_prior(simulated(draw, sd, df, 85, 8), None) for _ in range(40)]
    middle = sorted(fit.df for fit in fits)[20]
    assert middle == pytest.approx(df, rel=0.25)
    assert fmean(math.log(fit.value) for fit in fits) == pytest.approx(2 * math.log(sd), abs=0.1)


def test_metrics_that_are_equally_noisy_are_one() -> None:
    fits = [process_prior(simulated(random.Random(seed), 0.003, 1e6, 85, 8), None) for seed in range(20)]
    assert sum(fit.df > 40 for fit in fits) >= 16


@given(variances)
def test_the_fit_is_limmas(some: list[Variance]) -> None:
    least = 1e-5 * sorted(some)[len(some) // 2].value
    assume(all(one.value > 10 * least for one in some))
    own = [math.log(v) - special.digamma(df / 2) + math.log(df / 2) for v, df in some]
    beyond = variance(own) - fmean(special.polygamma(1, df / 2) for _, df in some)
    fit = process_prior(some, None)
    if beyond <= 0:
        assert fit.df == math.inf
        assert fit.value == pytest.approx(math.exp(fmean(own)))
        return

    assume(1e-3 < beyond < 1e3)
    half = optimize.brentq(lambda x: special.polygamma(1, x) - beyond, 1e-3, 1e6)
    assert fit.df == pytest.approx(2 * half, rel=1e-4)
    assert math.log(fit.value) == pytest.approx(fmean(own) + special.digamma(half) - math.log(half), rel=1e-4, abs=1e-4)


def test_a_quiet_metric_does_not_pay_for_noisy_ones() -> None:
    """With the eight degrees of freedom of a fixed prior the quiet one would count as noisy as 0.8 %."""
    noisy = [[(0.0, 0.03 * n, -0.02 * n, 0.01 * n, 0.02 * n)] for n in (0.01, 0.1, 0.5, 1.0, 0.03, 0.2, 1.3, 0.02)]
    quiet = [(0.0, 0.0004, -0.0003, 0.0002, -0.0001)]
    noise = two_sides([quiet[0]], quiet, noisy).noise
    assert math.sqrt(noise.process.value) < 0.0006


def test_a_class_of_one_leans_on_what_was_recorded() -> None:
    found = class_noise([], KERNELS)
    elsewhere = recorded(KERNELS)
    assert found.process.value == pytest.approx(elsewhere.process_sd**2, rel=1e-6)
    assert found.process.df == pytest.approx(elsewhere.process_df, rel=1e-6)


def test_nobody_knows_more_of_a_variance_than_all_metrics_together() -> None:
    equal = [Spread.of([(0.0, 0.01, 0.02)]) for _ in range(200)]
    fitted = class_noise(equal, KERNELS)
    assert fitted.of(equal[0]).process.df <= fitted.most_df


def test_values_that_do_not_scatter_are_no_certainty() -> None:
    still = [(1.0, 1.0, 1.0)]
    assert two_sides(still, still).error > 0


# --- sessions: REML over the class


def restricted_likelihood(v: float, means: Sequence[tuple[Variance, float]], heterogeneity: float) -> float:
    """Of the variances of session means, from scipy's distributions."""
    total = 0.0
    for (value, df), share in means:
        scale = v + share
        ratio = value / scale
        law = stats.chi2(df, scale=1 / df) if math.isinf(heterogeneity) else stats.f(df, heterogeneity)
        total += float(law.logpdf(ratio)) - math.log(scale)

    return total


@settings(max_examples=30)
@given(
    st.lists(st.builds(Variance, st.floats(1e-7, 1e-3), st.integers(1, 4).map(float)), min_size=1, max_size=6),
    st.floats(1e-8, 1e-4),
    st.sampled_from([math.inf, 4.0]),
)
def test_the_session_variance_is_the_likeliest(between: list[Variance], share: float, heterogeneity: float) -> None:
    some = [(one, share) for one in between]
    found = session_variance(some, heterogeneity)
    best = restricted_likelihood(found, some, heterogeneity)
    top = max(one.value for one in between)
    for other in (0.0, *(top * 2.0**-n for n in range(16)), found * 0.95, found * 1.05):
        assert restricted_likelihood(other, some, heterogeneity) <= best + 1e-4


def test_the_session_variance_of_equal_metrics_is_the_mean_beyond_the_processes() -> None:
    some = [(Variance(value, 2.0), 1e-6) for value in (4e-6, 9e-6, 5e-6)]
    assert session_variance(some, math.inf) == pytest.approx(5e-6, rel=1e-4)


def test_a_metric_of_two_modes_does_not_make_the_class_noisy() -> None:
    quiet = [(Variance(9e-6, 1.0), 1e-7)] * 80
    torn = [*quiet, (Variance(0.07**2, 1.0), 1e-7)]
    assert session_variance(torn, 4.0) < 1.1 * session_variance(quiet, 4.0)
    assert session_variance(torn, math.inf) > 5 * session_variance(quiet, math.inf)


def test_the_fit_finds_the_session_noise_of_a_simulated_class() -> None:
    draw, found = random.Random(3), []
    for _ in range(30):
        some = []
        for _ in range(80):
            own = 0.003**2 * ALIKE / draw.gammavariate(ALIKE / 2, 2)
            seen = (own + 1e-6) * draw.gammavariate(1.0, 2) / 2
            some.append((Variance(seen, 2.0), 1e-6))
        found.append(math.sqrt(session_variance(some, ALIKE)))
    assert fmean(found) == pytest.approx(0.003, rel=0.06)


def test_the_recorded_session_noise_fades_with_sessions_of_the_class() -> None:
    elsewhere = recorded(KERNELS).session_scale
    loud = [Spread.of([(0.1, 0.1), (0.0, 0.0)])] * 20
    one, many = class_noise(loud[:1], KERNELS), class_noise(loud, KERNELS)
    assert class_noise([Spread.of([(0.0, 0.01)])], KERNELS).session.value == pytest.approx(elsewhere)
    assert one.session.value < many.session.value
    # The variance of two means is 0.005; twenty metrics with one degree of freedom each weigh ten.
    assert many.session.value == pytest.approx((SESSION_DF * elsewhere + 10 * 0.005) / (SESSION_DF + 10), rel=1e-4)


def test_metrics_that_one_number_of_their_session_moves_have_seen_one_session() -> None:
    streaming = KERNELS._replace(streams=True)
    elsewhere = recorded(streaming).session_scale
    alike = [Spread.of([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)])] * 20
    # Three cards that happen to be alike, seen by twenty metrics, are three cards.
    assert class_noise(alike, streaming).session.value == pytest.approx(SESSION_DF / (SESSION_DF + 2) * elsewhere)
    assert class_noise(alike, KERNELS).session.value < 0.2 * recorded(KERNELS).session_scale


def test_how_alike_sessions_are_is_what_was_recorded_of_the_class() -> None:
    """Of a class that differs as much at the root mean square, the typical metric is the quieter the fewer df."""
    kernels = recorded(KERNELS)
    assert class_noise([], KERNELS).session == (kernels.session_scale, kernels.session_df)
    assert kernels.session_df != recorded(SERVING).session_df
    heavy = msgspec.structs.replace(kernels, session_df=2.5)
    assert heavy.session_scale < kernels.session_scale


def test_quiet_sessions_are_not_cut_off_metric_by_metric() -> None:
    """Session means that agree better than their processes explain take from the noise; below zero is cut at last."""
    fitted = ClassNoise(Variance(1e-4, 8.0), Variance(1e-5, ALIKE), 100.0)
    agree = fitted.of(Spread(Variance(1e-4, 8.0), Variance(0.0, 1.0), 0.2))
    share = 0.2 * agree.process.value
    expected = ALIKE * (1e-5 + share) / (ALIKE + 1) - share
    assert agree.session.value == pytest.approx(expected)
    assert agree.session.value < 1e-5


def test_a_change_between_the_sides_is_no_noise() -> None:
    flat = [[0.0, 0.001], [0.0005, 0.0008]]
    moved = [[value + 1.0 for value in one] for one in flat]
    assert math.sqrt(two_sides(moved, flat).noise.session.value) < 0.004


# --- classes


def test_classes_are_kind_mode_and_level() -> None:
    kernel = Metric("k", "s", "kernel", 0.02, {"mode": "graph"})
    server = Metric("tpot", "s", "serving", 0.03, {"clock": "client"})
    assert noise_class(kernel, "gang") == NoiseClass("kernel", "graph", "gang", "any")
    assert noise_class(server, "server") == NoiseClass("serving", "host", "server", "any")


@given(peers)
def test_a_class_that_nobody_recorded_has_its_kinds_noise(others: list[list[list[float]]]) -> None:
    eager = NoiseClass("collective", "eager", "gang")
    assert recorded(eager) == recorded(NoiseClass("collective", "host", "process"))
    assert class_noise(map(Spread.of, others), eager).process.value > 0


# --- the rule for two stored sides


@given(new=sessions, base=sessions, peers=peers)
def test_swapping_the_sides_turns_the_sign_and_nothing_else(
    new: list[list[float]], base: list[list[float]], peers: list[list[list[float]]]
) -> None:
    there, back = two_sides(new, base, peers), two_sides(base, new, peers)
    assert there.change == -back.change
    assert there.error == pytest.approx(back.error, rel=1e-9)
    assert there.df == pytest.approx(back.df, rel=1e-9)


@given(new=session, base=sessions, peers=peers)
def test_a_run_is_one_new_session(new: list[float], base: list[list[float]], peers: list[list[list[float]]]) -> None:
    run = compare(new, base, list(map(Spread.of, peers)), SERVING, 1)
    stored = two_sides([new], base, peers, SERVING)
    assert (run.change, run.error) == (stored.change, stored.error)


@given(new=sessions, base=sessions, tolerance=st.floats(0.01, 0.5))
def test_sessions_that_settle_settle(new: list[list[float]], base: list[list[float]], tolerance: float) -> None:
    comparison = two_sides(new, base)
    assume(decide(comparison, tolerance) == "INCONCLUSIVE")
    wanted = sessions_that_settle(comparison, tolerance)
    assert wanted is None or min(len(new), len(base)) < wanted <= 10


def test_the_nearer_to_the_edge_of_the_band_the_more_sessions_settle_it() -> None:
    base = [[0.00, 0.02, -0.02], [0.015, 0.03, -0.005]]

    def wanted(change: float) -> int | None:
        new = [[value + change for value in one] for one in base]
        comparison = two_sides(new, base)
        assert decide(comparison, 0.03) == "INCONCLUSIVE"
        return sessions_that_settle(comparison, 0.03)

    near, nearer = wanted(0.012), wanted(0.018)
    assert near is not None
    assert nearer is not None
    assert 2 < near < nearer
    assert wanted(0.029) is None
