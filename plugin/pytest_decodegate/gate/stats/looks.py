"""Looks: how strict each must be when a metric is looked at more than once, and when to look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple


class Levels(NamedTuple):
    """One-sided levels of one look: `worse` of calling a metric slower, `stay` of saying that it stays in its band."""

    worse: float
    stay: float


LOOK_LEVELS: Mapping[int, Levels] = {
    1: Levels(0.025, 0.05),
    2: Levels(0.0147, 0.0304),
    3: Levels(0.01105, 0.0232),
    4: Levels(0.0091, 0.0194),
    5: Levels(0.0079, 0.0169),
}
"""By planned looks, what keeps .025 and .05 over all of them (Pocock, Biometrika 64(2), 1977, his table 1: the normal
tails beyond 1.960, 2.178, 2.289, 2.361, 2.413, and beyond 1.645, 1.875, 1.992, 2.067, 2.122)."""

POCOCK_ALPHA: Mapping[int, float] = {looks: 2 * levels.worse for looks, levels in LOOK_LEVELS.items()}
"""The same of the two-sided interval of pairs, of which both ends decide at one level: .05 over all looks."""

MOST_LOOKS = max(LOOK_LEVELS)

SHARES = 100
"""Steps in which the share is rounded down that looks have in common."""

_NORMAL = NormalDist()
_HALVINGS = 40
_POINTS = 8
"""Of the midpoint rule, whose integrand is as good as a parabola: exact to six digits."""


def levels_of_looks(looks: int, shared: float) -> Levels:
    """Levels of each of so many looks (a key of LOOK_LEVELS) that keep .025 and .05 over all of them.

    shared: of the variance of a look, the share that the looks after it have too. Looks at one run share its session
    and all of the base, and where these make most of the noise a second look is hardly another chance to be wrong.
    Pocock's levels are those of looks that share half, and are never undercut.
    """
    return _levels(looks, math.floor(SHARES * min(1.0, max(0.0, shared))))


@lru_cache(maxsize=MOST_LOOKS * (SHARES + 1))
def _levels(looks: int, shares: int) -> Levels:
    angle, least = math.acos(math.sqrt(shares / SHARES)), LOOK_LEVELS[looks]
    once = LOOK_LEVELS[1]
    return Levels(*(max(low, _level(all_of_them, looks, angle)) for low, all_of_them in zip(least, once, strict=True)))


def _level(over_all: float, looks: int, angle: float) -> float:
    """Of one look, so that any of them exceeds its edge in a share `over_all` of runs: what exceeds it for the first
    time at a later look did not at the one before. angle: its cosine is the correlation of neighbouring looks.
    """
    low, high = over_all / looks, over_all
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        if level + (looks - 1) * _crosses(-_NORMAL.inv_cdf(level), angle) < over_all:
            low = level
        else:
            high = level

    return low


def _crosses(edge: float, angle: float) -> float:
    """The chance that of two standard normal values the second lies above `edge` and the first does not.

    The integral of their joint density at the edge over the correlation, which is the cosine (Sheppard, 1899).
    """
    step = angle / _POINTS
    heights = (math.exp(-(edge**2) / (1 + math.cos((n + 0.5) * step))) for n in range(_POINTS))
    return math.fsum(heights) * step / (2 * math.pi)


def planned_looks(first: int, most: int, looks: int = 3) -> tuple[int, ...]:
    """Numbers of replicates at which a verdict is looked at, each twice the last: from 6 to 24 these are 6, 12, 24.

    looks: at most so many, of the levels in LOOK_LEVELS. The last is always at `most`: what a time budget leaves out is
    the end, and a look that was planned and not taken costs no false alarm.
    """
    doubled = (min(first * 2**turn, most) for turn in range(min(looks, MOST_LOOKS) - 1))
    return tuple(sorted({*doubled, most}))
