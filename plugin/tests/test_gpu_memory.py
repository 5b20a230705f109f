from __future__ import annotations

from dataclasses import dataclass

import pytest
from fake_sensor import SLOW_SECONDS, FakeSensor

from pytest_decodegate.errors import DecodegateError
from pytest_decodegate.machine.gpu_memory import LEAST_MIB, LEAST_PERCENT, holders, leftovers, memory_back, used_memory
from pytest_decodegate.machine.nvml import GpuProcess, GpuReading

LABELS = {"GPU-a": "GPU 2 (GPU-a)", "GPU-b": "GPU 3 (GPU-b)"}


@dataclass
class Card:
    """A sensor of cards that all hold the same."""

    mib: int
    running: tuple[GpuProcess, ...] = ()
    problems: tuple[str, ...] = ()
    percent: int | None = None

    def utilization(self, uuid: str) -> int | None:
        return self.percent

    def used_mib(self, uuid: str) -> int:
        return self.mib

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return self.running

    def sample(self, uuid: str) -> GpuReading:
        raise AssertionError("not asked here")


def test_what_the_driver_keeps_for_itself_is_no_leftover() -> None:
    assert leftovers(LABELS, Card(LEAST_MIB - 1)) == ()
    assert leftovers(LABELS, None) == ()


def test_a_gpu_that_works_before_anything_was_started_is_told() -> None:
    working = Card(0, (GpuProcess(77, "VLLM::Worker", None),), percent=83)
    found, _ = leftovers(LABELS, working)
    assert found == (
        "GPU 2 (GPU-a): busy 83 % of the time before this run started anything, by pid 77 (VLLM::Worker, an unknown "
        "amount of memory)"
    )
    assert leftovers(LABELS, Card(0, percent=LEAST_PERCENT - 1)) == ()


def test_memory_that_nobody_holds_is_told_for_each_gpu() -> None:
    found = leftovers(LABELS, Card(14336))
    assert found[1] == (
        "GPU 3 (GPU-b): 14336 MiB were held before this run started anything, by no process that NVML can name; "
        "end that process, or reset the GPU if a crashed server left it"
    )
    assert len(found) == 2


@pytest.mark.parametrize(
    ("running", "words"),
    [
        ((GpuProcess(77, "VLLM::Worker", 14000),), "pid 77 (VLLM::Worker, 14000 MiB)"),
        (
            (GpuProcess(7, "a", None), GpuProcess(8, "b", 1)),
            "pid 7 (a, an unknown amount of memory), pid 8 (b, 1 MiB)",
        ),
        ((), "no process that NVML can name"),
    ],
)
def test_holders_in_words(running: tuple[GpuProcess, ...], words: str) -> None:
    assert holders("GPU-a", Card(0, running)) == words


def test_memory_that_comes_back_is_waited_for() -> None:
    sensor = FakeSensor(memory_mib=[40_000, 9_000, 700])
    memory_back({"GPU-ab": 500}, deadline_seconds=SLOW_SECONDS, sensor=sensor)
    assert sensor.reads == 3


def test_memory_that_stays_names_gpu_process_and_amount() -> None:
    sensor = FakeSensor(running=(GpuProcess(4711, "VLLM::EngineCor", 38_000),), memory_mib=[40_000])
    with pytest.raises(DecodegateError) as caught:
        memory_back({"GPU-ab": 500}, deadline_seconds=0, sensor=sensor)

    assert "GPU-ab still uses 40000 MiB, 39500 MiB more than before" in str(caught.value)
    assert "pid 4711 (VLLM::EngineCor, 38000 MiB)" in str(caught.value)
    assert "within 0 s" in str(caught.value)


def test_memory_that_nobody_holds_is_told_so() -> None:
    with pytest.raises(DecodegateError, match="held by no process that NVML can name"):
        memory_back({"GPU-ab": 0}, deadline_seconds=0, sensor=FakeSensor(memory_mib=[300]))


def test_memory_of_a_machine_without_gpus_is_back_at_once() -> None:
    assert used_memory(["GPU-ab"], None) == {}
    memory_back({}, deadline_seconds=0, sensor=None)


def test_used_memory_is_by_gpu() -> None:
    assert used_memory(["GPU-a", "GPU-b"], FakeSensor(memory_mib=[3, 4])) == {"GPU-a": 3, "GPU-b": 4}
