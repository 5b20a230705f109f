"""The group-sequential rule on pairs: against scipy, against its own promises, and in its order of precedence."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.pairs import (
    FIRST_PAIRS,
    MOST_PAIRS,
    UNCAUSED,
    Contrast,
    PairedComparison,
    Side,
    compare_pairs,
    judge_pairs,
    pairs_that_settle,
)
from pytest_decodegate.gate.stats.looks import POCOCK_ALPHA, planned_looks
from pytest_decodegate.gate.stats.noise import Variance
from pytest_decodegate.gate.stats.recorded import NoiseClass, recorded
from pytest_decodegate.gate.stats.rules import decide, surely_found
from pytest_decodegate.gate.stats.student import t_upper_tail
from pytest_decodegate.gate.stats.together import settled, uphold
from pytest_decodegate.gate.text.advice import advice
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.metric import Measurement, Metric, Replicate

KERNEL = Metric.of("marlin_moe[m=8]", "kernel")
NCCL = Difference("nccl", "2.28.3", "2.28.9", declarable=True)

log_differences = st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=24).filter(
    lambda some: max(some) - min(some) > 1e-6
)


def measurement(*values: float, metric: Metric = KERNEL) -> Measurement:
    return Measurement(metric, tuple(Replicate((value,)) for value in values), "gang")


def side(*values: float, metric: Metric = KERNEL, **fields: Any) -> Side:
    return Side(measurement(*values, metric=metric), **fields)


NOTHING = Contrast()
BASE = side(*(1e-5 * (1 + 0.001 * n) for n in range(6)))


def times(factor: float, **fields: Any) -> Side:
    values = (value * factor * (1 + 0.0003 * (n % 3)) for n, value in enumerate(BASE.measurement.values))
    return side(*values, **fields)


def judged(candidate: Side, base: Side = BASE, contrast: Contrast = NOTHING, looks: int = 3) -> Judgement:
    return judge_pairs(base, candidate, contrast, looks)


# --- the interval


@given(log_differences, st.sampled_from(sorted(POCOCK_ALPHA)))
def test_the_interval_is_students(differences: list[float], looks: int) -> None:
    comparison = PairedComparison(tuple(differences), looks)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(1 - POCOCK_ALPHA[looks])
    assert comparison.lo == pytest.approx(low, abs=1e-9)
    assert comparison.hi == pytest.approx(high, abs=1e-9)


@given(log_differences, st.sampled_from(sorted(POCOCK_ALPHA)))
def test_p_is_students_times_the_planned_looks(differences: list[float], looks: int) -> None:
    comparison = PairedComparison(tuple(differences), looks)
    nominal = stats.ttest_1samp(differences, 0, alternative="greater").pvalue
    assert comparison.p_worse == pytest.approx(min(1.0, nominal * looks), abs=1e-9)


@given(log_differences, st.sampled_from(sorted(POCOCK_ALPHA)))
def test_a_small_p_lies_above_zero(differences: list[float], looks: int) -> None:
    comparison = PairedComparison(tuple(differences), looks)
    assume(abs(comparison.lo) > 1e-9)  # at the very edge digits decide
    assert comparison.p_worse >= 0.025 or comparison.lo > 0


@given(log_differences, st.floats(1e-6, 1e-2), st.floats(0.5, 50))
def test_what_is_known_of_pairs_elsewhere_counts_like_so_many_pairs_more(
    differences: list[float], variance: float, df: float
) -> None:
    """Smyth's moderated t: the variance is the mean of both, weighed by their degrees of freedom, which add up."""
    comparison = PairedComparison(tuple(differences), 3, Variance(variance, df))
    count = len(differences)
    pooled = (df * variance + (count - 1) * float(np.var(differences, ddof=1))) / (df + count - 1)
    half = float(stats.t.ppf(1 - POCOCK_ALPHA[3] / 2, df + count - 1)) * math.sqrt(pooled / count)
    assert comparison.half_width == pytest.approx(half, rel=1e-6)
    nominal = float(stats.t.sf(comparison.change / math.sqrt(pooled / count), df + count - 1))
    assert comparison.p_worse == pytest.approx(min(1.0, 3 * nominal), abs=1e-6)


def test_pairs_of_server_starts_alone_know_how_starts_differ_elsewhere() -> None:
    serving = Metric.of("tpot[c=1]", "serving")
    starts = [replace(measurement(1.0, 1.001, 1.0, metric=serving), level=level) for level in ("server", "window")]
    server, window = (compare_pairs(each, each, 3) for each in starts)
    assert server.prior.df == recorded(NoiseClass("serving", "host", "server")).process_df
    assert window.prior.df == 0
    assert 0 < server.half_width < 0.02, "pairs that happen to agree are no proof of perfect starts"
    assert window.half_width == 0


