"""Sustained clocks of two sides: what counts as one, when two differ, and that this confounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import MOE, RATE, baseline, stored
from strategies import json_values

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Baseline, StoredMetric
from pytest_decodegate.baseline.selection import contrast
from pytest_decodegate.compare.pairs import BaselinePair, compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.text.advice import advice
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Judgement, Verdict, judge
from pytest_decodegate.machine.clocks import LEAST_LOOKS, ClockShift, clock_shift
from pytest_decodegate.metric import Json, Measurement

SHIPPED = Path(__file__).parents[2] / "baselines"


def gpu(mhz: float, samples: int = 20, **reasons: float) -> Json:
    clock: Json = {"min": mhz, "median": mhz, "max": mhz}
    return {"gpu": "GPU 0", "samples": samples, "sm_clock_mhz": clock, "reasons": dict[str, Json](reasons)}


def telemetry(*gpus: Json) -> dict[str, Json]:
    """As the watch of one measurement leaves it with a session."""
    return {"telemetry": [{"gpus": list(gpus), "load_1m": 0.5}]}


def shift(base: dict[str, Json], new: dict[str, Json]) -> ClockShift | None:
    return clock_shift([base], [new])


@given(base=st.floats(200, 3000), factor=st.floats(0.9801, 1.0199))
def test_clocks_within_two_percent_are_the_same(base: float, factor: float) -> None:
    assert shift(telemetry(gpu(base)), telemetry(gpu(base * factor))) is None


@given(base=st.floats(200, 3000), factor=st.floats(0.1, 0.9799) | st.floats(1.0201, 9))
def test_clocks_further_apart_are_a_shift(base: float, factor: float) -> None:
    assert shift(telemetry(gpu(base)), telemetry(gpu(base * factor))) == ClockShift(0, base, base * factor)


def test_the_gpu_that_differs_most_is_named_and_the_others_are_counted() -> None:
    found = shift(telemetry(*[gpu(1980)] * 4), telemetry(gpu(1980), gpu(1920), gpu(1755, sw_power_cap=0.4), gpu(1875)))

    assert str(found) == (
        "sm_clock_mhz: GPU 2 sustained 1755 MHz, 1980 MHz on the other side (-11.4 %), and 2 more GPU(s) differ: "
        "times follow the clock; a power cap held the lower one down"
    )


def test_a_cap_on_the_faster_side_is_no_explanation() -> None:
    found = shift(telemetry(gpu(1980, sw_power_cap=1.0)), telemetry(gpu(1755)))

    assert found is not None
    assert not found.capped


@pytest.mark.parametrize(
    "unknown",
    [
        {},
        {"telemetry": []},
        telemetry(),
        telemetry(gpu(345, gpu_idle=1.0)),
        telemetry(gpu(345, samples=LEAST_LOOKS - 1)),
        telemetry(gpu(345, samples=20, gpu_idle=0.9)),
        telemetry({"gpu": "GPU 0", "samples": 20, "sm_clock_mhz": None, "reasons": {}}),
    ],
)
def test_a_side_that_saw_no_sustained_clock_is_not_compared(unknown: dict[str, Json]) -> None:
    assert shift(telemetry(gpu(1980)), unknown) is None
    assert shift(unknown, telemetry(gpu(1980))) is None


def test_all_reports_of_all_sessions_that_gate_count() -> None:
    two_looks: dict[str, Json] = {"telemetry": [{"gpus": [gpu(1980)]}, {"gpus": [gpu(1400)]}, {"gpus": [gpu(1980)]}]}

    assert clock_shift([two_looks], [telemetry(gpu(1980))]) is None
    assert clock_shift([telemetry(gpu(mhz)) for mhz in (1980, 1500, 1980)], [telemetry(gpu(1980))]) is None


@given(strange=st.dictionaries(st.sampled_from(["telemetry", "gpus"]), json_values))
def test_what_is_no_telemetry_is_no_clock(strange: dict[str, Json]) -> None:
    assert clock_shift([strange], [telemetry(gpu(1980))]) is None
    assert clock_shift([telemetry(strange)], [telemetry(gpu(1980))]) is None


def test_the_shipped_baseline_of_a_gpu_holds_clocks_that_can_be_compared() -> None:
    (path,) = SHIPPED.glob("NVIDIA-H200-x2-NVLink/0001_*.json")
    (session,) = load(path).metrics["tpot[c=1]"].sessions
    recorded = dict(session.telemetry)

    assert shift(recorded, telemetry(gpu(1980), gpu(1980))) is None
    found = shift(recorded, telemetry(gpu(1980), gpu(1500)))
    assert found is not None
    assert found.gpu == 1


def at(some: StoredMetric, mhz: float) -> StoredMetric:
    return replace(some, sessions=tuple(replace(one, telemetry=telemetry(gpu(mhz))) for one in some.sessions))


BASE = baseline(at(stored(MOE, 40e-6), 1980), stored(RATE, 80.0))


def measured(mhz: float, seconds: float) -> Judgement:
    (session,) = stored(MOE, seconds).sessions
    run = Measurement(MOE, session.replicates, "gang", telemetry(gpu(mhz)))
    return judge(run, contrast(BASE, BASE.provenance, ()))


@pytest.mark.parametrize("seconds", [40e-6, 45e-6, 36e-6])
def test_a_run_at_another_clock_is_confounded_and_shows_its_numbers(seconds: float) -> None:
    judgement = measured(1755, seconds)

    assert judgement.verdict is Verdict.CONFOUNDED
    assert judgement.numbers.change == pytest.approx(seconds / 40e-6 - 1, abs=1e-6)
    assert judgement.numbers.p_worse is None, "nobody may weigh it with others"
    assert "GPU 0 sustained 1755 MHz, 1980 MHz on the other side (-11.4 %)" in explain(judgement)
    assert "nvidia-smi -lgc" in explain(judgement)


def test_a_run_at_the_same_clock_is_judged_by_its_time() -> None:
    assert measured(1965, 40e-6).verdict is Verdict.PASS
    assert measured(1965, 45e-6).verdict is Verdict.REGRESSED


def compared(new: Baseline, *allowed: str) -> BaselinePair:
    return compare_baselines(BASE, new, Terms(allowed=frozenset(allowed)))


def test_stored_sessions_at_another_clock_are_confounded_metric_by_metric() -> None:
    new = baseline(at(stored(MOE, 40e-6), 1755), at(stored(RATE, 80.0), 1755))
    moe, rate = compared(new).judgements

    assert (moe.verdict, rate.verdict) == (Verdict.CONFOUNDED, Verdict.PASS)
    assert moe.reasons[0].startswith("sm_clock_mhz: GPU 0 sustained 1755 MHz")
    assert "--allow sm_clock_mhz" in advice(moe)[0]


def test_another_clock_can_be_allowed() -> None:
    pair = compared(baseline(at(stored(MOE, 40e-6), 1755), stored(RATE, 80.0)), "sm_clock_mhz", "link")
    moe = pair.judgements[0]

    assert moe.verdict is Verdict.PASS
    assert pair.allowed == {"sm_clock_mhz"}
    assert [one for one in moe.changed if one.endswith("(allowed)") and "1755 MHz" in one]
