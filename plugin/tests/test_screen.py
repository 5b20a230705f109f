"""The last screen of a run: it fits the terminal, names what does not pass by cause, and its command is complete."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import changed, result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.result import Ended, Failed, Result, Skipped
from pytest_decodegate.gate.run import Run
from pytest_decodegate.gate.stats.rules import Settlement
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.report.next_step import next_command
from pytest_decodegate.report.screen import About, screen, skips

PASS = result("gemm[m=8]", "PASS", change=0.012, lo=-0.004, hi=0.016, base=2e-5, measured=2.02e-5, p_worse=0.2)
SLOWER = changed(PASS, name="marlin_moe[m=8]", verdict="REGRESSED", change=0.041, lo=0.038, hi=0.044, p_worse=1e-9)
OPEN = changed(PASS, name="mla_decode[m=8,context=1024]", verdict="INCONCLUSIVE", settlement=Settlement(14, None, 0.03))
NCCL = Difference("nccl", "2.28.3", "2.28.9", declarable=True)
DRIVER = Difference("driver", "580", "590", declarable=True)
CONFOUNDED = changed(
    PASS,
    name="allreduce[world=2]",
    verdict="CONFOUNDED",
    kind="collective",
    reasons=(Finding(NCCL, Cause.DIFFERENCE, "nccl"),),
    differences=(NCCL, DRIVER),
    undeclared=(NCCL,),
)
NEW = changed(PASS, name="new", verdict="NO_BASELINE", reasons=(Finding("nothing stored", Cause.NO_BASELINE),))
CRASHED = Failed("perf_tests/test_x.py::test_x", Finding("RankDied: rank 0 died", Cause.CRASH))
END = Ended(None, 90.0)


def run(*outcomes: object) -> Run:
    said = Run()
    for outcome in (*outcomes, END):
        said.add(outcome)

    return said


def shown(said: Run, **about: Any) -> list[str]:
    return [line.text for line in screen(said, About(**about))]


def follow(said: Run, *typed: str) -> str:
    return " ".join(next_command(said, said.decision, typed or ("pytest", "-m", "perf")))


def recorded(outcome: Result) -> Result:
    return Result(outcome.nodeid, outcome.judgement, Path("baselines/cpu/0001_x.json"))


def test_the_screen_of_an_unchanged_run_is_four_lines() -> None:
    assert shown(run(PASS)) == [
        "would have been found: a slowdown of a kernel by 3.0 %",
        "counts: 1 PASS (at most +1.2 %: gemm[m=8])",
        "answer: GO: 1 metric in 1.5 min",
    ]


def test_what_blocks_comes_first_with_its_rows_and_the_rest_as_names() -> None:
    why = Finding("a kernel appeared: humming, 1 a call", Cause.KERNEL_SWAP, "humming")
    red = [changed(SLOWER, name=f"marlin_moe[m={n}]", change=0.03 + n / 1000, notes=(why,)) for n in range(12)]
    lines = shown(run(PASS, OPEN, *red, CONFOUNDED))
    assert lines[:4] == [
        "NO-GO: slower by more than the band (+3.0 % to +4.1 %); a kernel appeared:",
        "    humming, 1 a call",
        "  marlin_moe[m=11]  +4.1 %  [+3.8 % .. +4.4 %]  20.0 us  20.2 us",
        "  marlin_moe[m=10]  +4.0 %  [+3.8 % .. +4.4 %]  20.0 us  20.2 us",
    ]
    assert lines[12] == "  and 2 more (-v)"
    assert lines[13].startswith("open: mla_decode[m=8,context=1024] +1.2 %: noise hides the answer")
    assert "open: allreduce[world=2] (+1.2 %): CONFOUNDED: nccl: 2.28.3 -> 2.28.9; if that" in lines
    assert "a change in brackets is shown and not judged" in lines
    assert lines[-1] == "answer: NO-GO: 15 metrics in 1.5 min"
    assert len(shown(run(*red), verbose=True)) == len(shown(run(*red))) + 1


@given(
    st.lists(st.sampled_from([PASS, SLOWER, OPEN, CONFOUNDED, NEW, CRASHED]), max_size=40),
    st.lists(st.builds(Skipped, st.just("t.py::t"), st.sampled_from(["needs eight GPUs", "no GPU " * 30]))),
    st.integers(72, 200),
)
def test_every_line_fits_the_terminal_and_the_answer_is_the_last(
    outcomes: list[Result | Failed], skips: list[Skipped], width: int
) -> None:
    said = run(*outcomes, *skips)
    lines = shown(said, width=width)
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith(f"answer: {said.decision.answer}: {len(outcomes)} metric")


# --- the answer


def test_a_recording_is_an_answer_of_its_own_and_what_else_was_measured_counts_as_ever() -> None:
    assert decide_all([recorded(NEW), recorded(SLOWER)]).answer is Answer.RECORDED
    assert decide_all([recorded(NEW)]).answer.status == 0
    assert decide_all([recorded(NEW), PASS]).answer is Answer.GO
    assert decide_all([recorded(NEW), OPEN]).answer is Answer.NOT_PROVEN
    assert decide_all([recorded(NEW), SLOWER]).answer is Answer.NO_GO
    assert decide_all([recorded(NEW), PASS]).counts == {"PASS": 1, "RECORDED": 1}


def test_what_a_run_could_have_seen_is_told_by_kind_and_not_of_what_was_not_judged() -> None:
    worse = changed(PASS, name="noisy", lo=-0.05, hi=0.05)
    found = decide_all([PASS, SLOWER, worse, CONFOUNDED, recorded(NEW)]).resolutions
    (kernels,) = found
    assert (kernels.kind, kernels.metric) == ("kernel", "noisy")
    assert kernels.worst == pytest.approx(0.1)
    assert kernels.typical == pytest.approx(0.03)


def test_reasons_to_skip_that_begin_alike_are_one_line_and_with_v_each_its_own() -> None:
    """As on a host without a GPU: thirty reasons, which differ in what is measured instead."""
    no_gpu = "no GPU (no driver answers (NVML: not found)): "
    told = ["NCCL; gloo is measured by x", "NCCL; gloo is measured by x", "q_b; its numbers are tested on a CPU"]
    skipped = [Skipped(f"t.py::test_{n}", f"{no_gpu}{what}") for n, what in enumerate(told)]
    others = [Skipped("t.py::test_a", "not asked for"), Skipped("t.py::test_b", "too slow")]
    assert list(skips([*skipped, *others], verbose=False)) == [
        f"skipped: 3 tests: {no_gpu}{told[0]}, and 1 more reason of this kind (-v)",
        "skipped: t.py::test_a: not asked for",
        "skipped: t.py::test_b: too slow",
    ]
    assert list(skips(skipped, verbose=True)) == [
        f"skipped: 2 tests: {no_gpu}{told[0]}",
        f"skipped: t.py::test_2: {no_gpu}{told[2]}",
    ]


# --- the next command


def test_nothing_is_left_to_run_after_go() -> None:
    assert follow(run(PASS)) == ""


def test_what_is_open_is_measured_again_alone_with_as_many_replicates_as_would_settle_it() -> None:
    assert follow(run(PASS, OPEN), "pytest", "-m", "perf", "--perf-max-replicates", "8", "-x") == (
        "pytest -m perf -x '--perf-only=mla_decode[m=8,context=1024]' --perf-max-replicates=14"
    )


def test_what_a_budget_ended_is_measured_again_in_a_longer_one() -> None:
    """14 pairs take 20 minutes: a tenth more is given, and how many there may be is left as it was typed."""
    of_pairs = replace(OPEN.judgement.basis, reference="stack")
    cut = changed(OPEN, name="tpot[c=1]", settlement=Settlement(14, None, 0.03, 1200.0), basis=of_pairs)
    assert follow(run(PASS, cut), "pytest", "-m", "perf", "--perf-budget=8m") == (
        "pytest -m perf '--perf-only=tpot[c=1]' --perf-budget=22m"
    )
    assert follow(run(cut, OPEN)).endswith("--perf-max-replicates=14 --perf-budget=22m")
    (ground,) = decide_all([cut]).grounds
    assert "more pairs (--perf-budget) or a wider band" in ground.text


def test_what_differs_is_declared_with_what_was_declared_already() -> None:
    again = follow(run(CONFOUNDED), "pytest", "-m", "perf", "--perf-change=driver")
    assert again == "pytest -m perf '--perf-only=allreduce[world=2]' --perf-change=nccl,driver"
    upgrade = follow(run(CONFOUNDED), "decodegate", "upgrade", "--candidate", "this", "--allow", "driver", "--", "-x")
    assert upgrade == ("decodegate upgrade --candidate this --allow=nccl,driver -- -x '--perf-only=allreduce[world=2]'")


def test_what_has_no_baseline_is_recorded_and_what_was_recorded_is_gated() -> None:
    assert follow(run(NEW)) == "pytest -m perf --perf-only=new --perf-record=missing"
    assert follow(run(recorded(NEW)), "pytest", "-m", "perf", "--perf-record", "missing") == "pytest -m perf"
    assert follow(run(recorded(NEW)), "pytest", "--perf-record", "-m", "perf") == "pytest -m perf"


def test_many_names_become_their_families_and_a_test_without_a_metric_keeps_the_selection() -> None:
    red = [changed(SLOWER, name=f"{family}[m={n}]") for n in range(8) for family in ("marlin_moe", "q_b")]
    assert follow(run(*red)) == "pytest -m perf '--perf-only=marlin_moe[*]' '--perf-only=q_b[*]'"
    assert follow(run(OPEN, CRASHED), "pytest", "-m", "perf", "--perf-only", "x") == (
        "pytest -m perf --perf-max-replicates=14"
    )


def test_secrets_that_were_typed_are_not_repeated() -> None:
    said = follow(run(OPEN), "pytest", "-m", "perf", "--api-key=hf-mine-0123456789abcdef")
    assert "hf-mine" not in said


@given(st.lists(st.sampled_from([SLOWER, OPEN, CONFOUNDED, NEW]), min_size=1, max_size=30), st.integers(40, 120))
def test_the_command_as_it_stands_on_the_screen_is_the_command(outcomes: list[Result], width: int) -> None:
    said = run(*outcomes)
    typed = ("pytest", "-m", "perf and not slow", "-k", "a or b")
    lines = shown(said, width=width, command=typed)
    start = next(index for index, line in enumerate(lines) if line.startswith("next: "))
    pasted = lines[start].removeprefix("next: ")
    while pasted.endswith("\\"):
        start += 1
        pasted = pasted[:-1] + lines[start]

    assert shlex.split(pasted) == [shlex.split(word)[0] for word in next_command(said, said.decision, typed)]
