"""`decode_step[tp=,m=]`: the step that the metrics of a run add up to, as a metric of its own.

Independent noise averages out in a sum, so the step sees what no single metric can. Nothing is measured again: both
sides are the sums of what the parts were judged by, so that it is as good with a stored base as with another stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from ..cause import Finding
from ..metric import Metric
from .joint import BandOf, foreseen_noise_of, joint_band, noise_of
from .stats.rules import decide
from .stats.together import SHARED_SESSION_SD, JointChange, joint_error, of_both_sides
from .text.quantity import format_percent
from .verdict import Judgement, Numbers, StepShare, Verdict, basis_together

BAND: Final = 0.01
"""Tolerated of the step, a fraction."""

MOST_NAMED: Final = 3


def step_change(parts: Sequence[Judgement], weights: Mapping[str, float]) -> JointChange:
    """The change of a step of `parts`, which are judged and in seconds; weights: how often each counts in the sum.

    What sessions have in common does not average out, nor what moves all parts that stream memory; it is added to the
    metrics' own errors.
    """
    base, new = (math.fsum(weights[part.name] * side(part) for part in parts) for side in (base_level, measured_level))
    noises = [(weights[part.name] * measured_level(part) / new, noise_of(part)) for part in parts]
    return JointChange(math.log(new / base), *joint_error(noises, _shared(parts)))


def _unchanged(parts: Sequence[Judgement], weights: Mapping[str, float], base_s: float) -> JointChange:
    """What the stored sessions foretell of a step that has not changed; base_s: its time."""
    noises = [(weights[part.name] * base_level(part) / base_s, foreseen_noise_of(part)) for part in parts]
    return JointChange(0.0, *joint_error(noises, _shared(parts)))


def _shared(parts: Sequence[Judgement]) -> float:
    """Standard error of what the stored sessions, if the base is some, have in common with the run."""
    sessions = min((part.basis.sessions for part in parts if part.basis.reference == "baseline"), default=0)
    return SHARED_SESSION_SD * of_both_sides(sessions) if sessions else 0.0


def judge_step(
    name: str,
    parts: Sequence[Judgement],
    weights: Mapping[str, float],
    sums_s: tuple[float, float],
    band_of: BandOf | None = None,
) -> Judgement:
    """The judgement of the step `name`, which is looked at once, however often its parts were.

    sums_s: of the base and of what was measured, as the ledger adds them up.
    """
    band, other_cards = joint_band(name, BAND, parts, _unchanged(parts, weights, sums_s[0]), band_of)
    metric = Metric(name, "s", "kernel", band, {"formula": "sum of parts by count"})
    found = step_change(parts, weights)
    return Judgement(
        metric=metric,
        verdict=Verdict(decide(found, band)),
        basis=basis_together(parts),
        numbers=Numbers(sums_s[1]).compared(metric, sums_s[0], found),
        other_cards=other_cards,
        notes=_made_of(parts, weights, sums_s[0]),
        step=StepShare(name, math.expm1(found.change), math.expm1(found.hi)),
    )


def _made_of(parts: Sequence[Judgement], weights: Mapping[str, float], base_s: float) -> tuple[Finding, ...]:
    """What the step is made of, and the parts that moved it most."""
    moved = {part.name: weights[part.name] * (measured_level(part) - base_level(part)) / base_s for part in parts}
    most = sorted(moved, key=lambda name: -abs(moved[name]))[:MOST_NAMED]
    named = ", ".join(f"{name} {format_percent(moved[name])}" for name in most)
    return (Finding(f"made of {len(parts)} metrics by their counts; moved most by {named} of the step"),)


def base_level(part: Judgement) -> float:
    """Of a metric that was judged beside a base, in its unit."""
    assert part.numbers.base is not None
    return part.numbers.base


def measured_level(part: Judgement) -> float:
    """Of a metric that was judged, in its unit."""
    assert part.numbers.measured is not None
    return part.numbers.measured
