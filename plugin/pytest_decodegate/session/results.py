"""What came out of a session so far: results as they come, the report file, and what is wrong with the run itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..report import lines
from .launches import Launches

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from ..measure.source import Progress
    from ..metric import Json
    from ..report.result import Result


class Results:
    """The results of one session. path: takes a JSON line for each, None writes none. selected: perf tests chosen.

    problem: what is wrong with the run as a whole, which must not end as if all were well.
    """

    def __init__(self, session_id: str, path: Path | None, progress: Progress) -> None:
        self.session_id = session_id
        self.all: list[Result] = []
        self.launches = Launches(self.write_event)
        self.selected = 0
        self.problem: str | None = None
        self._path = path
        self._progress = progress
        self._claimed: dict[str, str] = {}

    @property
    def measured_nothing(self) -> bool:
        """True if perf tests were selected and not one of them came to a verdict."""
        return self.selected > 0 and not self.all

    def claim(self, metric: str, test: str) -> None:
        """Note that a test measures `metric`; raises BadInput if another one did, whose sessions it would replace."""
        first = self._claimed.setdefault(metric, test)
        if first != test:
            raise BadInput(f"metric {metric!r} was measured by {first} in this run already; give each its own name")

    def of(self, item: pytest.Item) -> list[Result]:
        """The results of one test so far."""
        return [result for result in self.all if result.nodeid == item.nodeid]

    def add(self, result: Result, item: pytest.Item, world_size: int = 0) -> None:
        """Say and write a result as it comes, so that a crash later loses nothing. world_size: of its gangs, or 0."""
        self.all.append(result)
        self._progress.say(lines.told(result))
        item.user_properties.extend(lines.properties(result))
        self._append(lines.json_line(result, self.session_id))
        self.launches.judged(world_size)

    def add_problem(self, problem: str) -> None:
        """Keep what is wrong with the run as a whole."""
        self.problem = f"{self.problem}; {problem}" if self.problem else problem

    def write_event(self, event: str, fields: Mapping[str, Json]) -> None:
        """Write what is no verdict to the report, for whoever must know all of a run on two stacks."""
        self._append(json.dumps({"session": self.session_id, "event": event, **fields}, allow_nan=False))

    def _append(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as report:
                report.write(line + "\n")