@pytest.mark.parametrize("pair_sd", [0.003, 0.007, 0.02])
def test_three_pairs_alarm_no_more_often_than_planned_whatever_starts_do_here(pair_sd: float) -> None:
    """A host whose starts differ by as much as elsewhere, by half of it, and by three times as much."""
    prior = Variance(2 * 0.005**2, 1.0)
    drawn = np.random.default_rng(1).normal(0.0, pair_sd, (4000, 3))
    alarms = sum(decide(PairedComparison(tuple(pairs), 1, prior), 0.001) == "REGRESSED" for pairs in drawn.tolist())
    assert alarms / len(drawn) < (0.025 if pair_sd <= 0.007 else 0.06)


@given(st.floats(-30, 30), st.floats(0.5, 300))
def test_the_tail_is_scipys(t: float, df: float) -> None:
    assert t_upper_tail(t, df) == pytest.approx(float(stats.t.sf(t, df)), rel=1e-6, abs=1e-12)


def test_pairs_that_are_equal_leave_no_doubt() -> None:
    assert PairedComparison((0.01, 0.01), 1).p_worse == 0
    assert PairedComparison((0.0, 0.0), 1).p_worse == 1
    assert t_upper_tail(math.inf, 3) == 0


@given(log_differences, st.floats(0.5, 2))
def test_swapping_the_sides_turns_the_sign(differences: list[float], level: float) -> None:
    base = measurement(*(level for _ in differences))
    candidate = measurement(*(level * math.exp(one) for one in differences))
    there, back = compare_pairs(base, candidate, 3), compare_pairs(candidate, base, 3)
    assert there.change == pytest.approx(-back.change, abs=1e-12)
    assert there.half_width == pytest.approx(back.half_width, abs=1e-9)


@given(log_differences)
def test_a_rate_that_halves_is_as_bad_as_a_time_that_doubles(differences: list[float]) -> None:
    rate = Metric("copy", "B/s", "kernel", 0.02)
    seconds = [math.exp(one) for one in differences]
    ones = [1.0] * len(seconds)
    in_time = compare_pairs(measurement(*ones), measurement(*seconds), 3)
    in_rate = compare_pairs(measurement(*ones, metric=rate), measurement(*(1 / s for s in seconds), metric=rate), 3)
    assert in_rate.change == pytest.approx(in_time.change, abs=1e-12)


@given(log_differences, st.floats(-0.5, 0.5))
def test_a_drift_that_both_sides_share_is_not_seen(differences: list[float], drift: float) -> None:
    levels = [math.exp(drift * n) for n in range(len(differences))]
    still = compare_pairs(measurement(*([1.0] * len(levels))), measurement(*map(math.exp, differences)), 3)
    drifting = compare_pairs(
        measurement(*levels),
        measurement(*(level * math.exp(one) for level, one in zip(levels, differences, strict=True))),
        3,
    )
    assert drifting.change == pytest.approx(still.change, abs=1e-9)
    assert drifting.half_width == pytest.approx(still.half_width, abs=1e-6)


# --- looks


@pytest.mark.parametrize(
    ("first", "most", "looks"),
    [(FIRST_PAIRS, MOST_PAIRS, (6, 12, 24)), (6, 12, (6, 12)), (6, 6, (6,)), (3, 20, (3, 6, 20)), (6, 8, (6, 8))],
)
def test_looks_are_planned(first: int, most: int, looks: tuple[int, ...]) -> None:
    assert planned_looks(first, most) == looks
    assert len(looks) in POCOCK_ALPHA


def run(draw: random.Random, change: float, pair_sd: float, tolerance: float) -> tuple[str, int]:
    differences: list[float] = []
    looks = planned_looks(FIRST_PAIRS, MOST_PAIRS)
    for look in looks:
        differences += [draw.gauss(math.log1p(change), pair_sd) for _ in range(look - len(differences))]
        outcome = decide(PairedComparison(tuple(differences), len(looks)), tolerance)
        if outcome != "INCONCLUSIVE":
            break

    return outcome, len(differences)


def answer(draw: random.Random, changes: Sequence[float], pair_sd: float, tolerance: float) -> tuple[set[int], int]:
    """The metrics that a run calls slower, and the pairs that it took: next looks while Holm may refuse a REGRESSED."""
    looks = planned_looks(FIRST_PAIRS, MOST_PAIRS)
    outcomes, p_values, pairs = [], [], 0
    for change in changes:
        differences: list[float] = []
        for look in looks:
            differences += [draw.gauss(math.log1p(change), pair_sd) for _ in range(look - len(differences))]
            comparison = PairedComparison(tuple(differences), len(looks))
            outcome = decide(comparison, tolerance)
            if settled(outcome, comparison.p_worse, len(changes)):
                break

        outcomes.append(outcome)
        p_values.append(comparison.p_worse)
        pairs += len(differences)

    upheld = zip(outcomes, uphold(p_values), strict=True)
    return {n for n, (outcome, slower) in enumerate(upheld) if slower and outcome == "REGRESSED"}, pairs


