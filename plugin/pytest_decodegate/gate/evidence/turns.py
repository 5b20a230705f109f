"""Whether it mattered which side of a pair was measured first: scatter that has a cause, and no stack for it.

Sides take turns to be first, so that what comes first and is slower looks like noise whose sign alternates. It is the
period effect of a crossover trial (Hills and Armitage, Br. J. Clin. Pharmacol. 8, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ..stats.student import t_upper_tail

LEAST_DF = 2
"""So four pairs, of which each side began some."""

LEVEL = 0.1
"""Two-sided. A hint to where scatter comes from decides nothing, and pairs of servers are few."""


def first_was_slower(differences: Sequence[float], candidate_first: Sequence[bool]) -> float | None:
    """By what fraction the side that was measured first was slower, below zero faster; None where that may be chance.

    differences: of each pair the log of candidate over base, + is slower. candidate_first: of each, who began.
    """
    groups = [
        [difference for difference, first in zip(differences, candidate_first, strict=True) if first is began]
        for began in (True, False)
    ]
    df = len(differences) - len(groups)
    if not all(groups) or df < LEAST_DF:
        return None

    means = [fmean(group) for group in groups]
    effect = (means[0] - means[1]) / 2
    squares = sum((each - mean) ** 2 for group, mean in zip(groups, means, strict=True) for each in group)
    error = math.sqrt(squares / df * sum(1 / len(group) for group in groups)) / 2
    is_shown = 2 * t_upper_tail(abs(effect) / error, df) < LEVEL if error else effect != 0
    return math.expm1(effect) if is_shown else None
