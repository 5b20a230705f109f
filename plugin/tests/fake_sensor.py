"""A sensor that plays back what GPUs show, for tests of what watches them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_decodegate.machine.card_condition import CardCondition
from pytest_decodegate.machine.nvml import GpuCounters, GpuProcess, GpuReading
from pytest_decodegate.machine.pcie import PcieLink

SLOW_SECONDS = 30


def look(
    *reasons: str, sm_clock_mhz: int | None = 1755, power_w: float | None = 400.0, pcie: PcieLink | None = None
) -> GpuReading:
    return GpuReading(sm_clock_mhz, 3200, 60, power_w, frozenset(reasons), pcie)


@dataclass
class FakeSensor:
    """Plays back samples by GPU; the last one is repeated. `enough` is set when a GPU was looked at often enough.

    counted: what the GPU has added up, at the start and at the end.
    """

    samples: Sequence[GpuReading | Exception] = (look(),)
    running: tuple[GpuProcess, ...] = ()
    memory_mib: Sequence[int] = (0,)
    wanted: int = 1
    looks: int = 0
    reads: int = 0
    enough: threading.Event = field(default_factory=threading.Event)
    problems: tuple[str, ...] = ()
    counted: tuple[GpuCounters, ...] = (GpuCounters({}, None),)
    counts: int = 0
    percent: int | None = None
    driver_cuda: tuple[int, int] | None = None
    stands: CardCondition = field(default_factory=CardCondition)

    def condition(self, uuid: str) -> CardCondition:
        return self.stands

    def counters(self, uuid: str) -> GpuCounters:
        found = self.counted[min(self.counts, len(self.counted) - 1)]
        self.counts += 1
        return found

    def sample(self, uuid: str) -> GpuReading:
        sample = self.samples[min(self.looks, len(self.samples) - 1)]
        self.looks += 1
        if self.looks >= self.wanted:
            self.enough.set()
        if isinstance(sample, Exception):
            raise sample

        return sample

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return self.running

    def utilization(self, uuid: str) -> int | None:
        return self.percent

    def used_mib(self, uuid: str) -> int:
        mib = self.memory_mib[min(self.reads, len(self.memory_mib) - 1)]
        self.reads += 1
        return mib
