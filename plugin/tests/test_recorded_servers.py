"""Servers of two stacks as an H200 had them: two rank-slices of 42 layers that share it, judged again by today's rule.

vLLM 0.26.0, driver 580.159.04, three pairs of starts each: a stack against itself, the same with every step of the
candidate made longer by 5 %, and with --enforce-eager. On another card 0.25.1 against 0.26.0, five pairs.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from recorded_upgrades import RECORDED

from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.evidence.turns import first_was_slower
from pytest_decodegate.gate.pairs import Contrast, Side, judge_pairs
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.metric import Measurement, Metric, Replicate
from pytest_decodegate.reference.servers_in_turn import EARLY_LEVEL, EARLY_PAIRS

SAME, SLOWED = "h200_same_servers", "h200_servers_slower_by_5_percent"
EAGER, UPGRADE = "h200_servers_enforce_eager", "h200_servers_vllm_0.25.1_to_0.26.0"


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


def pairs(row: dict[str, Any]) -> list[tuple[float, float]]:
    """What base and candidate took in each pair, in seconds."""
    base, candidate = (
        [each["value"] for each in row["processes"] if each["is_base"] is is_base] for is_base in (True, False)
    )
    return list(zip(base, candidate, strict=True))


@pytest.mark.parametrize(
    ("name", "verdicts", "answer"),
    [
        (SAME, [Verdict.PASS, Verdict.PASS], Answer.GO),
        (SLOWED, [Verdict.REGRESSED, Verdict.REGRESSED], Answer.NO_GO),
        (EAGER, [Verdict.REGRESSED], Answer.NO_GO),
        (UPGRADE, [Verdict.INCONCLUSIVE, Verdict.PASS], Answer.NOT_PROVEN),
    ],
)
def test_todays_rule_gives_the_answer_that_was_given(name: str, verdicts: list[Verdict], answer: Answer) -> None:
    written = recorded(name)
    judgements = [judged_again(row) for row in written["metrics"]]
    assert [judgement.verdict for judgement in judgements] == verdicts
    assert [row["verdict"] for row in written["metrics"]] == verdicts
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


def test_a_flag_that_costs_is_found_with_what_ran_instead() -> None:
    (row,) = recorded(EAGER)["metrics"]
    (swap,) = (note["text"] for note in row["notes"] if note["text"].startswith("backend changed"))
    assert "graph FULL_AND_PIECEWISE -> " in swap
    assert swap.endswith("graph NONE")
    assert row["changed"] == ["flag:enforce-eager: absent -> true"]
    assert judged_again(row).numbers.change == pytest.approx(9.98, abs=0.01)


def test_two_pairs_of_it_would_have_been_enough() -> None:
    """A third took two minutes and a half."""
    (row,) = recorded(EAGER)["metrics"]
    base, candidate = (
        [each for each in row["processes"] if each["is_base"] is is_base][:EARLY_PAIRS] for is_base in (True, False)
    )
    judgement = judged_again({**row, "processes": [*base, *candidate]})
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.numbers.p_worse is not None
    assert judgement.numbers.p_worse < EARLY_LEVEL


def test_whoever_was_measured_first_after_a_start_was_slower() -> None:
    """Why servers rehearse: sides took turns to begin, so that neither stack was blamed, and nothing was proven.

    In the first pair both had answered before. The other metric begins with the other side, ten seconds later.
    """
    one, eight = recorded(UPGRADE)["metrics"]
    changes = [candidate / base - 1 for base, candidate in pairs(one)]
    assert changes[0] == pytest.approx(-0.013, abs=0.001)
    assert changes[1:] == [pytest.approx(sign * 0.068, abs=0.006) for sign in (-1, 1, -1, 1)]
    assert max(abs(candidate / base - 1) for base, candidate in pairs(eight)) < 0.012
    logs = [[math.log(candidate / base) for base, candidate in pairs(row)] for row in (one, eight)]
    candidate_first = [True, False, True, False, True]
    assert first_was_slower(logs[0], candidate_first) == pytest.approx(0.056, abs=0.001)
    assert first_was_slower(logs[1], [not first for first in candidate_first]) is None
