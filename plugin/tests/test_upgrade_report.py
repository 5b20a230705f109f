"""The table and the JSON of a run on two stacks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from judged import changed, result
from recorded_upgrades import RECORDED, of_schema_1

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.errors import RankRaised
from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.result import Ended, Failed, Skipped, Stacks
from pytest_decodegate.gate.run import Run
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.metric import Metric
from pytest_decodegate.report.screen import About
from pytest_decodegate.report.upgrade import SCHEMA, document, text, unsettled
from pytest_decodegate.session.launches import Launch
from pytest_decodegate.session.outcomes import ended

JUDGED = result(
    "allreduce[world=2]",
    "REGRESSED",
    kind="collective",
    tolerance=0.05,
    base=1.5e-5,
    measured=1.65e-5,
    change=0.1,
    lo=0.08,
    hi=0.12,
    confidence=0.978,
    p_worse=1e-5,
)
PASSED = changed(JUDGED, verdict="PASS")
IMPORT_ERROR = RankRaised("ImportError: no vllm\nTraceback")
FAILED = Failed("t.py::test_moe", IMPORT_ERROR.finding, Metric.of("moe", "kernel"), "candidate", 3.3e-5)
NCCL = Difference("nccl", "2.28.3", "2.28.9", declarable=True)
STACKS = Stacks("this", "nccl=/n/libnccl.so.2", "NVIDIA-H200-x2-NVLink", Contrast((NCCL,)))
SKIPPED = Skipped("t.py::test_tpot", "servers do not fit")
END = Ended(None, 90.0)


def run(*outcomes: object) -> Run:
    said = Run()
    for outcome in outcomes:
        said.add(outcome)

    return said


def shown(said: Run, **about: Any) -> str:
    return text(said, About(**about))


def test_the_screen_says_what_does_not_pass_and_the_answer_last() -> None:
    passed = changed(PASSED, name="gemm", change=0.001, lo=-0.01, hi=0.01)
    advised = changed(PASSED, name="copy", verdict="REGRESSED", change=0.06, advisory=True)
    typed = ("decodegate", "upgrade", "--candidate", "nccl=/n/libnccl.so.2", "--", "-k", "a or b")
    assert shown(run(STACKS, JUDGED, passed, advised, FAILED, SKIPPED, END), command=typed).splitlines() == [
        "base:      this",
        "candidate: nccl=/n/libnccl.so.2",
        "differs:   nccl: 2.28.3 -> 2.28.9",
        "",
        "NO-GO: slower by more than the band (+10.0 %)",
        "  allreduce[world=2]  +10.0 %  [+8.0 % .. +12.0 %]  15.0 us  16.5 us",
        "NO-GO: moe: ERROR: RankRaised: ImportError: no vllm",
        "advisory: copy REGRESSED +6.0 %",
        "skipped: t.py::test_tpot: servers do not fit",
        "would have been found: a slowdown of a collective by 6.0 % (allreduce[world=2]:",
        "    7.0 %)",
        "next: decodegate upgrade --candidate nccl=/n/libnccl.so.2 -- -k 'a or b' \\",
        "      '--perf-only=allreduce[world=2]' --perf-only=moe",
        "counts: 1 REGRESSED, 1 ERROR, 1 PASS (at most +0.10 %: gemm), 1 advisory",
        "answer: NO-GO: 4 metrics in 1.5 min",
    ]


def test_with_v_the_table_shows_every_metric() -> None:
    passed = changed(PASSED, name="gemm", change=0.001, lo=-0.01, hi=0.01, advisory=True)
    lines = shown(run(STACKS, JUDGED, passed, FAILED, SKIPPED, END), verbose=True).splitlines()
    assert lines[4:8] == [
        "metric              base     candidate  change   interval           band  verdict         pairs",
        "allreduce[world=2]  15.0 us  16.5 us    +10.0 %  +8.0 % .. +12.0 %  5 %   REGRESSED       6",
        "gemm                15.0 us  16.5 us    +0.10 %  -1.0 % .. +1.0 %   5 %   PASS, advisory  6",
        "moe                 33.0 us  -          -        -                  -     ERROR           -",
    ]


def test_the_document_is_strict_json_and_says_the_same() -> None:
    told = json.loads(document(run(STACKS, JUDGED, FAILED, SKIPPED, END)))
    assert (told["schema"], told["answer"], told["exit_status"]) == (3, "NO-GO", 1)
    assert [one["metric"] for one in told["metrics"]] == ["allreduce[world=2]", "moe"]
    assert [one.get("confidence") for one in told["metrics"]] == [0.978, None]
    assert told["metrics"][1]["base"] == 3.3e-5
    assert told["seconds"] == 90.0
    assert told["stacks"]["differences"] == [{"field": "nccl", "base": "2.28.3", "new": "2.28.9"}]
    assert told["metrics"][1]["error"]["cause"] == "exception"
    assert told["skipped"] == [{"test": "t.py::test_tpot", "reason": "servers do not fit"}]
    assert told["causes"][0] == {
        "blocks": True,
        "text": "slower by more than the band (+10.0 %)",
        "names": ["allreduce[world=2]"],
    }


def test_a_run_that_was_killed_is_not_proven_whatever_passed() -> None:
    killed = run(STACKS, PASSED)
    assert killed.decision.answer is Answer.NOT_PROVEN
    assert "pytest did not come to its end" in shown(killed)
    assert run().decision.answer is Answer.NOT_PROVEN


def test_what_the_ranks_cost_is_no_finding() -> None:
    assert shown(run(STACKS, PASSED, Launch(2, 12, 20.0, 90.0), END)) == shown(run(STACKS, PASSED, END))


def test_what_pytest_ended_with_is_the_reason() -> None:
    assert "open: no perf test was selected" in shown(run(ended(5, None, 0, 1.0)))


def test_tests_that_were_never_begun_leave_the_answer_open() -> None:
    """pytest -x ends with the status of any failed run, and an advisory test that fails blocks nothing."""
    stopped = run(PASSED, ended(1, None, 3, 1.0))
    assert stopped.decision.answer is Answer.NOT_PROVEN
    assert "open: 3 of the selected perf tests were never begun" in shown(stopped)


def test_skips_for_one_reason_are_one_line() -> None:
    skips = [replace(SKIPPED, nodeid=f"t.py::test_{n}") for n in range(7)]
    lines = shown(run(PASSED, *skips, replace(SKIPPED, reason="slow"), END)).splitlines()
    assert lines[:2] == ["skipped: 7 tests: servers do not fit", "skipped: t.py::test_tpot: slow"]


def test_a_test_without_a_metric_is_named_by_itself() -> None:
    found = run(Failed("t.py::test_moe", Finding("NameError: x", Cause.EXCEPTION)), END)
    assert found.decision.answer is Answer.NOT_PROVEN
    assert str(found.decision.grounds[0]) == "t.py::test_moe: ERROR: NameError: x"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("h200_same_kernels", Answer.GO),
        ("h200_same_collectives", Answer.GO),
        ("h200_nccl_2.28.3_to_2.28.9", Answer.GO),
        ("h200_vllm_0.25.1_to_0.26.0", Answer.NOT_PROVEN),  # three of eleven metrics did not get their turn
        ("h200_marlin_slower_by_2_percent", Answer.NO_GO),
        ("h200_allreduce_slower_by_5_percent", Answer.NO_GO),
    ],
)
def test_runs_on_gpus_still_get_their_answers(name: str, answer: Answer) -> None:
    """`decodegate upgrade --json` on H200s: twice the stack against itself, two upgrades, two known spins."""
    written = json.loads((RECORDED / f"{name}.json").read_text())
    decision = decide_all(list(map(of_schema_1, written["metrics"])), written["unfinished"])
    assert decision.answer == written["answer"] == answer
    assert [cause.names for cause in decision.grounds] == [tuple(cause["names"]) for cause in written["causes"]]


def test_what_an_answer_left_open_is_read_back_from_it() -> None:
    step = changed(JUDGED, name="decode_step[tp=1,m=1]")
    advised = changed(JUDGED, name="copy", advisory=True)
    said = run(STACKS, JUDGED, changed(PASSED, name="gemm"), FAILED, advised, step, END)
    assert unsettled(document(said).encode()) == ["allreduce[world=2]", "moe"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[]", "it has no"),
        ("{}", "it has no 'schema'"),
        ('{"schema": 1}', f"schema is 1, this version writes {SCHEMA}"),
        (f'{{"schema": {SCHEMA}}}', "it has no 'metrics'"),
        ("not json", "Expecting value"),
    ],
)
def test_what_is_no_answer_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        unsettled(text.encode())
