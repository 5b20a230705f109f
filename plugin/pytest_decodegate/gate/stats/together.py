"""The metrics of one run weighed together: which of them are slower, and whether all moved. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from .looks import LOOK_LEVELS
from .rules import Outcome
from .student import t_quantile, t_upper_tail

_LEVELS = LOOK_LEVELS[1]

LEVEL = _LEVELS.worse
"""One-sided level at which metrics are called slower, for all of them together."""

SHIFT_BAND = 0.01
"""Tolerated of the common shift, a fraction: less than any one band, because many metrics say it together."""

SHARED_SESSION_SD = 0.0015
"""Of what metrics of one session have in common, a fraction: .08 to .16 % over sessions of two hosts."""

LEAST_SHIFTED = 5
"""With fewer metrics a common shift says no more than they do."""


def holm(p_values: Iterable[float]) -> list[float]:
    """Holm's adjusted p, in the order given: below a level, each hypothesis is refused at that level for all together.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2), 1979.
    """
    given = list(p_values)
    adjusted = [0.0] * len(given)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(given)), key=given.__getitem__)):
        largest = max(largest, min(1.0, given[index] * (len(given) - rank)))
        adjusted[index] = largest

    return adjusted


def uphold(p_values: Iterable[float]) -> list[bool]:
    """Which metrics of a run are slower, weighed together by Holm at LEVEL; p of every metric that was judged.

    p is `p_worse`, one-sided of "not slower".
    """
    return [p <= LEVEL for p in holm(p_values)]


def upheld_alone(p_worse: float, metrics: int) -> bool:
    """Whether Holm upholds a metric of a run of so many, whatever the others turn out to say.

    For whoever must decide on a next look before all metrics of the run are measured.
    """
    return p_worse * metrics <= LEVEL


def settled(outcome: Outcome, p_worse: float, metrics: int) -> bool:
    """Whether a look at a metric, of a run of so many, ends its measuring; if not it takes its next look.

    A REGRESSED that Holm may yet refuse is as open as an INCONCLUSIVE one.
    """
    return outcome != "INCONCLUSIVE" and (outcome != "REGRESSED" or upheld_alone(p_worse, metrics))


@dataclass(frozen=True, slots=True)
class JointChange:
    """How far several metrics have moved together: the median of their log changes, or that of their sum; + is worse.

    error: standard error of `change`. metrics: how many it is of. It is looked at once. A Weighed.
    """

    change: float
    error: float
    metrics: int
    lo: float = field(init=False)
    hi: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lo", self.change - self.error * t_quantile(1 - _LEVELS.worse, self._df))
        object.__setattr__(self, "hi", self.change + self.error * t_quantile(1 - _LEVELS.stay, self._df))

    @property
    def _df(self) -> float:
        return self.metrics - 1.0

    @property
    def confidence(self) -> float:
        """Nominal confidence of the interval, whose ends have levels of their own."""
        return 1 - _LEVELS.worse - _LEVELS.stay

    @property
    def p_worse(self) -> float:
        """One-sided p of "not slower", as Comparison.p_worse."""
        return min(1.0, t_upper_tail(self.change / self.error, self._df))


def common_shift(changes: Sequence[float], errors: Sequence[float], sessions: int) -> JointChange | None:
    """The common shift of metrics of one kind; None of fewer than LEAST_SHIFTED.

    changes: log changes, + is worse. errors: their standard errors, above zero. sessions: of the base, of the metric
    with the fewest.
    """
    if len(changes) < LEAST_SHIFTED:
        return None

    shift = median(changes)
    shared = SHARED_SESSION_SD * math.sqrt(1 + 1 / sessions)
    own = max(_error_of_median(errors), _scatter_of_median(changes, shift))
    return JointChange(shift, math.hypot(own, shared), len(changes))


def _error_of_median(errors: Sequence[float]) -> float:
    """Standard error of the median of normal values with these standard errors: 1 over twice the sum of their densities
    at the middle (Huber and Ronchetti, "Robust Statistics", 2009, chapter 3).
    """
    return math.sqrt(math.pi / 2) / math.fsum([1 / error for error in errors])


def _scatter_of_median(changes: Sequence[float], shift: float) -> float:
    """The same from how far the changes lie apart: where errors are larger than was thought, this one knows."""
    spread = median([abs(change - shift) for change in changes]) / 0.6745
    return math.sqrt(math.pi / 2) * spread / math.sqrt(len(changes))
