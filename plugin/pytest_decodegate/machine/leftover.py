"""Memory that is held on a GPU before this run has started anything: what a crashed server leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..cause import Cause, Finding
from .nvml import Sensor

LEAST_MIB = 2048
"""Below that it is the driver's own: NVML counts what the driver reserves, some hundred MiB, as used."""


def leftovers(labels: Mapping[str, str], sensor: Sensor | None) -> tuple[Finding, ...]:
    """A finding for each GPU that holds memory now, naming who does; () without a sensor.

    labels: how sentences call the GPUs, by UUID.
    """
    return tuple(_held(labels, sensor)) if sensor else ()


def _held(labels: Mapping[str, str], sensor: Sensor) -> Iterator[Finding]:
    for uuid, label in labels.items():
        mib = sensor.used_mib(uuid)
        if mib >= LEAST_MIB:
            text = (
                f"{label}: {mib} MiB were held before this run started anything, by {holders(uuid, sensor)}; end that "
                "process, or reset the GPU if a crashed server left it"
            )
            yield Finding(text, Cause.REMARK, label)


def holders(uuid: str, sensor: Sensor) -> str:
    """Who uses the GPU, in words."""
    return ", ".join(str(process) for process in sensor.processes(uuid)) or "no process that NVML can name"
