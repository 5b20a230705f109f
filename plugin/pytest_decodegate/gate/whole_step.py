"""`decode_step[tp=,m=]`: the step that the metrics of a run add up to, as a metric of its own.

Independent noise averages out in a sum, so the step sees what no single metric can. Nothing is measured again: both
sides are the sums of what the parts were judged by, so that it is as good with a stored base as with another stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..cause import Finding
from ..metric import Metric
from .stats.looks import LOOK_LEVELS
from .stats.rules import decide
from .stats.student import t_quantile, t_upper_tail
from .stats.together import SHARED_SESSION_SD
from .text.quantity import format_percent
from .verdict import Basis, Judgement, Numbers, StepShare, Verdict

BAND: Final = 0.01
"""Tolerated of the step, a fraction."""

Z95: Final = 1.96
MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class StepChange:
    """Log change of a step, + is slower, its standard error, and how many metrics it is of. An Interval."""

    change: float
    error: float
    parts: int

    @property
    def lo(self) -> float:
        """The lower end: above zero, the step is slower for sure."""
        return self.change - self.error * t_quantile(1 - LOOK_LEVELS[1].worse, self._df)

    @property
    def hi(self) -> float:
        """The upper end, one-sided: below the band, the step stays inside it for sure."""
        return self.change + self.error * t_quantile(1 - LOOK_LEVELS[1].stay, self._df)

    @property
    def p_worse(self) -> float:
        """One-sided p of "not slower"."""
        return t_upper_tail(self.change / self.error, self._df)

    @property
    def _df(self) -> float:
        return self.parts - 1.0


def step_change(parts: Sequence[Judgement], weights: Mapping[str, float]) -> StepChange:
    """The change of a step of `parts`, which are judged and in seconds; weights: how often each counts in the sum.

    What sessions have in common does not average out; it is added to the metrics' own errors.
    """
    base = math.fsum(weights[part.name] * _known(part.numbers.base) for part in parts)
    new = math.fsum(weights[part.name] * _known(part.numbers.measured) for part in parts)
    own = math.hypot(*(weights[part.name] * _known(part.numbers.measured) * _error(part) for part in parts)) / new
    sessions = min((part.basis.sessions for part in parts if part.basis.reference == "baseline"), default=0)
    shared = SHARED_SESSION_SD * math.sqrt(1 + 1 / sessions) if sessions else 0.0
    return StepChange(math.log(new / base), math.hypot(own, shared), len(parts))


def judge_step(
    name: str, parts: Sequence[Judgement], weights: Mapping[str, float], sums_s: tuple[float, float], band: float = BAND
) -> Judgement:
    """The judgement of the step `name`. sums_s: of the base and of what was measured, as the ledger adds them up."""
    metric = Metric(name, "s", "kernel", band, {"formula": "sum of parts by count"})
    found = step_change(parts, weights)
    alpha = LOOK_LEVELS[1].worse + LOOK_LEVELS[1].stay
    verdict = Verdict(decide(found, band))
    first = parts[0].basis
    return Judgement(
        metric=metric,
        verdict=verdict,
        basis=Basis(first.level, min(part.basis.replicates for part in parts), first.reference, sessions=first.sessions),
        numbers=Numbers(sums_s[1]).compared(metric, sums_s[0], found, alpha, found.p_worse),
        notes=tuple(_made_of(parts, weights, sums_s[0])),
        step=StepShare(name, math.expm1(found.change), math.expm1(found.hi)),
    )


def _made_of(parts: Sequence[Judgement], weights: Mapping[str, float], base_s: float) -> Sequence[Finding]:
    """What the step is made of, and the parts that moved it most."""
    moved = {part.name: weights[part.name] * (_known(part.numbers.measured) - _known(part.numbers.base)) for part in parts}
    most = sorted(moved, key=lambda name: -abs(moved[name]))[:MOST_NAMED]
    named = ", ".join(f"{name} {format_percent(moved[name] / base_s)}" for name in most)
    return (Finding(f"made of {len(parts)} metrics by their counts; moved most by {named} of the step"),)


def _error(part: Judgement) -> float:
    """Standard error of a part's log change, from its interval; t is taken for normal, so that it is rather too wide."""
    lo, hi = (math.log1p(_known(edge)) for edge in (part.numbers.lo, part.numbers.hi))
    return (hi - lo) / (2 * Z95)


def _known(value: float | None) -> float:
    assert value is not None
    return value
