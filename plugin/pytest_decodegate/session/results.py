"""What came out of a session so far: results as they come, and what is wrong with the run itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..report import lines
from .launches import Launches

if TYPE_CHECKING:
    import pytest

    from ..gate.result import Result
    from ..measure.source import Progress


class Results:
    """The results of one session. announce: hands an outcome to whoever takes it: the JSON report, a command.

    selected: perf tests chosen. problem: what is wrong with the run as a whole, which must not end as if all were well.
    """

    def __init__(self, announce: Callable[[object], None], progress: Progress) -> None:
        self.all: list[Result] = []
        self.launches = Launches(announce)
        self.selected = 0
        self.problem: str | None = None
        self._announce = announce
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
        self._progress.say(lines.verdict_line(result))
        item.user_properties.extend(lines.properties(result))
        self._announce(result)
        self.launches.judged(world_size)

    def add_problem(self, problem: str) -> None:
        """Keep what is wrong with the run as a whole."""
        self.problem = f"{self.problem}; {problem}" if self.problem else problem
