"""The time of a collective against the world size, beside both bandwidths as nccl-tests defines them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..gate.evidence.bandwidth import CROSSINGS, bus_factor
from ..gate.text.quantity import format_value
from ..metric import Json
from .table import table

HEADER = ("collective", "world size", "per call", "of smallest", "payload", "algbw", "busbw")

WORLD = re.compile(r"(?P<before>[\[,])world=\d+(?P<after>[\],])")
"""The world size in the name of a metric, as "[world=8]", "[m=2,world=8]" or "[world=8,m=2]"."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One world size: seconds per call, payload in bytes as nccl-tests counts it, algbw and busbw in bytes/s."""

    world_size: int
    seconds: float
    payload_bytes: float
    algbw_bytes_s: float
    busbw_bytes_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The same collective by the same path at several world sizes, by size. name: of its metrics, without the size."""

    name: str
    points: tuple[ScalingPoint, ...]


def curves(measured: Iterable[tuple[str, Mapping[str, Json], float]]) -> list[Curve]:
    """One for each collective of `measured` that was measured at two or more world sizes, in the order of `measured`.

    measured: (name of the metric, its contract, seconds per call). Metrics that differ in anything but the world size
    have different names; what is no collective is left out. Of two with the same name and size the last one counts.
    """
    found: dict[str, dict[int, ScalingPoint]] = {}
    for name, contract, seconds in measured:
        if (point := _point(contract, seconds)) is not None:
            found.setdefault(without_world(name), {})[point.world_size] = point

    return [
        Curve(name, tuple(points[size] for size in sorted(points))) for name, points in found.items() if len(points) > 1
    ]


def _point(contract: Mapping[str, Json], seconds: float) -> ScalingPoint | None:
    collective, size, payload = contract.get("collective"), contract.get("world_size"), contract.get("bytes")
    if not isinstance(collective, str) or collective not in CROSSINGS:
        return None
    if not (isinstance(size, int) and isinstance(payload, int | float)):
        return None

    algbw = payload / seconds
    return ScalingPoint(size, seconds, payload, algbw, algbw * bus_factor(collective, size))


def without_world(name: str) -> str:
    """As "allreduce[m=2]" of "allreduce[m=2,world=8]", and "allreduce" of "allreduce[world=8]"."""

    def closed(found: re.Match[str]) -> str:
        match found["before"], found["after"]:
            case "[", "]":
                return ""
            case "[", ",":
                return "["
            case _:
                return found["after"]

    return WORLD.sub(closed, name)


def scaling_table(found: Sequence[Curve]) -> Iterator[str]:
    """One table of all curves, each under its name; nothing where there is none."""
    if found:
        yield "collectives against the world size:"
        yield from (f"  {line}" for line in table([HEADER, *(row for curve in found for row in _rows(curve))]))


def _rows(curve: Curve) -> Iterator[tuple[str, ...]]:
    smallest = curve.points[0]
    for point in curve.points:
        yield (curve.name if point is smallest else "", *_cells(point, smallest))


def _cells(point: ScalingPoint, smallest: ScalingPoint) -> tuple[str, ...]:
    return (
        str(point.world_size),
        format_value(point.seconds, "s"),
        f"{point.seconds / smallest.seconds:.2f}x",
        f"{point.payload_bytes:,.0f} B",
        format_value(point.algbw_bytes_s, "B/s"),
        format_value(point.busbw_bytes_s, "B/s"),
    )
