"""One answer from many verdicts: what blocks, what only leaves it open, and how causes are grouped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from judged import changed, result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.errors import RankDied, RankRaised
from pytest_decodegate.gate.decision import Answer, decide_all
from pytest_decodegate.gate.evidence import stragglers, swaps
from pytest_decodegate.gate.pairs import UNCAUSED
from pytest_decodegate.gate.result import Failed, Result
from pytest_decodegate.gate.stats.together import LEVEL
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.measure.window import Window
from pytest_decodegate.measure.window_source import speculation_notes
from pytest_decodegate.metric import Json

PASS = result("marlin_moe[m=8]", "PASS", change=0.001, p_worse=0.4)
SLOWER = result("marlin_moe[m=64]", "REGRESSED", change=0.04, p_worse=1e-6)
OPEN = result("allreduce[world=2]", "INCONCLUSIVE", tolerance=0.05, pairs=24, change=0.03, p_worse=0.1)
INVALID = result("a", "INVALID", reasons=(Finding("throttled", Cause.THROTTLING),))
CONFOUNDED = result("b", "CONFOUNDED", reasons=(Finding("torch: 1 -> 2", Cause.DIFFERENCE, "torch"),))
WRONG = result("c", "WRONG_RESULT", reasons=(Finding("candidate: off by 0.3", Cause.WRONG_NUMBERS),))
DIED = Failed("d", RankDied("rank 0 died").finding, side="candidate")
BASE_DIED = replace(DIED, nodeid="e", side="base")
ADVISORY = changed(SLOWER, name="f", advisory=True)
OUTCOMES: tuple[Result | Failed, ...] = (
    PASS,
    SLOWER,
    OPEN,
    changed(PASS, name="copy", verdict="IMPROVED", change=-0.1, p_worse=1.0),
    INVALID,
    CONFOUNDED,
    WRONG,
    DIED,
    BASE_DIED,
    ADVISORY,
)


def test_go_needs_every_gating_metric_to_pass() -> None:
    decision = decide_all([PASS, changed(PASS, name="other", verdict="IMPROVED")])
    assert (decision.answer, decision.answer.status, decision.grounds) == (Answer.GO, 0, ())


@pytest.mark.parametrize(
    ("outcome", "answer", "status"),
    [
        (SLOWER, Answer.NO_GO, 1),
        (WRONG, Answer.NO_GO, 1),
        (changed(WRONG, advisory=True), Answer.NO_GO, 1),
        (DIED, Answer.NO_GO, 1),
        (replace(DIED, advisory=True), Answer.GO, 0),
        (BASE_DIED, Answer.NOT_PROVEN, 2),
        (INVALID, Answer.NOT_PROVEN, 2),
        (CONFOUNDED, Answer.NOT_PROVEN, 2),
        (OPEN, Answer.NOT_PROVEN, 2),
        (ADVISORY, Answer.GO, 0),
        (replace(DIED, side=""), Answer.NOT_PROVEN, 2),
    ],
)
def test_one_metric_can_decide(outcome: Result | Failed, answer: Answer, status: int) -> None:
    decision = decide_all([PASS, outcome])
    assert (decision.answer, decision.answer.status) == (answer, status)


def test_a_run_that_measured_nothing_or_did_not_end_is_no_go_ahead() -> None:
    assert decide_all([]).answer is Answer.NOT_PROVEN
    assert decide_all([changed(PASS, advisory=True)]).answer is Answer.NOT_PROVEN
    interrupted = decide_all([PASS], "pytest was interrupted")
    assert (interrupted.answer, str(interrupted.grounds[0])) == (Answer.NOT_PROVEN, "the run: pytest was interrupted")


def test_memory_that_is_short_beside_the_other_stack_is_no_fault_of_the_candidate() -> None:
    error = RankRaised("rank 0 raised OutOfMemoryError\nmore", cause=Cause.OUT_OF_MEMORY)
    decision = decide_all([PASS, replace(DIED, error=error.finding)])
    assert decision.answer is Answer.NOT_PROVEN
    assert "--perf-replicates 3" in str(decision.grounds[0])
    assert "more" not in str(decision.grounds[0])


@pytest.mark.parametrize(
    "text", ["CUDA out of memory", "a kernel appeared: x", "STRAGGLER: rank 0", "acceptance length"]
)
def test_words_decide_nothing(text: str) -> None:
    """Only causes do: an error that speaks of memory blocks unless its cause says so, and a remark explains nothing."""
    assert decide_all([PASS, replace(DIED, error=Finding(text, Cause.CRASH))]).answer is Answer.NO_GO
    (ground,) = decide_all([changed(SLOWER, notes=(Finding(text),))]).grounds
    assert text not in str(ground)


# --- several metrics together


def test_one_of_thirty_that_looks_slower_by_chance_does_not_block() -> None:
    chance = changed(SLOWER, p_worse=0.02)
    many = [changed(PASS, name=f"quiet{n}") for n in range(29)]
    assert decide_all([chance]).answer is Answer.NO_GO
    decision = decide_all([chance, *many])
    assert decision.answer is Answer.NOT_PROVEN
    assert "may be chance" in str(decision.grounds[0])
    assert decide_all([SLOWER, *many]).answer is Answer.NO_GO


def test_advisory_metrics_do_not_weaken_the_gating_ones() -> None:
    borderline = changed(SLOWER, p_worse=LEVEL)
    advisory = [changed(OPEN, name=f"a{n}", p_worse=0.0, advisory=True) for n in range(9)]
    assert decide_all([borderline, *advisory]).answer is Answer.NO_GO


@given(
    st.lists(st.sampled_from(OUTCOMES), max_size=12, unique_by=lambda outcome: outcome.name), st.sampled_from(OUTCOMES)
)
def test_a_metric_that_does_not_pass_never_makes_the_answer_better(
    outcomes: list[Result | Failed], more: Result | Failed
) -> None:
    assume(not (more.advisory or more in outcomes))
    assume(isinstance(more, Failed) or not more.judgement.verdict.passes)
    assert decide_all([*outcomes, more]).answer is not Answer.GO
    blocked = {ground.text for ground in decide_all(outcomes).grounds if ground.blocks and "slower" not in ground.text}
    assert blocked <= {ground.text for ground in decide_all([*outcomes, more]).grounds if ground.blocks}


@given(st.permutations(OUTCOMES))
def test_the_order_of_metrics_does_not_matter(outcomes: list[Result | Failed]) -> None:
    decision = decide_all(outcomes)
    assert decision.answer is Answer.NO_GO
    assert {frozenset(ground.names) for ground in decision.grounds} == {
        frozenset(ground.names) for ground in decide_all(OUTCOMES).grounds
    }
    assert [one.blocks for one in decision.grounds] == sorted((one.blocks for one in decision.grounds), reverse=True)


# --- causes


def test_ten_red_metrics_with_one_cause_are_one_line() -> None:
    red = [changed(SLOWER, name=f"marlin_moe[m={n}]", change=0.03 + n / 1000) for n in range(10)]
    (cause,) = decide_all(red).grounds
    assert str(cause) == (
        "marlin_moe[m=0], marlin_moe[m=1], marlin_moe[m=2], marlin_moe[m=3], marlin_moe[m=4] and 5 more: "
        "slower by more than the band (+3.0 % to +3.9 %)"
    )
    assert len(cause.names) == 10


def test_kernels_do_not_hide_collectives_that_are_slower_too() -> None:
    slow = [changed(SLOWER, name=f"marlin_moe[m={n}]", kind="kernel") for n in range(9)]
    slow += [changed(SLOWER, name=f"allreduce[world={n}]", kind="collective", change=0.06) for n in (2, 4)]
    kernels, collectives = decide_all(slow).grounds
    assert len(kernels.names) == 9
    assert str(collectives) == "allreduce[world=2], allreduce[world=4]: slower by more than the band (+6.0 %)"


def test_two_equal_stacks_that_ran_other_kernels_are_not_told_to_declare_them() -> None:
    (cause,) = decide_all([changed(CONFOUNDED, reasons=(UNCAUSED, *swaps.kernel_changes({}, {"humming": 1})))]).grounds
    assert cause.text == f"CONFOUNDED: {UNCAUSED}; a kernel appeared: humming, 1 a call"
    assert not cause.blocks


def test_only_a_note_that_says_why_stands_beside_what_is_slower() -> None:
    how = Finding("6 pairs of server starts in 9 min; a slowdown of 4 % would have been found")
    drafted: dict[str, Json] = {"length": 2, "rate": 0.5, "drafts": 1, "draft_tokens": 1, "per_position": []}
    for why in (
        *swaps.kernel_changes({"a": 1, "b": 1}, {"b": 2, "c": 1}),
        *swaps.swap_findings([Difference("contract.backend", "moe MARLIN", "moe CUTLASS", declarable=False)]),
        stragglers.finding(stragglers.Straggler(3, 1.2), {}, "host"),
        *speculation_notes([Window((), (), 0.0, (), {"speculation": drafted})]),
    ):
        (cause,) = decide_all([changed(SLOWER, notes=(how, why))]).grounds
        assert cause.text == f"slower by more than the band (+4.0 %); {why}"

    (cause,) = decide_all([changed(SLOWER, notes=(how,))]).grounds
    assert cause.text == "slower by more than the band (+4.0 %)"


def test_a_swapped_kernel_is_a_cause_of_its_own() -> None:
    swapped = changed(SLOWER, name="gemm", notes=tuple(swaps.kernel_changes({}, {"cutlass": 1})))
    causes = decide_all([SLOWER, swapped]).grounds
    assert [cause.names for cause in causes] == [("marlin_moe[m=64]",), ("gemm",)]
    assert "a kernel appeared: cutlass" in causes[1].text


def test_errors_that_differ_in_numbers_only_are_one_cause() -> None:
    errors = [RankDied(f"rank {n} of candidate-w2-{n} died", about="SIGKILL") for n in range(3)]
    died = [replace(DIED, nodeid=str(n), error=error.finding) for n, error in enumerate(errors)]
    (cause,) = decide_all(died).grounds
    assert str(cause) == "0, 1, 2: ERROR: RankDied: rank 0 of candidate-w2-0 died"


def test_everything_that_confounds_is_named_at_once() -> None:
    texts = ("torch: 2.11 -> 2.12", "vllm: 0.26 -> 0.27", "python: 3.11 -> 3.12", "cuda: 12 -> 13")
    reasons = tuple(Finding(text, Cause.DIFFERENCE, text) for text in texts)
    (cause,) = decide_all([changed(CONFOUNDED, reasons=reasons)]).grounds
    assert cause.text == (
        "CONFOUNDED: torch: 2.11 -> 2.12; vllm: 0.26 -> 0.27; python: 3.11 -> 3.12 and 1 more; "
        "if that is part of the change, declare it with --perf-change"
    )
