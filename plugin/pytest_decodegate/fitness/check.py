"""A check of the host as data, and what it comes to: OK, WARN, FAIL or SKIP, with what it costs and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from .readings import HostReadings


class Grade(Enum):
    """How fit a host is by one check: FAIL is not to be measured on; SKIP was not looked at, for the reason given."""

    OK = "OK"
    SKIP = "SKIP"
    WARN = "WARN"
    FAIL = "FAIL"


_BY_WEIGHT = list(Grade)


@dataclass(frozen=True, slots=True)
class Symptom:
    """One thing that a check saw: a clause without a full stop. gpu: the number of its card, if it is of one."""

    grade: Grade
    text: str
    gpu: int | None = None


Look = Callable[[HostReadings], Iterable[Symptom]]


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One row of the table of checks.

    look: a pure function of what was read; what it saw, the OK included. cost: what the fault does to a measurement.
    mend: the command or step that ends it; "{gpus}" stands for the numbers of the cards that it is of, "0,3".
    early: whether a perf run asks before it starts anything: it costs milliseconds and no load.
    """

    name: str
    look: Look
    cost: str
    mend: str
    early: bool = False

    def run(self, readings: HostReadings) -> CheckOutcome:
        """What it comes to on `readings`; one that saw nothing has not looked."""
        symptoms = tuple(self.look(readings)) or (Symptom(Grade.SKIP, "nothing to look at here"),)
        return CheckOutcome(self, symptoms)


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A check with what it saw."""

    check: HostCheck
    symptoms: tuple[Symptom, ...]

    @property
    def grade(self) -> Grade:
        """The worst of what was seen."""
        return max((symptom.grade for symptom in self.symptoms), key=_BY_WEIGHT.index)

    @property
    def _worst(self) -> list[Symptom]:
        grade = self.grade
        return [symptom for symptom in self.symptoms if symptom.grade is grade]

    @property
    def text(self) -> str:
        """What was seen of the worst grade; cards of which the same is said share one clause."""
        cards: dict[str, list[int]] = {}
        for symptom in self._worst:
            cards.setdefault(symptom.text, []).extend([] if symptom.gpu is None else [symptom.gpu])

        return "; ".join(f"{_gpus(numbers)}{text}" for text, numbers in cards.items())

    @property
    def mend(self) -> str:
        """The check's, with the numbers of the cards filled in."""
        numbers = [symptom.gpu for symptom in self._worst if symptom.gpu is not None]
        return self.check.mend.replace("{gpus}", ",".join(map(str, dict.fromkeys(numbers))))

    @property
    def is_fault(self) -> bool:
        """Whether there is something to mend."""
        return self.grade in (Grade.WARN, Grade.FAIL)


def _gpus(numbers: list[int]) -> str:
    if not numbers:
        return ""

    return f"GPU{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}: "
