"""What differs between two baselines, and how that stands to what the user said of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..baseline.schema import Baseline
from ..baseline.selection import contrast
from ..gate.published import without_numbers
from ..machine.classes import is_of_class
from ..machine.provenance import ABSENT, Difference, Leaf, undeclared

MACHINE_CLASS = "machine_class"

Standing = Literal["declared", "allowed", "undeclared", "not published"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the user says of the differences.

    declared: from `parse_declared`, the change under test. allowed: fields that may differ all the same, with or
    without the number of the GPU; `machine_class` stands for everything that the class sums up.
    """

    declared: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()

    def allow(self, field: str) -> bool:
        """Whether the user lets `field` differ."""
        return field in self.allowed or without_numbers(field) in self.allowed

    def used(self, fields: Iterable[str]) -> frozenset[str]:
        """What of `allowed` names one of `fields`."""
        return frozenset(name for field in fields for name in (field, without_numbers(field)) if name in self.allowed)


@dataclass(frozen=True, slots=True)
class StandingDifference:
    """One difference of two baselines, and how it stands to what the user said."""

    difference: Difference
    standing: Standing


def findings(base: Baseline, new: Baseline, terms: Terms) -> Iterator[StandingDifference]:
    """Everything that differs in machine class, machine and stack."""
    if not same_class(base, new):
        difference = Difference(MACHINE_CLASS, base.machine_class, new.machine_class, declarable=False)
        yield StandingDifference(difference, "allowed" if terms.allow(MACHINE_CLASS) else "undeclared")

    telemetry = new.newest.telemetry if new.newest else {}
    for difference in contrast(base, replace(new.provenance, telemetry=telemetry), terms.declared).differences:
        yield StandingDifference(difference, _standing(difference, base, new, terms))


def same_class(base: Baseline, new: Baseline) -> bool:
    """Whether both were measured on one class, as far as a publication says it."""
    return base.machine_class == new.machine_class or any(
        side.published and is_of_class(side.machine_class, other.machine_class)
        for side, other in ((base, new), (new, base))
    )


def silent(baseline: Baseline, value: Leaf) -> bool:
    """Whether a value is missing because it was not published, which is no difference."""
    return bool(baseline.published) and value is ABSENT


def _standing(difference: Difference, base: Baseline, new: Baseline, terms: Terms) -> Standing:
    if silent(base, difference.base) or silent(new, difference.new):
        return "not published"
    if not undeclared((difference,), terms.declared):
        return "declared"

    of_machine = re.split(r"[.\[]", difference.field)[0] in {*base.provenance.machine, *new.provenance.machine}
    allowed = terms.allow(difference.field) or (of_machine and not difference.declarable and terms.allow(MACHINE_CLASS))
    return "allowed" if allowed else "undeclared"
