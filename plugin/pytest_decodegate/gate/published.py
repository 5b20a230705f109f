"""Published figures as a reference: points without samples, silent about most of what two runs should share.

The promise: such a figure is compared by the band alone, never as if it had statistics, and the result says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..machine.provenance import ABSENT, Difference
from .stats.rules import Outcome

if TYPE_CHECKING:
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


def published_part(selection: Selection) -> Selection:
    """`selection` without the differences that come from the publication's silence."""
    return replace(
        selection,
        differences=published_differences(selection.differences),
        undeclared=published_differences(selection.undeclared),
        harmless=published_differences(selection.harmless),
    )
