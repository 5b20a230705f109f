"""Numbers as people read them: a value with its unit, a change in percent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_SCALES: Mapping[str, Sequence[tuple[float, str]]] = {
    "%": ((1.0, "%"),),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "tok/s": ((1.0, "tok/s"),),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
}


def format_value(value: float, unit: str) -> str:
    """`value` (in one of metric.UNITS) with three significant digits and a prefix that fits: "78.1 us"."""
    for scale, name in _SCALES[unit]:  # noqa: B007 - the last one is for all that is smaller
        if value >= scale:
            break

    return f"{_three_digits(value / scale)} {name}"


_MOST_DECIMALS = 4


def format_percent(fraction: float, *, signed: bool = True, beside: float | None = None) -> str:
    """`fraction` in percent with one decimal, two below one percent: "+5.2 %", "-0.31 %".

    beside: another fraction, such as a band, whose size the text must not seem to have: more decimals then, up to four.
    """
    percent = 100 * fraction
    decimals = 1 if abs(percent) >= 1 else 2
    if beside is not None and abs(beside) != abs(fraction):
        while decimals < _MOST_DECIMALS and round(abs(percent), decimals) == round(abs(100 * beside), decimals):
            decimals += 1

    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(percent, decimals) + 0.0:{'+' if signed else ''}.{decimals}f} %"


def format_interval(lo: float | None, hi: float | None, *, beside: float | None = None) -> str:
    """Both ends in percent, "+1.0 % .. +2.5 %"; "-" for an interval that is not known. beside: as of format_percent."""
    if lo is None or hi is None:
        return "-"

    return f"{format_percent(lo, beside=beside)} .. {format_percent(hi, beside=beside)}"


def format_band(tolerance: float) -> str:
    """A tolerance fraction as people write it: "2 %", "2.5 %"."""
    return f"{100 * tolerance:g} %"


def rounded_up_band(tolerance: float) -> float:
    """The next tolerance above, in steps of 0.1 %: a band that a user would type."""
    return math.floor(1000 * tolerance + 1) / 1000


def _three_digits(value: float) -> str:
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"
