"""The check of a collective, with the other ranks made up: what is right passes, and each single fault is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.collectives.paths import PreparedBurst
from pytest_decodegate.workloads.collectives.result_check import (
    MOST_RANKS,
    ROUND_SHIFT,
    Collective,
    ResultCheck,
    pattern,
    total,
)
from pytest_decodegate.workloads.kimi import KIMI_K25

torch = pytest.importorskip("torch", reason="collectives run on torch")

ELEMENTS, CALLS = 24, 3
SUM = Collective("AllReduce", lambda *_: ELEMENTS, lambda _rank, _call, given: total(given))
GATHER = Collective("AllGather", lambda *_: ELEMENTS, lambda _rank, _call, given: torch.cat(list(given)))

Fault = Callable[[int, int, list[Any]], Any]
"""(round, call, contributions) -> what is written instead of the result; None for nothing."""


def check_of(collective: Collective, world_size: int, rank: int = 0, fault: Fault | None = None) -> ResultCheck:
    """A check on `rank` whose burst does what all ranks together would, or what `fault` makes of it."""
    inputs = [torch.zeros(ELEMENTS, dtype=torch.bfloat16) for _ in range(CALLS)]
    size = len(collective.result(rank, 0, [torch.zeros(ELEMENTS)] * world_size))
    outputs = [torch.zeros(size, dtype=torch.bfloat16) for _ in range(CALLS)]
    rounds: list[int] = []

    def burst() -> None:
        for call, tensor in enumerate(inputs):
            own = tensor.float() / (rank + 1)
            parts = [own * (other + 1) for other in range(world_size)]
            result = fault(len(rounds), call, parts) if fault else collective.result(rank, call, parts)
            if result is not None:
                outputs[call].copy_(result)

        rounds.append(1)

    return ResultCheck(
        f"{collective.name} by magic", collective, PreparedBurst(burst, inputs, outputs), rank, world_size, lambda: None
    )


def shifted(part: Any, by: int) -> Any:
    """The contribution of the call that is `by` further on."""
    weight = part.min()
    return (part / weight - 1 + by) % 7 * weight + weight


@given(st.integers(1, MOST_RANKS), st.data())
@settings(deadline=None, max_examples=40)
def test_right_numbers_pass_on_every_rank(world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    for collective in (SUM, GATHER):
        check = check_of(collective, world_size, rank)
        assert check() is None


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sums_are_exact_in_bf16_in_any_order(ranks: int) -> None:
    parts = [pattern(1000, 0, "cpu") * (rank + 1) for rank in range(ranks)]
    want = total(parts)
    for order in (parts, parts[::-1], parts[1::2] + parts[::2]):
        summed = torch.zeros(1000, dtype=torch.bfloat16)
        for part in order:
            summed += part.to(torch.bfloat16)

        assert torch.equal(summed.float(), want)


def test_data_differ_between_ranks_calls_rounds_and_neighbouring_hidden_states() -> None:
    rows = pattern(3 * KIMI_K25.hidden, 0, "cpu").split(KIMI_K25.hidden)
    seen = [*rows, pattern(KIMI_K25.hidden, ROUND_SHIFT, "cpu"), pattern(KIMI_K25.hidden, 0, "cpu") * 2]
    for first in range(len(seen)):
        for second in range(first):
            assert not torch.equal(seen[first], seen[second])


def drop(who: int) -> Fault:
    return lambda _round, call, parts: total([part for rank, part in enumerate(parts) if call != 1 or rank != who])


def other_call(who: int) -> Fault:
    def fault(_round: int, call: int, parts: list[Any]) -> Any:
        return total([shifted(part, 2 * (call == 1)) if rank == who else part for rank, part in enumerate(parts)])

    return fault


def stale() -> Fault:
    kept: dict[int, Any] = {}
    return lambda _round, call, parts: kept.setdefault(call, total(parts))


CAUSES: Sequence[tuple[Fault, str, str]] = [
    (drop(3), "call 1 of 3, round 1 of 2", "rank 3 has put in nothing"),
    (other_call(2), "call 1 of 3, round 1 of 2", "rank 2 has put in the data of another call"),
    (stale(), "call 0 of 3, round 2 of 2", "it is the result of the round before, a stale buffer"),
    (lambda *_: None, "call 0 of 3, round 1 of 2", "nothing was written, the call was not made or wrote elsewhere"),
    (lambda _round, _call, parts: parts[1], "call 0 of 3", "it is what rank 1 has put in, which did not take part"),
    (lambda _round, _call, parts: total([shifted(part, 1) for part in parts]), "call 0", "the result of another call"),
]


@pytest.mark.parametrize(("fault", "where", "cause"), CAUSES, ids=[cause[-24:] for *_, cause in CAUSES])
def test_a_single_fault_is_named_with_the_rank_that_explains_it(fault: Fault, where: str, cause: str) -> None:
    wrong = check_of(SUM, 4, rank=1, fault=fault)() or ""
    assert wrong.startswith(f"AllReduce by magic, {where}")
    assert "on rank 1: " in wrong
    assert wrong.endswith(cause)


@given(
    st.integers(0, CALLS - 1), st.integers(0, ELEMENTS - 1), st.sampled_from([-1.0, 1.0, float("nan"), float("inf")])
)
@settings(deadline=None, max_examples=40)
def test_one_wrong_value_in_one_round_is_found(at_call: int, at: int, error: float) -> None:
    def fault(number: int, call: int, parts: list[Any]) -> Any:
        result = total(parts)
        if number == 1 and call == at_call:
            result[at] += error

        return result

    wrong = check_of(SUM, 2, fault=fault)() or ""
    assert (
        f"call {at_call} of {CALLS}, round 2 of 2 on rank 0: 1 of {ELEMENTS} values are wrong; value {at} is" in wrong
    )


def test_more_ranks_than_bf16_can_sum_are_refused() -> None:
    with pytest.raises(BadInput, match="9 ranks, but sums of the test data are exact in bf16 only up to 8"):
        check_of(SUM, MOST_RANKS + 1)
