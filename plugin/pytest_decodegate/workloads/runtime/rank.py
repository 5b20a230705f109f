"""The functions that a measurement calls on each rank: open a workload, check it, sample it, see what ran, close it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .timing import CudaClock

if TYPE_CHECKING:
    from ...gang.protocol import Function
    from ...metric import Json
    from .timing import Traffic, Workload

HOT_SAMPLES = 20

_open: dict[str, Workload] = {}


@dataclass(frozen=True, slots=True)
class Opened:
    """A workload that a rank has set up. wrong: None, or what is wrong with its numbers."""

    wrong: str | None
    contract: dict[str, Json] = field(default_factory=dict)
    facts: dict[str, Json] = field(default_factory=dict)
    traffic: Traffic | None = None


@dataclass(frozen=True, slots=True)
class Examined:
    """Facts that a rank found beside the samples, each None where the workload has no such thing.

    memory_bytes_s: what the device's memory can do, measured in the same process. hot_s: seconds per call with the data
    in the cache. own_s: seconds of the rank's own part, round by round; location: where the rank has done it.
    align_cycles: to which length the sleep before the interval has grown because the host was not ahead. links_s:
    seconds of a message to this rank from each, by rank. l2_bytes: size of the device's L2, 0 where nobody tells.
    """

    memory_bytes_s: float | None
    hot_s: float | None
    own_s: list[float] | None
    location: dict[str, Json] | None = None
    align_cycles: int | None = None
    links_s: list[float] | None = None
    l2_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Samples:
    """What a rank has sampled, in order. seconds: per call. sm_mhz: the SM clock before each, None where unknown.

    late: whether the host had not queued the burst when the device came to it, so that its launches were timed.
    """

    seconds: list[float]
    sm_mhz: list[float | None]
    late: list[bool]


def open_workload(key: str, factory: Function, params: dict[str, Any]) -> Opened:
    """Build the workload `factory(**params)` under `key` and check its numbers; timing comes later."""
    from .slowdown import slowed

    workload: Workload = slowed(key, factory.resolve()(**params))
    _open[key] = workload
    return Opened(workload.check(), workload.contract, workload.facts, workload.traffic)


def take_samples(key: str, count: int) -> Samples:
    """Take `count` samples. Every rank takes equally many, so collectives stay in step."""
    workload, samples = _open[key], Samples([], [], [])
    clock = workload.clock if isinstance(workload.clock, CudaClock) else None
    for _ in range(count):
        samples.seconds.append(workload.sample())
        samples.sm_mhz.append(clock.sm_mhz if clock else None)
        samples.late.append(clock is not None and clock.late)

    return samples


def kernels(key: str) -> dict[str, int | float]:
    """Launches per call by kernel name, of one more burst under the profiler. All ranks do it together."""
    from .kernels import launched

    workload = _open[key]
    workload.align()
    return launched(workload.burst, workload.calls, _device(workload))


def examine(key: str) -> Examined:
    """The memory's bandwidth, the time with data in the cache, the rank's own part and links; all ranks together."""
    from .location import location
    from .memory_bandwidth import memory_bytes_s
    from .op import l2_bytes

    workload = _open[key]
    clock = workload.clock
    return Examined(
        memory_bytes_s(_device(workload)) if workload.traffic else None,
        _hot_seconds(workload),
        workload.own_part() if workload.own_part else None,
        location(_device(workload) == "cuda") if workload.own_part else None,
        clock.sleep_cycles if isinstance(clock, CudaClock) else None,
        workload.links() if workload.links else None,
        l2_bytes(_device(workload)) if workload.traffic else 0,
    )


def _hot_seconds(workload: Workload) -> float | None:
    if workload.hot is None:
        return None

    burst = workload.hot()
    workload.sample(burst)  # fills the cache
    return statistics.median(workload.sample(burst) for _ in range(HOT_SAMPLES))


def _device(workload: Workload) -> str:
    return "cuda" if workload.contract.get("clock") == "cuda_event" else "cpu"


def close_workload(key: str) -> None:
    """Drop the workload and what it holds on the device. CUDA graphs go before anything they captured."""
    import gc

    _open.pop(key, None)
    gc.collect()
    empty_device_cache()


def empty_device_cache() -> None:
    """Give back to the driver what torch holds on the device but no tensor uses: other ranks may need it."""
    import sys

    # Only a workload that used torch can hold device memory; do not import it for one that did not.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
