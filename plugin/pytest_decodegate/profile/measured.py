"""Times of the parts of a step, from stored sessions: the level of a metric and how far it is from certain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ..baseline.schema import Baseline
from .ledger import Time

LEAST_TO_SCATTER = 2


def stored_times(baselines: Iterable[Baseline]) -> dict[str, Time]:
    """The time of each metric that `baselines` hold, in seconds; of two files the later one counts."""
    return {
        name: time_of([list(map(stored.metric.seconds, session.values)) for session in stored.current])
        for baseline in baselines
        for name, stored in baseline.metrics.items()
        if stored.metric.kind != "quality"
    }


def time_of(sessions: Sequence[Sequence[float]]) -> Time:
    """The time of a metric from the process values of its sessions, in seconds: at least one session with one value.

    The level is the geometric mean over sessions of the geometric means over their processes; its standard error is
    that of the sessions where there are several, else of the processes of the one.
    """
    logs = [[math.log(value) for value in session] for session in sessions]
    means = [statistics.fmean(session) for session in logs]
    return Time(math.exp(statistics.fmean(means)), _error(means if len(means) >= LEAST_TO_SCATTER else logs[0]))


def _error(logs: Sequence[float]) -> float:
    return statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) >= LEAST_TO_SCATTER else 0.0
