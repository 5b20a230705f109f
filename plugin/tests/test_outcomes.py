"""Outcomes of a run on two stacks that are no verdicts: whose error it was, and how the run ended."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.cause import Cause
from pytest_decodegate.errors import DecodegateError, GangError, RankDied
from pytest_decodegate.gate.result import Ended, Failed, Skipped
from pytest_decodegate.measure.paired_source import StackFailed
from pytest_decodegate.metric import Metric, Replicate
from pytest_decodegate.session import outcomes

METRIC = Metric.of("allreduce[world=2]", "collective")


def report(**fields: Any) -> Any:
    return SimpleNamespace(nodeid="test_x.py::test_x", longreprtext="E  boom", longrepr=None, **fields)


def failed(error: DecodegateError) -> Failed:
    return outcomes.failed(report(), (METRIC, error), advisory=True)


def test_a_stack_that_failed_is_named_with_what_the_base_measured() -> None:
    died = RankDied("rank 0 died", cause=Cause.OUT_OF_MEMORY)
    failure = StackFailed("candidate", died)
    failure.base = (Replicate((1e-5,)), Replicate((4e-5,)))
    found = failed(failure)
    assert found.base == pytest.approx(2e-5)
    assert replace(found, base=None) == Failed("test_x.py::test_x", died.finding, METRIC, "candidate", None, True)
    assert (found.error.cause, found.name) == (Cause.OUT_OF_MEMORY, METRIC.name)


def test_an_error_of_nobody_blames_nobody() -> None:
    found = failed(GangError("GPU 0 is gone"))
    assert (found.side, found.base, found.error) == ("", None, "GangError: GPU 0 is gone")


def test_a_test_that_crashed_itself_is_told_in_its_own_words() -> None:
    crash = report()
    assert outcomes.failed(crash, None, advisory=False).error == "E  boom"
    crash.longrepr = SimpleNamespace(reprcrash=SimpleNamespace(message="ValueError: boom\nmore"))
    error = outcomes.failed(crash, None, advisory=False).error
    assert (error, error.brief, error.cause) == ("ValueError: boom\nmore", "ValueError: boom", Cause.EXCEPTION)


def test_a_skip_is_told_without_pytests_prefix() -> None:
    skip = report()
    skip.longrepr = ("x.py", 3, "Skipped: needs eight GPUs")
    assert outcomes.skipped(skip) == Skipped("test_x.py::test_x", "needs eight GPUs")


@pytest.mark.parametrize(
    ("exit_status", "problem", "left_out", "unfinished"),
    [
        (0, None, 0, None),
        (1, None, 0, None),
        (2, None, 3, "pytest was interrupted, or could not collect the tests"),
        (1, None, 3, "3 of the selected perf tests were never begun: pytest was told to stop early"),
        (0, "a gang could not be ended", 0, "a gang could not be ended"),
        (5, None, 0, "no perf test was selected"),
    ],
)
def test_only_a_run_that_was_not_cut_short_is_finished(
    exit_status: int, problem: str | None, left_out: int, unfinished: str | None
) -> None:
    assert outcomes.ended(exit_status, problem, left_out, 60.0) == Ended(unfinished, 60.0)


def test_what_a_test_raised_or_skipped_with_is_written_harmlessly() -> None:
    crash, skip = report(), report()
    crash.longrepr = SimpleNamespace(reprcrash=SimpleNamespace(message="boom\n::error::x\x1b[2J HF_TOKEN=hf-mine"))
    skip.longrepr = ("x.py", 3, "Skipped: \x1b[2J HF_TOKEN=hf-mine")
    for reason in (outcomes.failed(crash, None, advisory=False).error, outcomes.skipped(skip).reason):
        assert [part for part in ("\x1b", "hf-mine", "\n::") if part in str(reason)] == []
