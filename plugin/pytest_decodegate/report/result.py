"""What a perf run reports of one metric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..gate.verdict import Judgement


@dataclass(frozen=True, slots=True)
class Result:
    """A judgement, and where it was recorded if it was."""

    nodeid: str
    judgement: Judgement
    recorded: Path | None

    @property
    def passes(self) -> bool:
        """What was recorded is accepted; anything else passes by its verdict."""
        return self.recorded is not None or self.judgement.verdict.passes
