"""How much numbers scatter when nothing changed: between sessions, and between processes of one session.

The model has two levels: sessions differ by v_s, processes of one session by v_p (Kalibera and Jones, "Rigorous
benchmarking in reasonable time", ISMM 2013). A metric alone never has enough of either, so both are drawn towards what
the metrics of its class say together, and only as far as these agree among each other: the weight of the class, in
degrees of freedom, is fitted (Smyth, "Linear models and empirical Bayes methods", SAGMB 3(1), 2004). Where a class is
small or has one session, what was recorded elsewhere stands in (recorded.py) and soon weighs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias

from .gamma import digamma, inverse_trigamma, trigamma
from .recorded import NoiseClass, Recorded, recorded

Sessions: TypeAlias = Sequence[Sequence[float]]
"""Log process values of one metric, one inner sequence per session."""

DISPERSION_METRICS = 10.0
"""How many metrics what was recorded of a class weighs, in how much its metrics differ from each other."""

LEVEL_METRICS = 1.0
"""As many in how noisy they are: a host's own metrics outweigh it from the second one on."""

SESSION_DF = 4.0
"""Weight of the recorded session noise, in degrees of freedom: a class of ten metrics outweighs it once each has two
sessions."""

LEAST_SHARE = 1e-5
"""Of the median variance of the class; below it a variance is a matter of digits (as in limma's fitFDist)."""


NO_VARIANCE = 1e-24
"""Stands for none where it is divided by, and what is no more counts as none: the rounding of doubles gives logs that
differ by up to 1e-13 where the same numbers, in another unit, do not differ at all."""


class Variance(NamedTuple):
    """An estimated variance of log values, and the degrees of freedom behind it."""

    value: float
    df: float


@dataclass(frozen=True, slots=True)
class Noise:
    """The two levels of noise: between sessions, and between processes of one session."""

    session: Variance
    process: Variance

    @property
    def session_sd(self) -> float:
        """Root mean square between sessions: of metrics that are not alike, more than the typical one's."""
        value, df = self.session
        return math.sqrt(value * df / (df - 2))


class Spread(NamedTuple):
    """What one metric says about its noise, whatever its level is.

    process: variance between processes of one session; no df where each session has one. between: variance of the means
    of sessions of one side, no df where each side has one session. share: of the process variance in such a mean.
    """

    process: Variance
    between: Variance
    share: float

    @classmethod
    def of(cls, *sides: Sessions) -> Spread:
        """Of one metric; its `sides` were measured on different stacks, so their levels are not compared."""
        within, df = 0.0, 0
        squares, means, shares = 0.0, 0, 0.0
        for sessions in sides:
            for session in sessions:
                within += _squares(session)
                df += len(session) - 1
            if (count := len(sessions)) > 1:
                squares += _squares([mean(session) for session in sessions])
                means += count - 1
                shares += (count - 1) * sum([1 / len(session) for session in sessions]) / count

        return cls(
            Variance(within / df, float(df)) if df else Variance(0.0, 0.0),
            Variance(squares / means, float(means)) if means else Variance(0.0, 0.0),
            shares / means if means else 0.0,
        )


