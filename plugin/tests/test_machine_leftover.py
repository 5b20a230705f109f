from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_decodegate.machine.leftover import LEAST_MIB, holders, leftovers
from pytest_decodegate.machine.nvml import Process, Sample

LABELS = {"GPU-a": "GPU 2 (GPU-a)", "GPU-b": "GPU 3 (GPU-b)"}


@dataclass
class Card:
    """A sensor of cards that all hold the same."""

    mib: int
    running: tuple[Process, ...] = ()
    problems: tuple[str, ...] = ()

    def used_mib(self, uuid: str) -> int:
        return self.mib

    def processes(self, uuid: str) -> tuple[Process, ...]:
        return self.running

    def sample(self, uuid: str) -> Sample:
        raise AssertionError("not asked here")


def test_what_the_driver_keeps_for_itself_is_no_leftover() -> None:
    assert leftovers(LABELS, Card(LEAST_MIB - 1)) == ()
    assert leftovers(LABELS, None) == ()


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
        ((Process(77, "VLLM::Worker", 14000),), "pid 77 (VLLM::Worker, 14000 MiB)"),
        (
            (Process(7, "a", None), Process(8, "b", 1)),
            "pid 7 (a, an unknown amount of memory), pid 8 (b, 1 MiB)",
        ),
        ((), "no process that NVML can name"),
    ],
)
def test_holders_in_words(running: tuple[Process, ...], words: str) -> None:
    assert holders("GPU-a", Card(0, running)) == words
