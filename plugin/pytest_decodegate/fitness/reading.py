"""Reads a host for the checks that a perf run asks first: nothing is changed, started or loaded."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..machine.crowd import CUDA
from ..process.processes import may_map
from .host_files import read_host_files, room
from .readings import CardLoad, HostReadings, InspectedCard, Space

if TYPE_CHECKING:
    from ..machine.fingerprint import Fingerprint
    from ..machine.nvml import CardSensor


def read_early(
    fingerprint: Fingerprint, sensor: CardSensor | None, baselines: Path, own: Collection[int], *, attached: bool
) -> HostReadings:
    """What the early checks look at. sensor: None without GPUs. own: pids of this run. attached: see HostReadings."""
    return HostReadings(
        fingerprint,
        cards=inspect_cards(fingerprint, sensor, own),
        attached=attached,
        spaces=read_spaces(baselines),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def read_all(early: HostReadings, root: Path = Path("/")) -> HostReadings:
    """The same with what /sys and /proc below `root` tell, and the cores of this process."""
    return replace(early, files=read_host_files(root), cores=frozenset(os.sched_getaffinity(0)))


def inspect_cards(
    fingerprint: Fingerprint, sensor: CardSensor | None, own: Collection[int]
) -> tuple[InspectedCard, ...]:
    """Each card as it stands; nothing but its place where there is no sensor."""
    if sensor is None:
        return ()

    cards = []
    for gpu in fingerprint.gpus:
        foreign = tuple(process for process in sensor.processes(gpu.uuid) if process.pid not in own)
        cards.append(
            InspectedCard(
                gpu,
                sensor.condition(gpu.uuid),
                sensor.sample(gpu.uuid),
                foreign,
                frozenset(process.pid for process in foreign if may_map(process.pid, CUDA)),
                sensor.used_mib(gpu.uuid),
                sensor.utilization(gpu.uuid),
            )
        )

    return tuple(cards)


def with_loads(readings: HostReadings, loads: Mapping[str, CardLoad]) -> HostReadings:
    """`readings` with what cards showed under load, by UUID."""
    return replace(readings, cards=tuple(replace(card, load=loads.get(card.gpu.uuid)) for card in readings.cards))


def read_spaces(baselines: Path) -> tuple[Space, ...]:
    """Where a run writes: its baselines, what is temporary, and the memory that processes share."""
    places: Iterable[tuple[str, Path]] = (
        ("baselines", baselines),
        ("temporary files", Path(tempfile.gettempdir())),
        ("shared memory", Path("/dev/shm")),  # noqa: S108 - asked for its room
    )
    return tuple(space for what, path in places if (space := room(what, path)))
