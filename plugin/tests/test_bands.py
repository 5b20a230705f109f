"""Bands that recorded metrics can keep: two modes and power caps are named, and lines to paste give what is kept."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import MOE, stored

from pytest_decodegate.baseline.schema import StoredMetric
from pytest_decodegate.gate.bands import RecordedBand, ini_lines, recorded_band
from pytest_decodegate.gate.evidence.modes import two_modes
from pytest_decodegate.metric import Json, Metric
from pytest_decodegate.settings.values import tolerance_lines

PEERS = [stored(Metric(f"gemm[m={n}]", "s", "kernel", 0.02, {}), 20e-6, sessions=3) for n in range(8)]
MODES = (1.0, 1.079, 1.0005, 1.08, 1.001)


def under_cap(metric: StoredMetric) -> StoredMetric:
    gpu: dict[str, Json] = {
        "gpu": "GPU 0",
        "samples": 20,
        "sm_clock_mhz": {"min": 1400, "median": 1450, "max": 1500},
        "reasons": {"sw_power_cap": 0.6},
    }
    *earlier, newest = metric.sessions
    return replace(metric, sessions=(*earlier, replace(newest, telemetry={"telemetry": [{"gpus": [gpu]}]})))


def test_a_quiet_metric_keeps_its_band_and_nothing_is_said() -> None:
    assert recorded_band(stored(MOE, 40e-6, sessions=3), PEERS, 20, 2) == RecordedBand(0.02, 0.02, ())


def test_two_modes_are_named_with_a_band_that_holds_both() -> None:
    band = recorded_band(stored(MOE, 76e-6, sessions=3, factors=MODES), PEERS, 20, 2)
    assert not band.is_kept
    assert band.kept > 0.03
    assert band.why == ("two modes, 76.0 us and 82.0 us",)


def test_a_power_cap_is_named_whether_the_band_is_kept_or_not() -> None:
    band = recorded_band(under_cap(stored(MOE, 40e-6, sessions=3)), PEERS, 20, 2)
    assert band.is_kept
    assert band.why == ("recorded under a power cap, which follows the temperature of the card",)


def test_a_noisy_metric_says_how_much_its_processes_scatter() -> None:
    noisy = stored(MOE, 40e-6, sessions=2, factors=(1.0, 1.08, 0.9, 1.15, 0.95))
    (why,) = recorded_band(noisy, PEERS, 20, 2).why
    assert why.startswith("processes scatter by ")


def test_answers_have_no_band_to_keep() -> None:
    answers = stored(Metric("quality", "%", "quality", 0.02, {}), 50.0, factors=MODES)
    assert recorded_band(answers, [], 20, 2) == RecordedBand(0.02, 0.02, ())


@given(st.lists(st.floats(0.05, 2.0), min_size=1, max_size=9), st.integers(2, 30), st.integers(1, 4))
def test_what_is_proposed_is_wider_than_the_tests_own_and_a_band(
    scatter: list[float], replicates: int, sessions: int
) -> None:
    factors = [1.0 + each * (-1) ** n / 3 for n, each in enumerate(scatter, start=1)]
    band = recorded_band(stored(MOE, 40e-6, sessions=sessions, factors=factors), PEERS, replicates, 2)
    assert band.own <= band.kept < 1
    assert band.is_kept == (band.kept == band.own)
    assert band.is_kept or band.why


@given(st.integers(2, 9), st.integers(2, 9), st.floats(0.03, 1.0), st.integers(0, 1000))
def test_modes_are_found_however_the_processes_are_mixed(low: int, high: int, apart: float, seed: int) -> None:
    noise = random.Random(seed)
    values = [1e-5 * math.exp(noise.uniform(-0.001, 0.001)) for _ in range(low)]
    values += [1e-5 * math.exp(apart + noise.uniform(-0.001, 0.001)) for _ in range(high)]
    noise.shuffle(values)
    found = two_modes(values, 0.02)
    assert found is not None
    assert math.log(found[1] / found[0]) == pytest.approx(apart, abs=0.003)


def test_one_mode_is_seldom_taken_for_two() -> None:
    noise = random.Random(7)
    taken = sum(two_modes([math.exp(noise.gauss(0, 0.01)) for _ in range(5)], 0.02) is not None for _ in range(2000))
    assert taken / 2000 < 0.05


def test_a_single_process_that_is_apart_is_no_mode() -> None:
    assert two_modes([1.0, 1.0, 1.0, 1.0, 1.5], 0.02) is None
    assert two_modes([1.0], 0.02) is None


def test_the_lines_to_paste_are_read_as_bands() -> None:
    lines = ini_lines([("lm_head[m=64]", RecordedBand(0.02, 0.164, ())), ("tpot[c=1]", RecordedBand(0.03, 0.11, ()))])
    assert lines[0] == "perf_tolerance ="
    read = dict(tolerance_lines([line.strip() for line in lines[1:]]))
    assert read == pytest.approx({"lm_head[m=64]": 0.164, "tpot[c=1]": 0.11})
