"""decode_step as a metric: the sum of the parts' changes, what it sees, and when there is none."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.stats.together import SHARED_SESSION_SD
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Reference, Verdict
from pytest_decodegate.gate.whole_step import BAND, judge_step, step_change
from pytest_decodegate.metric import Metric
from pytest_decodegate.profile.ledger import Time, parts
from pytest_decodegate.profile.step_weights import step_weights
from pytest_decodegate.profile.whole_steps import attributed, whole_steps

PAIR_ERROR = 0.0019 / math.sqrt(6)
"""Six pairs at the median sd between pairs of H200 kernels."""


def part(
    name: str,
    change: float,
    error: float,
    base: float = 1e-5,
    verdict: Verdict = Verdict.PASS,
    reference: Reference = "stack",
) -> Judgement:
    numbers = Numbers(base * math.exp(change), base, math.expm1(change), standard_error=error, lo=0.0, hi=0.0)
    sessions = 1 if reference == "baseline" else 0
    return Judgement(
        Metric(name, "s", "kernel", 0.02), verdict, Basis("gang", 6, reference, sessions=sessions), numbers
    )


def run_of(changes: Sequence[float], error: float, reference: Reference = "stack") -> list[Judgement]:
    """Every part of a step of one token on one rank, changed and uncertain by so much, in the order of `parts`."""
    names = dict.fromkeys(each.metric for each in parts(1, 1))
    return [part(name, change, error, reference=reference) for name, change in zip(names, changes, strict=True)]


COUNT = len(dict.fromkeys(each.metric for each in parts(1, 1)))


def own_band(name: str, band: float) -> float:
    return band


@given(st.lists(st.tuples(st.floats(-0.05, 0.05), st.floats(1e-4, 0.02), st.integers(1, 122)), min_size=2, max_size=30))
def test_the_step_moves_by_what_its_parts_move(of: list[tuple[float, float, int]]) -> None:
    judgements = [part(f"k{index}[m=1]", change, error) for index, (change, error, _) in enumerate(of)]
    counts = {f"k{index}[m=1]": float(count) for index, (_, _, count) in enumerate(of)}
    found = step_change(judgements, counts)
    base, new = (sum(count * 1e-5 * grown for grown, count in sides) for sides in _sides(of))
    assert found.change == pytest.approx(math.log(new / base), abs=1e-12)
    assert found.error <= max(error for _, error, _ in of) * 1.06
    assert found.lo <= found.change <= found.hi


def _sides(of: list[tuple[float, float, int]]) -> list[list[tuple[float, int]]]:
    return [[(1.0, count) for _, _, count in of], [(math.exp(change), count) for change, _, count in of]]


def test_against_a_stored_session_its_common_noise_does_not_average_out() -> None:
    names = [f"k{index}[m=1]" for index in range(100)]
    counts = dict.fromkeys(names, 1.0)
    paired = step_change([part(name, 0.0, 0.002) for name in names], counts)
    stored = step_change([part(name, 0.0, 0.002, reference="baseline") for name in names], counts)
    assert paired.error == pytest.approx(0.0002)
    assert stored.error == pytest.approx(math.hypot(0.0002, SHARED_SESSION_SD * math.sqrt(2)))


def test_a_run_in_which_a_part_was_not_judged_has_no_step() -> None:
    whole = run_of([0.0] * COUNT, PAIR_ERROR)
    (found,) = whole_steps(whole, own_band)
    assert (found.name, found.verdict) == ("decode_step[tp=1,m=1]", Verdict.PASS)
    hidden = 2  # topk and marlin_moe: of equal times three kernels of the shared experts are longer
    assert found.notes[0].startswith(f"made of {COUNT - hidden} metrics by their counts")
    assert list(whole_steps(whole[1:], own_band)) == []
    broken = part(whole[0].name, 0.0, PAIR_ERROR, verdict=Verdict.INVALID)
    assert list(whole_steps([broken, *whole[1:]], own_band)) == []


def test_the_band_is_the_users() -> None:
    slower = run_of([0.012] * COUNT, PAIR_ERROR)
    (found,) = whole_steps(slower, own_band)
    assert found.verdict is Verdict.REGRESSED
    assert found.metric.tolerance == BAND
    (wide,) = whole_steps(slower, lambda name, band: 0.05)
    assert wide.verdict is Verdict.PASS


def simulated(shift: float, runs: int = 400) -> list[Judgement]:
    """The step of runs of six pairs, each part with its own error of the recorded size."""
    chance = random.Random(20260130)
    return [
        found
        for _ in range(runs)
        for found in whole_steps(run_of([chance.gauss(shift, PAIR_ERROR) for _ in range(COUNT)], PAIR_ERROR), own_band)
    ]


def test_half_a_percent_on_every_kernel_is_shown_and_nothing_else_alarms() -> None:
    """No single metric can show it: its own interval is as wide."""
    shown = [each.numbers.lo is not None and each.numbers.lo > 0 for each in simulated(0.005)]
    assert sum(shown) >= 0.95 * len(shown)
    unchanged = simulated(0.0)
    assert all(each.verdict is Verdict.PASS for each in unchanged)
    regressed = [each.verdict is Verdict.REGRESSED for each in simulated(0.015)]
    assert sum(regressed) >= 0.99 * len(regressed)


def test_weights_are_parts_of_a_whole_step() -> None:
    times = {each.metric: Time(1e-6) for each in parts(2, 1)}
    found = step_weights(times, 8)
    assert {each.step for each in found.values()} == {"decode_step[tp=2,m=1]"}
    assert sum(each.share for each in found.values()) == pytest.approx(1.0)
    assert {each.step for each in step_weights(times, 1).values()} == {"decode_step[tp=1,m=1]"}
    assert step_weights({"o_proj[m=1]": Time(1e-6)}, 8) == {}


def test_a_judged_step_says_what_moved_it_most() -> None:
    judgements = [part("a[m=1]", 0.0, 0.001), part("b[m=1]", 0.1, 0.001)]
    found = judge_step("decode_step[tp=1,m=1]", judgements, {"a[m=1]": 1.0, "b[m=1]": 1.0}, (2e-5, 2.1e-5))
    assert found.verdict is Verdict.REGRESSED
    assert found.notes[0].startswith("made of 2 metrics by their counts; moved most by b[m=1] +5.")
    assert found.step is not None
    assert found.step.change == pytest.approx(0.0526, abs=1e-3)


def test_a_judged_step_was_looked_at_once_however_often_its_parts_were() -> None:
    looked = [
        replace(each, basis=replace(each.basis, looks=3))
        for each in (part("a[m=1]", 0.0, 0.001), part("b[m=1]", 0.0, 0.001))
    ]
    found = judge_step("decode_step[tp=1,m=1]", looked, {"a[m=1]": 1.0, "b[m=1]": 1.0}, (2e-5, 2e-5))
    assert found.basis.looks == 1
    assert "% interval from 6 pairs (" in explain(found)


def test_a_step_rests_on_the_fewest_sessions_of_its_parts_and_on_none_of_their_noises() -> None:
    sides = [
        replace(each, basis=replace(each.basis, reference="baseline", sessions=sessions, session_noise=0.0044))
        for each, sessions in ((part("a[m=1]", 0.0, 0.001), 3), (part("b[m=1]", 0.0, 0.001), 1))
    ]
    found = judge_step("decode_step[tp=1,m=1]", sides, {"a[m=1]": 1.0, "b[m=1]": 1.0}, (2e-5, 2e-5))
    assert (found.basis.sessions, found.basis.session_noise) == (1, None)
    assert "0.44 %" not in explain(found)


def test_a_tpot_that_left_its_band_is_explained_by_the_metrics_beside_it() -> None:
    quiet = {each.name: each for each in run_of([0.0] * COUNT, PAIR_ERROR)}
    slower = part("marlin_moe[m=1]", 0.2, PAIR_ERROR, base=1e-4)
    step_s = sum(each.numbers.base or 0.0 for each in quiet.values()) * 25
    tpot = part("tpot[c=1]", 0.05, PAIR_ERROR, base=step_s)
    ((name, why),) = attributed([*{**quiet, slower.name: slower}.values(), tpot])
    assert name == "tpot[c=1]"
    assert why.moved[0].category.label == "MoE GEMM"
    assert why.change_s == pytest.approx(step_s * math.expm1(0.05))
    within = part("tpot[c=1]", 0.01, PAIR_ERROR, base=step_s)
    assert list(attributed([*quiet.values(), within])) == []
    assert list(attributed([slower, part("tpot[c=1]", 0.05, PAIR_ERROR, base=1.0)])) == [], "too little is known"
