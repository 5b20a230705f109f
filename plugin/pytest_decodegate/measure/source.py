"""What a source of replicates is, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..cause import Cause, Finding
from ..metric import Json, Level, Measurement, Metric, Replicate


@dataclass(frozen=True, slots=True)
class Taken:
    """All that a source has measured of a metric so far.

    level: what a replicate is. contract: how it is measured, part of the metric's identity. facts: what else was seen,
    not compared. wrong: how the numbers are wrong, or None. broken: rules of measurement that were broken. notes: what
    a reader should know whatever the verdict.
    """

    level: Level
    replicates: tuple[Replicate, ...] = ()
    contract: Mapping[str, Json] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    wrong: str | None = None
    broken: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether to measure on: numbers are right and rules are kept."""
        return not (self.wrong or self.broken)

    def measurement(self, metric: Metric) -> Measurement:
        """The same as a measurement of `metric`, with the contract under which it was taken."""
        contract = {**metric.contract, **self.contract}
        taken = Metric(metric.name, metric.unit, metric.kind, metric.tolerance, contract)
        return Measurement(taken, self.replicates, self.level, self.facts)


class Source(Protocol):
    """Where replicates come from: gangs of ranks, windows on a server, or passes over prompts."""

    @property
    def level(self) -> Level:
        """What one replicate is."""

    def take(self, count: int) -> Taken:
        """Measure `count` more replicates, unless numbers are known to be wrong; everything so far."""


class Progress(Protocol):
    """Who is told what a measurement is doing."""

    def say(self, text: str) -> None:
        """One step, worth a line of its own."""

    def tick(self, text: str) -> None:
        """Where a long step stands."""


def joined(parts: Sequence[Taken]) -> Taken:
    """What several sources of one stack and metric gave, as one; `parts` in the order they were taken, at least one.

    That their contracts agree is not taken for granted: where they differ, a rule is broken. Facts are those of the
    last, but what watches saw, which may break a rule, is that of all.
    """
    first = parts[0]
    broken = [reason for part in parts for reason in part.broken]
    if changed := _changed([part.contract for part in parts]):
        said = ", ".join(map(_in_words, changed, changed.values()))
        broken.append(Finding(f"replicates of one stack differ in {said}", Cause.UNSTEADY, ", ".join(changed)))

    return Taken(
        first.level,
        tuple(replicate for part in parts for replicate in part.replicates),
        next((part.contract for part in parts if part.contract), {}),
        _facts(parts),
        next((part.wrong for part in parts if part.wrong), None),
        tuple(broken),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _facts(parts: Sequence[Taken]) -> Mapping[str, Json]:
    looks = [look for part in parts for look in _looks(part.facts)]
    return {**parts[-1].facts, **({"telemetry": looks} if looks else {})}


def _looks(facts: Mapping[str, Json]) -> Sequence[Json]:
    looks = facts.get("telemetry")
    return looks if isinstance(looks, list) else ()


def _changed(contracts: Sequence[Mapping[str, Json]]) -> dict[str, list[Json]]:
    """What each field was that differs, by its name; one that is missing in a part could not be read there."""
    names = sorted({name for contract in contracts for name in contract})
    seen = {name: [contract[name] for contract in contracts if name in contract] for name in names}
    return {name: values for name, values in seen.items() if any(value != values[0] for value in values)}


def _in_words(name: str, values: Sequence[Json]) -> str:
    """A field that differs, with what it was where that is short enough to be read."""
    if not all(isinstance(value, str | int) for value in values):
        return name

    return f"{name}: {', then '.join(dict.fromkeys(map(str, values)))}"
