"""The statistics of the gate, as pure functions: process values in, a log change with its interval and an outcome out.

Everything works on y = log(process value), its sign folded so that a larger y is worse: then a change is a difference,
units drop out, and rates and times obey one rule. The model of a stored baseline has two levels: sessions differ by
v_s, processes of one session by v_p (Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013).
Both are moderated with a prior of PRIOR_DF pseudo degrees of freedom (Smyth, "Linear models and empirical Bayes
methods", SAGMB 3(1), 2004), because a metric alone never has enough sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, TypeAlias

from ..metric import Better, Kind

Outcome = Literal["PASS", "IMPROVED", "REGRESSED", "INCONCLUSIVE"]
Sessions: TypeAlias = Sequence[Sequence[float]]
"""Log process values of one metric, one inner sequence per session."""

PRIOR_DF = 8.0
"""Weight of a prior, in degrees of freedom: power at +3 % rose from .46 to .73 at equal false alarms in simulation."""

ASSUMED_SESSION_SD: Mapping[Kind, float] = {"kernel": 0.003, "collective": 0.010, "serving": 0.006, "cpu": 0.05}
"""Session noise by kind, as a fraction: an assumption until a baseline holds A/A sessions, then it fades."""

ASSUMED_PROCESS_SD: Mapping[Kind, float] = {"kernel": 0.003, "collective": 0.010, "serving": 0.010, "cpu": 0.05}
"""Process noise by kind, as a fraction: used only when neither the metric nor its peers have two processes."""

POCOCK_ALPHA: Mapping[int, float] = {1: 0.05, 2: 0.0294, 3: 0.0221}
"""Two-sided nominal level per look that keeps .05 over so many planned looks (Pocock, Biometrika 64(2), 1977)."""

MOST_REPLICATES = 30
MOST_SESSIONS = 10


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance of log values, and the degrees of freedom behind it."""

    value: float
    df: float


@dataclass(frozen=True, slots=True)
class Noise:
    """The two levels of noise: between sessions, and between processes of one session."""

    session: Variance
    process: Variance


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new run against stored sessions, on the log scale, + is worse.

    change: mean of the new process values minus the mean of the session means.
    new_count, base_counts: processes of the new run, and of each stored session.
    alpha: two-sided level of the interval.
    """

    change: float
    noise: Noise
    new_count: int
    base_counts: tuple[int, ...]
    alpha: float

    @property
    def half_width(self) -> float:
        """Half of the interval: t times the standard error, with Satterthwaite's degrees of freedom."""
        sessions = len(self.base_counts)
        session = self.noise.session.value * (1 + 1 / sessions)
        process = self.noise.process.value * (1 / self.new_count + sum(1 / n for n in self.base_counts) / sessions**2)
        total = session + process
        df = total**2 / (session**2 / self.noise.session.df + process**2 / self.noise.process.df)
        return t_quantile(1 - self.alpha / 2, df) * math.sqrt(total)

    @property
    def lo(self) -> float:
        """Lower end of the interval."""
        return self.change - self.half_width

    @property
    def hi(self) -> float:
        """Upper end of the interval."""
        return self.change + self.half_width


@dataclass(frozen=True, slots=True)
class Settlement:
    """What would have settled an open comparison, had the change stayed as it is; None is "nothing up to the cap".

    replicates: of the new run. sessions: of the baseline. tolerance: the narrowest band that is shown, as a fraction.
    """

    replicates: int | None
    sessions: int | None
    tolerance: float


def worse_logs(values: Iterable[float], better: Better) -> tuple[float, ...]:
    """Logs of `values` with the sign folded: a larger result is worse."""
    sign = 1.0 if better == "lower" else -1.0
    return tuple(sign * math.log(value) for value in values)


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t distribution; `df` need not be an integer."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def compare(new: Sequence[float], base: Sessions, peers: Sequence[Sessions], kind: Kind, alpha: float) -> Comparison:
    """Compare log process values of a run with stored sessions; `peers` are the other metrics of this kind."""
    return Comparison(
        change=fmean(new) - fmean(map(fmean, base)),
        noise=_noise(new, base, peers, kind),
        new_count=len(new),
        base_counts=tuple(map(len, base)),
        alpha=alpha,
    )


