"""Published figures as a reference: points without samples, silent about most of what two runs should share.

The promise: such a figure is compared by the band alone, never as if it had statistics, and the result says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..cause import Cause, Finding
from ..machine.provenance import ABSENT, Difference
from .stats.rules import Outcome

if TYPE_CHECKING:
    from ..baseline.schema import Baseline
    from ..baseline.selection import Selection


def decide_by_band(change: float, tolerance: float) -> Outcome:
    """The rule without noise, for a log `change` (+ is worse): the band alone, so it is never INCONCLUSIVE."""
    band = math.log1p(tolerance)
    if change > band:
        return "REGRESSED"

    return "IMPROVED" if change < -band else "PASS"


def published_differences(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """The differences in what the publication says; the rest cannot be compared."""
    return tuple(difference for difference in differences if difference.base is not ABSENT)


def unpublished(differences: Iterable[Difference]) -> tuple[str, ...]:
    """Names of what the publication does not say, once each: "gpus.power_limit_w" for all GPUs."""
    return tuple(
        dict.fromkeys(without_numbers(difference.field) for difference in differences if difference.base is ABSENT)
    )


def without_numbers(field: str) -> str:
    """A field of all GPUs at once: "gpus.power_limit_w" for "gpus[3].power_limit_w"."""
    return re.sub(r"\[\d+\]", "", field)


MODEL: Final = "contract.model"
"""What a server calls its model, on which two hosts seldom agree: a name that differs is said, and is no refusal."""


def renamed(differences: Iterable[Difference]) -> tuple[Finding, ...]:
    """What to know where a publication calls the model otherwise than the server does."""
    return tuple(
        Finding(
            f"published for the model {difference.base!r}; {difference.new!r} is served here, and only as another name "
            "of that model is it comparable",
            Cause.REMARK,
            MODEL,
        )
        for difference in differences
        if difference.field == MODEL
    )


def is_measured_elsewhere(baseline: Baseline) -> bool:
    """Whether `baseline` is a publication that names no part of a stack: its figures show nothing of an upgrade."""
    return bool(baseline.published) and not baseline.provenance.stack


def published_part(selection: Selection) -> Selection:
    """`selection` without the differences that come from the publication's silence."""
    return replace(
        selection,
        differences=published_differences(selection.differences),
        undeclared=published_differences(selection.undeclared),
        harmless=published_differences(selection.harmless),
    )
