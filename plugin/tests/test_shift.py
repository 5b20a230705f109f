"""The common shift of all kernels: it sees what no single band does, and one kernel's change moves it little."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import changed, result

from pytest_decodegate.gate import shift
from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.result import Result, Skipped
from pytest_decodegate.gate.stats.together import LEAST_SHIFTED
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.session.run_level import run_level

PASS = result("k", "PASS", change=0.0, lo=-0.004, hi=0.004, p_worse=0.5, standard_error=0.002)


def kernels(*changes: float) -> list[Result]:
    return [changed(PASS, name=f"k{n}", change=change) for n, change in enumerate(changes)]


def judged(*changes: float) -> Judgement:
    return shift.judge_shift([each.judgement for each in kernels(*changes)])


def said(results: list[Result]) -> list[Result | Skipped]:
    return list(run_level(results, lambda _, band: band))


@given(st.integers(8, 80), st.integers(0, 10_000))
def test_what_all_kernels_have_in_common_is_found_where_each_stays_in_its_band(count: int, seed: int) -> None:
    noise = random.Random(seed)
    slower = [0.018 + noise.gauss(0, 0.002) for _ in range(count)]
    found = judged(*slower)
    assert found.verdict is Verdict.REGRESSED
    decision = decide_all([*kernels(*slower), Result("the run", found)])
    assert decision.answer is Answer.NO_GO
    assert decision.grounds[0].names == (shift.NAME,)


@given(st.integers(8, 80), st.integers(0, 10_000), st.floats(-0.3, 0.3))
def test_unchanged_kernels_pass_whatever_one_of_them_does(count: int, seed: int, alone: float) -> None:
    noise = random.Random(seed)
    quiet = [noise.gauss(0, 0.003) for _ in range(count)]
    assert judged(alone, *quiet).verdict is Verdict.PASS


@given(st.lists(st.floats(-0.05, 0.05), min_size=LEAST_SHIFTED, max_size=30))
def test_the_shift_is_the_median_and_its_interval_holds_it(changes: list[float]) -> None:
    numbers = judged(*changes).numbers
    assert numbers.change is not None
    assert numbers.lo is not None
    assert numbers.hi is not None
    logs = sorted(math.log1p(change) for change in changes)
    middle = (logs[(len(logs) - 1) // 2] + logs[len(logs) // 2]) / 2
    assert numbers.change == pytest.approx(math.expm1(middle), abs=1e-9)
    assert numbers.lo <= numbers.change <= numbers.hi


def test_too_few_kernels_are_said_and_none_are_nothing() -> None:
    few = said(kernels(*[0.0] * (LEAST_SHIFTED - 1)))
    assert [(skip.nodeid, skip.reason) for skip in few if isinstance(skip, Skipped)] == [
        (shift.NAME, "4 kernel(s) were judged; how far all move together is known from 5 on")
    ]
    assert said([]) == said([changed(PASS, name="c", kind="collective")]) == []


def test_what_was_not_judged_or_does_not_gate_has_no_say() -> None:
    quiet = kernels(*[0.0] * 8)
    far = [
        changed(PASS, name="i", verdict="INVALID", change=0.5),
        changed(PASS, name="a", change=0.5, advisory=True),
        changed(PASS, name="n", change=None),
        changed(PASS, name="c", change=0.5, kind="collective"),
    ]
    (alone,), (among,) = said(quiet), said([*quiet, *far])
    assert alone == among
    assert isinstance(alone, Result)
    assert alone.judgement.notes == ("0 of 8 kernels moved for the worse",)


def test_its_band_is_the_users_where_the_user_gives_one() -> None:
    (found,) = run_level(kernels(*[0.018] * 9), lambda name, band: 0.03 if name == shift.NAME else band)
    assert isinstance(found, Result)
    assert found.judgement.verdict is Verdict.PASS
    assert found.judgement.metric.tolerance == 0.03
