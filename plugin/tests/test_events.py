"""Lines of a run on two stacks that are no verdicts: whose error it was, and how the run ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.errors import DecodegateError, GangError, RankDied
from pytest_decodegate.measure.paired_source import StackFailed
from pytest_decodegate.metric import Metric, Replicate
from pytest_decodegate.report import events

METRIC = Metric.of("allreduce[world=2]", "collective")


def report(**fields: Any) -> Any:
    return SimpleNamespace(nodeid="test_x.py::test_x", longreprtext="E  boom", longrepr=None, **fields)


def failed(error: DecodegateError) -> dict[str, Any]:
    return events.failed(report(), (METRIC, error), advisory=True)


def test_a_stack_that_failed_is_named_with_what_the_base_measured() -> None:
    failure = StackFailed("candidate", RankDied("rank 0 died"))
    failure.base = (Replicate((1e-5,)), Replicate((4e-5,)))
    assert failed(failure) == {
        "test": "test_x.py::test_x",
        "advisory": True,
        "metric": METRIC.name,
        "unit": "s",
        "side": "candidate",
        "base": pytest.approx(2e-5),
        "reason": "RankDied: rank 0 died",
    }


def test_an_error_of_nobody_blames_nobody() -> None:
    told = failed(GangError("GPU 0 is gone"))
    assert (told["side"], told["base"], told["reason"]) == ("", None, "GangError: GPU 0 is gone")


def test_a_test_that_crashed_itself_is_told_in_its_own_words() -> None:
    crash = report()
    assert events.failed(crash, None, advisory=False)["reason"] == "E  boom"
    crash.longrepr = SimpleNamespace(reprcrash=SimpleNamespace(message="ValueError: boom"))
    assert events.failed(crash, None, advisory=False)["reason"] == "ValueError: boom"


def test_a_skip_is_told_without_pytests_prefix() -> None:
    skip = report()
    skip.longrepr = ("x.py", 3, "Skipped: needs eight GPUs")
    assert events.skipped(skip) == {"test": "test_x.py::test_x", "reason": "needs eight GPUs"}


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
    assert events.end(exit_status, problem, left_out, 60.0) == {"unfinished": unfinished, "seconds": 60.0}


def test_what_a_test_raised_or_skipped_with_is_written_harmlessly() -> None:
    crash, skip = report(), report()
    crash.longrepr = SimpleNamespace(reprcrash=SimpleNamespace(message="boom\n::error::x\x1b[2J HF_TOKEN=hf-mine"))
    skip.longrepr = ("x.py", 3, "Skipped: \x1b[2J HF_TOKEN=hf-mine")
    for reason in (events.failed(crash, None, advisory=False)["reason"], events.skipped(skip)["reason"]):
        assert [part for part in ("\x1b", "hf-mine", "\n::") if part in str(reason)] == []
