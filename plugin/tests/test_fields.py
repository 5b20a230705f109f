"""Verdicts as JSON: every field is there by its own name, whoever adds one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from judged import result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.result import Ended, Failed, Result, Skipped, Stacks
from pytest_decodegate.gate.stats.rules import Settlement
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict
from pytest_decodegate.machine.provenance import ABSENT, Difference
from pytest_decodegate.metric import Metric
from pytest_decodegate.report.fields import as_json
from pytest_decodegate.report.lines import json_line

OPEN = Judgement(
    Metric("tpot[c=8]", "tok/s", "serving", 0.03, {"clock": "client"}),
    Verdict.INCONCLUSIVE,
    Basis("window", 6, baseline=Path("0001_x.json"), choice=("the only one",), unpublished=("gpus.ecc",)),
    Numbers(80.0, 82.4, 0.03, -0.01, 0.07, 0.95, None),
    notes=(Finding("two lines\nof text", Cause.STRAGGLER, "GPU 3", "two lines"),),
    differences=(Difference("env:A", ABSENT, None, declarable=True),),
    settlement=Settlement(9, None, 0.071),
)


def test_every_field_of_a_verdict_and_its_parts_stands_under_its_own_name() -> None:
    told = as_json(Result("t.py::test", OPEN))
    parts = {"judgement", "metric", "basis", "numbers", "nodeid"}
    own = {field.name for kind in (Result, Judgement, Basis, Numbers) for field in fields(kind)} - parts
    assert own | {"metric", "test", "unit", "kind", "tolerance", "better", "passes", "judged"} == told.keys()
    for part in (OPEN.basis, OPEN.numbers):
        for field in fields(part):
            value = getattr(part, field.name)
            assert isinstance(value, Path | tuple) or told[field.name] == value


def test_values_of_values_are_plain() -> None:
    told = as_json(OPEN)
    assert (told["metric"], told["verdict"], told["baseline"]) == ("tpot[c=8]", "INCONCLUSIVE", "0001_x.json")
    assert told["notes"] == [
        {"cause": "straggler", "about": "GPU 3", "text": "two lines\nof text", "brief": "two lines"}
    ]
    assert told["settlement"] == {"replicates": 9, "sessions": None, "tolerance": 0.071, "seconds": None}
    assert told["differences"] == [{"field": "env:A", "new": None}], "a side without the field has no key"


@pytest.mark.parametrize(
    ("outcome", "event", "some"),
    [
        (result("gemm", "PASS", change=0.0), None, {"metric": "gemm", "verdict": "PASS", "passes": True}),
        (
            Failed("t.py::test", Finding("boom", Cause.CRASH), Metric.of("gemm", "kernel"), "base", 1e-5),
            "failed",
            {"test": "t.py::test", "metric": "gemm", "verdict": "ERROR", "side": "base", "base": 1e-5, "unit": "s"},
        ),
        (Failed("t.py::test", Finding("boom", Cause.CRASH)), "failed", {"metric": "t.py::test", "side": ""}),
        (Skipped("t.py::test", "slow"), "skipped", {"test": "t.py::test", "reason": "slow"}),
        (Stacks("this", "nccl=x", "H200-x2", Contrast(unused=("not used",))), "stacks", {"unused": ["not used"]}),
        (Ended("interrupted", 1.5), "end", {"unfinished": "interrupted", "seconds": 1.5}),
    ],
)
def test_every_outcome_is_a_line_of_strict_json(outcome: object, event: str | None, some: dict[str, object]) -> None:
    line = json_line(outcome, "s1")
    told = json.loads(line, parse_constant=pytest.fail)
    assert "\n" not in line
    assert (told["session"], told.get("event")) == ("s1", event)
    assert {name: told[name] for name in some} == some
