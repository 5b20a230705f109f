"""What a perf run reports of one metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..gate.verdict import Judgement, Verdict
from ..metric import Json


@dataclass(frozen=True, slots=True)
class Result:
    """A judgement, and where it was recorded if it was. values: process values, in the metric's unit.

    advisory: it is shown, and only wrong numbers fail its test. rates: what was achieved, as in report.rates.
    ranks: where each rank works and how long it needs by itself, as gate.stragglers.table; () where that is not known.
    """

    nodeid: str
    judgement: Judgement
    recorded: Path | None
    values: tuple[float, ...] = ()
    advisory: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)
    ranks: Sequence[Json] = ()

    @property
    def passes(self) -> bool:
        """What was recorded is accepted; anything else passes by its verdict."""
        verdict = self.judgement.verdict
        harmless = self.advisory and verdict is not Verdict.WRONG_RESULT
        return self.recorded is not None or verdict.passes or harmless
