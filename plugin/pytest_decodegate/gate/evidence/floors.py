"""Is a time possible? Bytes and operations per second beside what the machine's memory can do. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...cause import Cause, Finding
from ...metric import Json
from ..text.quantity import format_value

CEILING_MARGIN = 1.10
"""How much faster than the measured ceiling a call may be: the canary shares its device with idle contexts and reaches
90 to 95 % of what memory can do, and what a call moves is counted a little generously."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does at least: bytes moved, operations, and the ceiling in bytes per second if it was measured."""

    bytes: float
    flops: float
    memory_bytes_s: float | None


def rates(seconds: float, work: Work) -> dict[str, Json]:
    """Achieved bytes/s and FLOP/s of a call of `seconds`, and the share of the measured ceiling."""
    facts: dict[str, Json] = {"bytes_s": work.bytes / seconds, "flop_s": work.flops / seconds}
    if work.memory_bytes_s:
        facts["memory_share"] = work.bytes / seconds / work.memory_bytes_s

    return facts


def too_fast(seconds: float, work: Work, contract: Mapping[str, Json]) -> Finding | None:
    """The broken rule of a call that promises to read from memory and is faster than memory allows, else None."""
    if contract.get("cache") != "cold" or not work.memory_bytes_s:
        return None

    floor = work.bytes / (CEILING_MARGIN * work.memory_bytes_s)
    if seconds >= floor:
        return None

    text = (
        f"a call takes {format_value(seconds, 's')}, but {work.bytes / 1e6:.1f} MB cannot be read in less than "
        f"{format_value(floor, 's')} at the {work.memory_bytes_s / 1e9:.0f} GB/s measured here: faster than memory "
        "allows, so the cache served it"
    )
    return Finding(text, Cause.TOO_FAST)
