"""The self-test: what counts as found, missed and false, and how the command asks for slowdowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from judged import changed, result

from pytest_decodegate.cli import BAD_INPUT, main
from pytest_decodegate.commands import selftest as command
from pytest_decodegate.errors import RankDied
from pytest_decodegate.gate.result import Failed, Result
from pytest_decodegate.gate.run import Run
from pytest_decodegate.gate.selftest import Tally, Trial, findings, proven, resolved
from pytest_decodegate.settings.stack import Stack

KERNEL = result("gemm", "PASS", change=0.0, lo=-0.004, hi=0.004)
COLLECTIVE = result("allreduce", "PASS", kind="collective", tolerance=0.05, change=0.0, lo=-0.02, hi=0.02)
TPOT = result("tpot", "PASS", kind="serving", level="server", tolerance=0.03, change=0.0, lo=-0.004, hi=0.004)
SLOWER = changed(KERNEL, verdict="REGRESSED")
OPEN = changed(KERNEL, verdict="INCONCLUSIVE")
CRASHED = Failed("allreduce", RankDied("rank 0 died\n...").finding)


def found(slowdown: float, *outcomes: Result | Failed) -> list[Tally]:
    return list(findings([Trial(slowdown, None, outcomes)]))


def test_each_kind_is_counted_by_itself() -> None:
    assert found(0.03, SLOWER, KERNEL, OPEN, COLLECTIVE) == [
        Tally("kernel", 0.03, None, 1, 1, 1, 0, "slower"),
        Tally("collective", 0.03, None, 0, 1, 0, 0, ""),
    ]


def test_what_a_slowdown_does_not_reach_is_expected_to_pass() -> None:
    """Only collectives have a second rank, and servers are slowed down in all ranks or in none."""
    in_rank_1 = findings([Trial(0.1, 1, (KERNEL, COLLECTIVE, TPOT))])
    assert [(one.kind, one.slowdown, one.rank, one.expected) for one in in_rank_1] == [
        ("kernel", 0.0, None, "pass"),
        ("collective", 0.1, 1, "slower"),
        ("serving", 0.0, None, "pass"),
    ]
    assert [one.slowdown for one in findings([Trial(0.1, 0, (KERNEL, COLLECTIVE, TPOT))])] == [0.1, 0.1, 0.0]


def test_a_slower_server_must_be_found_like_a_slower_kernel() -> None:
    crashed = replace(CRASHED, nodeid="tpot[c=8]")
    assert found(0.1, KERNEL, TPOT, crashed) == [
        Tally("kernel", 0.1, None, 0, 1, 0, 0, "slower"),
        Tally("serving", 0.1, None, 0, 1, 0, 0, "slower"),
        Tally("", 0.0, None, 0, 0, 0, 1, ""),
    ]


@pytest.mark.parametrize(
    ("rows", "unfinished", "expected"),
    [
        ((KERNEL, OPEN), None, True),
        ((KERNEL, SLOWER), None, False),
        ((OPEN,), None, False),
        ((), None, False),
        ((KERNEL, CRASHED), None, False),
        ((KERNEL, changed(KERNEL, verdict="INVALID")), None, False),
        ((KERNEL,), "pytest was interrupted", False),
    ],
)
def test_nothing_is_proven_by_what_was_not_judged(
    rows: tuple[Result | Failed, ...], unfinished: str | None, expected: bool
) -> None:
    trials = [Trial(0.0, None, rows, unfinished)]
    assert proven(trials, list(findings(trials))) is expected


@pytest.mark.parametrize(
    ("slowdown", "row", "expected", "wrong"),
    [
        (0.0, KERNEL, "pass", 0),
        (0.0, OPEN, "pass", 0),
        (0.0, SLOWER, "pass", 1),
        (0.02, SLOWER, "", 0),
        (0.02, KERNEL, "", 0),
        (0.03, SLOWER, "slower", 0),
        (0.03, KERNEL, "slower", 1),
        (0.03, OPEN, "slower", 1),
    ],
)
def test_what_is_wrong_depends_on_the_band(slowdown: float, row: Result, expected: str, wrong: int) -> None:
    (one,) = found(slowdown, row)
    assert (one.expected, one.wrong) == (expected, wrong)


def test_what_would_be_found_is_the_band_and_the_noise() -> None:
    trials = [Trial(0.0, None, (KERNEL, COLLECTIVE)), Trial(0.05, None, (changed(KERNEL, hi=9.0),))]
    assert resolved(trials) == pytest.approx({"kernel": 0.024, "collective": 0.07})
    assert resolved([Trial(0.0, None, (changed(KERNEL, lo=None),))]) == {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Stack]:
    """The candidates that were measured; each is called slower if it is slowed down at all."""
    candidates: list[Stack] = []

    def measured(base: Stack, candidate: Stack, markers: str | None, arguments: Sequence[str], typed: list[str]) -> Run:
        assert base == Stack()
        assert typed[:2] == ["decodegate", "selftest"]
        candidates.append(candidate)
        return Run([SLOWER if candidate.env else KERNEL], unfinished=None)

    monkeypatch.setattr(command, "measured", measured)
    return candidates


def test_the_table_says_what_was_found(asked: list[Stack], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--slowdowns=3,5"]) == 0
    assert [dict(one.env).get("DECODEGATE_SLOWDOWN") for one in asked] == [None, "*=3%", "*=5%"]
    assert capsys.readouterr().out.splitlines() == [
        "kind    slowdown  found  passed  open  failed  expected",
        "kernel  none      0      1       0     0       pass",
        "kernel  +3.0 %    1      0       0     0       slower",
        "kernel  +5.0 %    1      0       0     0       slower",
        "",
        "kernel: a slowdown of 2.4 % would be found here",
        "false alarms: 0; slowdowns missed: 0; not judged: 0",
    ]


def test_one_rank_can_be_slowed_down_alone(asked: list[Stack], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--slowdowns=3", "--rank=0"]) == 0
    assert dict(asked[1].env) == {"DECODEGATE_SLOWDOWN": "*=3%@0"}
    assert "+3.0 % in rank 0" in capsys.readouterr().out


def test_a_self_test_ends_with_the_run_that_does_and_says_what_was_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Run] = []

    def measured(*_: object) -> Run:
        runs.append(Run([KERNEL, CRASHED], unfinished="pytest was interrupted"))
        return runs[-1]

    monkeypatch.setattr(command, "measured", measured)
    assert main(["selftest"]) == 1
    assert len(runs) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "not judged: allreduce: ERROR: RankDied: rank 0 died",
        "not finished: pytest was interrupted",
        "false alarms: 0; slowdowns missed: 0; not judged: 1",
    ]


@pytest.mark.parametrize("percents", ["", "x", "0", "-1", "1,,2"])
def test_what_is_no_slowdown_is_refused(percents: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", f"--slowdowns={percents}"]) == BAD_INPUT
    assert "is no list of percentages" in capsys.readouterr().err
