"""Whether the rate stays where it is within a window: seconds per token in parts of it, and their trend.

(Whether it stays from window to window is asked of their values, in gate.evidence.validity.)

A trend is called by two rules at once. By ranks: few pairs of values, of an earlier and a later one, go against the
direction. If nothing moves, every order of the values is as likely whatever their distribution, heavy tails included,
so the chance of so few is a count of permutations (Mann 1945, two-sided): that is the false alarm rate. By size: the
values move by MOVED at least from the first to the last (slope by Theil 1950 and Sen 1968), since what is smaller does
no harm, and quiet windows would show ever smaller trends. So where parts scatter by a tenth of a percent, as at one
stream, both together come as good as never.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from typing import Final

from ..client.stream import Arrival

PARTS: Final = 16
"""Of a window."""

LEAST_STEPS: Final = 256
"""Tokens that a stream decodes in a window whose parts say something: 16 in each."""

FALSE_ALARMS: Final = 1 / 2500
"""Of windows in which nothing moves, at most, that seem to have a trend by ranks: 22 of 120 pairs against it are 1 in
2974."""

MOVED: Final = 0.02
"""From the first to the last, of their median: half of it is what such a trend makes of a mean."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How values in order of time move.

    change: from the first to the last, a fraction of their median. chance: of such order if nothing moves.
    """

    change: float
    chance: float

    @property
    def is_real(self) -> bool:
        """Whether it is called one."""
        return self.chance <= FALSE_ALARMS and abs(self.change) >= MOVED


def trend(values: Sequence[float]) -> Trend:
    """Of two values or more, in the order of time."""
    pairs = list(combinations(values, 2))
    against = min(sum(after <= before for before, after in pairs), sum(after >= before for before, after in pairs))
    slopes = [(values[j] - values[i]) / (j - i) for i, j in combinations(range(len(values)), 2)]
    change = statistics.median(slopes) * (len(values) - 1) / statistics.median(values)
    return Trend(change, chance_of_order(len(values), against))


@cache
def chance_of_order(count: int, against: int) -> float:
    """Share of the orders of `count` values with at most `against` pairs against one direction or the other."""
    with_inversions = [1]
    for size in range(2, count + 1):  # the size-th value goes before 0 to size - 1 of those before it
        most = len(with_inversions) + size - 1
        with_inversions = [sum(with_inversions[max(0, number - size + 1) : number + 1]) for number in range(most)]

    return min(1.0, 2 * sum(with_inversions[: against + 1]) / math.factorial(count))


def parts(streams: Sequence[Sequence[Arrival]], start_s: float, end_s: float, count: int = PARTS) -> tuple[float, ...]:
    """Seconds per token in each of `count` equally long parts of a span, over all streams while they decode.

    streams: the arrivals of each answer, (time, tokens). The tokens of an arrival count evenly over the time since the
    one before, so that it matters little where parts are cut; the first arrival is what decoding begins with. Empty if
    nobody decodes in some part.
    """
    seconds, tokens = [0.0] * count, [0.0] * count
    for arrivals in streams:
        for (before_s, _), (at_s, arrived) in pairwise(arrivals):
            for part, share, inside_s in _shares(before_s, at_s, start_s, end_s, count):
                seconds[part] += inside_s
                tokens[part] += share * arrived

    return () if 0.0 in tokens else tuple(map(lambda s, n: s / n, seconds, tokens))


def _shares(
    before_s: float, at_s: float, start_s: float, end_s: float, count: int
) -> Iterator[tuple[int, float, float]]:
    """Parts into which a time between two arrivals reaches: number, share of it, seconds."""
    length_s = (end_s - start_s) / count
    if at_s <= before_s:  # at once
        if start_s < at_s <= end_s:
            yield math.ceil((at_s - start_s) / length_s) - 1, 1.0, 0.0
        return

    first, last = (math.floor((edge_s - start_s) / length_s) for edge_s in (before_s, at_s))
    for part in range(max(first, 0), min(last, count - 1) + 1):
        inside_s = min(at_s, start_s + (part + 1) * length_s) - max(before_s, start_s + part * length_s)
        if inside_s > 0:
            yield part, inside_s / (at_s - before_s), inside_s
