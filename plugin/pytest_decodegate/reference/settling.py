"""How long a metric is measured: until its verdict is settled, confirmed if it says that something changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..cause import Finding
from ..gate.confirming import confirm, is_open, is_to_confirm

if TYPE_CHECKING:
    from ..gate.verdict import Judgement
    from ..measure.source import Progress, Source, Taken


@dataclass(slots=True)
class TimeBudget:
    """Seconds that a run may spend on metrics that are still open after their first look. clock: in seconds."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    spent: float = field(default=0.0, init=False)

    @property
    def left(self) -> float:
        """Seconds; none below zero."""
        return max(0.0, self.seconds - self.spent)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block."""
        started = self.clock()
        try:
            yield
        finally:
            self.spent += self.clock() - started


@dataclass(frozen=True, slots=True)
class SettlingRules:
    """How a metric is settled. looks: replicates at each planned look. fresh: replicates of a confirmation, 0 for none.

    metrics: of the run, which are weighed together. budget: of the run.
    """

    looks: tuple[int, ...]
    fresh: int
    metrics: int
    budget: TimeBudget


class Settling:
    """One metric. look: judges what was taken. progress: told what goes on."""

    def __init__(
        self, source: Source, look: Callable[[Taken], Judgement], rules: SettlingRules, progress: Progress
    ) -> None:
        self._source = source
        self._look = look
        self._rules = rules
        self._progress = progress
        self._started = rules.budget.clock()

    def settle(self) -> tuple[Judgement, Taken]:
        """Look after the first replicates, again while the verdict is open and time is left, and confirm a change."""
        taken = self._source.take(self._rules.looks[0])
        judgement = self._look(taken)
        for count in self._rules.looks[1:]:
            if not is_open(judgement, self._rules.metrics):
                break

            taken, judgement = self._going_on(taken, judgement, count)

        if self._rules.fresh and is_to_confirm(judgement):
            taken, judgement = self._confirmed(taken, judgement)

        return judgement, taken

    def _going_on(self, taken: Taken, judgement: Judgement, count: int) -> tuple[Taken, Judgement]:
        """A look at `count` replicates, or at as many of them as the budget of the run allows."""
        missing = count - len(taken.replicates)
        affordable = min(missing, self._affordable(taken))
        if affordable <= 0:
            return taken, _with_note(judgement, self._spent(len(taken.replicates), count))

        self._progress.tick(f"{judgement.name}: {judgement.verdict} after {len(taken.replicates)}, {affordable} more")
        with self._rules.budget.spending():
            taken = self._source.take(affordable)

        judgement = self._look(taken)
        if affordable < missing and is_open(judgement, self._rules.metrics):
            judgement = _with_note(judgement, self._spent(len(taken.replicates), count))

        return taken, judgement

    def _affordable(self, taken: Taken) -> int:
        """Replicates that fit into what is left of the budget, by what each has cost so far."""
        each = (self._rules.budget.clock() - self._started) / max(1, len(taken.replicates))
        return int(self._rules.budget.left / each) if each > 0 else len(taken.replicates)

    def _spent(self, count: int, planned: int) -> Finding:
        minutes = self._rules.budget.seconds / 60
        return Finding(
            f"{count} of at most {planned} replicates were taken: the run's time for open metrics is spent "
            f"(--perf-budget, {minutes:.3g} min)"
        )

    def _confirmed(self, taken: Taken, first: Judgement) -> tuple[Taken, Judgement]:
        """The change beside fresh replicates, which are judged by themselves and with the others."""
        known = len(taken.replicates)
        self._progress.tick(f"{first.name}: {first.verdict}, to be confirmed by {self._rules.fresh} fresh replicates")
        taken = self._source.take(self._rules.fresh)
        fresh = self._look(replace(taken, replicates=taken.replicates[known:]))
        return taken, confirm(first, fresh, self._look(taken))


def _with_note(judgement: Judgement, note: Finding) -> Judgement:
    return replace(judgement, notes=(*judgement.notes, note))
