from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import NOT_SUPPORTED, FakeGpu, FakeNvml
from fake_sensor import SLOW_SECONDS, FakeSensor, look
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.errors import DecodegateError
from pytest_decodegate.machine.nvml import GpuCounters, GpuProcess, GpuReading, NvmlSensor
from pytest_decodegate.machine.pcie import PcieLink, Slot
from pytest_decodegate.machine.watch import (
    GpuTally,
    Watch,
    steal_share,
    steal_ticks,
)

NOBODY = 2**22 + 7  # above the largest pid of Linux


@pytest.fixture
def all_use_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_decodegate.machine.watch.may_map", lambda pid, library: True)


def tally(*samples: GpuReading, slot: Slot | None = None) -> GpuTally:
    found = GpuTally("GPU 1 (GPU-ab)", slot)
    for sample in samples:
        found.add(sample, (), ())

    return found


@pytest.mark.parametrize(
    "reason", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"]
)
def test_hardware_throttling_is_invalid_with_gpu_reason_and_share(reason: str) -> None:
    (sentence,) = tally(look(), look(reason), look(), look()).invalid()
    assert (sentence.cause, sentence.about) == (Cause.THROTTLING, f"GPU 1 (GPU-ab): {reason}")
    assert sentence.startswith(f"GPU 1 (GPU-ab): {reason} in 25.0% of 4 samples")


def test_a_power_cap_is_told_and_not_invalid() -> None:
    capped = tally(look("sw_power_cap"), look("sw_power_cap", "applications_clocks_setting"))
    assert capped.invalid() == ()
    assert capped.facts()["reasons"] == {"applications_clocks_setting": 0.5, "sw_power_cap": 1.0}


def test_clocks_of_an_idle_gpu_do_not_count_beside_work() -> None:
    facts = tally(
        look("gpu_idle", sm_clock_mhz=345), look(sm_clock_mhz=1700), look(sm_clock_mhz=1710), look(sm_clock_mhz=1900)
    ).facts()
    assert facts["sm_clock_mhz"] == {"min": 1700, "median": 1710, "max": 1900}
    assert facts["samples"] == 4


def test_a_gpu_that_stayed_idle_still_has_clocks() -> None:
    assert tally(look("gpu_idle", sm_clock_mhz=345)).facts()["sm_clock_mhz"] == {"min": 345, "median": 345, "max": 345}


def test_sensors_that_are_missing_give_no_spread() -> None:
    facts = tally(look(sm_clock_mhz=None, power_w=None)).facts()
    assert facts["sm_clock_mhz"] is None
    assert facts["power_w"] is None


def test_the_link_of_an_idle_gpu_does_not_count_and_the_fastest_under_load_does() -> None:
    looks = [look("gpu_idle", pcie=PcieLink(5, 16)), *(look(pcie=PcieLink(gen, 8)) for gen in (1, 3, 3))]
    found = tally(*looks, slot=Slot(1, "0000:65:00.0", PcieLink(5, 16)))
    facts = found.facts()
    assert (facts["bus_id"], facts["pcie"], facts["pcie_most"]) == ("0000:65:00.0", "gen 3 x8", "gen 5 x16")
    (note,) = found.notes()
    assert note.startswith("GPU 1 (GPU-ab): its PCIe link runs at gen 3 x8 under load, of gen 5 x16 that card and slot")


def test_a_gpu_that_stayed_idle_says_nothing_of_its_link() -> None:
    found = tally(*[look("gpu_idle", pcie=PcieLink(1, 16))] * 9, slot=Slot(1, "0000:65:00.0", PcieLink(5, 16)))
    assert found.facts()["pcie"] is None
    assert found.notes() == ()


def test_the_watch_passes_the_notes_of_its_gpus_on() -> None:
    sensor = FakeSensor(samples=[look(pcie=PcieLink(4, 16))], wanted=3)
    slots = {"GPU-a": Slot(5, "0000:01:00.0", PcieLink(5, 16))}
    with Watch(["GPU-a"], set, 0.001, sensor=sensor, slots=slots) as watch:
        assert sensor.enough.wait(SLOW_SECONDS)

    telemetry = watch.report()
    assert telemetry.invalid == ()
    assert [note.partition(":")[0] for note in telemetry.notes] == ["GPU 5 (GPU-a)"]


@pytest.mark.usefixtures("all_use_cuda")
def test_foreign_processes_are_invalid_and_own_ones_are_not() -> None:
    found = GpuTally("GPU 0 (GPU-ab)")
    for _ in range(3):
        found.add(look(), [GpuProcess(10, "python3", 900), GpuProcess(11, "blender", 4096)], own_pids={10})

    (sentence,) = found.invalid()
    assert sentence.startswith("GPU 0 (GPU-ab): foreign process pid 11 (blender, 4096 MiB) ran beside the measurement")


def test_a_pid_that_is_nobody_here_is_reported_and_proves_nothing() -> None:
    found = GpuTally("GPU 0 (GPU-ab)")
    found.add(look(), [GpuProcess(NOBODY, "unknown", 900)], own_pids=())
    assert found.invalid() == ()
    assert found.facts()["unverifiable_processes"] == [f"pid {NOBODY} (unknown, 900 MiB)"]


