"""The table and the JSON of a run on two stacks, read back from its lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.errors import BadInput, RankRaised
from pytest_decodegate.gate.decision import Answer, Row, decide_all
from pytest_decodegate.report import events
from pytest_decodegate.report.upgrade import Run, document, read, text
from pytest_decodegate.session.launches import Launch

JUDGED: dict[str, Any] = {
    "session": "s",
    "metric": "allreduce[world=2]",
    "verdict": "REGRESSED",
    "kind": "collective",
    "level": "gang",
    "unit": "s",
    "base": 1.5e-5,
    "measured": 1.65e-5,
    "change": 0.1,
    "lo": 0.08,
    "hi": 0.12,
    "confidence": 0.978,
    "tolerance": 0.05,
    "replicates": 6,
    "p_worse": 1e-5,
    "advisory": False,
    "reasons": [],
    "notes": [],
    "test": "t.py::test_allreduce",
}
FAILED: dict[str, Any] = {
    "event": "failed",
    "test": "t.py::test_moe",
    "metric": "moe",
    "unit": "s",
    "side": "candidate",
    "base": 3.3e-5,
    "advisory": False,
    "reason": dict(RankRaised("ImportError: no vllm\nTraceback").finding.fields),
}
STACKS: dict[str, Any] = {
    "event": "stacks",
    "session": "s",
    "base": "this",
    "candidate": "nccl=/n/libnccl.so.2",
    "machine_class": "NVIDIA-H200-x2-NVLink",
    "differences": ["nccl: 2.28.3 -> 2.28.9"],
    "undeclared": [],
    "unused": [],
}
SKIPPED = {"event": "skipped", "test": "t.py::test_tpot", "reason": "servers do not fit"}
END = {"event": "end", "unfinished": None, "seconds": 90.0}


def run(folder: Path, *lines: dict[str, Any]) -> Run:
    path = folder / "report.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read(path)


def test_the_table_shows_every_metric_and_the_answer_comes_last(tmp_path: Path) -> None:
    passed = {**JUDGED, "metric": "gemm", "verdict": "PASS", "change": 0.001, "lo": -0.01, "hi": 0.01, "advisory": True}
    shown = text(run(tmp_path, STACKS, JUDGED, passed, FAILED, SKIPPED, END)).splitlines()
    assert shown == [
        "base:      this",
        "candidate: nccl=/n/libnccl.so.2",
        "differs:   nccl: 2.28.3 -> 2.28.9",
        "",
        "metric              base     candidate  change   interval           band  verdict         pairs",
        "allreduce[world=2]  15.0 us  16.5 us    +10.0 %  +8.0 % .. +12.0 %  5 %   REGRESSED       6",
        "gemm                15.0 us  16.5 us    +0.10 %  -1.0 % .. +1.0 %   5 %   PASS, advisory  6",
        "moe                 33.0 us  -          -        -                  -     ERROR           -",
        "",
        "skipped: t.py::test_tpot: servers do not fit",
        "NO-GO: allreduce[world=2]: slower by more than the band (+10.0 %)",
        "NO-GO: moe: ERROR: RankRaised: ImportError: no vllm",
        "took: 1.5 min",
        "answer: NO-GO",
    ]


def test_the_document_is_strict_json_and_says_the_same(tmp_path: Path) -> None:
    told = json.loads(document(run(tmp_path, STACKS, JUDGED, FAILED, SKIPPED, END)))
    assert (told["schema"], told["answer"], told["exit_status"]) == (1, "NO-GO", 1)
    assert [one["name"] for one in told["metrics"]] == ["allreduce[world=2]", "moe"]
    assert [one["confidence"] for one in told["metrics"]] == [0.978, None]
    assert told["metrics"][1]["base"] == 3.3e-5
    assert told["seconds"] == 90.0
    assert told["stacks"]["differences"] == ["nccl: 2.28.3 -> 2.28.9"]
    assert "event" not in told["stacks"]
    assert told["causes"][0] == {
        "blocks": True,
        "text": "slower by more than the band (+10.0 %)",
        "names": ["allreduce[world=2]"],
    }


def test_a_run_that_was_killed_is_not_proven_whatever_passed(tmp_path: Path) -> None:
    killed = run(tmp_path, STACKS, {**JUDGED, "verdict": "PASS"})
    assert killed.decision.answer is Answer.NOT_PROVEN
    assert "pytest did not come to its end" in text(killed)
    assert read(tmp_path / "never-written.jsonl").decision.answer is Answer.NOT_PROVEN


def test_what_the_ranks_cost_is_no_finding(tmp_path: Path) -> None:
    launch = Launch(2, 12, 0.0, 20.0, 90.0)
    lines: list[dict[str, Any]] = [STACKS, {**JUDGED, "verdict": "PASS"}, END]
    without = text(run(tmp_path, *lines))
    assert text(run(tmp_path, *lines[:2], {"event": "launch", **launch.fields()}, END)) == without


def test_what_pytest_ended_with_is_the_reason(tmp_path: Path) -> None:
    empty = run(tmp_path, {"event": "end", **events.end(5, None, 0, 1.0)})
    assert "open: the run: no perf test was selected" in text(empty)
    assert events.end(1, None, 0, 1.0) == {"unfinished": None, "seconds": 1.0}
    assert events.end(0, "memory did not come back", 0, 1.0)["unfinished"] == "memory did not come back"


def test_tests_that_were_never_begun_leave_the_answer_open(tmp_path: Path) -> None:
    """pytest -x ends with the status of any failed run, and an advisory test that fails blocks nothing."""
    stopped = run(tmp_path, {**JUDGED, "verdict": "PASS"}, {"event": "end", **events.end(1, None, 3, 1.0)})
    assert stopped.decision.answer is Answer.NOT_PROVEN
    assert "open: the run: 3 of the selected perf tests were never begun" in text(stopped)


def test_skips_for_one_reason_are_one_line(tmp_path: Path) -> None:
    skips = [{**SKIPPED, "test": f"t.py::test_{n}"} for n in range(7)]
    shown = text(run(tmp_path, {**JUDGED, "verdict": "PASS"}, *skips, {**SKIPPED, "reason": "slow"}, END))
    assert "skipped: t.py::test_0, t.py::test_1, t.py::test_2, t.py::test_3, t.py::test_4 and 2 more: servers" in shown
    assert "skipped: t.py::test_tpot: slow" in shown


def test_a_test_without_a_metric_is_named_by_itself(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        {
            **FAILED,
            "metric": None,
            "side": "",
            "base": None,
            "reason": dict(Finding("NameError: x", Cause.EXCEPTION).fields),
        },
        END,
    )
    assert found.decision.answer is Answer.NOT_PROVEN
    assert str(found.decision.grounds[0]) == "t.py::test_moe: ERROR: NameError: x"


@pytest.mark.parametrize("line", ["nonsense", "{}", "[]"])
def test_a_line_that_is_none_of_ours_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput, match=r"report.jsonl:1: not a line of a run on two stacks"):
        read(path)


def recorded(note: str) -> Finding:
    """A note of schema 1, which held the text alone; those of these runs all name kernels."""
    name, _, _ = note.removeprefix("a kernel appeared: ").removeprefix("a kernel is gone: ").rpartition(", ")
    return Finding(note, Cause.KERNEL_SWAP, name)


RECORDED = Path(__file__).parent / "data" / "upgrades"


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
    rows = [Row(**{**one, "reasons": (), "notes": tuple(map(recorded, one["notes"]))}) for one in written["metrics"]]
    decision = decide_all(rows, written["unfinished"])
    assert decision.answer == written["answer"] == answer
    assert [cause.names for cause in decision.grounds] == [tuple(cause["names"]) for cause in written["causes"]]
