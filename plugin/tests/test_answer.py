"""One answer from many verdicts: what blocks, what only leaves it open, and how causes are grouped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.decision import ERROR, LEVEL, Answer, Row, decide_all
from pytest_decodegate.gate.evidence import stragglers, swaps
from pytest_decodegate.gate.pairs import UNCAUSED
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.measure.window import Window
from pytest_decodegate.measure.window_source import speculation_notes
from pytest_decodegate.metric import Json

PASS = Row("marlin_moe[m=8]", "PASS", change=0.001, tolerance=0.02, pairs=6, p_worse=0.4)
SLOWER = Row("marlin_moe[m=64]", "REGRESSED", change=0.04, tolerance=0.02, pairs=6, p_worse=1e-6)
OPEN = Row("allreduce[world=2]", "INCONCLUSIVE", change=0.03, tolerance=0.05, pairs=24, p_worse=0.1)
ROWS = (
    PASS,
    SLOWER,
    OPEN,
    replace(PASS, name="copy", verdict="IMPROVED", change=-0.1, p_worse=1.0),
    Row("a", "INVALID", reasons=("throttled",)),
    Row("b", "CONFOUNDED", reasons=("torch: 1 -> 2",)),
    Row("c", "WRONG_RESULT", reasons=("candidate: off by 0.3",)),
    Row("d", ERROR, side="candidate", reasons=("RankDied: rank 0 died",)),
    Row("e", ERROR, side="base", reasons=("RankDied: rank 0 died",)),
    replace(SLOWER, name="f", advisory=True),
)


def test_go_needs_every_gating_metric_to_pass() -> None:
    decision = decide_all([PASS, replace(PASS, name="other", verdict="IMPROVED")])
    assert (decision.answer, decision.answer.status, decision.causes) == (Answer.GO, 0, ())


@pytest.mark.parametrize(
    ("row", "answer", "status"),
    [
        (SLOWER, Answer.NO_GO, 1),
        (ROWS[6], Answer.NO_GO, 1),
        (replace(ROWS[6], advisory=True), Answer.NO_GO, 1),
        (ROWS[7], Answer.NO_GO, 1),
        (ROWS[8], Answer.NOT_PROVEN, 2),
        (ROWS[4], Answer.NOT_PROVEN, 2),
        (ROWS[5], Answer.NOT_PROVEN, 2),
        (OPEN, Answer.NOT_PROVEN, 2),
        (ROWS[9], Answer.GO, 0),
        (Row("t", ERROR, side=""), Answer.NOT_PROVEN, 2),
    ],
    ids=lambda one: f"{one.verdict}-{one.name}-{one.advisory}" if isinstance(one, Row) else str(one),
)
def test_one_metric_can_decide(row: Row, answer: Answer, status: int) -> None:
    decision = decide_all([PASS, row])
    assert (decision.answer, decision.answer.status) == (answer, status)


def test_a_run_that_measured_nothing_or_did_not_end_is_no_go_ahead() -> None:
    assert decide_all([]).answer is Answer.NOT_PROVEN
    assert decide_all([replace(PASS, advisory=True)]).answer is Answer.NOT_PROVEN
    interrupted = decide_all([PASS], "pytest was interrupted")
    assert (interrupted.answer, str(interrupted.causes[0])) == (Answer.NOT_PROVEN, "the run: pytest was interrupted")


@pytest.mark.parametrize(
    "reason",
    [
        "RankRaised: CUDA out of memory. Tried ...\nmore",
        "RankRaised: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY",
        "RankDied: rank 0 died (SIGKILL) in setup; the out-of-memory killer struck 1 times on this machine since ...",
    ],
)
def test_memory_that_is_short_beside_the_other_stack_is_no_fault_of_the_candidate(reason: str) -> None:
    decision = decide_all([PASS, replace(ROWS[7], reasons=(reason,))])
    assert decision.answer is Answer.NOT_PROVEN
    assert "--perf-replicates 3" in str(decision.causes[0])
    assert "more" not in str(decision.causes[0])


def test_a_killer_that_is_only_guessed_at_is_no_evidence() -> None:
    guess = "RankDied: rank 0 died (SIGKILL) in setup; the out-of-memory killer does that: look into `dmesg`"
    assert decide_all([PASS, replace(ROWS[7], reasons=(guess,))]).answer is Answer.NO_GO


# --- several metrics together


def test_one_of_thirty_that_looks_slower_by_chance_does_not_block() -> None:
    chance = replace(SLOWER, p_worse=0.02)
    many = [replace(PASS, name=f"quiet{n}") for n in range(29)]
    assert decide_all([chance]).answer is Answer.NO_GO
    decision = decide_all([chance, *many])
    assert decision.answer is Answer.NOT_PROVEN
    assert "may be chance" in str(decision.causes[0])
    assert decide_all([SLOWER, *many]).answer is Answer.NO_GO


def test_advisory_metrics_do_not_weaken_the_gating_ones() -> None:
    borderline = replace(SLOWER, p_worse=LEVEL)
    advisory = [replace(OPEN, name=f"a{n}", p_worse=0.0, advisory=True) for n in range(9)]
    assert decide_all([borderline, *advisory]).answer is Answer.NO_GO


@given(st.lists(st.sampled_from(ROWS), max_size=12, unique_by=lambda row: row.name), st.sampled_from(ROWS))
def test_a_metric_that_does_not_pass_never_makes_the_answer_better(rows: list[Row], more: Row) -> None:
    if more.verdict in ("PASS", "IMPROVED") or more.advisory or more in rows:
        return

    assert decide_all([*rows, more]).answer is not Answer.GO
    blocked = {cause.text for cause in decide_all(rows).causes if cause.blocks and "slower" not in cause.text}
    assert blocked <= {cause.text for cause in decide_all([*rows, more]).causes if cause.blocks}


@given(st.permutations(ROWS))
def test_the_order_of_metrics_does_not_matter(rows: list[Row]) -> None:
    decision = decide_all(rows)
    assert decision.answer is Answer.NO_GO
    assert {frozenset(cause.names) for cause in decision.causes} == {
        frozenset(cause.names) for cause in decide_all(ROWS).causes
    }
    assert [cause.blocks for cause in decision.causes] == sorted((c.blocks for c in decision.causes), reverse=True)


# --- causes


def test_ten_red_metrics_with_one_cause_are_one_line() -> None:
    red = [replace(SLOWER, name=f"marlin_moe[m={n}]", change=0.03 + n / 1000) for n in range(10)]
    (cause,) = decide_all(red).causes
    assert str(cause) == (
        "marlin_moe[m=0], marlin_moe[m=1], marlin_moe[m=2], marlin_moe[m=3], marlin_moe[m=4] and 5 more: "
        "slower by more than the band (+3.0 % to +3.9 %)"
    )
    assert len(cause.names) == 10


def test_kernels_do_not_hide_collectives_that_are_slower_too() -> None:
    slow = [replace(SLOWER, name=f"marlin_moe[m={n}]", kind="kernel") for n in range(9)]
    slow += [replace(SLOWER, name=f"allreduce[world={n}]", kind="collective", change=0.06) for n in (2, 4)]
    kernels, collectives = decide_all(slow).causes
    assert len(kernels.names) == 9
    assert str(collectives) == "allreduce[world=2], allreduce[world=4]: slower by more than the band (+6.0 %)"


def test_two_equal_stacks_that_ran_other_kernels_are_not_told_to_declare_them() -> None:
    (cause,) = decide_all([replace(ROWS[5], reasons=(UNCAUSED, "a kernel appeared: humming, 1 a call"))]).causes
    assert cause.text == f"CONFOUNDED: {UNCAUSED}; a kernel appeared: humming, 1 a call"
    assert not cause.blocks


def test_only_a_note_that_says_why_stands_beside_what_is_slower() -> None:
    how = "6 pairs of server starts in 9 min; a slowdown of 4 % would have been found"
    drafted: dict[str, Json] = {"length": 2, "rate": 0.5, "drafts": 1, "draft_tokens": 1, "per_position": []}
    for why in (
        *swaps.kernel_changes({"a": 1, "b": 1}, {"b": 2, "c": 1}),
        *swaps.told([Difference("contract.backend", "moe MARLIN", "moe CUTLASS", declarable=False)]),
        stragglers.told(stragglers.Straggler(3, 1.2), {}, "host"),
        *speculation_notes([Window((), (), 0.0, (), {"speculation": drafted})]),
    ):
        (cause,) = decide_all([replace(SLOWER, notes=(how, why))]).causes
        assert cause.text == f"slower by more than the band (+4.0 %); {why}"

    (cause,) = decide_all([replace(SLOWER, notes=(how,))]).causes
    assert cause.text == "slower by more than the band (+4.0 %)"


def test_a_swapped_kernel_is_a_cause_of_its_own() -> None:
    swapped = replace(SLOWER, name="gemm", notes=("a kernel appeared: cutlass, 1 a call",))
    causes = decide_all([SLOWER, swapped]).causes
    assert [cause.names for cause in causes] == [("marlin_moe[m=64]",), ("gemm",)]
    assert "a kernel appeared: cutlass" in causes[1].text


def test_errors_that_differ_in_numbers_only_are_one_cause() -> None:
    died = [replace(ROWS[7], name=str(n), reasons=(f"RankDied: rank {n} of candidate-w2-{n} died",)) for n in range(3)]
    (cause,) = decide_all(died).causes
    assert str(cause) == "0, 1, 2: ERROR: RankDied: rank 0 of candidate-w2-0 died"


def test_everything_that_confounds_is_named_at_once() -> None:
    reasons = ("torch: 2.11 -> 2.12", "vllm: 0.26 -> 0.27", "python: 3.11 -> 3.12", "cuda: 12 -> 13")
    (cause,) = decide_all([replace(ROWS[5], reasons=reasons)]).causes
    assert cause.text == (
        "CONFOUNDED: torch: 2.11 -> 2.12; vllm: 0.26 -> 0.27; python: 3.11 -> 3.12 and 1 more; "
        "the metric's own text says what may be declared as part of the change"
    )
