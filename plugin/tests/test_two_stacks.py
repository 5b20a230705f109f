"""One run of pytest as the commands start it: what pytest is told, and how its end is understood."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from pytest_decodegate.cli import main
from pytest_decodegate.commands.two_stacks import measured
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.decision import Answer
from pytest_decodegate.settings.stack import Stack

CANDIDATE = Stack(env=(("A", "1,2"), ("B", "x y")))
END = {"event": "end", "unfinished": None, "seconds": 1.0}


class Pytest:
    """Stands for pytest.main: keeps its arguments, writes the end of a run, and returns `status`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> None:
        self.arguments: list[str] = []
        self._status = status
        monkeypatch.setattr(pytest, "main", self)

    def __call__(self, arguments: list[str]) -> int:
        self.arguments = arguments
        (report,) = (one.removeprefix("--perf-report=") for one in arguments if one.startswith("--perf-report="))
        Path(report).write_text(json.dumps(END) + "\n")
        return self._status


def test_a_stack_reaches_pytest_part_by_part_and_the_users_arguments_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pytest(monkeypatch)
    measured(Stack(), CANDIDATE, "slow or fast", ["-k", "x"])
    _, *told = run.arguments
    assert told[:2] == ["-m", "perf and (slow or fast)"]
    assert told[2:5] == ["--perf-against=this", "--perf-stack=env:A=1,2", "--perf-stack=env:B=x y"]
    assert told[-2:] == ["-k", "x"]


def test_what_is_allowed_to_differ_reaches_pytest_as_a_declared_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Pytest(monkeypatch)
    sides = ["--base", "server=http://a:1", "--candidate", "server=http://b:1"]
    assert main(["upgrade", *sides, "--allow", "model", "--", "-k", "x"]) == Answer.NOT_PROVEN.status
    assert run.arguments[-3:] == ["--perf-change=model", "-k", "x"]


def test_what_pytest_refuses_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    Pytest(monkeypatch, pytest.ExitCode.USAGE_ERROR)
    with pytest.raises(BadInput, match="pytest refused its arguments"):
        measured(Stack(), CANDIDATE, None, [])


def test_the_report_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pytest(monkeypatch)
    with pytest.raises(BadInput, match="--perf-report: this command reads that file itself"):
        measured(Stack(), Stack(), None, ["--perf-report", "x"])

    assert run.arguments == []


def test_a_job_that_is_cancelled_is_interrupted_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(_: list[str]) -> int:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)

        return pytest.ExitCode.INTERRUPTED

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pytest, "main", cancelled)
    run = measured(Stack(), CANDIDATE, None, [])
    assert run.decision.answer is Answer.NOT_PROVEN
    assert signal.getsignal(signal.SIGTERM) == before
