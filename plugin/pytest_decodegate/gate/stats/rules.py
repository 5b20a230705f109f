"""The statistics of the gate, as pure functions: process values in, a log change with its interval and an outcome out.

Everything works on y = log(process value), its sign folded so that a larger y is worse: then a change is a difference,
units drop out, and rates and times obey one rule. A new run is one session; a stored file may hold several.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ...metric import Better, Kind
from .noise import Noise, Peers, Sessions, mean, noise
from .student import standard_error, t_quantile, t_upper_tail

Outcome = Literal["PASS", "IMPROVED", "REGRESSED", "INCONCLUSIVE"]

POCOCK_ALPHA: Mapping[int, float] = {1: 0.05, 2: 0.0294, 3: 0.0221}
"""Two-sided nominal level per look that keeps .05 over so many planned looks (Pocock, Biometrika 64(2), 1977)."""

MOST_REPLICATES = 30
MOST_SESSIONS = 10


class Interval(Protocol):
    """A log change with its interval, + is worse."""

    @property
    def change(self) -> float: ...  # noqa: D102 - described above

    @property
    def lo(self) -> float: ...  # noqa: D102 - as above

    @property
    def hi(self) -> float: ...  # noqa: D102 - as above


class Centred:
    """An interval that reaches as far to both sides of `change`: `half_width`."""

    __slots__ = ()
    change: float
    half_width: float

    @property
    def lo(self) -> float:
        """Lower end of the interval."""
        return self.change - self.half_width

    @property
    def hi(self) -> float:
        """Upper end of the interval."""
        return self.change + self.half_width


@dataclass(frozen=True, slots=True)
class Comparison(Centred):
    """New sessions (a run is one) against stored sessions, on the log scale, + is worse.

    change: mean of the new session means minus the mean of the stored ones.
    new_counts, base_counts: processes of each session.
    alpha: two-sided level of the interval.
    half_width: half of the interval, t times the standard error, with Satterthwaite's degrees of freedom.
    """

    change: float
    noise: Noise
    new_counts: tuple[int, ...]
    base_counts: tuple[int, ...]
    alpha: float
    half_width: float = field(init=False)

    def __post_init__(self) -> None:
        error, df = self._error()
        object.__setattr__(self, "half_width", t_quantile(1 - self.alpha / 2, df) * error)

    def _error(self) -> tuple[float, float]:
        """Standard error of the change, and its degrees of freedom."""
        new, base = self.new_counts, self.base_counts
        session = self.noise.session.value * (1 / len(new) + 1 / len(base))
        process = self.noise.process.value * (_inverse(new) + _inverse(base))
        return standard_error([(session, self.noise.session.df), (process, self.noise.process.df)])

    @property
    def p_worse(self) -> float:
        """One-sided p of "not slower": below alpha / 2 exactly where `lo` is above 0."""
        error, df = self._error()
        return t_upper_tail(self.change / error, df)


def _inverse(counts: tuple[int, ...]) -> float:
    """Share of the process variance in the mean of session means."""
    return sum([1 / count for count in counts]) / len(counts) ** 2


@dataclass(frozen=True, slots=True)
class Settlement:
    """What would have settled an open comparison, had the change stayed as it is; None is "nothing up to the cap".

    replicates: of the new run, pairs where two stacks are measured in turn. sessions: of the baseline, of each side
    where both are stored. tolerance: the narrowest band that is shown, as a fraction.
    """

    replicates: int | None
    sessions: int | None
    tolerance: float


def worse_logs(values: Iterable[float], better: Better) -> tuple[float, ...]:
    """Logs of `values` with the sign folded: a larger result is worse."""
    sign = 1.0 if better == "lower" else -1.0
    return tuple([sign * math.log(value) for value in values])


def compare(new: Sequence[float], base: Sessions, peers: Sequence[Sessions], kind: Kind, alpha: float) -> Comparison:
    """Compare log process values of a run with stored sessions; `peers` are the other metrics of this kind."""
    return compare_sessions([new], base, Peers.of(base, [new]), _joined(peers), kind, alpha)


def compare_sessions(new: Sessions, base: Sessions, own: Peers, peers: Peers, kind: Kind, alpha: float) -> Comparison:
    """Compare stored sessions with those of a reference; with the sides swapped the change turns its sign, no more.

    own: `Peers.of` both sides, which whoever compares many metrics has already.
    """
    return Comparison(
        change=mean(list(map(mean, new))) - mean(list(map(mean, base))),
        noise=noise((base, new), own, peers, kind),
        new_counts=tuple(map(len, new)),
        base_counts=tuple(map(len, base)),
        alpha=alpha,
    )


def foresee(count: int, base: Sessions, peers: Sequence[Sessions], kind: Kind, alpha: float) -> Comparison:
    """The comparison that an unchanged run of `count` processes would give: its half width is what can be resolved.

    A band that is not wider cannot be shown to hold; a smaller change cannot be told from noise.
    """
    return Comparison(0.0, noise((base,), Peers.of(base), _joined(peers), kind), (count,), tuple(map(len, base)), alpha)


def _joined(peers: Sequence[Sessions]) -> Peers:
    return sum(map(Peers.of, peers), start=Peers())


def decide(comparison: Interval, tolerance: float) -> Outcome:
    """The rule: being inside the band must be shown, and so must being worse."""
    band = math.log1p(tolerance)
    if comparison.change > band and comparison.lo > 0:
        return "REGRESSED"
    if comparison.hi < 0 and comparison.change < -band:
        return "IMPROVED"

    return "PASS" if comparison.hi < band else "INCONCLUSIVE"


def settle(comparison: Comparison, tolerance: float) -> Settlement:
    """What would have settled an INCONCLUSIVE comparison: its noise and change are taken as they are."""
    band = math.log1p(tolerance)
    room = comparison.change if comparison.change > band else band - comparison.change
    largest = max(comparison.new_counts)
    more = (_with_replicates(comparison, n) for n in range(largest + 1, MOST_REPLICATES + 1))
    known = range(len(comparison.base_counts) + 1, MOST_SESSIONS + 1)
    longer = (_with_sessions(comparison, k) for k in known)
    return Settlement(
        replicates=next((max(each.new_counts) for each in more if each.half_width < room), None),
        sessions=next((len(each.base_counts) for each in longer if each.half_width < room), None),
        tolerance=math.expm1(comparison.hi),
    )


def sessions_that_settle(comparison: Comparison, tolerance: float) -> int | None:
    """The fewest sessions on each side that would have settled an INCONCLUSIVE comparison; None is "not MOST_SESSIONS".

    As in `settle`, noise and change are taken as they are.
    """
    band = math.log1p(tolerance)
    room = comparison.change if comparison.change > band else band - comparison.change
    fewest = min(len(comparison.new_counts), len(comparison.base_counts)) + 1
    candidates = range(fewest, MOST_SESSIONS + 1)
    # More sessions only ever narrow the interval, so the first that settles is found by halving.
    place = bisect_left(candidates, True, key=lambda sessions: _with_both(comparison, sessions).half_width < room)
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