def test_a_pid_that_is_somebody_without_cuda_proves_nothing_either() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = GpuTally("GPU 0 (GPU-ab)")
        found.add(look(), [GpuProcess(child.pid, "python3", 900)], own_pids=())
        child.communicate()

    assert found.invalid() == ()
    assert len(found.unverifiable) == 1


def test_a_process_that_maps_libcuda_is_foreign(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(bytes(4096))
    code = f"import mmap; f = open({str(library)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        found = GpuTally("GPU 0 (GPU-ab)")
        found.add(look(), [GpuProcess(child.pid, "python3", 900)], own_pids=())
        child.communicate()

    assert list(found.foreign) == [child.pid]


def test_a_process_of_another_user_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, errors: str | None = None) -> str:
        raise PermissionError(path)

    found = GpuTally("GPU 0 (GPU-ab)")
    monkeypatch.setattr(Path, "read_text", refuse)
    found.add(look(), [GpuProcess(NOBODY, "python3", 900)], own_pids=())
    assert list(found.foreign) == [NOBODY]


def test_the_watch_samples_until_its_block_ends() -> None:
    sensor = FakeSensor([look("gpu_idle"), look("hw_slowdown"), look()], wanted=5)
    with Watch(["GPU-ab"], frozenset, period_seconds=0.001, sensor=sensor) as watch:
        assert sensor.enough.wait(SLOW_SECONDS)

    looks = sensor.looks
    assert not watch.report().facts["sampler_stuck"]
    (sentence,) = watch.report().invalid
    assert sentence.startswith(f"GPU 0 (GPU-ab): hw_slowdown in {1 / looks:.1%} of {looks} samples")


def test_throttling_too_short_for_a_look_is_found_in_what_the_gpu_adds_up() -> None:
    counted = (
        GpuCounters({"hw_thermal_slowdown": 7_000_000, "sw_power_cap": 5_000_000}, 100.0),
        GpuCounters({"hw_thermal_slowdown": 9_500_000, "sw_power_cap": 45_000_000}, 350.5),
    )
    with Watch(["GPU-ab"], frozenset, period_seconds=3600, sensor=FakeSensor(counted=counted)) as watch:
        pass

    (sentence,) = watch.report().invalid
    assert (sentence.cause, sentence.about) == (Cause.THROTTLING, "GPU 0 (GPU-ab): hw_thermal_slowdown")
    assert sentence.startswith("GPU 0 (GPU-ab): hw_thermal_slowdown for 2.5 ms, as the GPU counts; the clocks")
    gpus = watch.report().facts["gpus"]
    assert isinstance(gpus, list)
    assert isinstance(gpus[0], dict)
    assert gpus[0]["limited_s"] == {"hw_thermal_slowdown": 0.0025, "sw_power_cap": 0.04}
    assert gpus[0]["energy_j"] == 250.5


def test_a_reason_that_looks_and_counters_have_is_one_finding() -> None:
    found = tally(look("hw_slowdown"), look())
    found.before, found.after = (GpuCounters({"hw_slowdown": ns}, None) for ns in (0, 30_000_000))
    (sentence,) = found.invalid()
    assert sentence.startswith("GPU 1 (GPU-ab): hw_slowdown in 50.0% of 2 samples for 30 ms, as the GPU counts; ")
    assert found.facts()["energy_j"] is None


@given(before=st.integers(0, 2**63), now=st.integers(0, 2**63))
def test_counters_never_give_less_than_nothing(before: int, now: int) -> None:
    found = tally(look())
    found.before, found.after = (GpuCounters({"sw_thermal_slowdown": ns}, float(ns)) for ns in (before, now))
    spent = found.limited_seconds().get("sw_thermal_slowdown", 0.0)
    assert spent == pytest.approx((now - before if now >= before else now) / 1e9)
    assert (found.facts()["energy_j"] is None) is (now < before)


def test_counters_that_cannot_be_read_are_told_and_break_nothing() -> None:
    class Mute(FakeSensor):
        def counters(self, uuid: str) -> GpuCounters:
            raise DecodegateError("no counters")

    with Watch(["GPU-ab"], frozenset, period_seconds=3600, sensor=Mute()) as watch:
        pass

    assert watch.report().invalid == ()
    assert watch.report().facts["sampler_errors"] == {"GPU-ab: no counters": 2}


FIELDS = {74: 11, 76: 0, 269: 22, 270: 33, 271: 44}


def field_values(ids: list[int], known: Collection[int] = tuple(FIELDS)) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(fieldId=each, nvmlReturn=0 if each in known else 3, value=SimpleNamespace(ullVal=FIELDS[each]))
        for each in ids
    ]


def counters_of(**answers: object) -> GpuCounters:
    gpu = FakeGpu(1, changes=answers)
    return NvmlSensor(FakeNvml(gpu)).counters(gpu.uuid)


