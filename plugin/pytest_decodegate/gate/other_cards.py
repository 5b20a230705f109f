"""Cards that did not record: the band that an unchanged metric keeps where no stored session is of them.

Cards of one kind differ, some kernels by more than their bands are wide. A band that no host could keep would turn
every such run red, so the one in force there is the wider of the metric's own and the narrowest that it can keep. That
follows from the stored sessions alone: nothing that the judged run does can widen it. What is recorded keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .stats.rules import Foreseen, narrowest_band
from .text.quantity import rounded_up_band

MOST_WIDER: Final = 3.0
"""Times its own band that a metric is judged in at most. Where it could not be kept in that either, it stays open."""

WIDEST: Final = 0.06
"""And no wider than this, unless its own band is: the shipped kernels that stream memory need 4 to 6 % beside the
sessions of one to three hosts. What needs more has processes that scatter, which is no matter of cards."""


@dataclass(frozen=True, slots=True)
class OtherCards:
    """What it means for a metric that it runs on other cards than all of its stored sessions; fractions.

    own: the band of its test, or the user's. kept: one in which it stays there where nothing changed. band: in force.
    differ: how much sessions of such cards differ, an sd. error, df: standard error of the log change of a metric that
    has not changed, and its degrees of freedom.
    """

    own: float
    kept: float
    band: float
    differ: float
    error: float
    df: float

    @property
    def is_wider(self) -> bool:
        """Whether the band in force is wider than the metric's own."""
        return self.band > self.own


def on_other_cards(own: float, unchanged: Foreseen, differ: float, rarely: float, *, fixed: bool) -> OtherCards:
    """The band of a metric that other cards recorded. own: by its test, or by the user, who has the last word: `fixed`.

    unchanged: what is foreseen of it there. differ: sd between sessions. rarely: how seldom it may fail by chance.
    """
    kept = rounded_up_band(narrowest_band(unchanged, rarely))
    band = own if fixed else max(own, min(kept, MOST_WIDER * own, WIDEST))
    return OtherCards(own, kept, band, differ, unchanged.error, unchanged.df)
