"""The short load of doctor: real processes that speak its lines, with a scripted sensor and no GPU."""

from __future__ import annotations

import sys
import time

import pytest
from fake_sensor import FakeSensor, look

from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.nvml import GpuCounters
from pytest_decodegate.resources.short_load import load_cards

SPEAKS = """
import json, os, sys, time
print("ready", flush=True)
if sys.stdin.readline():
    time.sleep(0.5)
    print(json.dumps({"copy_bytes_s": 4e12, "host_bytes_s": 5e10}))
"""
DIES = "import sys; sys.exit('CUDA error: out of memory')"
DIES_LATER = 'import sys; print("ready", flush=True); sys.stdin.readline(); sys.exit("illegal address")'
HANGS = "import time; time.sleep(60)"


def test_looks_are_of_the_load_and_of_busy_moments() -> None:
    counted = (GpuCounters({"sw_power_cap": 0}, None), GpuCounters({"sw_power_cap": 10**9}, None))
    sensor = FakeSensor(samples=(look("gpu_idle", sm_clock_mhz=300), look(sm_clock_mhz=1980)), counted=counted)
    load = load_cards(sys.executable, ["GPU-a"], sensor, (), code=SPEAKS)["GPU-a"]
    assert {seen.sm_clock_mhz for seen in load.looks} == {1980}
    assert (load.copy_bytes_s, load.host_bytes_s, dict(load.limited_s)) == (4e12, 5e10, {"sw_power_cap": 1.0})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (DIES, r"GPU GPU-a was not loaded \(CUDA error: out of memory\)"),
        (DIES_LATER, r"GPU GPU-a came to no end of its load \(illegal address\)"),
    ],
)
def test_a_card_that_cannot_be_loaded_is_said_with_its_last_words(code: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_cards(sys.executable, ["GPU-a", "GPU-b"], FakeSensor(), (), code=code)


def test_a_load_that_hangs_is_given_up() -> None:
    began = time.monotonic()
    with pytest.raises(BadInput, match="was not loaded"):
        load_cards(sys.executable, ["GPU-a"], FakeSensor(), (), code=HANGS, seconds=0.5)

    assert time.monotonic() - began < 30


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="nowhere cannot be run"):
        load_cards("nowhere", ["GPU-a"], FakeSensor(), ())
