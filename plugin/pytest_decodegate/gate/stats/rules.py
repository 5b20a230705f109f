"""The statistics of the gate, as pure functions: process values in, a log change with its interval and an outcome out.

Everything works on y = log(process value), its sign folded so that a larger y is worse: then a change is a difference,
units drop out, and rates and times obey one rule. A new run is one session; a stored file may hold several.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ...metric import Better
from .looks import LOOK_LEVELS, Levels, levels_of_looks
from .noise import NO_VARIANCE, ClassNoise, Noise, Sessions, Spread, class_noise, mean
from .recorded import NoiseClass
from .student import standard_error, t_quantile, t_upper_tail

Outcome = Literal["PASS", "IMPROVED", "REGRESSED", "INCONCLUSIVE"]

MOST_REPLICATES = 30
MOST_SESSIONS = 10

RARELY = 0.0005
"""How seldom an unchanged metric may fail to pass by chance, so that a hundred of them pass together."""

RARELY_TOGETHER = 0.005
"""The same of metrics that one number of their session moves: they fail together, and count as one."""


class Interval(Protocol):
    """A log change with its interval, + is worse."""

    @property
    def change(self) -> float: ...  # noqa: D102 - described above

    @property
    def lo(self) -> float: ...  # noqa: D102 - as above

    @property
    def hi(self) -> float: ...  # noqa: D102 - as above


class Weighed(Interval, Protocol):
    """An interval with what is behind it. error: standard error of the change. confidence: nominal, of the interval.

    p_worse: one-sided p of "not slower", over all planned looks.
    """

    @property
    def error(self) -> float: ...  # noqa: D102 - described above

    @property
    def confidence(self) -> float: ...  # noqa: D102 - as above

    @property
    def p_worse(self) -> float: ...  # noqa: D102 - as above


class Foreseen(Weighed, Protocol):
    """What an unchanged run would give. df: of the error."""

    @property
    def df(self) -> float: ...  # noqa: D102 - described above

    def reach(self, level: float) -> float:
        """How far chance moves the change to one side, but for a share `level` of all runs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """New sessions (a run is one) against stored sessions, on the log scale, + is worse.

    change: mean of the new session means minus the mean of the stored ones.
    new_counts, base_counts: processes of each session. looks: planned, a key of LOOK_LEVELS.
    error, df: standard error of the change, and its degrees of freedom (Satterthwaite).
    tails: these, and those of a part of the noise of which less is known: what is added to that must not make the whole
    look surer.
    levels: of this look.
    lo: what the change is above, but for the level of calling it worse. hi: what it is below, but for that of staying.
    """

    change: float
    noise: Noise
    new_counts: tuple[int, ...]
    base_counts: tuple[int, ...]
    looks: int
    error: float = field(init=False)
    df: float = field(init=False)
    tails: tuple[tuple[float, float], ...] = field(init=False, repr=False)
    levels: Levels = field(init=False, repr=False)
    lo: float = field(init=False)
    hi: float = field(init=False)

    def __post_init__(self) -> None:
        terms = self._terms()
        error, df = standard_error(terms)
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "df", df)
        known = [(math.sqrt(variance), own) for variance, own in terms if own < df and variance > NO_VARIANCE]
        object.__setattr__(self, "tails", ((error, df), *known))
        levels = levels_of_looks(self.looks, self._shared(error))
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "lo", self.change - self.reach(levels.worse))
        object.__setattr__(self, "hi", self.change + self.reach(levels.stay))

    def _terms(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Variance of the change and its degrees of freedom: what sessions add, and what processes do."""
        new, base = self.new_counts, self.base_counts
        session = self.noise.session.value * (1 / len(new) + 1 / len(base))
        process = self.noise.process.value * (_inverse(new) + _inverse(base))
        return (session, self.noise.session.df), (process, self.noise.process.df)

    def _shared(self, error: float) -> float:
        """Share of the variance that later looks, of more processes of the new sessions, have too."""
        own = self.noise.process.value * _inverse(self.new_counts)
        return 1 - own / error**2 if error else 1.0

    def reach(self, level: float) -> float:
        """How far chance moves the change to one side, but for a share `level` of all runs."""
        return max([t_quantile(1 - level, df) * error for error, df in self.tails if error], default=0.0)

    @property
    def confidence(self) -> float:
        """That the change lies between `lo` and `hi`, each of which has a level of its own."""
        return 1 - sum(self.levels)

    @property
    def p_worse(self) -> float:
        """One-sided p of "not slower" over all planned looks: below the level of one exactly where `lo` is above 0.

        The p of this look times what the level of one was lowered by.
        """
        if self.error == 0:
            return 0.0 if self.change > 0 else 1.0

        lowered = LOOK_LEVELS[1].worse / self.levels.worse
        beyond = max([t_upper_tail(abs(self.change) / error, df) for error, df in self.tails])
        return min(1.0, lowered * (beyond if self.change > 0 else 1 - beyond))


def _inverse(counts: tuple[int, ...]) -> float:
    """Share of the process variance in the mean of session means."""
    return sum([1 / count for count in counts]) / len(counts) ** 2


@dataclass(frozen=True, slots=True)
class Settlement:
    """What would have settled an open comparison, had the change stayed as it is; None is "nothing up to the cap".

    replicates: of the new run, pairs where two stacks are measured in turn. sessions: of the baseline, of each side
    where both are stored. tolerance: the narrowest band that is shown, as a fraction; None without a noise.
    seconds: that so many replicates take in all, where a time budget ended them.
    """

    replicates: int | None
    sessions: int | None
    tolerance: float | None
    seconds: float | None = None


def worse_logs(values: Iterable[float], better: Better) -> tuple[float, ...]:
    """Logs of `values` with the sign folded: a larger result is worse."""
    sign = 1.0 if better == "lower" else -1.0
    return tuple([sign * math.log(value) for value in values])


def compare(
    new: Sequence[float], base: Sessions, peers: Iterable[Spread], noise_class: NoiseClass, looks: int
) -> Comparison:
    """Compare log process values of a run with stored sessions; `peers` are the other metrics of the class."""
    own = Spread.of(base, [new])
    return compare_sessions([new], base, own, class_noise([own, *peers], noise_class), looks)


def compare_sessions(new: Sessions, base: Sessions, own: Spread, fitted: ClassNoise, looks: int) -> Comparison:
    """Compare stored sessions with those of a reference; with the sides swapped the change turns its sign.

    own: `Spread.of` both sides, which whoever compares many metrics has already. fitted: to the class of the metric.
    """
    return Comparison(
        change=mean(list(map(mean, new))) - mean(list(map(mean, base))),
        noise=fitted.of(own),
        new_counts=tuple(map(len, new)),
        base_counts=tuple(map(len, base)),
        looks=looks,
    )


def foresee(new_counts: Sequence[int], base: Sessions, fitted: ClassNoise, looks: int) -> Comparison:
    """The comparison that unchanged sessions (a run is one) would give: its `hi` is what can be resolved.

    new_counts: processes of each. fitted: to the stored sessions of the class of the metric.

    A band that is not wider cannot be shown to hold; a smaller change cannot be told from noise.
    """
    return Comparison(0.0, fitted.of(Spread.of(base)), tuple(new_counts), tuple(map(len, base)), looks)


def narrowest_band(foreseen: Foreseen, rarely: float) -> float:
    """The narrowest band, as a fraction, in which a metric stays when nothing changes; `foreseen` as by `foresee`.

    `hi` has to stay inside of it, and moves with a change that chance alone makes: further only as `rarely` as said.
    """
    return math.expm1(foreseen.hi + foreseen.reach(rarely))


def rarely(found: NoiseClass) -> float:
    """How seldom an unchanged metric of a class may fail to pass by chance."""
    return RARELY_TOGETHER if found.streams else RARELY


def decide(comparison: Interval, tolerance: float) -> Outcome:
    """The rule: being inside the band must be shown, and so must being worse."""
    band = math.log1p(tolerance)
    if comparison.change > band and comparison.lo > 0:
        return "REGRESSED"
    if comparison.hi < 0 and comparison.change < -band:
        return "IMPROVED"

    return "PASS" if comparison.hi < band else "INCONCLUSIVE"


def confirmed(first: Outcome, fresh: Outcome, together: Outcome) -> Outcome:
    """What a REGRESSED or IMPROVED is once fresh replicates are judged by themselves, and then all `together`.

    It stands if the fresh ones say the same. Otherwise all together may show that the metric stays in its band, and no
    more: what was seen first was chosen for being far off.
    """
    if fresh == first:
        return first

    return "PASS" if together == "PASS" else "INCONCLUSIVE"


def surely_found(tolerance: float, lo: float, hi: float) -> float:
    """The smallest slowdown that is found almost surely where the interval is [lo, hi], a fraction.

    REGRESSED needs a change beyond the band and an interval above zero; chance hides half an interval of it at most.
    """
    half = (hi - lo) / 2
    return max(tolerance, half) + half


def settle(comparison: Comparison, tolerance: float) -> Settlement:
    """What would have settled an INCONCLUSIVE comparison: its noise and change are taken as they are."""
    largest = max(comparison.new_counts)
    more = (_with_replicates(comparison, n) for n in range(largest + 1, MOST_REPLICATES + 1))
    known = range(len(comparison.base_counts) + 1, MOST_SESSIONS + 1)
    longer = (_with_sessions(comparison, k) for k in known)
    return Settlement(
        replicates=next((max(each.new_counts) for each in more if _settled(each, tolerance)), None),
        sessions=next((len(each.base_counts) for each in longer if _settled(each, tolerance)), None),
        tolerance=math.expm1(comparison.hi),
    )


def _settled(comparison: Comparison, tolerance: float) -> bool:
    return decide(comparison, tolerance) != "INCONCLUSIVE"


def sessions_that_settle(comparison: Comparison, tolerance: float) -> int | None:
    """The fewest sessions on each side that would have settled an INCONCLUSIVE comparison; None is "not MOST_SESSIONS".

    As in `settle`, noise and change are taken as they are.
    """
    fewest = min(len(comparison.new_counts), len(comparison.base_counts)) + 1
    candidates = range(fewest, MOST_SESSIONS + 1)
    # More sessions only ever narrow the interval, so the first that settles is found by halving.
    place = bisect_left(candidates, True, key=lambda sessions: _settled(_with_both(comparison, sessions), tolerance))
    return candidates[place] if place < len(candidates) else None


def _with_both(comparison: Comparison, sessions: int) -> Comparison:
    """The comparison as it would be with at least so many sessions on each side."""
    new, base = (_extended(counts, sessions) for counts in (comparison.new_counts, comparison.base_counts))
    added = len(new) + len(base) - len(comparison.new_counts) - len(comparison.base_counts)
    session = comparison.noise.session
    noise = replace(comparison.noise, session=session._replace(df=session.df + added))
    return replace(comparison, noise=noise, new_counts=new, base_counts=base)


def _extended(counts: tuple[int, ...], sessions: int) -> tuple[int, ...]:
    """`counts` with sessions as large as the largest added, until there are so many."""
    return counts + (max(counts),) * (sessions - len(counts))


def _with_replicates(comparison: Comparison, replicates: int) -> Comparison:
    """The comparison as it would be with so many replicates in each new session."""
    return replace(comparison, new_counts=(replicates,) * len(comparison.new_counts))


def _with_sessions(comparison: Comparison, sessions: int) -> Comparison:
    """The comparison as it would be with so many sessions, each as large as the largest so far."""
    added = sessions - len(comparison.base_counts)
    session = comparison.noise.session
    return replace(
        comparison,
        base_counts=_extended(comparison.base_counts, sessions),
        noise=replace(comparison.noise, session=session._replace(df=session.df + added)),
    )
