"""Measurement rules that samples can break."""

from __future__ import annotations

import pytest

from pytest_decodegate.gate.evidence.validity import broken_rules
from pytest_decodegate.metric import Json, Kind, Measurement, Metric, Replicate

STEADY = tuple(1e-5 * (1 + 0.001 * (index % 7)) for index in range(60))
DRIFTING = tuple(1e-5 * (1 + 0.004 * index) for index in range(60))


def measured(*samples: tuple[float, ...], kind: Kind = "kernel") -> Measurement:
    return Measurement(Metric("gemm", "s", kind, 0.02), tuple(map(Replicate, samples)), "process")


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


def test_a_server_may_drift() -> None:
    assert broken_rules(measured(DRIFTING, DRIFTING, kind="serving")) == ()


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


@pytest.mark.parametrize("contract", [CLIENT, GLOO])
def test_processes_that_wait_for_each_other_on_busy_cores_are_not_judged(contract: dict[str, Json]) -> None:
    (reason,) = broken_rules(on_cores(contract, 0.1, 1.4))

    assert reason == (
        "other processes used 1.4 of 2 cores, most: ffmpeg (pid 11), and what was timed waits for a core too; stop "
        "them and measure again"
    )


@pytest.mark.parametrize(
    ("contract", "others"),
    [(CLIENT, 0.3), (GLOO, 0.3), ({"clock": "process_time"}, 1.9), ({"clock": "perf_counter"}, 1.9)],
)
def test_quiet_cores_and_what_needs_no_second_process_are_judged(contract: dict[str, Json], others: float) -> None:
    assert broken_rules(on_cores(contract, others)) == ()
    assert broken_rules(on_cores(contract)) == ()
