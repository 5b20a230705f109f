"""The metrics of one run weighed together: which of them are slower, and whether all moved. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from .looks import LOOK_LEVELS
from .rules import Outcome
from .student import standard_error, t_quantile, t_upper_tail

_LEVELS = LOOK_LEVELS[1]

LEVEL = _LEVELS.worse
"""One-sided level at which metrics are called slower, for all of them together."""

SHIFT_BAND = 0.01
"""Tolerated of the common shift, a fraction: less than any one band, because many metrics say it together."""

SHARED_SESSION_SD = 0.0015
"""Of what metrics of one session have in common, a fraction: .08 to .16 % over sessions of two hosts."""

LEAST_SHIFTED = 5
"""With fewer metrics a common shift says no more than they do."""


def of_both_sides(sessions: int) -> float:
    """Times the noise of one session that of a run beside the mean of so many stored ones."""
    return math.sqrt(1 + 1 / sessions)


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

    error, df: standard error of `change`, and its degrees of freedom. It is looked at once. A Weighed, and a Foreseen.
    """

    change: float
    error: float
    df: float
    lo: float = field(init=False)
    hi: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lo", self.change - self.reach(_LEVELS.worse))
        object.__setattr__(self, "hi", self.change + self.reach(_LEVELS.stay))

    def reach(self, level: float) -> float:
        """How far chance moves the change to one side, but for a share `level` of all runs."""
        return self.error * t_quantile(1 - level, self.df)

    @property
    def confidence(self) -> float:
        """Nominal confidence of the interval, whose ends have levels of their own."""
        return 1 - _LEVELS.worse - _LEVELS.stay

    @property
    def p_worse(self) -> float:
        """One-sided p of "not slower", as Comparison.p_worse."""
        return min(1.0, t_upper_tail(self.change / self.error, self.df))


@dataclass(frozen=True, slots=True)
class JointPart:
    """The noise of one of several metrics that say something together.

    error, df: standard error of its log change, + is worse, and its degrees of freedom. in_step: whether one number of
    the session, how fast the memory of the card is, moves it and all others of which this holds. counts: whether its
    noise is asked about; of one of which it is not, only its weight in a median matters.
    """

    error: float
    df: float = math.inf
    in_step: bool = False
    counts: bool = True


def joint_error(parts: Sequence[tuple[float, JointPart]], shared: float) -> tuple[float, float]:
    """Standard error of a weighted sum of log changes, and its degrees of freedom; parts: each with its weight.

    Noise of parts that move in step adds up, and that of the others averages out. shared: an error of the whole sum.
    """
    counted = [(weight, part) for weight, part in parts if part.counts]
    own = math.hypot(shared, *[weight * part.error for weight, part in counted if not part.in_step])
    in_step = [(weight * part.error, part.df) for weight, part in counted if part.in_step]
    terms = [(own**2, max(1.0, len(parts) - 1.0))]
    if in_step:
        terms.append((math.fsum([error for error, _ in in_step]) ** 2, min([df for _, df in in_step])))

    return standard_error(terms)


def common_shift(changes: Sequence[float], parts: Sequence[JointPart], sessions: int) -> JointChange | None:
    """The common shift of metrics of one kind; None of fewer than LEAST_SHIFTED.

    changes: log changes, + is worse. parts: their noise, errors above zero. sessions: of the base, of the metric with
    the fewest.
    """
    if len(changes) < LEAST_SHIFTED:
        return None

    shift = median(changes)
    error, df = error_of_shift(parts, sessions, _scatter_of_median(changes, shift))
    return JointChange(shift, error, df)


def error_of_shift(parts: Sequence[JointPart], sessions: int, scatter: float = 0.0) -> tuple[float, float]:
    """Standard error of the median of log changes, and its degrees of freedom; as of `common_shift`.

    scatter: what the changes themselves say of it. The error of a median of normal values is 1 over twice the sum of
    their densities at the middle (Huber and Ronchetti, "Robust Statistics", 2009, chapter 3), and it follows some of
    them by their part of that sum.
    """
    density = math.fsum([1 / part.error for part in parts])
    counted = [part for part in parts if part.counts]
    own = max(math.sqrt(math.pi / 2 * len(counted) / len(parts)) / density, scatter)
    # Each weight times its error is the same: those in step pull the median by their number over the sum.
    in_step = [(1 / part.error / density, part) for part in counted if part.in_step]
    _, df = joint_error(in_step, 0.0) if in_step else (0.0, math.inf)
    pull = len(in_step) / density
    shared = SHARED_SESSION_SD * of_both_sides(sessions)
    return standard_error([(own**2 + shared**2, len(parts) - 1.0), (pull**2, df)])


def _scatter_of_median(changes: Sequence[float], shift: float) -> float:
    """The same from how far the changes lie apart: where errors are larger than was thought, this one knows."""
    spread = median([abs(change - shift) for change in changes]) / 0.6745
    return math.sqrt(math.pi / 2) * spread / math.sqrt(len(changes))
