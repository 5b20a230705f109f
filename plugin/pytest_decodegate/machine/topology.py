"""The topology of a machine: how its GPUs are connected, pair by pair, and to which CPUs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..metric import Json
from .gpus import Device
from .nvml import Query
from .pcie import pci_address

ANCESTORS: Final[Mapping[int, str]] = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML_TOPOLOGY_* as nvidia-smi calls them: the nearest thing that two GPUs have in common."""

_READ: Final = 0
"""NVML_P2P_CAPS_INDEX_READ; the constant of nvidia-ml-py is a tuple by mistake."""

_P2P: Final[Mapping[int, str]] = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
}
"""NVML_P2P_STATUS_* in words (nvml.h, nvmlGpuP2PStatus_t)."""


@dataclass(frozen=True, slots=True)
class GpuPair:
    """The way between two GPUs.

    ancestor: the nearest thing that they have in common, a key of ANCESTORS; None where NVML is mute. nvlinked: whether
    they reach each other over NVLink. read, write: whether one may use the memory of the other, "ok" or what NVML says
    instead. nvlinks: how many join them.
    """

    ancestor: int | None
    nvlinked: bool
    read: str | None
    write: str | None
    nvlinks: int

    def __str__(self) -> str:
        access = f"read {self.read or 'unknown'}, write {self.write or 'unknown'}"
        return f"{_way(self.ancestor) or 'unknown'}, {access}, {self.nvlinks} NVLinks"


@dataclass(frozen=True, slots=True)
class Topology:
    """The connections of a machine's GPUs, in the order of its fingerprint.

    gpus: of each its number on the machine ("gpu"), its links and the CPUs near it. pairs: by the places of the two.
    """

    gpus: tuple[Mapping[str, Json], ...] = ()
    pairs: Mapping[tuple[int, int], GpuPair] = field(default_factory=dict)

    def part(self, count: int) -> Topology:
        """The connections among the first `count` GPUs."""
        pairs = {places: pair for places, pair in self.pairs.items() if max(places) < count}
        return Topology(self.gpus[:count], pairs)

    @property
    def link(self) -> str | None:
        """The class of the slowest pair: "NVLink" if all have it, else the longest way, "PCIe-SYS"; None for one."""
        if not self.pairs:
            return None

        over_pcie = [pair.ancestor for pair in self.pairs.values() if not pair.nvlinked]
        way = _way(max((ancestor for ancestor in over_pcie if ancestor is not None), default=None))
        return f"PCIe{f'-{way}' if way else ''}" if over_pcie else "NVLink"

    @property
    def p2p(self) -> str | None:
        """Whether each GPU may read the memory of each other, "ok" or what NVML says instead; None where it is mute."""
        return "; ".join(sorted({pair.read for pair in self.pairs.values() if pair.read})) or None

    def between(self, places: Sequence[int]) -> str:
        """The numbers of the GPUs at these places: "0-1"."""
        return "-".join(str(self.gpus[place]["gpu"]) for place in places)

    @property
    def facts(self) -> dict[str, Json]:
        """What is known of each GPU, and a description of pairs with the pairs that it fits."""
        fitting: dict[str, list[str]] = {}
        for places, pair in self.pairs.items():
            fitting.setdefault(str(pair), []).append(self.between(places))

        pairs: dict[str, Json] = {
            text: "all" if len(fitting) == 1 else " ".join(names) for text, names in fitting.items()
        }
        return {"gpus": [dict(gpu) for gpu in self.gpus], "pairs": pairs}


def read_topology(nvml: Any, devices: Sequence[Device], problems: list[str], root: Path) -> Topology:
    """Ask NVML about each of `devices` and each pair, and `root`/sys for the CPUs that are near."""
    links = [_links(nvml, device, problems) for device in devices]
    gpus = tuple(
        {"gpu": device.index, **_near(device, root), **_lanes(mine)}
        for device, mine in zip(devices, links, strict=True)
    )
    pairs: dict[tuple[int, int], GpuPair] = {}
    for (place, first), (other, second) in itertools.combinations(enumerate(devices), 2):
        ask = Query(nvml, first.handle, f"GPU {first.index} and {second.index}", problems)
        over_nvlink = ask("nvmlDeviceGetP2PStatus", second.handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        both_have_links = bool(links[place] and links[other])
        pairs[place, other] = GpuPair(
            ancestor=ask("nvmlDeviceGetTopologyCommonAncestor", second.handle),
            nvlinked=both_have_links if over_nvlink is None else over_nvlink == nvml.NVML_P2P_STATUS_OK,
            read=_status(ask("nvmlDeviceGetP2PStatus", second.handle, _READ)),
            write=_status(ask("nvmlDeviceGetP2PStatus", second.handle, nvml.NVML_P2P_CAPS_INDEX_WRITE)),
            nvlinks=_between(links[place], links[other], second.bus_id),
        )

    return Topology(gpus, pairs)


def _way(ancestor: int | None) -> str | None:
    return None if ancestor is None else ANCESTORS.get(ancestor, str(ancestor))


def _status(code: int | None) -> str | None:
    return None if code is None else _P2P.get(code, "unknown")


def _links(nvml: Any, device: Device, problems: list[str]) -> Counter[tuple[str, int | None]]:
    """Active NVLinks by (bus id of the other end, or "switch"; NVLink version)."""
    ask = Query(nvml, device.handle, f"GPU {device.index}", problems)
    found: Counter[tuple[str, int | None]] = Counter()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(device.handle, link)
        except nvml.NVMLError:
            break  # past the last link, or a GPU without NVLink

        if active:
            found[_far_end(nvml, ask, link), ask("nvmlDeviceGetNvLinkVersion", link)] += 1

    return found


def _far_end(nvml: Any, ask: Query, link: int) -> str:
    if ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return "switch"

    remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
    bus_id = getattr(remote, "busId", "unknown")
    return pci_address(bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id))


def _between(first: Counter[tuple[str, int | None]], second: Counter[tuple[str, int | None]], bus_id: str) -> int:
    """NVLinks that join two GPUs: direct ones, or as many as both have to the switch."""
    direct = sum(count for (end, _), count in first.items() if end == pci_address(bus_id))
    return direct + min(_to_switch(first), _to_switch(second))


def _to_switch(links: Counter[tuple[str, int | None]]) -> int:
    return sum(count for (end, _), count in links.items() if end == "switch")


def _lanes(links: Counter[tuple[str, int | None]]) -> dict[str, Json]:
    versions: list[Json] = [*sorted({version for _, version in links if version is not None})]
    return {"nvlinks": links.total(), "nvlinks_to_switch": _to_switch(links), "nvlink_versions": versions}


def _near(device: Device, root: Path) -> dict[str, Json]:
    folder = root / "sys/bus/pci/devices" / pci_address(device.bus_id)
    return {"numa_node": _line(folder / "numa_node"), "cpus": _line(folder / "local_cpulist")}


def _line(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
