"""Reads what the checks want of /sys and /proc below a root folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..machine.host import text_of
from .acs import redirects
from .readings import HostFiles, Space

_BRIDGE: Final = "0x0604"  # PCI-to-PCI


def read_host_files(root: Path = Path("/")) -> HostFiles:
    """What /sys and /proc below `root` tell."""
    answers = {path.name: redirects(_bytes(path / "config")) for path in _bridges(root)}
    return HostFiles(
        clock_source=text_of(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or None,
        governors=Counter(
            governor
            for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
            if (governor := text_of(path))
        ),
        numa_balancing={"0": False, None: None}.get(text_of(root / "proc/sys/kernel/numa_balancing") or None, True),
        iommu=_iommu(root),
        redirecting=tuple(sorted(name for name, answer in answers.items() if answer)),
        unread_bridges=sum(answer is None for answer in answers.values()),
    )


def room(what: str, path: Path) -> Space | None:
    """The room for `what` where `path` is or will be; None where the file system does not tell."""
    there = next((each for each in (path, *path.absolute().parents) if each.exists()), None)
    try:
        found = os.statvfs(there) if there else None
    except OSError:
        return None

    return Space(what, str(path), found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize) if found else None


def _iommu(root: Path) -> tuple[str, ...]:
    """The ways in which the groups of NVIDIA cards are translated, each once; () without an IOMMU."""
    groups = root.glob("sys/bus/pci/devices/*/iommu_group/type")
    nvidia = (path for path in groups if text_of(path.parents[1] / "vendor") == "0x10de")
    return tuple(sorted({kind for path in nvidia if (kind := text_of(path))}))


def _bridges(root: Path) -> Iterator[Path]:
    for path in root.glob("sys/bus/pci/devices/*"):
        if text_of(path / "class").startswith(_BRIDGE):
            yield path


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
