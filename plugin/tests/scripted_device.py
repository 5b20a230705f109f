"""A device whose clock and time are scripted, in the place of torch.cuda's events and sleep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.workloads.runtime import timing

torch = pytest.importorskip("torch", reason="its events and sleep are what is stood in for")

NAMES = ("start", "stop", "asleep", "awake")
"""Of CudaClock's events, in the order in which it makes them."""


@dataclass
class ScriptedEvent:
    device: ScriptedDevice
    name: str
    at: float = 0.0

    def record(self) -> None:
        self.at = self.device.now
        self.device.done.append(self.name)

    def query(self) -> bool:
        """Whether the device has passed it: of `late`, the event before the sleep, or of `passed`, that after it."""
        return next(self.device.late if self.name == "asleep" else self.device.passed)

    def synchronize(self) -> None:
        self.device.done.append("wait")

    def elapsed_time(self, stop: ScriptedEvent) -> float:
        """Milliseconds."""
        return (stop.at - self.at) * 1e3


@dataclass
class ScriptedDevice:
    """`done`: what was queued, in order. mhz: the SM clock at a time in seconds. launch_s: of every kernel beside its
    cycles. passed, late: what the events answer, call by call.
    """

    mhz: Callable[[float], float] = lambda _: 1980.0
    launch_s: float = 0.0
    passed: Iterator[bool] = field(default_factory=lambda: repeat(False))
    late: Iterator[bool] = field(default_factory=lambda: repeat(False))
    now: float = 0.0
    done: list[str] = field(default_factory=list)
    made: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> ScriptedDevice:
        timing.launch_seconds.cache_clear()
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep, raising=False)
        clocks = SimpleNamespace(sleep=self.rest, perf_counter=time.perf_counter, process_time=time.process_time)
        monkeypatch.setattr(timing, "time", clocks)
        timing.launch_seconds()
        self.made, self.now = 0, 0.0
        self.done.clear()
        return self

    def event(self, enable_timing: bool) -> Any:
        self.made += 1
        return ScriptedEvent(self, NAMES[self.made - 1] if self.made <= len(NAMES) else "calibration")

    def sleep(self, cycles: int) -> None:
        self.done.append(f"sleep {cycles}")
        self.now += self.launch_s + cycles / self.mhz(self.now) / 1e6

    def rest(self, seconds: float) -> None:
        self.done.append("rest")
        self.now += seconds

    def work(self, seconds: float) -> Callable[[], None]:
        """A burst that takes so long."""

        def burst() -> None:
            self.done.append("burst")
            self.now += seconds

        return burst

    @property
    def sleeps(self) -> list[int]:
        """Cycles of the sleeps that are timed, in order; not of what lies before them or calibrates."""
        at = [index for index, step in enumerate(self.done) if step == "asleep"]
        return [int(self.done[index + 1].removeprefix("sleep ")) for index in at]
