"""Student's t, its quantiles and its tail, without scipy, whose import alone would take longer than most answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

NEARLY_NORMAL_DF = 200.0
"""From here on four terms of the series around the normal distribution are exact to ten digits."""

SMOOTH_DF = 3.0
"""From here on the quantile is so smooth in 1/df that a polynomial replaces it: a report asks for thousands."""

_NORMAL = NormalDist()
_NODES = 28
_SETTLED = 1e-4  # Halley's next step would be about the cube of this
_MOST_STEPS = 100


def t_quantile(probability: float, df: float) -> float:
    """The value that Student's t with `df` degrees of freedom (any number above 0) stays below with `probability`.

    Halley's method on the log of the upper tail, started from Abramowitz and Stegun 26.7.5; nine digits or more.
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, df)
    if probability == 0.5:
        return 0.0

    return _interpolated(probability, df) if df >= SMOOTH_DF else _solved(probability, df)


def t_upper_tail(t: float, df: float) -> float:
    """The probability that Student's t with `df` degrees of freedom lies above `t`."""
    if t <= 0:
        return 1 - t_upper_tail(-t, df) if t else 0.5
    if math.isinf(t):
        return 0.0

    tail, _ = _tail(t, df, math.lgamma(df / 2) + math.lgamma(0.5) - math.lgamma((df + 1) / 2))
    return max(0.0, tail)


def half_width(terms: Sequence[tuple[float, float]], alpha: float = 0.05) -> float:
    """Half of the two-sided interval of a sum of independent means, from the terms of `standard_error`."""
    error, df = standard_error(terms)
    return t_quantile(1 - alpha / 2, df) * error if error else 0.0


def standard_error(terms: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error of a sum of independent means, and its degrees of freedom, from (variance, those) of each.

    Degrees of freedom by Satterthwaite (Biometrics Bulletin 2(6), 1946); infinitely many where nothing varies.
    """
    total = math.fsum([variance for variance, _ in terms])
    if total == 0:
        return 0.0, math.inf

    return math.sqrt(total), 1 / math.fsum([(variance / total) ** 2 / df for variance, df in terms])


def _interpolated(probability: float, df: float) -> float:
    """The Chebyshev series of `_coefficients` at 1/df, summed by Clenshaw."""
    x = 2 * SMOOTH_DF / df - 1
    twice, last, before = 2 * x, 0.0, 0.0
    first, *rest = _coefficients(probability)
    for coefficient in reversed(rest):
        last, before = twice * last - before + coefficient, last

    return x * last - before + first


@lru_cache(maxsize=256)
def _coefficients(probability: float) -> tuple[float, ...]:
    """Chebyshev coefficients of the quantile as a function of 1/df, between 0 and 1/SMOOTH_DF."""
    angles = [math.pi * (k + 0.5) / _NODES for k in range(_NODES)]
    values = [_solved(probability, 2 * SMOOTH_DF / (1 + math.cos(angle))) for angle in angles]
    sums = (sum(v * math.cos(n * a) for v, a in zip(values, angles, strict=True)) for n in range(_NODES))
    return tuple(total * (2 if n else 1) / _NODES for n, total in enumerate(sums))


def _solved(probability: float, df: float) -> float:
    guess = _series(_NORMAL.inv_cdf(probability), df)
    return guess if df >= NEARLY_NORMAL_DF else _refined(guess, math.log1p(-probability), df)


def _series(z: float, df: float) -> float:
    """Abramowitz and Stegun 26.7.5: the normal quantile `z` widened by powers of 1/df."""
    square = z * z
    first = (square + 1) / 4
    second = ((5 * square + 16) * square + 3) / 96
    third = (((3 * square + 19) * square + 17) * square - 15) / 384
    fourth = ((((79 * square + 776) * square + 1482) * square - 1920) * square - 945) / 92160
    return z * (1 + (first + (second + (third + fourth / df) / df) / df) / df)


def _refined(guess: float, log_tail: float, df: float) -> float:
    """`guess` moved until the log of its upper tail is `log_tail`; in logs the tail is nearly straight."""
    log_beta = math.lgamma(df / 2) + math.lgamma(0.5) - math.lgamma((df + 1) / 2)
    position = math.log(guess) if guess > 0 else 0.0
    for _ in range(_MOST_STEPS):
        t = math.exp(position)
        tail, slope = _tail(t, df, log_beta)
        newton = (math.log(tail) - log_tail) * tail / slope
        bend = 1 - (df + 1) * t * t / (df + t * t) + slope / tail
        step = newton / max(0.5, 1 + newton * bend / 2)
        position += step
        if abs(step) < _SETTLED:
            break

    return math.exp(position)


def _tail(t: float, df: float, log_beta: float) -> tuple[float, float]:
    """The upper tail beyond `t` > 0, and its slope against log t with the sign turned: t times the density."""
    x = df / (df + t * t)
    # x ** (df / 2) * (1 - x) ** (1 / 2) / Beta, with 1 - x written so that it keeps its digits.
    front = math.exp(df / 2 * math.log(x) - log_beta) * t / math.sqrt(df + t * t)
    if x < (df / 2 + 1) / (df / 2 + 2.5):
        return front * _fraction(df / 2, 0.5, x) / df, front

    return 0.5 - front * _fraction(0.5, df / 2, 1 - x), front


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz (Press et al., Numerical Recipes, 6.4)."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + even * d)
        c = 1 + even / c
        value *= d * c
        d = 1 / (1 + odd * d)
        c = 1 + odd / c
        value *= d * c
        if abs(d * c - 1) < 1e-12:
            break

    return value
