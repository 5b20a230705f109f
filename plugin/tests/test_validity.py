"""Measurement rules that samples can break."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.evidence.validity import broken_rules, drift_between, host_timed, trend
from pytest_decodegate.metric import Json, Kind, Level, Measurement, Metric, Replicate
from pytest_decodegate.workloads.versions import CLIENT_CLOCK, CLOCKS, clock_fields

STEADY = tuple(1e-5 * (1 + 0.001 * (index % 7)) for index in range(60))
DRIFTING = tuple(1e-5 * (1 + 0.004 * index) for index in range(60))


def measured(*samples: tuple[float, ...], kind: Kind = "kernel", level: Level = "process") -> Measurement:
    return Measurement(Metric("gemm", "s", kind, 0.02), tuple(map(Replicate, samples)), level)


def windows(*values: float, level: Level = "window") -> Measurement:
    return measured(*((value,) for value in values), kind="serving", level=level)


def test_a_steady_measurement_breaks_nothing() -> None:
    assert broken_rules(measured(STEADY, STEADY)) == ()


@pytest.mark.parametrize("count", [0, 1])
def test_one_replicate_is_not_enough(count: int) -> None:
    (reason,) = broken_rules(measured(*[STEADY] * count))

    assert f"{count} replicate(s)" in reason


def test_a_clock_that_stands_still_is_named_with_its_replicate() -> None:
    (reason,) = broken_rules(measured(STEADY, (1e-5,) * 5))

    assert reason == "replicate 2: all 5 samples are 10.0 us; the clock did not run or is too coarse"


def test_a_few_equal_samples_happen() -> None:
    assert broken_rules(measured(STEADY, (1e-5,) * 4)) == ()


@pytest.mark.parametrize("samples", [DRIFTING, DRIFTING[::-1]])
@pytest.mark.parametrize("kind", ["kernel", "collective"])
def test_drift_is_seen_in_both_directions(kind: Kind, samples: tuple[float, ...]) -> None:
    (reason,) = broken_rules(measured(samples, STEADY, kind=kind))

    assert reason.startswith("replicate 1: samples drifted by")


def drifting(change: float, scatter: float, seed: int = 1) -> tuple[float, ...]:
    """Samples whose middle changes by `change` along a line, and which scatter by `scatter` (sd)."""
    draw = random.Random(seed)
    return tuple(1e-5 * (1 + change * index / 59 + draw.gauss(0, scatter)) for index in range(60))


@pytest.mark.parametrize(
    ("change", "tolerance", "broken"),
    [(0.073, 0.02, True), (0.02, 0.02, True), (0.01, 0.02, False), (0.02, 0.05, False), (-0.073, 0.05, True)],
)
def test_a_drift_of_more_than_half_a_band_is_not_judged(change: float, tolerance: float, broken: bool) -> None:
    found = measured(drifting(change, 0.002), STEADY)
    metric = replace(found.metric, tolerance=tolerance)
    assert [each.cause for each in broken_rules(replace(found, metric=metric))] == [Cause.DRIFT] * broken


@pytest.mark.parametrize("scatter", [0.001, 0.01, 0.05])
def test_noise_alone_does_not_drift_however_wide_beside_the_band(scatter: float) -> None:
    drifted = [seed for seed in range(1500) if broken_rules(measured(drifting(0.0, scatter, seed), STEADY))]
    assert len(drifted) <= 3


@pytest.mark.parametrize("level", ["window", "server"])
def test_drift_within_a_long_window_is_seen_of_servers_too(level: Level) -> None:
    (reason,) = broken_rules(measured(DRIFTING, STEADY, kind="serving", level=level))
    assert reason.startswith("replicate 1: samples drifted by")


SLOWING = (4.05e-3, 4.12e-3, 4.20e-3, 4.29e-3, 4.37e-3)


def test_drift_from_window_to_window_is_seen() -> None:
    (reason,) = broken_rules(windows(*SLOWING))
    assert reason.startswith("windows drifted by +8.0 % from the first to the last")
    assert broken_rules(windows(*SLOWING, level="server")) == ()  # each start is fresh
    assert broken_rules(windows(*SLOWING), in_turn=True) == ()  # on both sides it cancels


def test_cohorts_of_streams_that_dissolve_are_seen() -> None:
    """32 streams on two H200s that all began together: the prefills of a cohort stall the others."""
    (reason,) = broken_rules(windows(22.281e-3, 21.654e-3, 21.46e-3, 20.859e-3, 20.806e-3))
    assert reason.startswith("windows drifted by -6.7 % from the first to the last")


def test_windows_that_only_scatter_do_not_drift() -> None:
    assert broken_rules(windows(4.3e-3, 4.05e-3, 4.37e-3, 4.12e-3, 4.2e-3)) == ()
    assert broken_rules(windows(4.05e-3, 4.2e-3, 4.37e-3)) == ()  # three are no line


@given(st.floats(1e-6, 1.0), st.integers(4, 12), st.floats(-0.5, 0.5))
def test_a_straight_line_is_its_own_trend(start: float, count: int, change: float) -> None:
    logs = [math.log(start) + change * number / (count - 1) for number in range(count)]
    assert trend(logs) == pytest.approx(change, abs=1e-9)


def test_noise_seems_to_drift_as_seldom_as_it_may() -> None:
    draw = random.Random(1)
    seeming = sum(trend([draw.gauss(0, 0.05) for _ in range(5)]) != 0 for _ in range(4000))
    assert seeming / 4000 < 0.015


def test_heavy_tails_make_windows_seem_to_drift_no_more_often() -> None:
    """As sessions of H200s scatter, by a t of 2.4 degrees of freedom; 80 of 8,000 are expected of even noise."""
    draw = random.Random(2)

    def heavy() -> float:
        return 0.05 * draw.gauss() / math.sqrt(draw.gammavariate(1.2, 1 / 1.2))

    assert sum(trend([heavy() for _ in range(5)]) != 0 for _ in range(8000)) < 80 + 4 * math.sqrt(80)


def test_servers_in_turn_may_drift_together_and_not_apart() -> None:
    steady = [4e-3] * 5
    assert [*drift_between(windows(*SLOWING), windows(*SLOWING))] == []
    (reason,) = drift_between(windows(*steady), windows(*SLOWING))
    assert reason.startswith("the two servers drifted apart by +8.0 % from the first pair of windows")


def test_drift_needs_enough_samples_to_be_seen() -> None:
    few = DRIFTING[::3]

    assert len(few) < 30
    assert broken_rules(measured(few, few)) == ()


CLIENT: dict[str, Json] = {"clock": "client, monotonic, at the socket"}
GLOO: dict[str, Json] = {"clock": "perf_counter", "start": "host barrier"}


def on_cores(contract: dict[str, Json], *others: float) -> Measurement:
    """A measurement on two cores, of which other processes used so many at each look."""
    looks: list[Json] = [{"cpu": {"cores": 2, "others_cores": used, "most": "ffmpeg (pid 11)"}} for used in others]
    metric = Metric("tpot_cpu", "s", "cpu", 0.5, contract)
    return Measurement(metric, (Replicate(STEADY), Replicate(STEADY)), "window", {"telemetry": looks})


def seen_on_cores(contract: dict[str, Json], **cpu: Json) -> Measurement:
    """A measurement with one look at two cores."""
    look: dict[str, Json] = {"cores": 2, "others_cores": 0.0, "most": "ffmpeg (pid 11)", **cpu}
    return replace(on_cores(contract), facts={"telemetry": [{"cpu": look}]})


@pytest.mark.parametrize("contract", [CLIENT, GLOO])
def test_processes_that_wait_for_each_other_on_busy_cores_are_not_judged(contract: dict[str, Json]) -> None:
    (reason,) = broken_rules(on_cores(contract, 0.1, 1.4))

    assert reason == (
        "other processes used 1.4 of 2 cores, most: ffmpeg (pid 11), and what was timed waits for a core too; stop "
        "them and measure again"
    )


@pytest.mark.parametrize(
    ("contract", "others"),
    [
        (CLIENT, 0.3),
        (GLOO, 0.3),
        ({"clock": "process_time"}, 1.9),
        ({"clock": "cuda_event", "mode": "graph"}, 1.9),
    ],
)
def test_quiet_cores_and_what_does_not_wait_for_one_are_judged(contract: dict[str, Json], others: float) -> None:
    assert broken_rules(on_cores(contract, others)) == ()
    assert broken_rules(on_cores(contract)) == ()


EAGER: dict[str, Json] = {"clock": "cuda_event", "mode": "eager"}


@pytest.mark.parametrize("contract", [CLIENT, GLOO, EAGER])
@pytest.mark.parametrize(
    ("others", "waited", "broken"),
    [(0.9, 0.31, True), (0.9, 0.04, False), (0.04, 0.6, False), (1.9, None, True), (0.3, None, False)],
    ids=["waited for others", "hardly waited", "waited for each other", "not counted, many", "not counted, few"],
)
def test_who_waits_for_others_is_not_judged_where_the_host_is_timed(
    contract: dict[str, Json], others: float, waited: float | None, broken: bool
) -> None:
    found = broken_rules(seen_on_cores(contract, others_cores=others, waited_by="python (pid 3)", waited_share=waited))
    assert [each.cause for each in found] == [Cause.BUSY_CORES] * broken
    if broken and waited:
        assert found[0] == (
            "python (pid 3) waited for a core 31% of the time while other processes used 0.9 of 2 cores, most: ffmpeg "
            "(pid 11); stop them and measure again"
        )


def test_a_quota_that_holds_the_measurement_back_is_named() -> None:
    assert broken_rules(seen_on_cores(GLOO, waited_share=0.0, throttled_share=0.01)) == ()
    (found,) = broken_rules(seen_on_cores(GLOO, waited_share=0.0, throttled_share=0.4))
    assert found == "the CPU quota of this container held processes back 40% of the time; raise it and measure again"
    assert broken_rules(seen_on_cores({"clock": "cuda_event", "mode": "graph"}, throttled_share=0.4)) == ()


def test_the_clocks_of_the_host_are_those_that_contracts_name() -> None:
    assert host_timed(clock_fields(CLIENT_CLOCK))
    assert {clock for clock in CLOCKS if host_timed({"clock": clock})} == {CLIENT_CLOCK, "perf_counter"}