@pytest.mark.parametrize(("metrics", "bands"), [(30, 1.5), (104, 1.5), (104, 2.0)])
def test_the_one_slower_metric_of_many_is_found_because_it_is_looked_at_again(metrics: int, bands: float) -> None:
    draw, runs, tolerance = random.Random(metrics), 40, 0.02
    slower = [bands * tolerance, *[0.0] * (metrics - 1)]
    found = [answer(draw, slower, 0.012, tolerance) for _ in range(runs)]
    unchanged = [answer(draw, [0.0] * metrics, 0.012, tolerance) for _ in range(runs)]
    assert sum(0 in blamed for blamed, _ in found) >= runs - 1
    assert sum(bool(blamed) for blamed, _ in unchanged) <= 1
    more = sum(pairs for _, pairs in found) - sum(pairs for _, pairs in unchanged)
    assert more / runs < MOST_PAIRS


def test_stopping_early_keeps_both_errors() -> None:
    draw, runs = random.Random(7), 800
    quiet = [run(draw, 0.0, 0.011, 0.02) for _ in range(runs)]
    at_the_edge = [run(draw, 0.02, 0.011, 0.02) for _ in range(runs)]
    worse = [run(draw, 0.03, 0.005, 0.02) for _ in range(runs)]
    assert sum(outcome == "REGRESSED" for outcome, _ in quiet) <= 0.01 * runs
    assert sum(outcome == "PASS" for outcome, _ in quiet) >= 0.97 * runs
    assert sum(pairs for _, pairs in quiet) / runs < 9
    # One-sided .025 over all looks, and three standard errors of this simulation.
    assert sum(outcome == "PASS" for outcome, _ in at_the_edge) <= (0.025 + 0.017) * runs
    assert sum(outcome == "REGRESSED" for outcome, _ in worse) >= 0.95 * runs


@pytest.mark.parametrize("pair_sd", [0.004, 0.05])
def test_a_slowdown_that_would_surely_be_found_is_found_in_any_noise(pair_sd: float) -> None:
    draw, runs, pairs, tolerance = random.Random(3), 400, 6, 0.02
    half = stats.t.ppf(1 - POCOCK_ALPHA[1] / 2, pairs - 1) * pair_sd / math.sqrt(pairs)
    change = surely_found(tolerance, -half, half)
    found = 0
    for _ in range(runs):
        differences = tuple(draw.gauss(math.log1p(change), pair_sd) for _ in range(pairs))
        found += decide(PairedComparison(differences, 1), tolerance) == "REGRESSED"

    assert found >= 0.95 * runs


@given(log_differences, st.floats(0.005, 0.2))
def test_the_pairs_that_settle_settle(differences: list[float], tolerance: float) -> None:
    comparison = PairedComparison(tuple(differences), 3)
    pairs = pairs_that_settle(comparison, tolerance)
    assume(decide(comparison, tolerance) == "INCONCLUSIVE" and pairs is not None)
    assert pairs is not None
    assert pairs > len(differences)
    # The same mean and standard deviation with so many pairs.
    half = [comparison.change - 1.0, comparison.change + 1.0] * (pairs // 2) + [comparison.change] * (pairs % 2)
    scale = comparison.pair_sd / PairedComparison(tuple(half), 1).pair_sd
    longer = tuple(comparison.change + (one - comparison.change) * scale for one in half)
    assert decide(PairedComparison(longer, 3), tolerance * (1 + 1e-9)) != "INCONCLUSIVE"


# --- verdicts, in their order of precedence


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, Verdict.PASS), (1.05, Verdict.REGRESSED), (0.9, Verdict.IMPROVED)]
)
def test_times_decide(factor: float, verdict: Verdict) -> None:
    judgement = judged(times(factor), contrast=Contrast((NCCL,)))
    assert judgement.verdict is verdict
    assert (judgement.basis.replicates, judgement.basis.looks, judgement.basis.reference) == (6, 3, "stack")
    assert judgement.changed == ("nccl: 2.28.3 -> 2.28.9",)
    assert judgement.numbers.change == pytest.approx(factor * 1.0003 - 1, abs=1e-4)
    assert judgement.numbers.lo is not None
    assert judgement.numbers.hi is not None
    assert judgement.numbers.lo < factor * 1.0003 - 1 < judgement.numbers.hi


