"""The derivatives of log gamma that fit a distribution of variances, without scipy (see student.py).

Metrics of a class have few different degrees of freedom, so what was asked once is kept.
"""

from __future__ import annotations

import math
from functools import lru_cache

_LARGE = 8.0
"""From here on the asymptotic series are exact to ten digits; below, recurrence leads there."""

_SMALLEST, _LARGEST = 1e-7, 1e7


@lru_cache(maxsize=256)
def digamma(x: float) -> float:
    """The derivative of log gamma at `x` > 0 (Abramowitz and Stegun 6.3.5 and 6.3.18)."""
    shift = 0.0
    while x < _LARGE:
        shift -= 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return shift + math.log(x) - 1 / (2 * x) - series


@lru_cache(maxsize=256)
def trigamma(x: float) -> float:
    """The second derivative of log gamma at `x` > 0 (Abramowitz and Stegun 6.4.6 and 6.4.12)."""
    shift = 0.0
    while x < _LARGE:
        shift += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = 1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66)))
    return shift + 1 / x + square / 2 + series * square / x


def inverse_trigamma(y: float) -> float:
    """The x > 0 at which trigamma is `y` > 0: Newton on 1/trigamma, which is nearly straight (Smyth 2004, appendix)."""
    if y > _LARGEST:
        return 1 / math.sqrt(y)
    if y < _SMALLEST:
        return 1 / y

    x = 0.5 + 1 / y
    for _ in range(50):
        value = trigamma(x)
        step = value * (1 - value / y) / _tetragamma(x)
        x += step
        if -step < 1e-10 * x:
            break

    return x


def _tetragamma(x: float) -> float:
    """The derivative of trigamma."""
    shift = 0.0
    while x < _LARGE:
        shift -= 2 / x**3
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 2 - square * (1 / 6 - square * (1 / 6 - square * (3 / 10 - square * 5 / 6))))
    return shift - square - square / x - series * square
