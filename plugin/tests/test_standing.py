"""How far a run is, as each word on a step says it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import changed, result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.result import Failed, Skipped
from pytest_decodegate.gate.run import Run
from pytest_decodegate.session.standing import Standing

PASS = result("gemm[m=8]", "PASS")
SLOWER = changed(PASS, name="marlin_moe[m=8]", verdict="REGRESSED")
FAILED = Failed("test_x.py::test_x", Finding("RankDied: rank 0 died", Cause.CRASH))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def standing(run: Run, selected: int, gone: float) -> Standing:
    clock = Clock()
    found = Standing(run, lambda: selected, clock)
    clock.now = gone
    return found


def test_the_number_of_the_test_stands_before_and_the_time_behind() -> None:
    run = Run(outcomes=[PASS] * 36)
    assert standing(run, 113, 552.0).around("marlin_moe[m=8]: 60 of at most 100 samples") == (
        "[37/113] marlin_moe[m=8]: 60 of at most 100 samples, 9:12 gone, ~20 min left"
    )


def test_what_was_slower_is_counted() -> None:
    run = Run(outcomes=[PASS, PASS, SLOWER, FAILED])
    assert standing(run, 5, 60.0).around("x") == "[5/5] x, 1:00 gone, ~1 min left, 1 REGRESSED"


def test_before_tests_are_chosen_nothing_is_added() -> None:
    assert standing(Run(), 0, 5.0).around("starting") == "starting"


def test_the_first_metrics_do_not_tell_how_long_the_rest_takes() -> None:
    assert standing(Run(outcomes=[PASS, PASS]), 100, 65.0).around("x") == "[3/100] x, 1:05 gone"


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 120), st.floats(0, 1e5))
def test_the_number_is_never_beyond_the_last(measured: int, skipped: int, selected: int, gone: float) -> None:
    run = Run(outcomes=[PASS] * measured, skipped=[Skipped("t", "no GPU")] * skipped)
    text = standing(run, selected, gone).around("x")
    number, total = text[1 : text.index("]")].split("/")
    assert 1 <= int(number) <= int(total) == selected


@pytest.mark.parametrize("gone", [0.0, 59.9, 3600.0])
def test_time_is_in_minutes_and_seconds(gone: float) -> None:
    minutes, seconds = divmod(int(gone), 60)
    assert f"{minutes}:{seconds:02} gone" in standing(Run(), 3, gone).around("x")
