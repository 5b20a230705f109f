"""Does a call that promises to read from memory do so? By its size, or by how much faster its hot twin is. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...cause import Cause, Finding

SHOWN = "cold_shown"
"""Fact of a replicate whose contract says "cold": whether that is more than a promise."""

HOT_RATIO = 0.95
"""A hot twin that takes less of the cold time shows that the cold one waits for memory."""

MEMORY_BOUND = 0.5
"""Share of what memory can do, from where on a cold call would be slower than its hot twin: of 47 that were recorded
those above take 0.68 to 0.87 of it hot."""

FITS, EXCEEDS = 0.5, 2.0
"""Of the L2: up to the first a call's data stay there, from the second on most of them cannot."""


@dataclass(frozen=True, slots=True)
class Coldness:
    """What is known of a call: bytes that it reads, bytes of the L2, its hot twin's time over its own, and which share
    of what memory can do it reaches; None where that is not known.
    """

    read_bytes: float
    l2_bytes: int
    hot_over_cold: float | None
    memory_share: float | None

    @property
    def shown(self) -> bool:
        """Whether it is shown to read from memory: by its size, or by the time of its twin if that is all hot."""
        if self.read_bytes >= EXCEEDS * self.l2_bytes > 0:
            return True

        return self._has_hot_twin and (self.hot_over_cold or 1.0) <= HOT_RATIO

    @property
    def _has_hot_twin(self) -> bool:
        return self.hot_over_cold is not None and self.read_bytes <= FITS * self.l2_bytes

    def broken(self) -> Finding | None:
        """The broken rule of a call that gets as much as only memory's limit explains, and is no slower than hot."""
        if self.shown or not self._has_hot_twin or (self.memory_share or 0.0) < MEMORY_BOUND:
            return None

        text = (
            f"a call is to read {self.read_bytes / 1e6:.1f} MB from memory, at {self.memory_share:.0%} of what that "
            f"can do, but with the data in the cache it takes {self.hot_over_cold:.2f} times as long: the cache served "
            "both; check the copies that its calls take turns on"
        )
        return Finding(text, Cause.NOT_COLD)
