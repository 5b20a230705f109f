"""NVIDIA hardware as the kernel sees it, whatever the driver says: a broken driver must not pass for no GPU."""

from __future__ import annotations

from pathlib import Path

from .host import text_of

_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"  # display controllers, compute-only cards among them; not their audio functions, not NVSwitches


def nvidia_hardware(root: Path = Path("/")) -> str:
    """NVIDIA GPUs or their kernel driver below `root`, in words: "2 NVIDIA GPUs on PCI (0000:18:00.0 ...)"; or "".

    A container sees the hardware of its host, also where it was given none of it.
    """
    addresses = sorted(path.name for path in root.glob("sys/bus/pci/devices/*") if _is_gpu(path))
    found = []
    if addresses:
        shown = f"{addresses[0]}{' ...' if len(addresses) > 1 else ''}"
        found.append(f"{len(addresses)} NVIDIA GPU{'' if len(addresses) == 1 else 's'} on PCI ({shown})")
    if (root / "proc/driver/nvidia").exists():
        found.append("a loaded kernel driver (/proc/driver/nvidia)")

    return " and ".join(found)


def _is_gpu(device: Path) -> bool:
    vendor, kind = (text_of(device / name).lower() for name in ("vendor", "class"))
    return vendor == _VENDOR and kind.startswith(_DISPLAY_CLASS)
