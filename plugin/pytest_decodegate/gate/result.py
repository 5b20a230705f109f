"""What a perf run says of its tests, as values: results, failures, skips, what was compared, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Literal, TypeAlias

from ..cause import Finding
from ..metric import Json, Metric, Replicate
from .bands import RecordedBand
from .pairs import Contrast
from .verdict import Judgement, Numbers, Verdict

ERROR = "ERROR"
"""In place of a verdict: a crash, a hang, or a stack that cannot run the test."""

Blamed: TypeAlias = Literal["base", "candidate", ""]


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """How the samples of one fresh process lie, in the metric's unit. is_base: of the base of two stacks.

    value: the process value, the median. low, high: quarter and three quarters of the samples, which are `samples`.
    """

    is_base: bool
    value: float
    low: float
    high: float
    samples: int


def spreads(replicates: Sequence[Replicate], *, is_base: bool = False) -> tuple[ProcessSpread, ...]:
    """One for each process; of a stored one whose samples were not kept, the value alone."""
    return tuple(
        ProcessSpread(is_base, each.value, *(_quarters(each.samples) or (each.value, each.value)), len(each.samples))
        for each in replicates
    )


def _quarters(samples: Sequence[float]) -> tuple[float, float] | None:
    if len(samples) < 2:
        return None

    low, _, high = quantiles(samples, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True, slots=True)
class Result:
    """A judgement, and where it was recorded if it was. values: process values, in the metric's unit.

    advisory: it is shown, and only wrong numbers fail its test. rates: what was achieved, as in report.rates.
    ranks: where each rank works and how long it needs by itself, as gate.evidence.stragglers.table; () where that is
    not known. attempt: which try of its test it is of, from 1; another plugin may run a failed test again.
    band: the one that it was recorded under, None if it was not. gated: its verdict stands, although it was recorded.
    processes: how their samples lie, the base's first. gpus: each GPU as the watch last saw it beside this metric.
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
    gated: bool = False
    processes: tuple[ProcessSpread, ...] = ()
    gpus: Sequence[Json] = ()

    @property
    def passes(self) -> bool:
        """What was recorded is accepted; anything else passes by its verdict."""
        verdict = self.judgement.verdict
        harmless = self.advisory and verdict is not Verdict.WRONG_RESULT
        return self.only_recorded or verdict.passes or harmless

    @property
    def only_recorded(self) -> bool:
        """Whether it was stored in place of being gated."""
        return self.recorded is not None and not self.gated

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
