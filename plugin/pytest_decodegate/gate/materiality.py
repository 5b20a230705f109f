"""What a metric's change means for the decode step, and whether one that noise hides can matter at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..cause import Finding
from .text.quantity import format_percent
from .verdict import Judgement, StepShare, Verdict

LIMIT: Final = 0.002
"""Of the step: what a metric may cost at worst and still pass although noise hides whether it is inside its band."""


@dataclass(frozen=True, slots=True)
class StepWeight:
    """The part of a step that a metric takes: share 0.05 means that it is a twentieth of the time of `step`."""

    step: str
    share: float


def weighed(judgement: Judgement, weights: Mapping[str, StepWeight], limit: float = LIMIT) -> Judgement:
    """`judgement` with what its change means for the step; PASS where noise hides nothing that could matter.

    limit: of the step, a fraction. An INCONCLUSIVE metric whose worst edge moves the step by less passes as "not
    material"; what is shown to be slower stays REGRESSED. Without a weight, or a change, nothing is said.
    """
    weight, worst = weights.get(judgement.name), worst_edge(judgement)
    if weight is None or worst is None or judgement.numbers.change is None:
        return judgement

    share = StepShare(weight.step, weight.share * slower(judgement, judgement.numbers.change), weight.share * worst)
    judgement = replace(judgement, step=share)
    if judgement.verdict is not Verdict.INCONCLUSIVE or share.worst >= limit:
        return judgement

    most = format_percent(share.worst, beside=limit)
    least = format_percent(limit, signed=False, beside=limit)
    text = f"not material: at worst {most} of {share.step}, less than {least} of it"
    return replace(judgement, verdict=Verdict.PASS, settlement=None, notes=(*judgement.notes, Finding(text)))


def is_not_material(judgement: Judgement) -> bool:
    """Whether a PASS rests on what the metric means for the step, its band not being shown to hold."""
    worst = worst_edge(judgement)
    band = judgement.metric.tolerance
    return judgement.verdict is Verdict.PASS and judgement.step is not None and worst is not None and worst >= band


def worst_edge(judgement: Judgement) -> float | None:
    """The end of the interval that is worse, as a fraction of the base's time, + is slower; None without one."""
    lo, hi = judgement.numbers.lo, judgement.numbers.hi
    if lo is None or hi is None:
        return None

    return max(slower(judgement, lo), slower(judgement, hi))


def slower(judgement: Judgement, change: float) -> float:
    """A change of the value as one of the time: a rate that falls to a half takes twice as long."""
    return change if judgement.metric.better == "lower" else 1 / (1 + change) - 1
