"""The topology of a machine: how its GPUs are connected, pair by pair, and to which CPUs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..metric import Json
from .gpus import ANCESTORS, Device
from .nvml import Query
from .pcie import pci_address

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
class Topology:
    """The connections of a machine's GPUs.

    p2p: whether every GPU may read the memory of every other, "ok" or what NVML says instead; None where it is mute.

    facts: of each GPU its links and the CPUs near it; of the pairs a description each, with the pairs that it fits.
    """

    p2p: str | None
    facts: Mapping[str, Json]


def read_topology(nvml: Any, devices: Sequence[Device], problems: list[str], root: Path) -> Topology:
    """Ask NVML about each of `devices` and each pair, and `root`/sys for the CPUs that are near."""
    links = {device.uuid: _links(nvml, device, problems) for device in devices}
    reads: set[str | None] = set()
    pairs: dict[str, list[str]] = {}
    for first, second in itertools.combinations(devices, 2):
        ask = Query(nvml, first.handle, f"GPU {first.index} and {second.index}", problems)
        reads.add(read := _status(ask("nvmlDeviceGetP2PStatus", second.handle, _READ)))
        write = _status(ask("nvmlDeviceGetP2PStatus", second.handle, nvml.NVML_P2P_CAPS_INDEX_WRITE))
        count = _between(links[first.uuid], links[second.uuid], second.bus_id)
        text = f"{_way(ask, second)}, read {read or 'unknown'}, write {write or 'unknown'}, {count} NVLinks"
        pairs.setdefault(text, []).append(f"{first.index}-{second.index}")

    near: list[Json] = [
        {"gpu": device.index, **_near(device, root), **_lanes(links[device.uuid])} for device in devices
    ]
    together: dict[str, Json] = {text: "all" if len(pairs) == 1 else " ".join(names) for text, names in pairs.items()}
    return Topology("; ".join(sorted(filter(None, reads))) or None, {"gpus": near, "pairs": together})


def _way(ask: Query, other: Device) -> str:
    way = ask("nvmlDeviceGetTopologyCommonAncestor", other.handle)
    return "unknown" if way is None else ANCESTORS.get(way, str(way))


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
