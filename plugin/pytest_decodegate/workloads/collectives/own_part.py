"""Seconds of a rank's own part: local work of fixed size before a collective, timed without the waiting for others.

A collective ends on all ranks together, so its time does not tell who was late. The local work is the same everywhere;
a rank that needs longer for it, round after round, is the one that the others wait for.
"""

from __future__ import annotations

import time
from typing import Any

from ..runtime.timing import ALIGN_CYCLES, Burst

ROUNDS = 30

DEVICE_BYTES = 64 << 20
"""Copied on the device: about 30 us on an H200, long beside the 0.5 us that events resolve."""

HOST_BYTES = 4 << 20


def own_part(collective: Burst, cuda: bool, work: Burst | None = None, rounds: int = ROUNDS) -> list[float]:
    """Seconds of this rank's local work in each round of [local work, collective]. Every rank must call it.

    work: instead of the copy; on CUDA it goes to the current stream.
    """
    work = work or _copy(cuda)
    work()
    return _device_rounds(work, collective, rounds) if cuda else _host_rounds(work, collective, rounds)


def _copy(cuda: bool) -> Burst:
    import torch

    size, device = (DEVICE_BYTES, "cuda") if cuda else (HOST_BYTES, "cpu")
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _host_rounds(work: Burst, collective: Burst, rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
        collective()

    return taken


def _device_rounds(work: Burst, collective: Burst, rounds: int) -> list[float]:
    import torch

    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(rounds)]
    for start, stop in events:
        torch.cuda._sleep(ALIGN_CYCLES)  # until all of the round is queued: the host's launches are not the rank's work
        start.record()
        work()
        stop.record()
        collective()

    torch.cuda.synchronize()
    return [_seconds(*pair) for pair in events]


def _seconds(start: Any, stop: Any) -> float:
    return float(start.elapsed_time(stop)) / 1e3
