"""What a perf run says of its tests, as values: results, failures, skips, what was compared, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ..cause import Finding
from ..metric import Json, Metric
from .bands import RecordedBand
from .pairs import Contrast
from .verdict import Judgement, Numbers, Verdict

ERROR = "ERROR"
"""In place of a verdict: a crash, a hang, or a stack that cannot run the test."""

Blamed: TypeAlias = Literal["base", "candidate", ""]


@dataclass(frozen=True, slots=True)
class Result:
    """A judgement, and where it was recorded if it was. values: process values, in the metric's unit.

    advisory: it is shown, and only wrong numbers fail its test. rates: what was achieved, as in report.rates.
    ranks: where each rank works and how long it needs by itself, as gate.evidence.stragglers.table; () where that is
    not known. attempt: which try of its test it is of, from 1; another plugin may run a failed test again.
    band: the one that it was recorded under, None if it was not.
    """

    nodeid: str
    judgement: Judgement
    recorded: Path | None = None
    values: tuple[float, ...] = ()
    advisory: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)
    ranks: Sequence[Json] = ()
    attempt: int = 1
    band: RecordedBand | None = None

    @property
    def passes(self) -> bool:
        """What was recorded is accepted; anything else passes by its verdict."""
        verdict = self.judgement.verdict
        harmless = self.advisory and verdict is not Verdict.WRONG_RESULT
        return self.recorded is not None or verdict.passes or harmless

    @property
    def name(self) -> str:
        """Of the metric."""
        return self.judgement.metric.name


@dataclass(frozen=True, slots=True)
class Failed:
    """A test that came to no verdict. metric: what it measured, if that is known.

    side: the stack whose error it is, "" where nobody can tell. base: what that one gave before, in the metric's unit.
    """

    nodeid: str
    error: Finding
    metric: Metric | None = None
    side: Blamed = ""
    base: float | None = None
    advisory: bool = False

    @property
    def name(self) -> str:
        """Of the metric, else of the test."""
        return self.metric.name if self.metric else self.nodeid

    @property
    def numbers(self) -> Numbers:
        """The base's level, and nothing else."""
        return Numbers(base=self.base)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A test that was skipped, and why."""

    nodeid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """What is compared: base and candidate as a user writes them, where, and how what they loaded differs."""

    base: str
    candidate: str
    machine_class: str
    contrast: Contrast


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run. unfinished: why it did not come to its end, None if it did. seconds: how long it took."""

    unfinished: str | None
    seconds: float