@dataclass(frozen=True, slots=True)
class ClassNoise:
    """What the metrics of a class say together. process, session: a metric's variances before it has said anything.

    most_df: of the process variance of a metric; nobody knows more than all of them together.
    """

    process: Variance
    session: Variance
    most_df: float

    def of(self, own: Spread) -> Noise:
        """The noise of a metric of the class."""
        process = self._process(own.process)
        return Noise(self._session(own, process.value), process)

    def _process(self, own: Variance) -> Variance:
        if math.isinf(self.process.df):
            return Variance(self.process.value, self.most_df)

        value, df = _joined(self.process, own)
        return Variance(value, min(df, self.most_df))

    def _session(self, own: Spread, process: float) -> Variance:
        """Weighed as variances of session means, which are above zero: what is left of the processes goes last.

        Cutting off below zero before, metric by metric, would make quiet metrics noisy.
        """
        share = own.share * process
        value, df = _joined(Variance(self.session.value + share, self.session.df), own.between)
        return Variance(max(0.0, value - share), df)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; statistics.fmean takes any iterable and four times as long for the few values of a session."""
    return math.fsum(values) / len(values)


def class_noise(spreads: Iterable[Spread], noise_class: NoiseClass) -> ClassNoise:
    """Fit a class to what all of its metrics say, the one that is judged included."""
    known, elsewhere = list(spreads), recorded(noise_class)
    process = process_prior([spread.process for spread in known], elsewhere)
    most = sum([spread.process.df for spread in known]) + DISPERSION_METRICS
    typical = ClassNoise(process, Variance(0.0, elsewhere.session_df), most)
    means = [(spread.between, spread.share * typical._process(spread.process).value) for spread in known]
    prior = _session_prior(means, elsewhere, together=noise_class.streams)
    return ClassNoise(process, Variance(prior, elsewhere.session_df), most)


def process_prior(variances: Iterable[Variance], elsewhere: Recorded | None) -> Variance:
    """The scaled inverse chi-square distribution from which the `variances` of a class come: its scale, and its df.

    By the mean and the variance of their logs (limma's fitFDist); how much was recorded `elsewhere` counts as some
    metrics more, and without it there must be two. Infinitely many df where they differ no more than by chance.
    """
    known = [variance for variance in variances if variance.df]
    least = LEAST_SHARE * median([variance.value for variance in known]) if known else 0.0
    known = [variance for variance in known if max(variance.value, least) > NO_VARIANCE]
    logs = [_unbiased_log(max(value, least), df) for value, df in known]
    level, dispersion = _moments(logs, [trigamma(df / 2) for _, df in known], elsewhere)
    if dispersion <= 0:
        return Variance(math.exp(level), math.inf)

    half = inverse_trigamma(dispersion)
    return Variance(math.exp(level + digamma(half) - math.log(half)), 2 * half)


def _moments(logs: Sequence[float], chance: Sequence[float], elsewhere: Recorded | None) -> tuple[float, float]:
    """Mean of the `logs` of variances, and their variance beyond `chance`, with what was recorded `elsewhere`."""
    total, squares, spare = math.fsum(logs), 0.0, float(max(0, len(logs) - 1))
    count = float(len(logs))
    if logs:
        squares = _squares(logs) - spare * mean(chance)
    if elsewhere is not None:
        total += LEVEL_METRICS * _unbiased_log(elsewhere.process_sd**2, elsewhere.process_df)
        count += LEVEL_METRICS
        squares += DISPERSION_METRICS * trigamma(elsewhere.process_df / 2)
        spare += DISPERSION_METRICS

    return total / count, squares / spare


def _unbiased_log(variance: float, df: float) -> float:
    """The log of an estimated variance without what its few degrees of freedom take from it on average."""
    return math.log(variance) - digamma(df / 2) + math.log(df / 2)


def _session_prior(means: Sequence[tuple[Variance, float]], elsewhere: Recorded, *, together: bool) -> float:
    """Session variance of a typical metric. means: of each metric the variance of its session means, with what its
    processes explain of that. together: whether one number, that of their session, moves all of them.

    How alike metrics are (session_df) is taken as it was recorded: a host's own few sessions say little of tails.
    """
    assumed = elsewhere.session_scale
    known = [(between, share) for between, share in means if between.df]
    if not known:
        return assumed

    # Metrics of one session share some of its offset: as sessions, they count half. Those that move together have seen
    # one such offset a session, however many they are.
    spare = sum([between.df for between, _ in known])
    weight = spare / len(known) if together else spare / 2
    return (SESSION_DF * assumed + weight * session_variance(known, elsewhere.session_df)) / (SESSION_DF + weight)


def session_variance(means: Sequence[tuple[Variance, float]], heterogeneity: float) -> float:
    """The session variance v of a class, by restricted maximum likelihood over its metrics (REML).

    Each metric's variance of session means estimates v plus what its processes explain. heterogeneity: of the metrics'
    own v around it, in degrees of freedom (that of T then follows F); infinitely many is the usual REML. With fewer a
    metric of two modes does not make all others noisy. 0 where nothing is left to explain.
    """
    known = [(df, value, share) for (value, df), share in means]
    typical = mean([share for _, _, share in known])

    def straightened(v: float) -> float:
        return (v + typical) ** 2 * _slope(v, known, heterogeneity)

    return _zero_of_falling(straightened, NO_VARIANCE, max(NO_VARIANCE, *[value for _, value, _ in known]))


def _slope(v: float, means: Sequence[tuple[float, float, float]], heterogeneity: float) -> float:
    """Slope of the restricted log likelihood at `v`, up to a factor above zero; falls through zero at its top.

    means: of each metric df and value of its variance of session means, and the processes' share of that.
    """
    return sum(
        [
            df * (value - v - share) / ((v + share) * (v + share + df / heterogeneity * value))
            for df, value, share in means
        ]
    )


def _zero_of_falling(function: Callable[[float], float], low: float, high: float) -> float:
    """Where `function` falls through zero, which it has done at `high`; `low` if it has there too (Illinois)."""
    left, right, zero, side = function(low), function(high), low, 0
    if left <= 0:
        return low

    for _ in range(100):
        before, zero = zero, (low * right - high * left) / (right - left)
        if abs(zero - before) <= 1e-7 * zero:
            break

        value = function(zero)
        if value > 0:
            right = right / 2 if side > 0 else right
            low, left, side = zero, value, 1
        else:
            left = left / 2 if side < 0 else left
            high, right, side = zero, value, -1

    return zero


def _squares(values: Sequence[float]) -> float:
    """Sum of squares around the mean."""
    centre = mean(values)
    return sum([(value - centre) ** 2 for value in values])


def _joined(prior: Variance, own: Variance) -> Variance:
    """Both weighed by their degrees of freedom."""
    df = prior.df + own.df
    return Variance((prior.df * prior.value + own.df * own.value) / df, df)
