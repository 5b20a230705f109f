"""The clock that every sample ran at: which samples are marked, when a metric mixes clocks, and what a source keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_gangs import ScriptedBench, ScriptedGang, source

from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.evidence import sample_clocks
from pytest_decodegate.gate.evidence.validity import broken_rules
from pytest_decodegate.machine.clocks import clock_shift
from pytest_decodegate.metric import Kind, Measurement, Metric, Replicate
from pytest_decodegate.report.rates import line, rates

STEADY = tuple(1e-5 * (1 + 0.001 * (index % 7)) for index in range(60))
COUNT = len(STEADY)


def measured(*clocks: list[float | None], kind: Kind = "kernel", tolerance: float = 0.02) -> Measurement:
    replicates = (Replicate(STEADY, sample_clocks.facts(each)) for each in clocks)
    return Measurement(Metric("gemm", "s", kind, tolerance), tuple(replicates), "process")


@given(st.lists(st.floats(200, 3500) | st.none(), max_size=50))
def test_samples_at_another_clock_than_most_are_marked(clocks: list[float | None]) -> None:
    found = sample_clocks.facts(clocks)
    known = sorted(mhz for mhz in clocks if mhz is not None)
    if not known:
        assert found == {}
        return

    middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    apart = [at for at, mhz in enumerate(clocks) if mhz is not None and abs(mhz / middle - 1) > 0.01]
    assert found.get(sample_clocks.MARKED, []) == apart
    assert found[sample_clocks.CLOCK] == pytest.approx(middle, abs=0.06)


def test_one_clock_breaks_nothing_and_few_others_are_a_note() -> None:
    few: list[float | None] = [*[1400.0] * 3, *[1980.0] * (COUNT - 3)]
    found = measured(few, [1980.0] * COUNT)
    assert broken_rules(found) == ()
    note = sample_clocks.marked(found.replicates[0])
    assert note == ("3 of 60 samples ran at another clock: 1400 to 1980 MHz, half of them at 1980 MHz or above")
    assert sample_clocks.marked(found.replicates[1]) is None


@pytest.mark.parametrize(
    "clocks",
    [
        [[1980.0] * COUNT, [1755.0] * COUNT],
        [[1980.0, 1755.0] * (COUNT // 2)] * 2,
        [[1980.0 - 5 * index for index in range(COUNT)]] * 2,
    ],
    ids=["between replicates", "within", "falling"],
)
def test_a_metric_whose_samples_mix_clocks_is_not_judged(clocks: list[list[float | None]]) -> None:
    (found,) = broken_rules(measured(*clocks))
    assert found.cause is Cause.MIXED_CLOCKS
    assert found.startswith("samples mix clocks: ")
    assert broken_rules(measured(*clocks, tolerance=0.3)) == ()


@given(st.lists(st.floats(300, 3000), min_size=10, max_size=200), st.floats(0.01, 0.3))
def test_clocks_within_the_band_are_never_mixed(clocks: list[float], tolerance: float) -> None:
    low = min(clocks)
    within: list[float | None] = [min(mhz, low * (1 + 0.9 * tolerance)) for mhz in clocks]
    assert [*sample_clocks.mixed(measured(within, tolerance=tolerance))] == []


def test_files_of_other_tools_may_hold_anything_there() -> None:
    strange = Replicate(STEADY, {sample_clocks.SAMPLES: ["fast", None, -1], sample_clocks.MARKED: "all"})
    assert sample_clocks.marked(strange) is None
    assert [*sample_clocks.mixed(Measurement(Metric.of("gemm", "kernel"), (strange,), "process"))] == []


def test_a_replicate_keeps_the_lowest_clock_of_its_ranks_and_a_metric_says_it() -> None:
    gangs = [ScriptedGang(name, [], mhz=mhz) for name, mhz in (("a", (1980.0, 1965.0)), ("b", (1980.0, None)))]
    with source(ScriptedBench(*gangs)) as measured_on:
        taken = measured_on.take(2)

    first, second = taken.replicates
    assert first.facts[sample_clocks.SAMPLES] == [1965.0] * 5
    assert second.facts[sample_clocks.SAMPLES] == [1980.0] * 5
    assert line(rates(taken.replicates)) == "at 1972 MHz"


def test_the_telemetry_of_a_measurement_holds_the_clock_of_each_rank() -> None:
    gangs = [ScriptedGang(name, [], mhz=(1980.0, 1600.0)) for name in "ab"]
    with source(ScriptedBench(*gangs)) as measured_on:
        telemetry = measured_on.take(2).facts["telemetry"]

    assert isinstance(telemetry, list)
    told = telemetry[0]
    assert isinstance(told, dict)
    assert told["sample_clocks_mhz"] == [1980.0, 1600.0]


def test_gangs_without_a_device_have_no_clock() -> None:
    with source(ScriptedBench(ScriptedGang("a", []))) as measured_on:
        taken = measured_on.take(1)

    assert not {sample_clocks.SAMPLES, sample_clocks.CLOCK} & taken.replicates[0].facts.keys()
    assert taken.facts["telemetry"] == [{}]


def test_clocks_of_samples_decide_where_looks_are_too_few() -> None:
    idle = {"gpu": "GPU 0", "samples": 1, "sm_clock_mhz": None, "reasons": {}}
    one, other = (
        {"telemetry": [{"gpus": [idle, idle], "sample_clocks_mhz": clocks}]}
        for clocks in ([1980.0, None], [1755.0, 1980.0])
    )
    found = clock_shift([one], [other])  # type: ignore[list-item]
    assert found is not None
    assert (found.gpu, found.base_mhz, found.new_mhz, found.capped) == (0, 1980.0, 1755.0, False)
    capped = {**idle, "limited_s": {"sw_power_cap": 0.4}}
    slow = {"telemetry": [{"gpus": [capped], "sample_clocks_mhz": [1755.0]}]}
    found = clock_shift([one], [slow])  # type: ignore[list-item]
    assert found is not None
    assert found.capped
