"""Looks: how strict each must be when a metric is looked at more than once, and when to look."""

from __future__ import annotations

from collections.abc import Mapping
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


def planned_looks(first: int, most: int, looks: int = 3) -> tuple[int, ...]:
    """Numbers of replicates at which a verdict is looked at, each twice the last: from 6 to 24 these are 6, 12, 24.

    looks: at most so many, of the levels in LOOK_LEVELS. The last is always at `most`: what a time budget leaves out is
    the end, and a look that was planned and not taken costs no false alarm.
    """
    doubled = (min(first * 2**turn, most) for turn in range(min(looks, MOST_LOOKS) - 1))
    return tuple(sorted({*doubled, most}))