def test_reasons_are_counted_by_the_fields_that_the_driver_has() -> None:
    energy = {"nvmlDeviceGetTotalEnergyConsumption": 5500}
    assert counters_of(nvmlDeviceGetFieldValues=field_values, **energy) == GpuCounters(
        {
            "sw_power_cap": 11,
            "sync_boost": 0,
            "sw_thermal_slowdown": 22,
            "hw_thermal_slowdown": 33,
            "hw_power_brake_slowdown": 44,
        },
        5.5,
    )
    few = counters_of(nvmlDeviceGetFieldValues=lambda ids: field_values(ids, {74}), **energy)
    assert few.limited_ns == {"sw_power_cap": 11}


def test_a_driver_without_the_fields_is_asked_for_its_violation_times() -> None:
    found = counters_of(
        nvmlDeviceGetFieldValues=NOT_SUPPORTED,
        nvmlDeviceGetViolationStatus=lambda policy: SimpleNamespace(violationTime=100 + policy),
        nvmlDeviceGetTotalEnergyConsumption=NOT_SUPPORTED,
    )
    assert found == GpuCounters({"sw_power_cap": 100, "thermal_violation": 101, "board_limit_violation": 103}, None)


def test_a_driver_that_counts_nothing_gives_nothing() -> None:
    names = ("FieldValues", "ViolationStatus", "TotalEnergyConsumption")
    assert counters_of(**{f"nvmlDeviceGet{name}": NOT_SUPPORTED for name in names}) == GpuCounters({}, None)


def test_the_shortest_measurement_is_looked_at_once() -> None:
    sensor = FakeSensor()
    with Watch(["GPU-a", "GPU-b"], frozenset, period_seconds=3600, sensor=sensor) as watch:
        pass

    gpus = watch.report().facts["gpus"]
    assert isinstance(gpus, list)
    assert [gpu["samples"] for gpu in gpus if isinstance(gpu, dict)] == [1, 1]
    assert watch.report().invalid == ()


def test_a_gpu_that_could_not_be_watched_makes_the_measurement_invalid() -> None:
    sensor = FakeSensor([DecodegateError("GPU is lost")])
    with Watch(["GPU-ab"], frozenset, period_seconds=3600, sensor=sensor) as watch:
        pass

    assert watch.report().facts["sampler_errors"] == {"GPU-ab: GPU is lost": 1}
    assert watch.report().invalid == ("GPU 0 (GPU-ab) could not be watched: GPU-ab: GPU is lost",)
    gpus = watch.report().facts["gpus"]
    assert isinstance(gpus, list)
    assert isinstance(gpus[0], dict)
    assert gpus[0]["samples"] == 0
    assert gpus[0]["sm_clock_mhz"] is None


def test_what_nvml_refused_to_say_is_told() -> None:
    refused = ("GPU-ab: nvmlDeviceGetCurrentClocksEventReasons: Insufficient Permissions",)
    with Watch(["GPU-ab"], frozenset, period_seconds=3600, sensor=FakeSensor(problems=refused)) as watch:
        pass

    assert watch.report().facts["nvml_problems"] == list(refused)


def test_own_pids_are_not_asked_while_nothing_runs() -> None:
    def never() -> frozenset[int]:
        raise AssertionError

    with Watch(["GPU-ab"], never, period_seconds=3600, sensor=FakeSensor()) as watch:
        pass

    assert watch.report().facts["sampler_errors"] == {}


def test_an_error_of_the_measurement_passes_and_stops_the_sampler() -> None:
    sensor = FakeSensor()
    watch = Watch(["GPU-ab"], frozenset, period_seconds=0.001, sensor=sensor)
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError

    assert not watch.report().facts["sampler_stuck"]


def test_a_blocked_sensor_does_not_hold_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_decodegate.machine.watch.STOP_SECONDS", 0.01)
    release = threading.Event()

    class Blocked(FakeSensor):
        def sample(self, uuid: str) -> GpuReading:
            if self.looks:
                self.enough.set()
                release.wait(SLOW_SECONDS)
            return super().sample(uuid)

    sensor = Blocked(wanted=99)
    with Watch(["GPU-ab"], frozenset, period_seconds=0.001, sensor=sensor) as watch:
        assert sensor.enough.wait(SLOW_SECONDS)

    assert watch.report().facts["sampler_stuck"]
    assert "stuck in a call to NVML" in watch.report().invalid[0]
    release.set()


def test_without_gpus_only_the_load_of_the_host_is_told() -> None:
    with Watch(["GPU-ab"], frozenset, sensor=None) as watch:
        pass

    facts = watch.report().facts
    assert facts["gpus"] == []
    assert watch.report().invalid == ()
    assert isinstance(facts["load_1m"], float)
    assert isinstance(facts["steal_share"], float)


def test_steal_is_a_share_of_all_ticks(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 800 10 0 5 35 7 0\ncpu0 1 1 1 1\n")
    assert steal_ticks(stat) == (35, 1000)
    assert steal_share((35, 1000), (60, 1100)) == 0.25
    assert steal_share((35, 1000), (35, 1000)) == 0.0
    assert steal_ticks()[1] > 0
