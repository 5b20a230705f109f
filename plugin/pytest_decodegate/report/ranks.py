"""The ranks beside each other: where each works, and how long it needs for local work that is the same on all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..gate.evidence.stragglers import LEAST_APART
from ..gate.text.quantity import format_value
from .table import table

if TYPE_CHECKING:
    from ..gate.result import Result
    from ..metric import Json

HEADER = ("rank", "host", "GPU", "address", "PCIe", "SM clock", "own time", "of others")


def rank_tables(results: Sequence[Result], *, always: bool) -> Iterator[str]:
    """A table for each result that has ranks: all with `always`, else those where a rank is apart from the others."""
    for result in results:
        rows = [rank for rank in result.ranks if isinstance(rank, Mapping)]
        if rows and (always or any(map(_is_apart, rows))):
            yield f"{result.judgement.metric.name}: local work of each rank, the same on all:"
            yield from (f"  {line}" for line in table([HEADER, *map(_row, rows)]))


def _is_apart(rank: Mapping[str, Json]) -> bool:
    relative = rank.get("relative")
    return isinstance(relative, float) and relative > 1 + LEAST_APART


def _row(rank: Mapping[str, Json]) -> tuple[str, ...]:
    own_s, relative, clock = rank.get("own_s"), rank.get("relative"), rank.get("sm_clock_mhz")
    return (
        str(rank.get("rank")),
        _text(rank.get("host")),
        _text(rank.get("gpu")).partition(" (")[0],
        _text(rank.get("bus_id")),
        _text(rank.get("pcie")),
        f"{clock:g} MHz" if isinstance(clock, int | float) else "-",
        format_value(own_s, "s") if isinstance(own_s, int | float) else "-",
        f"{relative:.2f}x" if isinstance(relative, int | float) else "-",
    )


def _text(value: Json) -> str:
    return "-" if value is None else str(value)
