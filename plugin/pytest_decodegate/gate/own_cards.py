"""Sessions of the very cards that are measured: they differ by less than sessions of other cards of the same kind."""

from __future__ import annotations

from dataclasses import replace

from ..baseline.schema import StoredMetric
from ..machine.cards import cards_of
from .stats.recorded import NoiseClass, noise_class


def on_cards(stored: StoredMetric, cards: frozenset[str]) -> StoredMetric | None:
    """`stored` with those sessions that gate and ran on just these cards (unique ids); None if there is none."""
    sessions = tuple(session for session in stored.current if cards and cards_of(session.telemetry) == cards)
    return replace(stored, sessions=sessions, accepted=None) if sessions else None


def one_set_of_cards(*sides: StoredMetric) -> frozenset[str]:
    """The cards that all sessions of `sides` that gate ran on; none where these differ, or are not known."""
    known = {cards_of(session.telemetry) for side in sides for session in side.current}
    return known.pop() if len(known) == 1 else frozenset()


def class_of(stored: StoredMetric, *, same_cards: bool) -> NoiseClass:
    """The class of noise of what is stored."""
    return noise_class(stored.metric, stored.level, same_cards=same_cards)
