"""The location of this rank: its host and its GPU with address, link and clock, as its own node knows them."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...metric import Json


def location(cuda: bool, root: Path = Path("/")) -> dict[str, Json]:
    """Host and local rank; with `cuda` also the GPU as the watch of a measurement describes one (`GpuTally.facts`).

    "gpu", "bus_id", "pcie" and "sm_clock_mhz", each None where this node does not tell. The link and the clock are read
    now: ask while the GPU is still at work, or an idle one will answer.
    """
    place: dict[str, Json] = {"host": socket.gethostname(), "local_rank": int(os.environ.get("LOCAL_RANK", "0"))}
    return {**place, **_gpu(root)} if cuda else place


def _gpu(root: Path) -> dict[str, Json]:
    import torch

    index = torch.cuda.current_device()
    card = torch.cuda.get_device_properties(index)
    uuid = getattr(card, "uuid", None)
    bus_id = _bus_id(card)
    clock = _clock_mhz(index)
    return {
        "gpu": f"GPU {index} (GPU-{uuid})" if uuid else f"GPU {index}",
        "bus_id": bus_id,
        "pcie": _link(root / "sys/bus/pci/devices" / bus_id) if bus_id else None,
        "sm_clock_mhz": {"median": clock} if clock else None,
    }


def _bus_id(card: Any) -> str | None:
    """As "0000:18:00.0"; None where torch is too old to tell (before 2.6)."""
    try:
        return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    except AttributeError:
        return None


def _clock_mhz(index: int) -> int | None:
    import torch

    with suppress(Exception):  # torch asks NVML, whose binding the ranks' Python may lack; there is no other way to ask
        return int(torch.cuda.clock_rate(index))

    return None


def _link(folder: Path) -> str | None:
    """As "32.0 GT/s x16", from sysfs."""
    with suppress(OSError):
        speed, width = ((folder / f"current_link_{name}").read_text().strip() for name in ("speed", "width"))
        return f"{speed.removesuffix(' PCIe')} x{width}"

    return None
