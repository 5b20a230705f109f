"""A plugin of vLLM that makes its server slower by a known fraction; copied beside a server, never imported by ours.

After each step of the engine it spins: on the device, because a host's spin would hide behind asynchronous scheduling.
It runs under the server's own Python, where this package may not be, so it needs the standard library and vLLM alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

FRACTION = "DECODEGATE_SERVER_SLOWER_BY"
"""Environment variable with the fraction, 0.05 for +5 %."""

LOADED = "decodegate slows this server down"
"""What each worker says when it is loaded."""

RECENT = 31
"""Steps whose median interval counts: a prefill or a pause between requests among them moves nothing."""

LEAST = 8
IDLE_SECONDS = 10.0
"""A step may take so long; what lies further apart was idleness."""

PROBE_CYCLES = 10_000_000
"""Of the device's clock: some milliseconds, so that the launch does not count."""


class Pace:
    """How long to spin after each step, so that steps come to take 1 + `fraction` of their time.

    A spin is f / (1 + f) of the median of recent intervals from step to step, which hold spins themselves: at rest
    spin = f / (1 + f) * (step + spin), so spin = f * step. No spin before LEAST intervals are known.

    steps, stepping_s, spun_s: what was seen so far, without idleness.
    """

    def __init__(self, fraction: float) -> None:
        self._share = fraction / (1 + fraction)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._last_s: float | None = None
        self.steps = 0
        self.stepping_s = 0.0
        self.spun_s = 0.0

    def step(self, now_s: float) -> float:
        """Seconds to spin after a step that begins at `now_s`, on any monotonic clock."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is not None and (interval := now_s - last_s) < IDLE_SECONDS:
            self._recent.append(interval)
            self.steps += 1
            self.stepping_s += interval
        if len(self._recent) < LEAST:
            return 0.0

        seconds = self._share * statistics.median(self._recent)
        self.spun_s += seconds
        return seconds


@cache
def register() -> None:
    """What vLLM calls in each of its processes; only its workers make steps."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    slow(WorkerWrapperBase, float(os.environ[FRACTION]))


def slow(workers: Any, fraction: float) -> None:
    """Have all workers of the class `workers`, vLLM's wrapper of them on any platform, spin after each step."""
    pace = Pace(fraction)
    init_device, execute_model = workers.init_device, workers.execute_model

    def telling_init_device(self: Any) -> Any:
        _say(f"{LOADED} by {fraction:.1%}: rank {self.global_rank}")
        return init_device(self)

    def slower_execute_model(self: Any, scheduler_output: Any, *others: Any, **named: Any) -> Any:
        spin_seconds = pace.step(time.monotonic()) if scheduler_output.total_num_scheduled_tokens else 0.0
        output = execute_model(self, scheduler_output, *others, **named)
        if spin_seconds:
            _spin()(spin_seconds)
            _tell(pace)

        return output

    workers.init_device, workers.execute_model = telling_init_device, slower_execute_model


def _tell(pace: Pace) -> None:
    if pace.steps >= 2 * LEAST and pace.steps.bit_count() == 1:  # ever less often
        _say(f"decodegate: {pace.steps} steps in {pace.stepping_s:.3f} s, {pace.spun_s:.3f} s of it spun")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - logging may be off in this server


@cache
def _spin() -> Callable[[float], None]:
    """Made at the first spin, when steps have brought the clock of a device to its pace."""
    import torch

    return _device_spin(torch.cuda) if torch.cuda.is_available() else _host_spin


def _host_spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _device_spin(cuda: Any) -> Callable[[float], None]:
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    cuda._sleep(PROBE_CYCLES)
    end.record()
    end.synchronize()
    cycles_s = PROBE_CYCLES / (start.elapsed_time(end) / 1000)
    return lambda seconds: cuda._sleep(int(seconds * cycles_s))
