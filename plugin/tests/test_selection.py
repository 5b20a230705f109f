"""Which stored stack a run is compared with, and what the verdict says about the choice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_host import host, run_on
from stack_baselines import (
    FOLDER,
    GEMM,
    NCCL,
    STACK,
    baseline,
    measured,
    replicates,
    run_of,
    session,
)

from pytest_decodegate.baseline.schema import Baseline, Session
from pytest_decodegate.baseline.selection import Selection, choose
from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Verdict, judge
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Measurement


def chosen(baselines: Sequence[Baseline], run: Provenance, *declared: str, metric: str | None = "gemm") -> Selection:
    return choose(FOLDER, baselines, run, declared, metric)


def number(selection: Selection) -> int:
    assert selection.baseline is not None
    return int(selection.baseline.path.name[:4])


OLD = baseline(1, session(1))
NEW = baseline(2, session(2), nccl="2.28.9")
OTHER = baseline(3, session(3), torch="2.13")


def said(tensor_parallel: int | None) -> dict[str, Any]:
    return {"flag:tensor-parallel-size": tensor_parallel}


def test_a_file_whose_server_did_not_say_a_setting_does_not_hide_that_it_changed() -> None:
    silent, eight = baseline(2, session(9), **said(None)), baseline(1, session(1), **said(8))
    assert number(chosen([eight, silent], run_of(**said(8)))) == 1, "although it is older"
    changed = chosen([eight, silent], run_of(**said(4)))
    assert (number(changed), changed.fit) == (1, "confounded")
    assert number(chosen([silent, OLD], run_of(**said(4)))) == 2, "where no file knows it"
    assert chosen([silent], run_of(**said(4))).choice[-1].endswith("did not say: tensor-parallel-size")


def test_a_declared_change_is_not_compared_with_itself() -> None:
    """Once the new stack has a file of its own, the newest that fits is the new stack itself."""
    selection = chosen([OLD, NEW], NCCL, "nccl")

    assert number(selection) == 1
    assert [str(one) for one in selection.differences] == ["nccl: 2.28.3 -> 2.28.9"]
    assert selection.choice == (
        "the only one that differs from this stack only in what was declared (nccl)",
        "newer, left out: 0002_stack.json (this very stack)",
    )


def test_without_a_declared_change_it_is_this_very_stack() -> None:
    selection = chosen([OLD, NEW, OTHER], run_of())

    assert number(selection) == 1
    assert selection.choice == (
        "the only one of this very stack",
        "newer, left out: 0003_stack.json (torch: 2.13 -> 2.11)",
        "newer, left out: 0002_stack.json (nccl: 2.28.9 -> 2.28.3)",
    )


def test_a_declared_change_that_nothing_stored_shows_is_said() -> None:
    selection = chosen([NEW, OTHER], NCCL, "nccl")

    assert number(selection) == 2
    assert selection.choice[0] == (
        "the only one of this very stack: no stored stack differs only in what was declared (nccl)"
    )


def test_a_declared_change_that_nothing_stored_shows_is_no_pass() -> None:
    """Such a run would compare the stack with itself, and be green whatever the change does."""
    judgement = judge(measured(), chosen([NEW, OTHER], NCCL, "nccl"))

    assert judgement.verdict is Verdict.INVALID
    assert judgement.reasons[0].cause is Cause.UNUSED_CHANGE
    assert judgement.numbers.change == pytest.approx(0, abs=1e-9)
    said = explain(judgement)
    assert "the declared change (nccl) does not show: 0002_stack.json holds this very stack, and no stored" in said
    assert "next: to gate this stack as it is, leave out --perf-change" in said
    assert judge(measured(), chosen([NEW], NCCL)).verdict is Verdict.PASS


@given(
    stacks=st.lists(st.sampled_from(["2.28.3", "2.28.9", "2.29"]), max_size=4),
    declared=st.sets(st.sampled_from(["nccl", "driver", "env:NCCL_PROTO"])),
)
def test_no_declared_change_passes_beside_this_very_stack(stacks: list[str], declared: set[str]) -> None:
    files = [baseline(number, session(number), nccl=nccl) for number, nccl in enumerate(stacks, start=1)]
    judgement = judge(measured(), chosen(files, NCCL, *declared))
    if judgement.verdict.passes and declared:
        assert judgement.changed


def test_what_is_declared_and_the_same_is_said() -> None:
    selection = chosen([OLD], NCCL, "nccl", "driver")

    assert "declared, but the same on both sides: driver" in selection.choice


def test_the_last_recorded_stack_counts_not_the_highest_number() -> None:
    """A host that was rolled back is compared with what it ran last."""
    rolled_back = baseline(1, session(1), session(9))
    selection = chosen([rolled_back, NEW], run_of(nccl="2.30"), "nccl")

    assert number(selection) == 1
    assert selection.choice == (
        "the last recorded of 2 that differs from this stack only in what was declared (nccl)",
        "also fits: 0002_stack.json (nccl: 2.28.9 -> 2.30)",
    )


def test_a_tie_is_settled_by_number_and_said() -> None:
    twin = replace(OLD, path=FOLDER / "0007_copy.json")
    selection = chosen([OLD, twin], run_of())

    assert number(selection) == 7
    assert selection.choice[1] == "recorded at the same time, lower number: 0001_stack.json"


def test_of_those_that_fit_one_with_the_metric_is_taken() -> None:
    lacks = baseline(5, session(5), metric=replace(GEMM, name="other"), nccl="2.29")
    selection = chosen([OLD, lacks], NCCL, "nccl")

    assert number(selection) == 1
    assert selection.choice == (
        "the only one that differs from this stack only in what was declared (nccl)",
        "newer, without this metric: 0005_stack.json",
    )


def test_a_metric_that_only_the_new_stack_has_is_not_compared_with_itself() -> None:
    only_new = baseline(2, session(2), metric=replace(GEMM, name="other"), nccl="2.28.9")
    selection = chosen([OLD, only_new], NCCL, "nccl", metric="other")

    assert number(selection) == 1
    measurement = Measurement(replace(GEMM, name="other"), replicates(1e-5), "gang")
    assert judge(measurement, selection).verdict == Verdict.NO_BASELINE


def test_nothing_that_fits_shows_the_newest_and_what_confounds_it() -> None:
    selection = chosen([OLD, OTHER], run_of(nccl="2.28.9", torch="2.14"), "nccl")

    assert number(selection) == 3
    assert [str(one) for one in selection.undeclared] == ["torch: 2.13 -> 2.14"]
    (why,) = selection.choice
    assert why == (
        "the last recorded of 2 stored, to show what confounds: none is of this stack or differs only in what was "
        "declared (nccl)"
    )


def test_published_figures_come_after_everything_recorded() -> None:
    point = Session("p", "2026-12-01T00:00:00+00:00", "published", (), {}, 1e-5)
    published = replace(baseline(9, point), published="a paper")

    assert number(chosen([OTHER, published], run_of())) == 3
    alone = chosen([published], run_of())
    said = "the only one of published figures, for nothing was recorded on this machine class: a paper"
    assert alone.choice == (said,)


def test_no_file_is_no_choice() -> None:
    assert chosen([], NCCL, "nccl") == Selection(FOLDER)


def test_many_others_are_counted() -> None:
    many = [baseline(n, session(n), nccl=f"2.{n}") for n in range(1, 9)]
    selection = chosen(many, NCCL, "nccl")

    assert number(selection) == 8
    assert len(selection.choice) == 5
    assert selection.choice[-1] == "also fits: 4 more"


stacks = st.fixed_dictionaries({name: st.sampled_from(["1", "2"]) for name in STACK})
days = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
files = st.lists(st.tuples(stacks, days, st.booleans()), min_size=1, max_size=6)


@given(files=files, run=stacks, declared=st.sets(st.sampled_from(sorted(STACK))))
def test_the_rule_holds_for_any_folder(
    files: Sequence[tuple[dict[str, Any], Sequence[int], bool]], run: dict[str, Any], declared: Collection[str]
) -> None:
    baselines = [
        baseline(index, *map(session, days), metric=GEMM if has else replace(GEMM, name="other"), **stack)
        for index, (stack, days, has) in enumerate(files, start=1)
    ]
    selection = chosen(baselines, run_of(**run), *declared)

    def rank(one: Baseline) -> tuple[int, bool, datetime, int]:
        """Larger is better, written down independently of the code."""
        changed = {name for name in STACK if one.provenance.stack[name] != run[name]}
        fit = 0 if changed - set(declared) else 2 if changed else 1
        assert one.newest is not None
        return fit, "gemm" in one.metrics, one.newest.instant, int(one.path.name[:4])

    assert selection.baseline == max(baselines, key=rank)
    assert all(line.count("\n") == 0 and "None" not in line for line in selection.choice)


def test_a_swapped_card_confounds_and_another_host_is_noted() -> None:
    stored = baseline(1, session(1, uuids=["GPU-a", "GPU-b"]))

    swapped = chosen([stored], run_of("GPU-a", "GPU-c"))
    assert [str(one) for one in swapped.undeclared] == ["gpus[1].uuid: GPU-b -> GPU-c"]
    host = chosen([stored], run_of("GPU-x", "GPU-y"))
    assert host.undeclared == ()
    assert host.choice[-1].startswith("recorded on other cards of this kind")
    same = chosen([stored], run_of("GPU-a", "GPU-b"))
    assert (same.undeclared, len(same.choice)) == ((), 1)


@pytest.mark.parametrize("strange", [{"gpus": None}, {"gpus": "two"}, {"gpus": [1, {}, {"uuid": "x"}]}, {}])
def test_cards_that_are_not_known_are_not_compared(strange: dict[str, Json]) -> None:
    stored = baseline(1, replace(session(1), telemetry=strange))

    assert chosen([stored], run_of("GPU-a", "GPU-b")).choice == ("the only one of this very stack",)


def test_auto_compares_with_the_stack_before_a_declared_change(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the plugin: record, change, record the change, and still compare with what was there before."""
    monkeypatch.setenv("COLUMNS", "400")  # long lines stay whole
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(
        """
        import pytest
        from pytest_decodegate.metric import Metric


        def work():
            pass


        @pytest.mark.perf
        def test_speed(perf):
            perf.measure(Metric.of("made_up", "kernel"), work)
        """
    )
    run = ("-v", "-m", "perf", "-p", "no:cacheprovider")
    run_on(monkeypatch, host(1), stack={"nccl": "2.28"})
    pytester.runpytest_inprocess(*run, "--perf-record").assert_outcomes(passed=1)
    run_on(monkeypatch, host(1), stack={"nccl": "2.30"}, seconds=3e-5)
    pytester.runpytest_inprocess(*run, "--perf-record=all").assert_outcomes(passed=1)

    itself = pytester.runpytest_inprocess(*run, "--perf-baseline=auto")
    itself.assert_outcomes(passed=1)
    itself.stdout.fnmatch_lines(["against NVIDIA-H200-x1/0002_*: the only one of this very stack"])

    changed = pytester.runpytest_inprocess(*run, "--perf-baseline=auto", "--perf-change=nccl")
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(
        [
            "made_up: REGRESSED: *",
            "*changed: nccl: 2.28 -> 2.30",
            "*baseline: *0001_*",
            "*- the only one that differs from this stack only in what was declared (nccl)",
            "*- newer, left out: 0002_* (this very stack)",
        ]
    )
