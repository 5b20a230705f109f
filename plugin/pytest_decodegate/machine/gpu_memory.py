"""Memory in use on GPUs: held before this run, as work may be, and given back after each of its gangs and servers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..cause import Cause, Finding
from ..errors import DecodegateError
from .nvml import Sensor

POLL_SECONDS = 0.05

LEAST_MIB = 2048
"""MiB below which memory is the driver's own: NVML counts what the driver reserves, some hundred MiB, as used."""


LEAST_PERCENT = 5
"""Of the time in which kernels run, below which a GPU counts as idle."""


def leftovers(labels: Mapping[str, str], sensor: Sensor | None) -> tuple[Finding, ...]:
    """A finding for each GPU that holds memory or works now, naming who does; () without a sensor.

    Nothing of this run is on a GPU yet, so that even inside a container it is somebody else's.

    labels: how sentences call the GPUs, by UUID.
    """
    return tuple(_findings(labels, sensor)) if sensor else ()


def _findings(labels: Mapping[str, str], sensor: Sensor) -> Iterator[Finding]:
    for uuid, label in labels.items():
        mib = sensor.used_mib(uuid)
        if mib >= LEAST_MIB:
            text = (
                f"{label}: {mib} MiB were held before this run started anything, by {holders(uuid, sensor)}; end that "
                "process, or reset the GPU if a crashed server left it"
            )
            yield Finding(text, Cause.REMARK, label)

        percent = sensor.utilization(uuid) or 0
        if percent >= LEAST_PERCENT:
            text = f"{label}: busy {percent} % of the time before this run started anything, by {holders(uuid, sensor)}"
            yield Finding(text, Cause.STRANGER, label)


def holders(uuid: str, sensor: Sensor) -> str:
    """The processes that use the GPU, in words."""
    return named(sensor.processes(uuid))


def named(processes: Iterable[object]) -> str:
    """Processes on a GPU, in words."""
    return ", ".join(map(str, processes)) or "no process that NVML can name"


def used_memory(gpu_uuids: Sequence[str], sensor: Sensor | None) -> dict[str, int]:
    """MiB in use by GPU UUID; take it before a gang or a server starts, for `memory_back`."""
    return {uuid: sensor.used_mib(uuid) for uuid in gpu_uuids} if sensor else {}


def memory_back(
    before: Mapping[str, int], deadline_seconds: float, sensor: Sensor | None, margin_mib: int = 256
) -> None:
    """Wait until the GPUs of `before` (from `used_memory`) use no more than then plus `margin_mib`.

    The margin is for the driver's bookkeeping. Raises DecodegateError naming GPU, processes and MiB at the deadline.
    """
    end = time.monotonic() + deadline_seconds
    while held := {
        uuid: mib for uuid, mib in used_memory(tuple(before), sensor).items() if mib > before[uuid] + margin_mib
    }:
        if time.monotonic() >= end:
            raise DecodegateError(_not_back(before, held, deadline_seconds, sensor))

        time.sleep(POLL_SECONDS)


def _not_back(
    before: Mapping[str, int], held: Mapping[str, int], deadline_seconds: float, sensor: Sensor | None
) -> str:
    assert sensor
    parts = []
    for uuid, mib in held.items():
        more = mib - before[uuid]
        parts.append(f"{uuid} still uses {mib} MiB, {more} MiB more than before, held by {holders(uuid, sensor)}")

    return (
        f"GPU memory did not come back within {deadline_seconds:g} s: {'; '.join(parts)}; "
        "end that process, or wait for it, before the next measurement"
    )
