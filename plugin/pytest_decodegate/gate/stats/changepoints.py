"""Where a series of sessions changed its level, and whether the newest one still belongs to it.

The rule of Apache Otava (Fleming et al., "Hunter", ICPE 2023), written out: its package brings BigQuery, Postgres,
Slack and a pinned numpy. Candidates are splits of largest energy distance in sliding windows; then the weakest is
dropped until each that is left is significant and large enough. Two points a side are the least, because otherwise each
spike is two changes; the newest point alone is judged by a prediction interval instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .student import t_quantile

SIGNIFICANCE = 0.001
"""Two-sided level of Student's t on the two sides of a change point; 2 of 300 quiet series of 40 showed one."""

CANDIDATE = 0.1
"""Level of a candidate. Otava takes .01, which never finds a slow release that was soon repaired, in 21 sessions."""

LEAST_CHANGE = 0.01
"""A smaller change of level, as a fraction, is none: half of what matters, so that what matters is found."""

LEAST_POINTS = 2
WINDOW, STEP = 50, 25
"""Sessions in a window, and how far it slides: within one window two opposite changes cannot hide each other."""

EXPECTED = 0.99
"""Confidence of the interval in which the newest session is expected."""

LEAST_HISTORY, MOST_HISTORY = 5, 30
"""Sessions before the newest one that the interval needs, and those it looks back at most."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest value against those before it: its distance from their mean, and half the interval; log scale."""

    distance: float
    half_width: float
    history: int

    @property
    def unexpected(self) -> bool:
        """Whether it lies outside of the interval."""
        return abs(self.distance) > self.half_width


def change_points(values: Sequence[float]) -> list[int]:
    """Indices in `values` (logs, in order of time) at which a new level begins."""
    starts = range(0, max(1, len(values) - STEP), STEP)
    candidates = {start + split for start in starts for split in _splits(values[start : start + WINDOW])}
    points = sorted(candidates)
    while points:
        weakest = min(points, key=lambda point: _strength(*_sides(values, points, point)))
        if _strength(*_sides(values, points, weakest)) > 1:
            break

        points.remove(weakest)

    return points


def newest(values: Sequence[float], since: int) -> Newest | None:
    """The last of `values` against those from index `since` on; None when these are too few to tell."""
    history = values[since:-1][-MOST_HISTORY:]
    if len(history) < LEAST_HISTORY:
        return None

    count = len(history)
    half_width = t_quantile((1 + EXPECTED) / 2, count - 1) * stdev(history) * math.sqrt(1 + 1 / count)
    return Newest(values[-1] - fmean(history), half_width, count)


def step(values: Sequence[float], points: Sequence[int], point: int) -> float:
    """The change of level at `point`, one of `points`, as a difference of logs."""
    left, right = _sides(values, points, point)
    return fmean(right) - fmean(left)


def _splits(values: Sequence[float]) -> Iterator[int]:
    """Candidates in one window: the best split if it is any good, and those within its two sides."""
    split = _best_split(values)
    if split is None or _times_critical(values[:split], values[split:], CANDIDATE) <= 1:
        return

    yield from _splits(values[:split])
    yield split
    yield from (split + inner for inner in _splits(values[split:]))


def _best_split(values: Sequence[float]) -> int | None:
    """The split that puts the two sides furthest apart by energy distance, in quadratic time."""
    count = len(values)
    total = sum(abs(value - other) for value in values for other in values) / 2
    left, right = 0.0, total
    best, most = None, -math.inf
    for split in range(1, count):
        moved = values[split - 1]
        left += sum(abs(moved - other) for other in values[: split - 1])
        right -= sum(abs(moved - other) for other in values[split:])
        if LEAST_POINTS <= split <= count - LEAST_POINTS:
            energy = _energy(left, right, total - left - right, split, count - split)
            best, most = (split, energy) if energy > most else (best, most)

    return best


def _energy(left: float, right: float, across: float, n: int, m: int) -> float:
    """Energy statistic (Matteson and James, JASA 109, 2014) from sums of distances over pairs."""
    return n * m / (n + m) * (2 * across / (n * m) - 2 * left / (n * (n - 1)) - 2 * right / (m * (m - 1)))


def _sides(values: Sequence[float], points: Sequence[int], point: int) -> tuple[Sequence[float], Sequence[float]]:
    """The stretches before and after `point`, up to its neighbours."""
    index = points.index(point)
    start = points[index - 1] if index else 0
    end = points[index + 1] if index + 1 < len(points) else len(values)
    return values[start:point], values[point:end]


def _strength(left: Sequence[float], right: Sequence[float]) -> float:
    """Above 1 for a change between two stretches that is significant and large enough."""
    # Windows overlap, so that two candidates can be neighbours.
    if min(len(left), len(right)) < LEAST_POINTS or abs(math.expm1(fmean(right) - fmean(left))) <= LEAST_CHANGE:
        return 0.0

    return _times_critical(left, right, SIGNIFICANCE)


def _times_critical(left: Sequence[float], right: Sequence[float], significance: float) -> float:
    """Student's t of two samples, in units of its critical value."""
    df = len(left) + len(right) - 2
    distance = abs(fmean(right) - fmean(left))
    variance = sum((value - fmean(side)) ** 2 for side in (left, right) for value in side) / df
    error = math.sqrt(variance * (1 / len(left) + 1 / len(right)))
    # Values that are equal to the last digit but one have no spread to speak of.
    if error <= 1e-12:
        return math.inf if distance > 1e-9 else 0.0

    return distance / error / t_quantile(1 - significance / 2, df)
