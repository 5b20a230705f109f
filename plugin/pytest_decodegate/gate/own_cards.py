"""Sessions of the very cards that are measured: they differ by less than sessions of other cards of the same kind.

Sessions of other cards differ by as much as these cards' memories do where a kernel streams memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Final

from ..baseline.condensed import MEDIANS
from ..baseline.schema import Session, StoredMetric
from ..machine.cards import cards_of
from .stats.recorded import NoiseClass, noise_class

STREAMS_FROM: Final = 0.7
"""Share of the memory's ceiling from where on a kernel is as fast as the memory of its card: the shipped kernels below
it differ by 0.38 % between cards, those above by 1.1 %, nearly all in step."""

MEMORY_SHARE: Final = "memory_share"
"""Fact of a replicate: the share of the memory's ceiling that it reached."""


def on_cards(stored: StoredMetric, cards: frozenset[str]) -> StoredMetric | None:
    """`stored` with those sessions that gate and ran on just these cards (unique ids); None if there is none."""
    sessions = tuple(session for session in stored.current if cards and cards_of(session.telemetry) == cards)
    return replace(stored, sessions=sessions, accepted=None) if sessions else None


def metrics_on(metrics: Iterable[StoredMetric], cards: frozenset[str]) -> list[StoredMetric]:
    """The metrics with those sessions that ran on just these cards; as they are where none are given."""
    if not cards:
        return list(metrics)

    return [own for each in metrics if (own := on_cards(each, cards)) is not None]


def ran_elsewhere(stored: StoredMetric, cards: frozenset[str]) -> bool:
    """Whether all sessions that gate know their cards, and none ran on just those that are measured, `cards`."""
    known = cards_of_sessions(stored)
    return bool(cards) and all(known) and cards not in known


def cards_of_sessions(stored: StoredMetric) -> set[frozenset[str]]:
    """The cards of each session that gates; an empty set of one that does not know them."""
    return {cards_of(session.telemetry) for session in stored.current}


def one_set_of_cards(*sides: StoredMetric) -> frozenset[str]:
    """The cards that all sessions of `sides` that gate ran on; none where these differ, or are not known."""
    known = set().union(*map(cards_of_sessions, sides))
    return known.pop() if len(known) == 1 else frozenset()


def class_of(stored: StoredMetric, *, same_cards: bool) -> NoiseClass:
    """The class of noise of what is stored, by that alone: what is judged beside it has no say in it."""
    return noise_class(stored.metric, stored.level, same_cards=same_cards, streams=streams_memory(stored))


def streams_memory(stored: StoredMetric) -> bool:
    """Whether a kernel is as fast as the memory of its card, as far as its sessions say how near they come to that."""
    share = stored_memory_share(stored) if stored.metric.kind == "kernel" else None
    return share is not None and share >= STREAMS_FROM


def stored_memory_share(stored: StoredMetric) -> float | None:
    """The share of the memory's ceiling that a metric reaches: the median of its sessions that gate and say it."""
    shares = [share for session in stored.current if (share := memory_share(session)) is not None]
    return median(shares) if shares else None


def memory_share(session: Session) -> float | None:
    """The share of the memory's ceiling that a session reached; None where it does not say, as old ones do not."""
    medians = session.telemetry.get(MEDIANS)
    if isinstance(medians, dict) and isinstance(share := medians.get(MEMORY_SHARE), int | float):
        return float(share)

    facts = (replicate.facts.get(MEMORY_SHARE) for replicate in session.replicates)
    shares = [share for share in facts if isinstance(share, int | float)]
    return median(shares) if shares else None
