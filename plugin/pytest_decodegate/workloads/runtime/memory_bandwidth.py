"""The memory bandwidth of a device, measured in the process that runs the kernels: the ceiling of their times."""

from __future__ import annotations

import functools

from .op import l2_bytes
from .timing import ALIGN_CYCLES, Burst, CpuTimeClock, CudaClock, on_one_thread

CACHE_MARGIN = 8
"""Size of the buffer as a multiple of the L2 cache: what the cache can serve is then a small part."""

LEAST_BYTES = 256 << 20
"""Size of the buffer where the cache is small or unknown; also above the last-level cache of most CPUs."""

PASSES = 7


@functools.cache
def memory_bytes_s(device: str) -> float:
    """Bytes per second that `device` ("cuda" or "cpu") reaches, the better of a copy (read + write) and a read.

    A copy alone would be no ceiling: kernels that only read weights do better than one. Measured once per process.
    """
    import torch

    size = max(LEAST_BYTES, CACHE_MARGIN * l2_bytes(device))
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy = _best(device, lambda: target.copy_(source))
    read = _best(device, lambda: torch.sum(source))
    return float(max(2 * size / copy, size / read))


def _best(device: str, burst: Burst) -> float:
    """Seconds of the fastest of some passes: other replicates may share the device, and a ceiling must not sag.

    On a CPU that is CPU time of one thread, as the work beside it is timed.
    """
    clock = CudaClock(ALIGN_CYCLES) if device == "cuda" else CpuTimeClock()
    burst = burst if device == "cuda" else on_one_thread(burst)
    burst()
    return min(clock.seconds(burst) for _ in range(PASSES))
