"""Speculative decoding beside TPOT: how much of a change the acceptance of drafts explains. Pure functions.

One step of the model gives `length` tokens, 1 + accepted / drafts; so TPOT is the time of a step over the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, variance
from typing import TYPE_CHECKING

from ...cause import Cause, Finding
from ...metric import Replicate
from ..stats.student import half_width
from ..text.quantity import format_percent

if TYPE_CHECKING:
    from ...baseline.schema import StoredMetric

MATERIAL = 0.01
"""Smallest relative change of the acceptance length that is worth a word."""


def lengths(replicates: Iterable[Replicate]) -> tuple[float, ...]:
    """The acceptance length of each replicate that drafted anything, in tokens per step."""
    facts = (replicate.facts.get("speculation") for replicate in replicates)
    found = (fact.get("length") for fact in facts if isinstance(fact, dict))
    return tuple(float(length) for length in found if isinstance(length, int | float))


def acceptance(new: Sequence[Replicate], stored: StoredMetric, change: float) -> tuple[Finding, ...]:
    """What acceptance has to do with a `change` of TPOT (a fraction, + is worse); nothing without speculation."""
    said = _said(new, stored, change)
    return (Finding(said, Cause.ACCEPTANCE),) if said else ()


def _said(new: Sequence[Replicate], stored: StoredMetric, change: float) -> str:
    now = lengths(new)
    before = lengths(replicate for session in stored.current for replicate in session.replicates)
    if not (now or before):
        return ""
    if not (now and before):
        return f"speculative decoding: {_tokens(before)} before, {_tokens(now)} now"

    shift = _mean_log(now) - _mean_log(before)
    moved = f"acceptance length {_tokens(before)} -> {_tokens(now)}"
    steps = format_percent(math.expm1(math.log1p(change) + shift))
    if abs(shift) <= max(MATERIAL, _half_width(now, before)):
        return f"{moved}: acceptance did not move; the time of a step changed by {steps}"

    alone = format_percent(math.expm1(-shift))
    return f"{moved}: acceptance moved, which alone changes TPOT by {alone}; the time of a step changed by {steps}"


def _tokens(found: Sequence[float]) -> str:
    return f"{math.exp(_mean_log(found)):.2f} tokens a step" if found else "none"


def _mean_log(values: Sequence[float]) -> float:
    return fmean(map(math.log, values))


def _half_width(new: Sequence[float], base: Sequence[float]) -> float:
    """Half of the 95 % interval of the difference of mean logs; 0 where a side has a single value."""
    if min(len(new), len(base)) < 2:
        return 0.0

    return half_width([(variance(map(math.log, side)) / len(side), len(side) - 1) for side in (new, base)])
