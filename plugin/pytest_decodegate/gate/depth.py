"""The time of a whole model from two shallower ones: an extrapolation with its interval, never a measurement.

All layers after the first are alike, so a step of L layers takes a + b L, and two depths give both. The interval knows
the noise at the two depths; it cannot know what a line does not hold, such as caches that only the whole model fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from ..errors import BadInput
from .quantity import format_value
from .student import half_width


@dataclass(frozen=True, slots=True)
class Depth:
    """A model of `layers` layers and its process values, in seconds."""

    layers: int
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Seconds at `layers` layers, from `depths`; lo, hi: its 95 % interval."""

    layers: int
    depths: tuple[int, int]
    value: float
    lo: float
    hi: float

    def __str__(self) -> str:
        low, high, value = (format_value(max(one, 0.0), "s") for one in (self.lo, self.hi, self.value))
        shallow, deep = self.depths
        return f"{value} [{low}, {high}] at {self.layers} layers, extrapolated from {shallow} and {deep}, not measured"


def extrapolate(one: Depth, other: Depth, layers: int) -> Extrapolation:
    """Follow the line through two depths to `layers`; raises BadInput for equal depths or fewer than two values.

    The result is a weighted sum of two means, so their variances add with the squares of the weights.
    """
    if one.layers == other.layers or min(len(one.values), len(other.values)) < 2:
        raise BadInput(
            f"extrapolation to {layers} layers: needs two depths with two values each, got {len(one.values)} at "
            f"{one.layers} and {len(other.values)} at {other.layers} layers"
        )

    weight = (layers - one.layers) / (other.layers - one.layers)
    parts = ((1 - weight, one.values), (weight, other.values))
    value = sum(share * fmean(values) for share, values in parts)
    half = half_width([(share**2 * variance(values) / len(values), len(values) - 1) for share, values in parts])
    return Extrapolation(layers, (one.layers, other.layers), value, value - half, value + half)
