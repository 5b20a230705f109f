"""What several sources of one stack gave is one, and what does not fit together is said."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.measure.source import Taken, joined
from pytest_decodegate.metric import Metric, Replicate

METRIC = Metric.of("marlin_moe[m=8]", "kernel")


def wave(*values: float, **seen: Any) -> Taken:
    """What a wave of fresh gangs gave."""
    replicates = tuple(Replicate((value,)) for value in values)
    return Taken("gang", replicates, **{"contract": {"mode": "graph"}, **seen})


def test_waves_add_up_to_one_side() -> None:
    taken = joined([wave(1.0, notes=("warm",)), wave(2.0, facts={"gpu": 1}, notes=("warm", "hot"))])
    assert taken.sound
    measurement = taken.measurement(METRIC)
    assert measurement.values == (1.0, 2.0)
    assert measurement.metric.contract == {"mode": "graph"}
    assert (measurement.facts, taken.notes) == ({"gpu": 1}, ("warm", "hot"))


def test_what_watches_saw_of_earlier_waves_is_not_forgotten() -> None:
    """A core that others used while the first wave was measured breaks a rule as well."""
    waves = [wave(1.0, facts={"telemetry": [{"cpu": number}], "gpu": number}) for number in (1, 2)]
    seen = {"telemetry": [{"cpu": 1}, {"cpu": 2}], "gpu": 2}
    assert joined(waves).facts == joined([joined(waves[:1]), waves[1]]).facts == seen
    assert joined([*waves, wave(3.0)]).facts == {"telemetry": seen["telemetry"]}


def test_waves_that_ran_something_else_are_no_one_stack() -> None:
    marlin, humming = ({"kernels": {name: 1}, "mode": "graph"} for name in ("marlin", "humming"))
    taken = joined([wave(1.0, contract=marlin), wave(2.0, contract=humming)])
    assert not taken.sound
    assert taken.broken == ("replicates of one stack differ in kernels",)


def test_a_field_that_one_wave_could_not_read_is_no_difference() -> None:
    assert joined([wave(1.0, contract={"mode": "graph", "kernels": {"marlin": 1}}), wave(2.0)]).sound


def test_the_first_wrong_numbers_are_kept() -> None:
    taken = joined([wave(wrong="off by 0.3"), wave(wrong="off by 0.4")])
    assert not taken.sound
    assert taken.wrong == "off by 0.3"


@given(st.lists(st.lists(st.floats(0.1, 10.0), max_size=3), min_size=1, max_size=5))
def test_nothing_is_lost_and_nothing_depends_on_how_waves_were_cut(waves: list[list[float]]) -> None:
    at_once = joined([wave(*values) for values in waves])
    step_by_step = Taken("gang")
    for values in waves:
        step_by_step = joined([step_by_step, wave(*values)])

    assert at_once == step_by_step
    assert [replicate.value for replicate in at_once.replicates] == [value for values in waves for value in values]
