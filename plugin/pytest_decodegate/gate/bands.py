"""Whether a metric that is recorded can keep its band: shown to stay inside of it where nothing changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..baseline.schema import StoredMetric
from ..machine.cards import cards_of
from ..machine.clocks import power_capped
from .evidence.modes import two_modes
from .other_cards import of_metric
from .own_cards import cards_of_sessions, class_of, metrics_on, on_cards, one_set_of_cards
from .stats.noise import Spread, class_noise
from .stats.rules import Comparison, foresee, narrowest_band, rarely
from .text.quantity import format_percent, format_value, rounded_up_band
from .verdict import Judgement, Verdict, session_logs, worse_log

LOOKS = 2
"""Planned at each metric of a run: after the first replicates and at the cap, or where the time for open metrics ends.
"""

WIDEST = 0.99
"""A band is less than the whole."""


@dataclass(frozen=True, slots=True)
class RecordedBand:
    """What is to be said of the band of a metric when it is recorded.

    own: the band of the test, a fraction. kept: one that the metric can keep; the same as `own` where it can keep that.
    why: what makes it noisy or its level doubtful, in words.
    """

    own: float
    kept: float
    why: tuple[str, ...]

    @property
    def is_kept(self) -> bool:
        """Whether the metric can keep the band of its test."""
        return self.kept <= self.own


def recorded_band(stored: StoredMetric, others: Iterable[StoredMetric], replicates: int, looks: int) -> RecordedBand:
    """The band of `stored`, whose newest session is the one that is recorded, beside the `others` of its file.

    replicates, looks: of a run to come.
    """
    metric = stored.metric
    if metric.kind == "quality":  # answers are right or wrong, whatever time they took
        return RecordedBand(metric.tolerance, metric.tolerance, ())

    # A run that meets only sessions of other cards has a band for that: see gate.other_cards.
    newest = cards_of(stored.current[-1].telemetry)
    here = on_cards(stored, newest) or stored
    unchanged = foreseen(here, metrics_on(others, newest), replicates, looks)
    kept = metric.tolerance
    if math.expm1(unchanged.hi) >= metric.tolerance:
        kept = min(WIDEST, can_keep(here, unchanged))

    why = _why(stored, math.sqrt(unchanged.noise.process.value), is_noisy=kept > metric.tolerance)
    return RecordedBand(metric.tolerance, kept, tuple(why))


def foreseen(stored: StoredMetric, others: Iterable[StoredMetric], replicates: int, looks: int) -> Comparison:
    """What a run to come, of so many replicates and looks, would say of `stored` where nothing has changed.

    Its noise is fitted together with that of those `others` in its file that are of its class. Where all sessions ran
    on the same cards, that run is taken to do so, too.
    """
    cards = one_set_of_cards(stored)
    found = class_of(stored, same_cards=bool(cards))
    alike = [other for other in others if not cards or one_set_of_cards(other) == cards]
    peers = [other for other in alike if class_of(other, same_cards=bool(cards)) == found]
    fitted = class_noise([Spread.of(session_logs(each)) for each in (stored, *peers)], found)
    return foresee([replicates], session_logs(stored), fitted, looks)


def can_keep(stored: StoredMetric, unchanged: Comparison) -> float:
    """A band that `stored` can keep, a fraction; `unchanged` as it was `foreseen`."""
    found = class_of(stored, same_cards=bool(one_set_of_cards(stored)))
    return rounded_up_band(narrowest_band(unchanged, rarely(found)))


def band_ahead(stored: StoredMetric, unchanged: Comparison) -> float:
    """The band in force in the run that is `foreseen`, a fraction: where the sessions are of several cards, the run is
    taken to be on others. Answers have a rule of their own, which no cards change.
    """
    own, cards = stored.metric.tolerance, cards_of_sessions(stored)
    if len(cards) < 2 or not all(cards) or stored.metric.kind == "quality":
        return own

    in_force = replace(unchanged, new_counts=unchanged.base_counts[-1:])  # as other_cards.unchanged_run
    return of_metric(own, in_force, class_of(stored, same_cards=False), fixed=False).band


def hides_in_wider_band(judgement: Judgement) -> bool:
    """Whether a metric that is worse by more than its own band is not REGRESSED, since other cards widened that band.

    Stored, it would be the only base on its cards, in its own band: were it slower, nothing would ever show that.
    """
    known = judgement.other_cards
    if judgement.verdict not in (Verdict.PASS, Verdict.INCONCLUSIVE) or not (known and known.is_wider):
        return False

    return worse_log(judgement) > math.log1p(known.own)


def _why(stored: StoredMetric, process_sd: float, *, is_noisy: bool) -> Iterable[str]:
    newest, unit = stored.current[-1], stored.metric.unit
    modes = two_modes(newest.values, stored.metric.tolerance)
    if modes:
        yield f"two modes, {format_value(modes[0], unit)} and {format_value(modes[1], unit)}"
    if power_capped(newest.telemetry):
        yield "recorded under a power cap, which follows the temperature of the card"
    if is_noisy and not modes:
        yield f"processes scatter by {format_percent(process_sd, signed=False)}"


def ini_lines(bands: Sequence[tuple[str, RecordedBand]]) -> list[str]:
    """Lines for the ini file that give metrics, by name, the bands that they can keep."""
    return ["perf_tolerance =", *(f"    {name} = {100 * band.kept:g}%" for name, band in bands)]
