"""What came out of a session so far: results as they come, and what is wrong with the run itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import BadInput, DecodegateError
from ..gate.run import Run
from ..report.lines import properties, verdict_line
from .launches import Launches
from .outcomes import ended, failed, skipped
from .run_level import run_level

if TYPE_CHECKING:
    import pytest

    from ..gate.decision import Decision
    from ..gate.joint import BandOf
    from ..gate.result import Result
    from ..measure.source import Progress
    from ..metric import Metric
    from ..profile.step_profile import StepProfile


class Results:
    """The results of one session. announce: hands an outcome to `run` and to whoever else takes it.

    selected: perf tests chosen. problem: what is wrong with the run as a whole, which must not end as if all were well.
    """

    def __init__(self, announce: Callable[[object], None], progress: Progress) -> None:
        self.run = Run()
        self.launches = Launches(announce)
        self.selected = 0
        self.problem: str | None = None
        self._announce = announce
        self._progress = progress
        self._claimed: dict[str, str] = {}
        self._attempts: Counter[str] = Counter()
        self._failed_attempts: dict[tuple[str, int], None] = {}
        self._profiled: set[tuple[str, int]] = set()
        self._begun: set[str] = set()
        self._failures: dict[str, tuple[Metric | None, DecodegateError]] = {}
        self._started = time.monotonic()

    @property
    def measured_nothing(self) -> bool:
        """True if perf tests were selected and not one of them came to a verdict or a profile."""
        return self.selected > 0 and not self.run.results and not self._profiled

    @property
    def answers(self) -> bool:
        """Whether the run is to say GO or why not; one that took profiles and measured no metric is not."""
        return self.selected > 0 and not (self._profiled and not self.run.outcomes)

    @property
    def all_begun(self) -> bool:
        """Whether every perf test that was selected has had its turn."""
        return len(self._begun) >= self.selected

    def note_profile(self, item: pytest.Item, profile: StepProfile) -> None:
        """A test took a profile that holds what the model must launch: it measured, though no metric."""
        self._announce(profile)
        self._profiled.add((item.nodeid, self._attempt(item.nodeid)))

    def concluded(self, item: pytest.Item) -> bool:
        """Whether a test came to a verdict, or a profile, in its present try."""
        return bool(self.of(item)) or (item.nodeid, self._attempt(item.nodeid)) in self._profiled

    def claim(self, metric: str, test: str) -> None:
        """Note that a test measures `metric`; raises BadInput if another one did, whose sessions it would replace."""
        first = self._claimed.setdefault(metric, test)
        if first != test:
            raise BadInput(f"metric {metric!r} was measured by {first} in this run already; give each its own name")

    def of(self, item: pytest.Item) -> list[Result]:
        """The results of one test so far, in its present try."""
        attempt = self._attempt(item.nodeid)
        return [result for result in self.run.results if (result.nodeid, result.attempt) == (item.nodeid, attempt)]

    def begin_attempt(self, nodeid: str) -> None:
        """A test is tried, for the first time or again."""
        self._attempts[nodeid] += 1

    def attempt_failed(self, nodeid: str) -> None:
        """The present try of a perf test failed, whatever another plugin makes of that."""
        self._failed_attempts[nodeid, self._attempt(nodeid)] = None

    def _attempt(self, nodeid: str) -> int:
        return max(1, self._attempts[nodeid])

    @property
    def not_passed(self) -> str:
        """What did not pass, whatever ran again: "nap REGRESSED in try 1"; "" if all did."""
        bad = [result for result in self.run.results if not result.passes]
        parts = [f"{result.name} {result.judgement.verdict} in try {result.attempt}" for result in bad]
        judged = {(result.nodeid, result.attempt) for result in bad}
        parts += [
            f"{test} failed in try {number}" for test, number in self._failed_attempts if (test, number) not in judged
        ]
        return ", ".join(parts)

    def add(self, result: Result, item: pytest.Item, world_size: int = 0) -> None:
        """Say and write a result as it comes, so that a crash later loses nothing. world_size: of its gangs, or 0."""
        result = replace(result, attempt=self._attempt(result.nodeid))
        self._progress.say(verdict_line(result))
        item.user_properties.extend(properties(result))
        self._announce(result)
        self.launches.judged(world_size)

    @contextmanager
    def naming_failures(self, metric: Metric, test: str) -> Iterator[None]:
        """Note of what fails that it was `metric` that the test measured."""
        try:
            yield
        except DecodegateError as failure:
            self.note_failure(test, failure, metric)
            raise

    def note_failure(self, test: str, failure: DecodegateError, metric: Metric | None = None) -> None:
        """Keep the error with which a test ends; where it was measuring, that was noted before."""
        self._failures.setdefault(test, (metric, failure))

    def test_ended(self, report: pytest.TestReport, *, passing: bool, advisory: bool) -> None:
        """Tell of a phase of a test that says more than verdicts: skipped, or failed although all verdicts pass."""
        self._begun.add(report.nodeid)
        if report.skipped:
            self._announce(skipped(report))
        elif report.failed and passing:
            failure = self._failures.pop(report.nodeid, None)
            self._announce(failed(report, failure, advisory=advisory))

    def end(self, exit_status: int, band_of: BandOf) -> Decision:
        """Tell what the metrics say together, how the run ended, and the answer to it; returns that.

        band_of: as of run_level.
        """
        for outcome in run_level(self.run.results, band_of):
            self._announce(outcome)

        left_out = self.selected - len(self._begun)
        self._announce(ended(exit_status, self.problem, left_out, time.monotonic() - self._started))
        decision = self.run.decision
        self._announce(decision)
        return decision

    def add_problem(self, problem: str) -> None:
        """Keep what is wrong with the run as a whole."""
        self.problem = f"{self.problem}; {problem}" if self.problem else problem
