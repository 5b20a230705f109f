"""How long metrics took when they were recorded, from the times at which a session stored them one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from .schema import Baseline, Session

LONGEST_SECONDS = 1800.0
"""A longer pause between two metrics of a session was something else than measuring."""


def seconds_by_metric(baselines: Iterable[Baseline]) -> dict[str, float]:
    """Seconds from the metric stored before it in its session, by name; the last session that knows it counts.

    The first metric of a session has nothing before it and is not known by that session.
    """
    sessions: dict[str, list[tuple[str, Session]]] = {}
    for baseline in baselines:
        for name, stored in baseline.metrics.items():
            for session in stored.sessions:
                sessions.setdefault(session.id, []).append((name, session))

    by_age = sorted(sessions.values(), key=lambda taken: max(session.instant for _, session in taken))
    return {name: seconds for taken in by_age for name, seconds in _gaps(taken).items()}


def _gaps(taken: list[tuple[str, Session]]) -> Mapping[str, float]:
    in_order = sorted(taken, key=lambda pair: pair[1].instant)
    gaps = {
        name: (session.instant - before.instant).total_seconds() for (_, before), (name, session) in pairwise(in_order)
    }
    return {name: seconds for name, seconds in gaps.items() if 0 < seconds <= LONGEST_SECONDS}