def decide(comparison: Comparison, tolerance: float) -> Outcome:
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
    more = (replace(comparison, new_count=n) for n in range(comparison.new_count + 1, MOST_REPLICATES + 1))
    known = range(len(comparison.base_counts) + 1, MOST_SESSIONS + 1)
    longer = (_with_sessions(comparison, k) for k in known)
    return Settlement(
        replicates=next((one.new_count for one in more if one.half_width < room), None),
        sessions=next((len(one.base_counts) for one in longer if one.half_width < room), None),
        tolerance=math.expm1(comparison.hi),
    )


def _with_sessions(comparison: Comparison, sessions: int) -> Comparison:
    """The comparison as it would be with so many sessions, each as large as the largest so far."""
    added = sessions - len(comparison.base_counts)
    session = comparison.noise.session
    return replace(
        comparison,
        base_counts=comparison.base_counts + (max(comparison.base_counts),) * added,
        noise=replace(comparison.noise, session=replace(session, df=session.df + added)),
    )


def _noise(new: Sequence[float], base: Sessions, peers: Sequence[Sessions], kind: Kind) -> Noise:
    process = _process_variance((*base, new), peers, kind)
    return Noise(_session_variance(base, process, peers, kind), process)


def _process_variance(groups: Sessions, peers: Sequence[Sessions], kind: Kind) -> Variance:
    own = _pooled(groups)
    prior = _pooled(session for peer in peers for session in peer)
    if prior.df:
        return _moderated(own, prior)

    # Without peers the metric speaks for itself: an assumed prior could only hide that this host is noisier.
    return own if own.df else Variance(ASSUMED_PROCESS_SD[kind] ** 2, PRIOR_DF)


def _session_variance(base: Sessions, process: Variance, peers: Sequence[Sessions], kind: Kind) -> Variance:
    assumed = Variance(ASSUMED_SESSION_SD[kind] ** 2, PRIOR_DF)
    prior = _moderated(_peers_session_variance(peers), assumed)
    return _moderated(_excess(base, process.value), prior)


def _peers_session_variance(peers: Sequence[Sessions]) -> Variance:
    seen = [_excess(peer, _pooled(peer).value) for peer in peers]
    weight = sum(one.df for one in seen)
    if not weight:
        return Variance(0.0, 0.0)

    # Metrics of one session share its offset: peers add precision, but not one session more than the longest has.
    return Variance(sum(one.df * one.value for one in seen) / weight, max(one.df for one in seen))


def _excess(sessions: Sessions, process: float) -> Variance:
    """Variance of session means beyond what `process` noise explains; it has no df when there is one session."""
    means = Variance(*_squares([fmean(session) for session in sessions]))
    if not means.df:
        return Variance(0.0, 0.0)

    explained = process * fmean(1 / len(session) for session in sessions)
    return Variance(max(0.0, means.value / means.df - explained), means.df)


def _pooled(groups: Iterable[Sequence[float]]) -> Variance:
    """Variance within groups, with sum(n_i - 1) degrees of freedom."""
    squares, df = 0.0, 0.0
    for group in groups:
        inner, inner_df = _squares(group)
        squares += inner
        df += inner_df

    return Variance(squares / df if df else 0.0, df)


def _squares(values: Sequence[float]) -> tuple[float, float]:
    """Sum of squares around the mean, and its degrees of freedom."""
    centre = fmean(values)
    return sum((value - centre) ** 2 for value in values), float(len(values) - 1)


def _moderated(own: Variance, prior: Variance) -> Variance:
    """`own` drawn towards `prior`, which weighs at most PRIOR_DF and never more than what is behind it."""
    weight = min(PRIOR_DF, prior.df)
    df = weight + own.df
    return Variance((weight * prior.value + own.df * own.value) / df, df)
