"""How much numbers scatter when nothing changed: between sessions, and between processes of one session.

The model has two levels: sessions differ by v_s, processes of one session by v_p (Kalibera and Jones, "Rigorous
benchmarking in reasonable time", ISMM 2013). Both are moderated with a prior of PRIOR_DF pseudo degrees of freedom
(Smyth, "Linear models and empirical Bayes methods", SAGMB 3(1), 2004), because a metric alone never has enough
sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from ...metric import Kind

Sessions: TypeAlias = Sequence[Sequence[float]]
"""Log process values of one metric, one inner sequence per session."""

PRIOR_DF = 8.0
"""Weight of a prior, in degrees of freedom: power at +3 % rose from .46 to .73 at equal false alarms in simulation."""

ASSUMED_SESSION_SD: Mapping[Kind, float] = {
    "kernel": 0.003,
    "collective": 0.010,
    "serving": 0.006,
    "cpu": 0.05,
    "quality": 0.01,
}
"""Session noise by kind, as a fraction: an assumption until a baseline holds A/A sessions, then it fades."""

ASSUMED_PROCESS_SD: Mapping[Kind, float] = {
    "kernel": 0.003,
    "collective": 0.010,
    "serving": 0.010,
    "cpu": 0.05,
    "quality": 0.01,
}
"""Process noise by kind, as a fraction: used only when neither the metric nor its peers have two processes."""


class Variance(NamedTuple):
    """An estimated variance of log values, and the degrees of freedom behind it."""

    value: float
    df: float


NOTHING = Variance(0.0, 0.0)
"""No estimate at all."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The two levels of noise: between sessions, and between processes of one session."""

    session: Variance
    process: Variance


class Peers(NamedTuple):
    """What other metrics of one kind say about its noise; `+` joins what two groups of them say.

    squares, df: of processes within their sessions. excess, weight: variance between sessions times its degrees of
    freedom, and these. longest: the most degrees of freedom between sessions that one metric has.
    """

    squares: float = 0.0
    df: float = 0.0
    excess: float = 0.0
    weight: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, *sides: Sessions) -> Peers:
        """What one metric says; its `sides` were measured on different stacks, so their levels are not compared."""
        squares, df = _within(session for sessions in sides for session in sessions)
        between = _excess(sides, squares / df if df else 0.0)
        return cls(squares, df, between.df * between.value, between.df, between.df)

    def __add__(self, other: Peers) -> Peers:  # type: ignore[override]
        return Peers(
            self.squares + other.squares,
            self.df + other.df,
            self.excess + other.excess,
            self.weight + other.weight,
            max(self.longest, other.longest),
        )

    @property
    def process(self) -> Variance:
        """Variance between processes of one session."""
        return Variance(self.squares / self.df, self.df) if self.df else NOTHING

    @property
    def session(self) -> Variance:
        """Variance between sessions beyond what processes explain.

        Metrics of one session share its offset: peers add precision, but not one session more than the longest has.
        """
        return Variance(self.excess / self.weight, self.longest) if self.weight else NOTHING


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; statistics.fmean takes any iterable and four times as long for the few values of a session."""
    return math.fsum(values) / len(values)


def others(all_peers: Sequence[Peers]) -> list[Peers]:
    """For each of `all_peers` the sum of all but itself: nothing is subtracted, so no digits are lost."""
    before = accumulate(all_peers[:-1], initial=Peers())
    after = list(accumulate(reversed(all_peers[1:]), initial=Peers()))
    return [earlier + other for earlier, other in zip(before, reversed(after), strict=True)] if all_peers else []


def noise(sides: Sequence[Sessions], own: Peers, peers: Peers, kind: Kind) -> Noise:
    """The noise of a metric that was measured on `sides`, moderated by its peers and by what is assumed of its kind.

    own: `Peers.of` the sides.
    """
    process = _process_variance(own.process, peers.process, kind)
    prior = _moderated(peers.session, Variance(ASSUMED_SESSION_SD[kind] ** 2, PRIOR_DF))
    return Noise(_moderated(_excess(sides, process.value), prior), process)


def _process_variance(own: Variance, prior: Variance, kind: Kind) -> Variance:
    if prior.df:
        return _moderated(own, prior)

    # Without peers the metric speaks for itself: an assumed prior could only hide that this host is noisier.
    return own if own.df else Variance(ASSUMED_PROCESS_SD[kind] ** 2, PRIOR_DF)


def _excess(sides: Sequence[Sessions], process: float) -> Variance:
    """Variance of session means within their side beyond what `process` noise explains; no df where each has one."""
    value, df = 0.0, 0.0
    for sessions in sides:
        if len(sessions) > 1:
            squares, own = _squares(list(map(mean, sessions)))
            value += squares - own * process * mean([1 / len(session) for session in sessions])
            df += own

    return Variance(max(0.0, value / df), df) if df else NOTHING


def _within(groups: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Sum of squares within groups, with sum(n_i - 1) degrees of freedom."""
    squares, df = 0.0, 0.0
    for group in groups:
        inner, inner_df = _squares(group)
        squares += inner
        df += inner_df

    return squares, df


def _squares(values: Sequence[float]) -> tuple[float, float]:
    """Sum of squares around the mean, and its degrees of freedom."""
    centre = mean(values)
    return sum([(value - centre) ** 2 for value in values]), float(len(values) - 1)


def _moderated(own: Variance, prior: Variance) -> Variance:
    """`own` drawn towards `prior`, which weighs at most PRIOR_DF and never more than what is behind it."""
    weight = min(PRIOR_DF, prior.df)
    df = weight + own.df
    return Variance((weight * prior.value + own.df * own.value) / df, df)
