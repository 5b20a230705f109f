"""How far a run is, beside each word on what it is doing: `[37/113]`, the time gone and left, and what has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..gate.run import Run
from ..gate.verdict import Verdict

LEAST_TO_ESTIMATE: Final = 3
"""Metrics judged before the rest is estimated from them: the first holds the start of ranks or of a server."""


class Standing:
    """How far `run` is. selected: perf tests that were chosen. clock: in seconds."""

    def __init__(self, run: Run, selected: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._selected = selected
        self._clock = clock
        self._started = clock()

    def around(self, text: str) -> str:
        """`text` with the number of the test before it and the time behind it; as it is until tests are chosen."""
        total = self._selected()
        if not total:
            return text

        done = len(self._run.outcomes) + len(self._run.skipped)
        return f"[{min(done + 1, total)}/{total}] {text}, {self._times(done, total)}{self._failed()}"

    def _times(self, done: int, total: int) -> str:
        gone = self._clock() - self._started
        minutes, seconds = divmod(int(gone), 60)
        shown = f"{minutes}:{seconds:02} gone"
        measured = len(self._run.outcomes)
        if measured < LEAST_TO_ESTIMATE or done >= total:
            return shown

        # What was skipped took no time, and of what is to come as much may be skipped as was so far.
        left = gone / done * (total - done)
        return f"{shown}, ~{max(1, round(left / 60))} min left"

    def _failed(self) -> str:
        slower = sum(result.judgement.verdict is Verdict.REGRESSED for result in self._run.results)
        return f", {slower} {Verdict.REGRESSED}" if slower else ""
