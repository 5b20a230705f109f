"""Servers of two stacks as an H200 had them: two rank-slices of 42 layers that share it, judged again by today's rule.

vLLM 0.26.0, driver 580.159.04, three pairs of starts each: a stack against itself, and the same with every step of the
candidate made longer by 5 %.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded_upgrades import RECORDED

from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.pairs import Contrast, Side, judge_pairs
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.metric import Measurement, Metric, Replicate

SAME, SLOWED = "h200_same_servers", "h200_servers_slower_by_5_percent"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def judged_again(row: dict[str, Any]) -> Judgement:
    """A metric of a recorded answer, from the values of its servers."""
    metric = Metric(row["metric"], row["unit"], row["kind"], row["tolerance"])

    def side(is_base: bool) -> Side:
        values = [each["value"] for each in row["processes"] if each["is_base"] is is_base]
        return Side(Measurement(metric, tuple(Replicate((value,)) for value in values), row["level"]))

    return judge_pairs(side(True), side(False), Contrast(), row["looks"])


@pytest.mark.parametrize(
    ("name", "verdict", "answer"),
    [(SAME, Verdict.PASS, Answer.GO), (SLOWED, Verdict.REGRESSED, Answer.NO_GO)],
)
def test_todays_rule_gives_the_answer_that_was_given(name: str, verdict: Verdict, answer: Answer) -> None:
    written = recorded(name)
    judgements = [judged_again(row) for row in written["metrics"]]
    assert [judgement.verdict for judgement in judgements] == [verdict, verdict]
    assert [row["verdict"] for row in written["metrics"]] == [verdict, verdict]
    assert str(decide_all([Result("t", each) for each in judgements]).answer) == written["answer"] == answer


def test_the_slowdown_that_was_made_is_the_one_that_is_found() -> None:
    for row in recorded(SLOWED)["metrics"]:
        found = judged_again(row).numbers
        assert found.change == pytest.approx(0.05, abs=0.01)
        assert found.lo is not None
        assert found.hi is not None
        assert found.lo < 0.05 < found.hi


def test_fresh_servers_of_one_stack_scatter_by_less_than_the_band_by_far() -> None:
    """What each pair of a stack against itself differed by: six pairs, two TPOT metrics."""
    for row in recorded(SAME)["metrics"]:
        assert judged_again(row).basis.pair_noise == pytest.approx(0.0037, abs=0.0002)
