"""Times of the parts of a step, from stored sessions: the level of a metric and how far it is from certain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..baseline.condensed import MEDIANS
from ..baseline.schema import Baseline, Session, StoredMetric
from .ledger import Time

LEAST_TO_SCATTER = 2


class Tpot(NamedTuple):
    """Time per output token of a server, and between two tokens of a stream in the middle; in seconds.

    between_tokens: None where nobody knows it. Most steps serve no prompt, so it is the decode step itself.
    """

    seconds: float
    between_tokens: float | None = None

    @property
    def step(self) -> float:
        """A step that decodes and does nothing else, as far as that is known."""
        return self.seconds if self.between_tokens is None else min(self.seconds, self.between_tokens)

    @property
    def prefills(self) -> float:
        """What a token waits for prompts of other streams, on average."""
        return self.seconds - self.step


def stored_times(baselines: Iterable[Baseline]) -> dict[str, Time]:
    """The time of each metric that `baselines` hold, in seconds; of two files the later one counts."""
    return {
        name: _stored_time(stored)
        for baseline in baselines
        for name, stored in baseline.metrics.items()
        if stored.metric.kind != "quality"
    }


def stored_tpot(baselines: Sequence[Baseline], name: str) -> Tpot | None:
    """The TPOT metric `name` that `baselines` hold, with the median time between tokens; of two files the later."""
    for baseline in reversed(baselines):
        if name in baseline.metrics:
            found = baseline.metrics[name]
            known = [between for session in found.current if (between := _between_tokens(session)) is not None]
            return Tpot(_stored_time(found).seconds, statistics.median(known) if known else None)

    return None


def _stored_time(stored: StoredMetric) -> Time:
    return time_of([list(map(stored.metric.seconds, session.values)) for session in stored.current])


def _between_tokens(session: Session) -> float | None:
    """The median time between tokens, of the median window; None where chunks held several."""
    medians = session.telemetry.get(MEDIANS)
    found = medians.get("itl_s") if isinstance(medians, dict) else None
    middle = found.get("p50") if isinstance(found, dict) else None
    return float(middle) if isinstance(middle, int | float) else None


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
