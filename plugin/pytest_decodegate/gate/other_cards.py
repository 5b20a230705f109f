"""Cards that did not record: the band that an unchanged metric keeps where no stored session is of them.

Cards of one kind differ, some kernels by more than their bands are wide. A band that no host could keep would turn
every such run red, so the one in force there is the wider of the metric's own and the narrowest that it can keep. That
follows from the stored sessions alone: nothing that the judged run does can widen it. What is recorded keeps its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .stats.noise import ClassNoise, Sessions
from .stats.recorded import NoiseClass
from .stats.rules import Comparison, Foreseen, foresee, narrowest_band, rarely
from .text.quantity import rounded_up_band

MOST_WIDER: Final = 4.0
"""Times its own band that a metric is judged in at most. Where it could not be kept in that either, it stays open."""

WIDEST: Final = 0.08
"""And no wider than this, unless its own band is: the shipped kernels that stream memory need 4 to 8 % beside the
sessions of one to four hosts. What needs more has processes that scatter, which is no matter of cards."""


@dataclass(frozen=True, slots=True)
class OtherCards:
    """What it means for a metric that it runs on other cards than all of its stored sessions; fractions.

    own: the band of its test, or the user's. kept: one in which it stays there where nothing changed. band: in force.
    differ: how much sessions of such cards differ, an sd.
    """

    own: float
    kept: float
    band: float
    differ: float

    @property
    def is_wider(self) -> bool:
        """Whether the band in force is wider than the metric's own."""
        return self.band > self.own


def unchanged_run(base: Sessions, fitted: ClassNoise, looks: int) -> Comparison:
    """What a run beside the stored sessions `base` would say of a metric that has not changed.

    fitted: to the stored sessions of its class. looks: planned. Of as many processes as were recorded last, however
    many a run takes: what follows from it is the same at every look, and in a comparison of files.
    """
    return foresee([len(base[-1])], base, fitted, looks)


def of_metric(own: float, unchanged: Comparison, found: NoiseClass, *, fixed: bool) -> OtherCards:
    """The band of one metric of the class `found`, of which an `unchanged_run` is foreseen; the rest as below."""
    return on_other_cards(own, unchanged, unchanged.noise.session_sd, rarely(found), fixed=fixed)


def on_other_cards(own: float, unchanged: Foreseen, differ: float, seldom: float, *, fixed: bool) -> OtherCards:
    """The band of a metric that other cards recorded. own: by its test, or by the user, who has the last word: `fixed`.

    unchanged: what is foreseen of it there. differ: sd between sessions. seldom: how rarely it may fail by chance.
    """
    kept = rounded_up_band(narrowest_band(unchanged, seldom))
    band = own if fixed else max(own, min(kept, MOST_WIDER * own, WIDEST))
    return OtherCards(own, kept, band, differ)
