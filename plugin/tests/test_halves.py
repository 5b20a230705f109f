"""One of two stacks: what several sources gave is one side, and what does not fit together is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_decodegate.metric import Json, Metric, Replicate
from pytest_decodegate.reference.side import Half

METRIC = Metric.of("marlin_moe[m=8]", "kernel")


@dataclass
class Source:
    """What a wave of fresh gangs saw."""

    contract: dict[str, Json] = field(default_factory=lambda: {"mode": "graph"})
    facts: dict[str, Json] = field(default_factory=dict)
    wrong: str | None = None
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def half(*sources: Any) -> Half:
    one = Half("gang")
    for number, source in enumerate(sources, start=1):
        one.add(source, [Replicate((float(number),))])

    return one


def test_waves_add_up_to_one_side() -> None:
    one = half(Source(notes=["warm"]), Source(facts={"gpu": 1}, notes=["warm", "hot"]))
    side = one.side(METRIC)
    assert one.sound
    assert side.measurement.values == (1.0, 2.0)
    assert side.measurement.metric.contract == {"mode": "graph"}
    assert (side.measurement.facts, side.notes) == ({"gpu": 1}, ("warm", "hot"))


def test_waves_that_ran_something_else_are_no_one_stack() -> None:
    one = half(
        Source({"kernels": {"marlin": 1}, "mode": "graph"}), Source({"kernels": {"humming": 1}, "mode": "graph"})
    )
    assert not one.sound
    assert one.side(METRIC).broken == ("replicates of one stack differ in kernels",)


def test_a_field_that_one_wave_could_not_read_is_no_difference() -> None:
    assert half(Source({"mode": "graph", "kernels": {"marlin": 1}}), Source()).sound


def test_the_first_wrong_numbers_are_kept() -> None:
    one = half(Source(wrong="off by 0.3"), Source(wrong="off by 0.4"))
    assert not one.sound
    assert one.side(METRIC).wrong == "off by 0.3"
