"""The PCIe link of a card: what it ran at under load, beside what card and slot can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_LOOKS = 3
"""Looks at a busy GPU before its link is judged: a link that has just woken up is still training."""


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A link of a generation (1 to 6 ...) with `width` lanes."""

    generation: int
    width: int

    def __str__(self) -> str:
        return f"gen {self.generation} x{self.width}"

    @property
    def speed(self) -> int:
        """In units of one lane of generation 1, roughly: each generation doubles the rate."""
        return self.width << (self.generation - 1)

    def is_below(self, most: PcieLink) -> bool:
        """Whether it is of a lower generation, or narrower."""
        return self.generation < most.generation or self.width < most.width


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of a card: its number on this machine, its address, and the most that its link can do, if known.

    index: whatever CUDA_VISIBLE_DEVICES makes of it. bus_id: as the kernel writes it, "0000:65:00.0".
    """

    index: int
    bus_id: str
    most: PcieLink | None


def pci_address(bus_id: str) -> str:
    """NVML's "00000000:65:00.0" as the kernel and lspci write it: "0000:65:00.0"."""
    return bus_id[-len("0000:65:00.0") :].lower()


def link(generation: object, width: object) -> PcieLink | None:
    """The link, or None where NVML does not tell both."""
    return PcieLink(generation, width) if isinstance(generation, int) and isinstance(width, int) else None


def reached(looks: Sequence[PcieLink]) -> PcieLink | None:
    """The fastest that was seen: an idle link falls back to generation 1, and wakes up with the load."""
    return max(looks, key=lambda link: link.speed, default=None)


def slow_link(label: str, looks: Sequence[PcieLink], most: PcieLink | None) -> str | None:
    """A sentence if the link of the GPU `label` stayed below `most` in all of `looks` at it while busy."""
    best = reached(looks)
    if most is None or best is None or len(looks) < LEAST_LOOKS:
        return None
    if not best.is_below(most):
        return None

    return (
        f"{label}: its PCIe link runs at {best} under load, of {most} that card and slot can do; "
        "reseat the card or its riser, and look at the slot's settings in the BIOS"
    )
