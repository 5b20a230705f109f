"""One run of pytest as the commands start it: what pytest is told, and how its end is understood."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from pytest_decodegate.cli import main
from pytest_decodegate.commands.suite import SuiteSelection
from pytest_decodegate.commands.two_stacks import StacksPlugin, measured
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.decision import Answer
from pytest_decodegate.gate.result import Ended
from pytest_decodegate.settings.stack import Stack

CANDIDATE = Stack(env=(("A", "1,2"), ("B", "x y")))


class Pytest:
    """Stands for pytest.main: keeps what it is given, says that the run ended, and returns `status`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> None:
        self.arguments: list[str] = []
        self.stacks: tuple[Stack, Stack] | None = None
        self._status = status
        monkeypatch.setattr(pytest, "main", self)

    def __call__(self, arguments: list[str], plugins: tuple[StacksPlugin, SuiteSelection]) -> int:
        self.arguments = arguments
        plugin, selection = plugins
        assert isinstance(selection, SuiteSelection), "the suite is found wherever a command starts"
        self.stacks = plugin.pytest_decodegate_stacks()
        plugin.pytest_decodegate_outcome(Ended(None, 1.0))
        return self._status


def test_stacks_reach_pytest_as_they_are_and_the_users_arguments_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Pytest(monkeypatch)
    found = measured(Stack(), CANDIDATE, "slow or fast", ["-k", "x"])
    assert run.arguments[1:] == ["-m", "perf and (slow or fast)", "-k", "x"]
    assert run.stacks == (Stack(), CANDIDATE)
    assert (found.unfinished, found.seconds) == (None, 1.0)


TEST = """
    import pytest
    from pytest_decodegate.settings.stack import Stack


    @pytest.mark.perf
    def test_stack(perf, request):
        from pytest_decodegate.session.session import session_of

        settings = session_of(request.config).settings
        assert (settings.base, settings.stack) == (Stack(), Stack(env=(("A", "1,2"), ("B", "x y"))))
        pytest.skip("seen")
"""


def test_pytest_itself_takes_the_stacks_and_says_what_came_of_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole seam, without a rank: stacks into the settings, a skip and the end of the run out, and the report."""
    pytester.makepyfile(test_x=TEST)
    typed = ["decodegate", "upgrade", "--candidate", "env:A=1"]
    found = measured(Stack(), CANDIDATE, None, ["--perf-report=report", "-p", "no:cacheprovider", "."], typed)
    assert [(skip.nodeid, skip.reason) for skip in found.skipped] == [("test_x.py::test_stack", "seen")]
    assert found.stacks is not None
    assert (found.stacks.base, found.stacks.candidate) == ("this", "env:A=1,2,env:B=x y")
    lines = [json.loads(line) for line in Path("report/results.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["begun", "skipped", "stacks", "end", "answer"]
    page = Path("report/report.html").read_text()
    assert "decodegate upgrade --candidate env:A=1<" in page, "what a person typed, not what pytest was given"
    assert "<dt>candidate</dt><dd>env:A=1,2,env:B=x y</dd>" in page


def test_the_options_that_name_stacks_are_the_commands(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match="pytest refused to run"):
        measured(Stack(), CANDIDATE, None, ["--perf-base=this", "-p", "no:cacheprovider"])

    assert "--perf-candidate and --perf-base (this): leave them out" in capsys.readouterr().err


def test_what_is_allowed_to_differ_reaches_pytest_as_a_declared_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Pytest(monkeypatch)
    sides = ["--base", "server=http://a:1", "--candidate", "server=http://b:1"]
    assert main(["upgrade", *sides, "--allow", "model", "--", "-k", "x"]) == Answer.NOT_PROVEN.status
    assert run.arguments[-3:] == ["--perf-change=model", "-k", "x"]


def test_what_pytest_refuses_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    Pytest(monkeypatch, pytest.ExitCode.USAGE_ERROR)
    with pytest.raises(BadInput, match="pytest refused to run"):
        measured(Stack(), CANDIDATE, None, [])


def test_a_job_that_is_cancelled_is_interrupted_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(*_: object, **__: object) -> int:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)

        return pytest.ExitCode.INTERRUPTED

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pytest, "main", cancelled)
    run = measured(Stack(), CANDIDATE, None, [])
    assert run.decision.answer is Answer.NOT_PROVEN
    assert signal.getsignal(signal.SIGTERM) == before
