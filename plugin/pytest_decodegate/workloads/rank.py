"""The rank's side of a measurement: open a workload, check it, take samples, close it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..gang.protocol import Function
    from ..metric import Json
    from .timing import Workload

_open: dict[str, Workload] = {}


@dataclass(frozen=True, slots=True)
class Opened:
    """What a rank says of a workload it has set up. wrong: None, or what is wrong with its numbers."""

    wrong: str | None
    contract: dict[str, Json] = field(default_factory=dict)
    facts: dict[str, Json] = field(default_factory=dict)


def open_workload(key: str, factory: Function, params: dict[str, Any]) -> Opened:
    """Build the workload `factory(**params)` under `key` and check its numbers; timing comes later."""
    workload: Workload = factory.resolve()(**params)
    _open[key] = workload
    return Opened(workload.check(), workload.contract, workload.facts)


def take_samples(key: str, count: int) -> list[float]:
    """Seconds per call, `count` samples. Every rank takes equally many, so collectives stay in step."""
    workload = _open[key]
    return [workload.sample() for _ in range(count)]


def close_workload(key: str) -> None:
    """Drop the workload and what it holds on the device. CUDA graphs go before anything they captured."""
    import gc

    _open.pop(key, None)
    gc.collect()
    _empty_device_cache()


def _empty_device_cache() -> None:
    import sys

    # Only a workload that used torch can hold device memory; do not import it for one that did not.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
