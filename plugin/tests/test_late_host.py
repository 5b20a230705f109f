"""Samples that the host was late with: taken again, borne by the median while few, and a broken rule when many."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, cycle, repeat
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_gangs import PLAN, ScriptedBench, ScriptedGang, source

from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.evidence import late_host
from pytest_decodegate.gate.evidence.validity import broken_rules
from pytest_decodegate.measure.sampler import GangSampler
from pytest_decodegate.metric import Json, Measurement, Metric, Replicate

STEADY = tuple(1e-5 * (1 + 0.001 * (index % 7)) for index in range(30))
WARM_UPS = repeat(False, 3)
METRIC = Metric("allreduce", "s", "collective", 0.04)


def replicate(kept: int, left_out: int = 0) -> Replicate:
    return Replicate(STEADY, late_host.facts(kept, left_out))


def measured(*kept: int, **look: Json) -> Measurement:
    return Measurement(METRIC, tuple(map(replicate, kept)), "gang", {"telemetry": [{"steal_share": 0.0}, look]})


class Gang(ScriptedGang):
    """Every sample tells its number, and is three times as long where the host was late."""

    count = 0

    def run(self, function: object, *args: Any, **options: Any) -> list[Any]:
        ranks = super().run(function, *args, **options)
        for taken in ranks:
            taken.seconds[:] = [self.count + number + 1.0 for number in range(len(taken.seconds))]

        self.count += len(ranks[0].seconds)
        return ranks


def sampler(late: Iterator[bool]) -> GangSampler:
    gang: Any = Gang("a", [], late=late)
    return GangSampler(gang, "gemm", lambda: 1.0)


def test_late_samples_are_taken_again_and_the_others_kept_in_order() -> None:
    made = sampler(chain([False, True, False, True, False], repeat(False)))
    assert made.sample(5) == [1, 3, 5, 6, 7]
    facts = made.replicate(made.taken, 0).facts
    assert late_host.KEPT not in facts
    assert facts[late_host.LEFT_OUT] == 2


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 20))
def test_a_batch_has_as_many_samples_as_were_asked_for_at_twice_the_cost_at_most(late: list[bool], count: int) -> None:
    made = sampler(cycle(late))
    taken = made.sample(count)
    assert len(taken) == len(set(taken)) == count
    assert taken == sorted(taken) == made.taken
    assert max(taken) <= 2 * count
    facts = made.replicate(taken, 0).facts
    if all(late):
        assert (facts[late_host.KEPT], facts[late_host.LEFT_OUT]) == (count, count)
    if not any(late):
        assert facts.keys().isdisjoint({late_host.KEPT, late_host.LEFT_OUT})


def test_what_was_late_while_it_warmed_up_is_no_fact() -> None:
    made = sampler(chain(repeat(True, 10), repeat(False)))
    made.sample(5)
    made.forget()
    made.sample(5)
    assert made.replicate(made.taken, 1).facts.keys().isdisjoint({late_host.KEPT, late_host.LEFT_OUT})


def test_a_host_that_is_always_late_spoils_the_metric_and_one_that_was_late_twice_is_noted(log: list[str]) -> None:
    gangs = [
        ScriptedGang("a", log, late=repeat(True)),
        ScriptedGang("b", log, late=chain(WARM_UPS, [True, True], repeat(False))),
    ]
    with source(ScriptedBench(*gangs)) as found:
        taken = found.take(2)

    (rule,) = [each for each in broken_rules(taken.measurement(METRIC)) if each.cause is Cause.LATE_HOST]
    assert rule.startswith("the host was late with 5 of 5 samples of replicate 1, and again when they were taken again")
    assert taken.notes == (f"replicate 2: the host was late with samples beside its {PLAN.batch}; 2 were taken again",)


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.mark.parametrize(("kept", "broken"), [((0, 0), False), ((3, 3), False), ((0, 4), True), ((30, 30), True)])
def test_the_limit_is_a_tenth_of_the_samples_of_a_replicate(kept: tuple[int, ...], broken: bool) -> None:
    assert bool(broken_rules(measured(*kept))) is broken
    assert [bool(late_host.noted(replicate(each))) for each in kept] == [0 < each <= 3 for each in kept]


@given(st.integers(0, 2**32))
def test_up_to_the_limit_the_value_moves_by_less_than_a_fifth_of_a_deviation(seed: int) -> None:
    """Of the standard deviation of samples that were in time: the sentence behind MOST_SHARE."""
    drawn = random.Random(seed)
    clean = sorted(drawn.gauss(1, 0.005) for _ in range(4000))
    late = int(late_host.MOST_SHARE * len(clean))
    in_time = drawn.sample(clean, len(clean) - late)
    assert median([*in_time, *[3.0] * late]) / median(clean) - 1 < 0.2 * 0.005


def test_the_sentence_says_how_many_and_what_was_seen_on_the_host() -> None:
    cpu: dict[str, Json] = {
        "cores": 32,
        "others_cores": 5.2,
        "most": "ffmpeg (pid 7)",
        "waited_by": "python (pid 9)",
        "waited_share": 0.3,
        "throttled_share": 0.02,
    }
    (rule,) = broken_rules(measured(30, 0, 29, steal_share=0.031, cpu=cpu))
    assert rule == (
        "the host was late with 59 of 60 samples of replicates 1 and 3, and again when they were taken again, however "
        "long the GPU slept before: its launches were timed; meanwhile other machines took 3.1% of the CPU time; "
        "python (pid 9) waited for a core 30% of the time; a CPU quota held processes back 2% of the time; other "
        "processes used 5.2 of 32 cores, most: ffmpeg (pid 7); stop what else uses the CPUs, or measure where the "
        "cores are this machine's own (no stolen time, no quota)"
    )
    (calm,) = broken_rules(measured(30, 30))
    assert "; meanwhile no stolen time, wait for a core or busy core was seen, so that the launch of a graph" in calm
    assert "in processes of its own (--perf-only)" in calm
    quiet: dict[str, Json] = {"cores": 32, "others_cores": 0.5, "waited_share": None}
    assert "no stolen time" in broken_rules(measured(30, 30, cpu=quiet))[0]


def test_samples_of_other_tools_hold_no_lateness() -> None:
    assert broken_rules(Measurement(METRIC, (Replicate(STEADY, {late_host.KEPT: "many"}),) * 2, "gang")) == ()