def test_noise_that_hides_the_answer_is_inconclusive_and_says_what_would_help() -> None:
    noisy = side(*(1e-5 * factor for factor in (0.97, 1.03, 0.98, 1.04, 1.0, 1.01)))
    judgement = judged(noisy)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    more, band = advice(judgement)
    assert "one pair scatters by 2.7 %" in more
    assert "--perf-max-replicates" in more
    assert "would have passed" in band


def test_noise_that_no_number_of_pairs_beats_is_said() -> None:
    values = (1e-5 * (1.0199 + 0.03 * (-1) ** n) for n in range(6))
    judgement = judged(side(*values), base=side(*([1e-5] * 6)))
    assert "not even 100 pairs" in advice(judgement)[0]


def test_wrong_numbers_of_the_candidate_win_over_everything() -> None:
    wrong = replace(times(0.5), wrong="0.3 off")
    judgement = judged(wrong, base=replace(BASE, wrong="also"), contrast=Contrast(unused=("x",)))
    assert judgement.verdict is Verdict.WRONG_RESULT
    assert judgement.reasons == ("candidate: 0.3 off",)


def test_wrong_numbers_of_the_base_are_no_measure() -> None:
    judgement = judged(side(), base=replace(side(), wrong="0.3 off"))
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reasons == ("the base computes wrong numbers, so nothing can be measured against it: 0.3 off",)


def test_a_stack_that_was_not_used_is_invalid_however_it_was_timed() -> None:
    judgement = judged(times(0.5), contrast=Contrast(unused=("the candidate NCCL was not used",)))
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reasons == ("the candidate NCCL was not used",)


def test_a_broken_rule_names_its_side() -> None:
    judgement = judged(replace(times(1.0), broken=(Finding("throttled", Cause.THROTTLING),)), base=side(1e-5))
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reasons[0].startswith("base: 1 replicate(s) measured")
    assert judgement.reasons[1:] == ("candidate: throttled",)


def test_an_undeclared_difference_confounds() -> None:
    torch = Difference("torch", "2.11", "2.12", declarable=True)
    judgement = judged(times(1.0), contrast=Contrast((NCCL, torch), (torch,)))
    assert judgement.verdict is Verdict.CONFOUNDED
    assert judgement.reasons == ("torch: 2.11 -> 2.12",)


def test_a_tpot_that_moved_with_the_acceptance_of_drafts_says_so() -> None:
    def drafting(length: float, factor: float) -> Side:
        one = times(factor)
        replicates = tuple(
            replace(taken, facts={"speculation": {"length": length}}) for taken in one.measurement.replicates
        )
        return replace(one, measurement=replace(one.measurement, replicates=replicates))

    judgement = judged(drafting(2.0, 1.2), base=drafting(2.4, 1.0))
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.notes[0].startswith("acceptance length 2.40 tokens a step -> 2.00 tokens a step: acceptance moved")
    assert judged(times(1.2)).notes == ()


def ran(kernel: str, mode: str = "graph") -> Side:
    return times(1.0, metric=replace(KERNEL, contract={"mode": mode, "kernels": {kernel: 1}}))


SWAPPED = ("a kernel appeared: humming, 1 a call", "a kernel is gone: marlin, 1 a call before")


def test_another_contract_confounds_but_another_kernel_of_a_declared_change_is_a_note() -> None:
    upgrade = Contrast((NCCL,))
    swapped = judged(ran("humming"), base=ran("marlin"), contrast=upgrade)
    assert (swapped.verdict, swapped.notes) == (Verdict.PASS, SWAPPED)
    eager = judged(ran("marlin", mode="eager"), base=ran("marlin"), contrast=upgrade)
    assert eager.reasons == ("contract.mode: graph -> eager",)


def test_another_kernel_confounds_where_nothing_was_declared() -> None:
    judgement = judged(ran("humming"), base=ran("marlin"))
    assert (judgement.verdict, judgement.reasons) == (Verdict.CONFOUNDED, (UNCAUSED, *SWAPPED))
    assert judged(ran("marlin"), base=ran("marlin")).verdict is Verdict.PASS
    told = judged(ran("humming"), base=ran("marlin"), contrast=Contrast((NCCL,), (NCCL,)))
    assert told.reasons == ("nccl: 2.28.3 -> 2.28.9",)


def test_the_text_speaks_of_pairs_and_of_the_base() -> None:
    text = explain(judged(times(1.05)))
    assert "on the candidate" in text
    assert "on the base" in text
    assert "97.8 % interval (95 % over 3 looks) from 6 pairs (fresh gangs of each stack in turn)" in text
    assert "baseline" not in text
    assert "baseline" not in explain(judged(times(1.0), contrast=Contrast((NCCL,), (NCCL,))))
