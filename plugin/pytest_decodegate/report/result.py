"""What a perf run reports of one metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..gate.verdict import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class Result:
    """A judgement, and where it was recorded if it was. values: process values, in the metric's unit.

    advisory: it is shown, and only wrong numbers fail its test. rates: what was achieved, as in report.rates.
    """

    nodeid: str
    judgement: Judgement
    recorded: Path | None
    values: tuple[float, ...] = ()
    advisory: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        """What was recorded is accepted; anything else passes by its verdict."""
        verdict = self.judgement.verdict
        harmless = self.advisory and verdict is not Verdict.WRONG_RESULT
        return self.recorded is not None or verdict.passes or harmless
