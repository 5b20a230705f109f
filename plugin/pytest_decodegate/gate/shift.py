"""`kernels_common_shift`: how far all kernels of a run moved together, as a metric of its own.

It sees what no single band does, a percent on everything. It is never divided out of the kernels: what all have in
common may be the very slowdown that is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..cause import Finding
from ..metric import Metric
from .joint import BandOf, foreseen_noise_of, joint_band, noise_of
from .stats.rules import decide
from .stats.together import LEAST_SHIFTED, SHIFT_BAND, JointChange, common_shift, error_of_shift
from .verdict import Judgement, Numbers, Verdict, basis_together, worse_log

NAME: Final = "kernels_common_shift"

BAND: Final = SHIFT_BAND
"""Tolerated of the shift, a fraction."""


def is_kernel(judgement: Judgement) -> bool:
    """Whether it says how far one kernel moved: it was judged, by statistics."""
    known = judgement.numbers.change is not None and judgement.numbers.standard_error is not None
    return known and judgement.verdict.judged and judgement.metric.kind == "kernel"


def too_few(kernels: Sequence[Judgement]) -> str | None:
    """Why the shift of so few is not known; None if it is."""
    if len(kernels) >= LEAST_SHIFTED:
        return None

    return f"{len(kernels)} kernel(s) were judged; how far all move together is known from {LEAST_SHIFTED} on"


def judge_shift(kernels: Sequence[Judgement], band_of: BandOf | None = None) -> Judgement:
    """The judgement of what `kernels` have in common: each of them is one, and there are not too few."""
    changes = [worse_log(kernel) for kernel in kernels]
    # Two stacks in turn share their session; one is the side on which nothing is claimed that is not known.
    sessions = min(max(1, kernel.basis.sessions) for kernel in kernels)
    found = common_shift(changes, list(map(noise_of, kernels)), sessions)
    assert found is not None
    unchanged = JointChange(0.0, *error_of_shift(list(map(foreseen_noise_of, kernels)), sessions))
    band, other_cards = joint_band(NAME, BAND, kernels, unchanged, band_of)
    metric = Metric(NAME, "s", "kernel", band, {"formula": "median of the kernels' log changes"})
    return Judgement(
        metric=metric,
        verdict=Verdict(decide(found, band)),
        basis=basis_together(kernels),
        numbers=Numbers().compared(metric, None, found),
        other_cards=other_cards,
        notes=(Finding(f"{sum(change > 0 for change in changes)} of {len(kernels)} kernels moved for the worse"),),
    )
