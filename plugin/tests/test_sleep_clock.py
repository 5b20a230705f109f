"""The SM clock that the sleep before a burst tells, and rests between bursts, on a device with a scripted clock."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_device import ScriptedDevice

from pytest_decodegate.workloads.runtime import rank
from pytest_decodegate.workloads.runtime.timing import (
    ALIGN_CYCLES,
    DUTY_CYCLE,
    GATE_CYCLES,
    MOST_REST_SECONDS,
    CpuClock,
    CudaClock,
    Rest,
    Workload,
    launch_seconds,
)


def device(**script: object) -> ScriptedDevice:
    return ScriptedDevice(**script)  # type: ignore[arg-type]


@given(mhz=st.floats(200, 3500), launch_us=st.floats(0, 20))
def test_the_sleep_tells_the_clock_whatever_a_launch_takes(mhz: float, launch_us: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = device(mhz=lambda _: mhz, launch_s=launch_us * 1e-6).install(patch)
        clock = CudaClock(ALIGN_CYCLES)
        assert clock.seconds(made.work(1e-3)) == pytest.approx(1e-3)
        assert clock.sm_mhz == pytest.approx(mhz, rel=1e-6)
        assert launch_seconds() == pytest.approx(launch_us * 1e-6, abs=1e-12)


def test_each_sample_tells_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(mhz=lambda now: 1980.0 if now < 0.12 else 1400.0, launch_s=5e-6).install(monkeypatch)
    clock = CudaClock(ALIGN_CYCLES)
    seen = []
    for _ in range(6):
        clock.seconds(made.work(0.05))
        seen.append(round(clock.sm_mhz or 0))

    assert seen == [1980] * 3 + [1400] * 3


def test_a_host_that_is_late_with_the_sleep_tells_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(late=chain([True], repeat(False))).install(monkeypatch)
    clock = CudaClock(ALIGN_CYCLES)
    clock.seconds(made.work(1e-3))
    assert clock.sm_mhz is None
    clock.seconds(made.work(1e-3))
    assert clock.sm_mhz == pytest.approx(1980)


def test_what_sleeps_before_nothing_tells_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device().install(monkeypatch)
    clock = CudaClock()
    clock.seconds(made.work(1e-3))
    assert clock.sm_mhz is None
    assert made.sleeps == []


def test_the_sleep_that_is_timed_lies_behind_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device().install(monkeypatch)
    CudaClock(ALIGN_CYCLES).seconds(made.work(1e-3))
    assert made.done[:4] == [f"sleep {GATE_CYCLES}", "asleep", f"sleep {ALIGN_CYCLES}", "awake"]


def sampled(clock: CudaClock | CpuClock, made: ScriptedDevice, count: int) -> rank.Samples:
    def align() -> None:
        made.done.append("align")

    rank._open["scripted"] = Workload(made.work(1e-3), 2, clock, lambda: None, {}, align)
    try:
        return rank.take_samples("scripted", count)
    finally:
        rank.close_workload("scripted")


def test_a_rank_keeps_the_clock_of_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(late=chain([False, True], repeat(False))).install(monkeypatch)
    samples = sampled(CudaClock(ALIGN_CYCLES), made, 3)
    assert samples.seconds == pytest.approx([5e-4] * 3)
    assert samples.sm_mhz == [pytest.approx(1980), None, pytest.approx(1980)]
    assert sampled(CpuClock(), made, 2).sm_mhz == [None, None]


def test_a_rank_tells_which_samples_the_host_was_late_with(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device(passed=chain([False, True], repeat(False))).install(monkeypatch)
    assert sampled(CudaClock(ALIGN_CYCLES, ahead=True), made, 3).late == [False, True, False]
    made.passed = repeat(True)
    assert sampled(CudaClock(ALIGN_CYCLES), made, 2).late == [False, False], "launches are part of what is timed"
    assert sampled(CpuClock(), made, 2).late == [False, False]


def test_bursts_of_the_device_alone_rest_before_the_ranks_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = device().install(monkeypatch)
    sampled(CudaClock(ALIGN_CYCLES, ahead=True), made, 2)
    assert [step for step in made.done if step in ("rest", "align", "burst")] == ["rest", "align", "burst"] * 2
    made.done.clear()
    sampled(CudaClock(ALIGN_CYCLES), made, 2)
    assert "rest" not in made.done


@given(st.lists(st.floats(1e-6, 0.05), min_size=1, max_size=20))
def test_a_device_works_at_most_its_share_of_the_time(bursts: list[float]) -> None:
    rest = Rest()
    worked = rested = 0.0
    for seconds in bursts:
        rest.after(seconds, 1980.0)
        worked, rested = worked + seconds, rested + rest.seconds

    assert worked / (worked + rested) == pytest.approx(DUTY_CYCLE)


@given(st.lists(st.floats(300, 1980) | st.none(), min_size=1, max_size=30), st.floats(1e-6, 1.0))
def test_rests_grow_while_the_clock_is_not_back_and_have_an_end(clocks: list[float | None], seconds: float) -> None:
    rest = Rest()
    lengths = []
    for mhz in [1980.0, *clocks]:
        rest.after(seconds, mhz)
        lengths.append(rest.seconds)

    assert lengths == sorted(lengths)
    assert lengths[-1] <= MOST_REST_SECONDS
    low = sum(mhz is not None and mhz < 0.99 * 1980 for mhz in clocks)
    assert lengths[-1] == pytest.approx(min(MOST_REST_SECONDS, lengths[0] * 2**low))
