"""The time of a whole model from two shallower ones: an extrapolation with its interval, never a measurement.

All layers after the first are alike, so a step of L layers takes a + b L, and two depths give both. The interval knows
the noise at the two depths; it cannot know what a line does not hold, such as caches that only the whole model fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from ...errors import BadInput
from ..stats.student import half_width
from ..text.quantity import format_percent, format_value

MOST_FIXED = 0.25
"""Of the shallower model's step, what its layers may leave over. Embedding, head and sampling take 6 to 10 % at 24
layers of the rank-slice on an H200. At 8 layers the host set the pace and more than 80 % was left over: the line
through 8 and 24 then gave 4.3 ms where all 61 layers took 6.8 ms."""


@dataclass(frozen=True, slots=True)
class Depth:
    """A model of `layers` layers and its process values, in seconds."""

    layers: int
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Seconds at `layers` layers, from `depths`; lo, hi: its 95 % interval.

    fixed: of the shallower step, the fraction that the line gives to no layer.
    """

    layers: int
    depths: tuple[int, int]
    value: float
    lo: float
    hi: float
    fixed: float

    @property
    def doubt(self) -> str | None:
        """Why the line says nothing of more layers, or None."""
        if abs(self.fixed) <= MOST_FIXED:
            return None

        shallow, deep = self.depths
        share = format_percent(self.fixed, signed=False)
        return (
            f"not extrapolated to {self.layers} layers: of a step of {shallow} layers, {share} would be none of its "
            f"layers' by the line through {shallow} and {deep}; so shallow a model waits for its host, or one of the "
            "two was disturbed; measure deeper ones"
        )

    def __str__(self) -> str:
        low, high, value = (format_value(max(seconds, 0.0), "s") for seconds in (self.lo, self.hi, self.value))
        shallow, deep = self.depths
        return f"{value} [{low}, {high}] at {self.layers} layers, extrapolated from {shallow} and {deep}, not measured"


def extrapolate(depth: Depth, other: Depth, layers: int) -> Extrapolation:
    """Follow the line through two depths to `layers`; raises BadInput for equal depths or fewer than two values.

    The result is a weighted sum of two means, so their variances add with the squares of the weights.
    """
    if depth.layers == other.layers or min(len(depth.values), len(other.values)) < 2:
        raise BadInput(
            f"extrapolation to {layers} layers: needs two depths with two values each, got {len(depth.values)} at "
            f"{depth.layers} and {len(other.values)} at {other.layers} layers"
        )

    shallow, deep = sorted((depth, other), key=lambda each: each.layers)
    slope = (fmean(deep.values) - fmean(shallow.values)) / (deep.layers - shallow.layers)
    fixed = 1 - slope * shallow.layers / fmean(shallow.values)
    weight = (layers - depth.layers) / (other.layers - depth.layers)
    parts = ((1 - weight, depth.values), (weight, other.values))
    value = sum(share * fmean(values) for share, values in parts)
    half = half_width([(share**2 * variance(values) / len(values), len(values) - 1) for share, values in parts])
    return Extrapolation(layers, (shallow.layers, deep.layers), value, value - half, value + half, fixed)
