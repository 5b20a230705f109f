"""The dims against the published table of the decode step: bytes and unique experts by tensor-parallel degree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.workloads.kimi import KIMI_K25


@pytest.mark.parametrize(
    ("tensor_parallel", "expert_bytes", "heads", "vocabulary"),
    [(1, 24_772_608, 64, 163_840), (2, 12_386_304, 32, 81_920), (4, 6_193_152, 16, 40_960), (8, 3_096_576, 8, 20_480)],
)
def test_shard_matches_the_published_geometry(
    tensor_parallel: int, expert_bytes: int, heads: int, vocabulary: int
) -> None:
    shard = KIMI_K25.shard(tensor_parallel)
    assert (shard.expert_bytes, shard.heads, shard.vocabulary) == (expert_bytes, heads, vocabulary)
    assert shard.expert_intermediate == 2048 // tensor_parallel


@pytest.mark.parametrize(
    ("tokens", "unique"), [(1, 8.0), (2, 15.8), (4, 31.0), (8, 59.5), (16, 110), (32, 188), (64, 284), (128, 358)]
)
def test_unique_experts_match_the_published_table(tokens: int, unique: float) -> None:
    assert KIMI_K25.shard(8).unique_experts(tokens) == pytest.approx(unique, rel=5e-3)


def test_allreduce_is_the_14_kb_message_and_122_a_step() -> None:
    assert KIMI_K25.shard(8).allreduce_bytes == 14_336
    assert KIMI_K25.layer_allreduces == 122


@given(st.integers(1, 500))
def test_unique_experts_grow_and_never_pass_what_there_is(tokens: int) -> None:
    shard = KIMI_K25.shard(8)
    assert shard.unique_experts(tokens) < shard.unique_experts(tokens + 1) <= shard.experts


@pytest.mark.parametrize("tensor_parallel", [3, 5, 7, 128])
def test_a_dim_that_does_not_divide_is_named(tensor_parallel: int) -> None:
    with pytest.raises(ValueError, match=f"does not divide into {tensor_parallel} shards"):
        KIMI_K25.shard(tensor_parallel)
