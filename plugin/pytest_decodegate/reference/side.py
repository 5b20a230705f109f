"""One of two stacks while a metric is measured on both: what its sources gave so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..cause import Cause, Finding
from ..gate.pairs import Side
from ..metric import Json, Level, Measurement, Metric, Replicate

if TYPE_CHECKING:
    from ..session.perf import Source


@dataclass(slots=True)
class Half:
    """What one stack gave so far. level: what one replicate is."""

    level: Level
    replicates: list[Replicate] = field(default_factory=list)
    contract: dict[str, Json] = field(default_factory=dict)
    facts: dict[str, Json] = field(default_factory=dict)
    wrong: str | None = None
    broken: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def add(self, source: Source, replicates: Sequence[Replicate]) -> None:
        """What `source` saw, and the replicates that it gave."""
        # A field that is missing on one side could not be read there.
        known = self.contract.keys() & source.contract.keys()
        if changed := sorted(name for name in known if self.contract[name] != source.contract[name]):
            names = ", ".join(changed)
            self.broken.append(Finding(f"replicates of one stack differ in {names}", Cause.UNSTEADY, names))

        self.contract = self.contract or source.contract
        self.facts = source.facts
        self.wrong = self.wrong or source.wrong
        self.replicates.extend(replicates)
        self.broken.extend(source.broken)
        self.notes.extend(note for note in source.notes if note not in self.notes)

    @property
    def sound(self) -> bool:
        """Whether to measure on: numbers are right and rules are kept."""
        return not (self.wrong or self.broken)

    def side(self, metric: Metric) -> Side:
        """As the gate wants it."""
        measured = replace(metric, contract={**metric.contract, **self.contract})
        measurement = Measurement(measured, tuple(self.replicates), self.level, self.facts)
        return Side(measurement, self.wrong, tuple(self.broken), tuple(self.notes))
