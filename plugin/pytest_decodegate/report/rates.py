"""What was achieved beside the time: bytes, operations and bandwidths per second, and how near to the ceiling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..gate.text.quantity import format_percent, format_value

if TYPE_CHECKING:
    from ..metric import Json, Replicate

SHOWN = (
    "bytes_s",
    "flop_s",
    "memory_share",
    "hot_over_cold",
    "cold_shown",
    "algbw_bytes_s",
    "busbw_bytes_s",
    "client_error",
    "clock_mhz",
    "ttft_median_s",
    "itl_p50_s",
    "itl_p99_s",
    "output_tok_s",
)
"""Facts of a replicate that are rates of what it did, ratios to what the machine can do, an error of the client, or
what a window of a server gives beside TPOT."""

_NESTED = {"itl_p50_s": ("itl_s", "p50"), "itl_p99_s": ("itl_s", "p99")}
"""Where those lie that are no facts of their own."""


def rates(replicates: Sequence[Replicate]) -> dict[str, float]:
    """The median over replicates of each fact in SHOWN that they have."""
    found = {name: [_number(replicate.facts, name) for replicate in replicates] for name in SHOWN}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {name: median(values) for name, values in known.items() if values}


def _number(facts: Mapping[str, Json], name: str) -> float | None:
    if name in _NESTED:
        outer, inner = _NESTED[name]
        found = facts.get(outer)
        fact = found.get(inner) if isinstance(found, dict) else None
    else:
        fact = facts.get(name)

    return float(fact) if isinstance(fact, int | float) else None


def client(achieved: Iterable[Mapping[str, float]]) -> Iterator[str]:
    """The client's largest error of a run in one line; nothing where no server was measured."""
    errors = [rates["client_error"] for rates in achieved if "client_error" in rates]
    if errors:
        yield (
            f"the client reads a known TPOT up to {format_percent(max(errors, key=abs))} off on this host, subtracted "
            "from nothing"
        )


def line(achieved: Mapping[str, float]) -> str:
    """As "2.01 TB/s, 47.9 % of the memory's ceiling, hot 0.95x", or what there is of it; empty for nothing."""
    parts = []
    if "bytes_s" in achieved:
        parts.append(format_value(achieved["bytes_s"], "B/s"))
    if "memory_share" in achieved:
        parts.append(f"{format_percent(achieved['memory_share'], signed=False)} of the memory's ceiling")
    if "hot_over_cold" in achieved:
        parts.append(f"hot {achieved['hot_over_cold']:.2f}x")
    if achieved.get("cold_shown", 1.0) < 1:
        parts.append("cold not shown")
    if "busbw_bytes_s" in achieved:
        parts.append(f"busbw {format_value(achieved['busbw_bytes_s'], 'B/s')}")
    if "ttft_median_s" in achieved:
        parts.append(f"TTFT {format_value(achieved['ttft_median_s'], 's')}")
    if "itl_p50_s" in achieved:
        p50, p99 = (format_value(achieved[name], "s") for name in ("itl_p50_s", "itl_p99_s"))
        parts.append(f"between tokens {p50} (p99 {p99})")
    if "output_tok_s" in achieved:
        parts.append(format_value(achieved["output_tok_s"], "tok/s"))
    if "clock_mhz" in achieved:
        parts.append(f"at {achieved['clock_mhz']:.0f} MHz")

    return ", ".join(parts)
