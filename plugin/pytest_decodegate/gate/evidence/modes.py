"""Two modes of a metric: processes that come out at one of two levels, and nobody can say which one is right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .apart import GAPS

LEAST = 2
"""Processes of each mode: one by itself is apart, which is another finding."""


def two_modes(values: Sequence[float], tolerance: float) -> tuple[float, float] | None:
    """The levels (geometric means) of the two modes of process values, the lower one first; None where there is one.

    Modes lie farther apart than half the band, and GAPS times as far as the processes of each lie from one another.
    """
    logs = sorted(map(math.log, values))
    for place in range(LEAST, len(logs) - LEAST + 1):
        low, high = logs[:place], logs[place:]
        spread = max(low[-1] - low[0], high[-1] - high[0])
        if high[0] - low[-1] > max(GAPS * spread, math.log1p(tolerance) / 2):
            return _level(low), _level(high)

    return None


def _level(logs: Sequence[float]) -> float:
    return math.exp(math.fsum(logs) / len(logs))
