"""How long a message takes from each rank to each other, one direction at a time: what a copy on a device cannot see.

A downtrained PCIe link or a busy bridge slows what goes through it, in one direction maybe, and every collective waits
for it. One pair works at a time, so that pairs do not share a bridge; all join in, because a communicator of two would
take memory and seconds for each pair.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import permutations

from ..runtime.timing import ALIGN_CYCLES, Burst
from .communicators import host_barrier, made_once, rank_and_world_size

MESSAGE_BYTES = 1 << 20
"""About 40 us over PCIe 5.0 x16, which a link of half the width doubles; of 14 KB the launch would be most."""

MESSAGES = 8
ROUNDS = 5
"""Of MESSAGES each; the median counts. 56 pairs of 8 ranks take under a tenth of a second."""


def device_links() -> list[float]:
    """`link_times` between the devices of all ranks, measured once per gang: links do not depend on the metric."""
    return made_once("links", lambda: link_times(cuda=True))


def link_times(cuda: bool) -> list[float]:
    """Seconds of a message of MESSAGE_BYTES from each rank to this one, by rank, and 0 from itself.

    Every rank must call it together. NCCL on CUDA devices, gloo on the host.
    """
    rank, ranks = rank_and_world_size()
    send = _exchange("cuda" if cuda else "cpu", ranks, rank)
    for _ in range(2):  # connects all with all, at once
        for shift in range(1, ranks):
            send(*((source, (source + shift) % ranks) for source in range(ranks)))

    clock = _device_seconds if cuda else _host_seconds
    times = [0.0] * ranks
    for source, target in permutations(range(ranks), 2):
        taken = [clock(lambda: send((source, target))) for _ in range(ROUNDS)]  # noqa: B023 - called at once
        if rank == target:
            times[source] = statistics.median(taken) / MESSAGES

    return times


def _exchange(device: str, ranks: int, rank: int) -> Callable[..., None]:
    """A function that sends one message along each of the (source, target) pairs that it is given."""
    import torch
    import torch.distributed as dist

    given, got = (torch.zeros(MESSAGE_BYTES, dtype=torch.uint8, device=device) for _ in range(2))

    def send(*pairs: tuple[int, int]) -> None:
        sent, received = [0] * ranks, [0] * ranks
        for source, target in pairs:
            if source == rank:
                sent[target] = MESSAGE_BYTES
            if target == rank:
                received[source] = MESSAGE_BYTES

        dist.all_to_all_single(got[: sum(received)], given[: sum(sent)], received, sent)

    return send


def _host_seconds(message: Burst) -> float:
    host_barrier()
    start = time.perf_counter()
    for _ in range(MESSAGES):
        message()

    return time.perf_counter() - start


def _device_seconds(message: Burst) -> float:
    """Between two events: the first message, which waits for the later of both ranks, comes before them."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    host_barrier()
    torch.cuda._sleep(ALIGN_CYCLES)  # until all is queued: the host's launches are not the link's time
    message()
    start.record()
    for _ in range(MESSAGES):
        message()

    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3
