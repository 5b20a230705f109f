"""What several judged metrics say together: how sure that is, and the band in which it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from .other_cards import OtherCards, on_other_cards
from .stats.rules import RARELY_TOGETHER
from .stats.together import JointChange, JointPart, of_both_sides
from .verdict import Judgement

BandOf: TypeAlias = Callable[[str, float], float]
"""The band of a metric, from its name and the one that it has by itself: the user's where one is set, else that."""

LEAST_ERROR = 1e-6
"""Of a metric whose processes all gave one value, or of which nothing is foreseen: its weight stays finite."""


def noise_of(judgement: Judgement) -> JointPart:
    """The noise of the change of a metric that was judged."""
    return _part(judgement, judgement.numbers.standard_error or 0.0)


def foreseen_noise_of(judgement: Judgement) -> JointPart:
    """The same as the stored sessions alone foretell it, whatever the run found: a noisy run widens no band.

    What is foreseen on these very cards does not count: it is what the own band stands for.
    """
    part = _part(judgement, judgement.foreseen.error if judgement.foreseen else 0.0)
    return replace(part, counts=judgement.other_cards is not None)


def _part(judgement: Judgement, error: float) -> JointPart:
    known = judgement.foreseen
    return JointPart(max(error, LEAST_ERROR), known.df if known else math.inf, judgement.basis.streams)


def joint_band(
    name: str, own: float, parts: Sequence[Judgement], unchanged: JointChange, band_of: BandOf | None
) -> tuple[float, OtherCards | None]:
    """The band in force of what `parts` say together, and how it came to that if one of them met only other cards.

    unchanged: what is foreseen of it there. band_of: the user has the last word; None is no word.
    """
    found = None
    if any(part.other_cards for part in parts):
        sessions = max(1, min(part.basis.sessions for part in parts))
        differ = unchanged.error / of_both_sides(sessions)
        found = on_other_cards(own, unchanged, differ, RARELY_TOGETHER, fixed=False)

    here = found.band if found else own
    band = band_of(name, here) if band_of else here
    return band, found if found is None or band == here else replace(found, own=band, band=band)
