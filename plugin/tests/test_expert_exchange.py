"""Which tokens go where at decode, and what a rank must then hold."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.collectives.alltoall import dispatch_counts, moved_elements
from pytest_decodegate.workloads.kimi import KIMI_K25

pytest.importorskip("torch", reason="routings are drawn by torch")

RANKS = st.sampled_from([2, 4, 8])


@given(RANKS, st.sampled_from([1, 2, 8]), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_a_token_goes_to_a_rank_once_and_to_at_least_one(ranks: int, tokens: int, seed: int) -> None:
    for call in dispatch_counts(tokens, ranks, calls=3, seed=seed):
        assert len(call) == ranks
        for row in call:
            assert len(row) == ranks
            assert max(row) <= tokens
            assert tokens <= sum(row) <= tokens * min(ranks, KIMI_K25.experts_per_token)


@given(RANKS, st.integers(0, 99))
@settings(deadline=None, max_examples=10)
def test_every_rank_draws_the_same(ranks: int, seed: int) -> None:
    assert dispatch_counts(8, ranks, calls=6, seed=seed) == dispatch_counts(8, ranks, calls=6, seed=seed)


@given(RANKS, st.integers(0, 99))
@settings(deadline=None, max_examples=10)
def test_calls_differ(ranks: int, seed: int) -> None:
    assume(ranks > 2)  # two ranks share nearly every token
    counts = dispatch_counts(8, ranks, calls=6, seed=seed)
    assert any(call != counts[0] for call in counts)


def test_combine_brings_back_what_dispatch_has_sent() -> None:
    dispatched = [[[1, 2], [0, 4]]]
    assert moved_elements("dispatch", dispatched) == [[[7168, 2 * 7168], [0, 4 * 7168]]]
    assert moved_elements("combine", dispatched) == [[[7168, 0], [2 * 7168, 4 * 7168]]]


def test_ranks_that_cannot_share_the_experts_evenly_are_refused() -> None:
    with pytest.raises(BadInput, match="experts 384 does not divide into 5 shards"):
        dispatch_counts(1, 5, calls=1, seed=0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_copies_per_token_are_what_uniform_routing_expects(ranks: int) -> None:
    """A rank is missed if all eight distinct experts lie elsewhere: product of (384 - 384/n - i) / (384 - i)."""
    missed = 1.0
    for drawn in range(KIMI_K25.experts_per_token):
        missed *= (KIMI_K25.experts * (1 - 1 / ranks) - drawn) / (KIMI_K25.experts - drawn)

    counts = dispatch_counts(64, ranks, calls=30, seed=1)
    copies = sum(sum(row) for call in counts for row in call) / (64 * ranks * 30)
    assert copies == pytest.approx(ranks * (1 - missed), rel=0.01)
