"""Numbers of metrics that are not judged: shown everywhere, marked as such, and deciding nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import MACHINE, MOE, QUIET, RATE, STACK, baseline, stored

from pytest_decodegate.baseline.selection import Selection, contrast
from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.compare.pairs import Compared, compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.pairs import UNCAUSED, Contrast, Side, judge_pairs
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.run import Run
from pytest_decodegate.gate.text.explain import headline
from pytest_decodegate.gate.verdict import Judgement, Numbers, Verdict, judge
from pytest_decodegate.machine.provenance import Difference, Provenance
from pytest_decodegate.metric import Level, Measurement, Metric, Replicate
from pytest_decodegate.report import lines, terminal
from pytest_decodegate.report.comparison import sections
from pytest_decodegate.report.comparison_json import document
from pytest_decodegate.report.comparison_text import Terminal, text
from pytest_decodegate.report.content import of_comparison
from pytest_decodegate.report.html import page
from pytest_decodegate.report.markdown import markdown
from pytest_decodegate.report.screen import About
from pytest_decodegate.report.table import UNJUDGED
from pytest_decodegate.report.upgrade import text as upgrade_text

THROTTLED = Finding("throttled", Cause.THROTTLING)
BASE = baseline(stored(MOE, 40e-6), stored(RATE, 80.0))
SAME = Provenance(MACHINE, STACK, {})
NEW = Provenance(MACHINE, {**STACK, "nccl": "2.28.9"}, {})


def measured(
    value: float, metric: Metric = MOE, factors: Sequence[float] = QUIET, level: Level = "gang"
) -> Measurement:
    return Measurement(metric, tuple(Replicate((value * one, value * one * 1.0001)) for one in factors), level)


def selected(provenance: Provenance = SAME, declared: Sequence[str] = ()) -> Selection:
    return contrast(BASE, provenance, declared)


values = st.floats(1e-6, 1e-3)
scattered = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6)


@given(values, scattered)
def test_a_metric_that_is_not_judged_has_the_numbers_that_it_would_have_been_judged_by(
    value: float, factors: list[float]
) -> None:
    run = measured(value, factors=factors)
    judged = judge(run, selected(NEW, ["nccl"]))
    assert judged.verdict.judged

    confounded, invalid = judge(run, selected(NEW)), judge(run, selected(), invalid=[THROTTLED])
    assert (confounded.verdict, invalid.verdict) == (Verdict.CONFOUNDED, Verdict.INVALID)
    for shown in (confounded, invalid):
        assert (shown.numbers, shown.basis) == (replace(judged.numbers, p_worse=None), judged.basis)
        assert not shown.verdict.passes
        assert not shown.verdict.judged
        assert shown.settlement is None


@pytest.mark.parametrize(
    "run",
    [
        measured(42e-6, level="process"),
        measured(42e-6, replace(MOE, contract={**MOE.contract, "clock": "cpu"})),
        measured(42e-6, replace(MOE, contract={**MOE.contract, "copies": 3})),
        measured(42e-6, replace(MOE, kind="collective")),
    ],
    ids=["level", "clock", "copies", "kind"],
)
def test_another_measurement_shows_its_numbers_too(run: Measurement) -> None:
    judgement = judge(run, selected())
    assert judgement.verdict is Verdict.CONFOUNDED
    assert judgement.numbers.change == pytest.approx(0.05, abs=1e-3)
    assert None not in (judgement.numbers.base, judgement.numbers.lo, judgement.numbers.hi)


def test_one_replicate_is_invalid_and_shown() -> None:
    judgement = judge(measured(42e-6, factors=[1.0]), selected())
    assert judgement.verdict is Verdict.INVALID
    assert judgement.numbers.change == pytest.approx(0.05, abs=1e-3)


def test_values_of_two_units_never_stand_beside_each_other() -> None:
    judgement = judge(measured(1e9, replace(MOE, unit="B/s")), selected())
    assert judgement.numbers == Numbers(judgement.numbers.measured)
    assert headline(judgement) == (
        "measured 1.00 GB/s, not judged: more than the declared change differs from the baseline"
    )


def test_what_measured_nothing_shows_nothing() -> None:
    judgement = judge(Measurement(MOE, (), "gang"), selected(), invalid=[THROTTLED])
    assert (judgement.verdict, judgement.numbers) == (Verdict.INVALID, Numbers())


def test_where_no_base_exists_the_measured_value_stands_alone() -> None:
    other = replace(MOE, name="other")
    for invalid in ((), [THROTTLED]):
        judgement = judge(measured(42e-6, other), selected(), invalid=invalid)
        assert judgement.numbers == Numbers(judgement.numbers.measured)
        assert "measured 42.0 us, " in headline(judgement)


NCCL = Difference("nccl", "2.28.3", "2.28.9", declarable=True)


def pairs(new: Measurement, contrast: Contrast, **fields: Any) -> Judgement:
    return judge_pairs(Side(measured(40e-6)), Side(new, **fields), contrast, 1)


@given(values, st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5, unique=True))
def test_pairs_that_are_not_judged_show_theirs_and_nobody_weighs_them(value: float, factors: list[float]) -> None:
    run = measured(value, factors=factors)
    judged = pairs(run, Contrast((NCCL,)))
    assert judged.numbers.p_worse is not None

    shown = pairs(run, Contrast((NCCL,), (NCCL,))), pairs(run, Contrast((NCCL,)), broken=(THROTTLED,))
    assert [judgement.verdict for judgement in shown] == [Verdict.CONFOUNDED, Verdict.INVALID]
    for judgement in shown:
        assert judgement.numbers == replace(judged.numbers, p_worse=None)
        assert judgement.basis == judged.basis
        assert decide_all([Result("t.py::test", judgement)]).answer is Answer.NOT_PROVEN


def test_a_pair_that_is_not_whole_is_left_out() -> None:
    judgement = pairs(measured(44e-6, factors=QUIET[:4]), Contrast(), broken=(THROTTLED,))
    assert judgement.numbers.change == pytest.approx(0.1, abs=1e-3)
    alone = pairs(measured(44e-6, factors=QUIET[:1]), Contrast(), broken=(THROTTLED,))
    assert (alone.numbers.change, alone.numbers.base) == (None, judgement.numbers.base)


def test_a_swap_without_a_cause_shows_how_much_it_changed() -> None:
    swapped = measured(44e-6, replace(MOE, contract={**MOE.contract, "kernels": {"humming": 1}}))
    base = Side(measured(40e-6, replace(MOE, contract={**MOE.contract, "kernels": {"marlin": 1}})))
    judgement = judge_pairs(base, Side(swapped), Contrast(), 1)
    assert judgement.reasons[0] == UNCAUSED
    assert judgement.numbers.change == pytest.approx(0.1, abs=1e-3)


CONFOUNDED = judge(measured(42e-6), selected(NEW))


def test_the_table_of_a_run_shows_it_in_brackets_and_says_what_these_mean() -> None:
    row = terminal.row(Result("t.py::test", CONFOUNDED))
    assert row[1:5] == ("CONFOUNDED", "42.0 us", "40.0 us", "(+5.0 %)")
    assert row[5].startswith("(+")
    assert row[5].endswith(" %)")


def test_an_upgrade_shows_it_in_brackets_and_says_what_these_mean() -> None:
    run = Run()
    run.add(Result("t.py::test", CONFOUNDED))
    for verbose in (True, False):
        said = upgrade_text(run, About(verbose=verbose))
        assert "(+5.0 %)" in said
        assert UNJUDGED in said


def test_json_and_junit_say_that_it_is_not_judged() -> None:
    result = Result("t.py::test", CONFOUNDED)
    told = json.loads(lines.json_line(result, "s1"))
    assert (told["judged"], told["change"]) == (False, CONFOUNDED.numbers.change)
    junit = dict(lines.properties(result))
    assert junit[f"perf.{MOE.name}.judged"] is False
    assert {f"perf.{MOE.name}.{field}" for field in ("measured", "base", "change", "lo", "hi")} <= junit.keys()
    passed = Result("t.py::test", judge(measured(40e-6), selected()))
    assert json.loads(lines.json_line(passed, "s1"))["judged"] is True


def compared(*, nccl: str) -> Compared:
    new = baseline(stored(MOE, 42e-6), stored(RATE, 80.0), stack={**STACK, "nccl": nccl}, path="0002_new.json")
    return Compared((compare_baselines(BASE, new, Terms()),), ())


def test_compare_shows_it_in_every_format_and_says_what_brackets_mean() -> None:
    confounded = compared(nccl="2.28.9")
    for shown in (text(confounded, Terminal()), page(of_comparison(confounded))):
        assert "(+5.0 %)" in shown
        assert UNJUDGED in shown

    assert "(+5.0 %)" in markdown(of_comparison(confounded)).replace("\\", "")
    assert UNJUDGED in markdown(of_comparison(confounded))
    (pair,) = json.loads(document(confounded))["pairs"]
    assert [metric["judged"] for metric in pair["metrics"]] == [False, False]
    assert UNJUDGED not in text(compared(nccl=str(STACK["nccl"])), Terminal())


def test_what_is_not_judged_is_not_weighed_with_what_is() -> None:
    """Or ten confounded metrics would make a real regression look like chance."""
    chance = random.Random(5)
    metrics = [replace(MOE, name=f"kernel{index}") for index in range(12)]
    factors = [1 + chance.gauss(0, 0.002) for _ in range(5)]
    base = baseline(*(stored(metric, 40e-6, factors=factors) for metric in metrics))
    others = [replace(metric, contract={"clock": "cpu"}) for metric in metrics[2:]]
    changed = [stored(metrics[0], 42e-6, factors=factors), stored(metrics[1], 40e-6, factors=factors)]
    new = baseline(*changed, *(stored(metric, 40e-6, factors=factors) for metric in others))
    (section,) = sections(Compared((compare_baselines(base, new, Terms()),), ()))
    assert "1 of 2 metrics regressed" in " ".join(section.notes)
