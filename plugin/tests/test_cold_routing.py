"""Routings that keep weights out of the cache: still uniform, and as far apart as they say."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.experts import Routing, draw_routings
from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.marlin.cold_routing import (
    LEAST_CALLS,
    ColdRouting,
    cold_rotation,
    least_reuse,
    spread,
)
from pytest_decodegate.workloads.runtime.op import COLD_MARGIN

torch = pytest.importorskip("torch", reason="routings are tensors")

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128]
L2_MEGABYTES = [50, 60, 128]
"""H100, H200, RTX PRO 6000."""

CALLS = st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=6)


def rotation(tokens: int, expert_bytes: int, l2_megabytes: float, seed: int = 0) -> ColdRouting:
    return cold_rotation(
        tokens,
        experts=KIMI_K25.experts,
        top_k=KIMI_K25.experts_per_token,
        expert_bytes=expert_bytes,
        seed=seed,
        l2_bytes=int(l2_megabytes * 2**20),
        what="Marlin MoE",
    )


@given(CALLS)
def test_least_reuse_is_the_smallest_distance_of_two_uses_in_an_endless_burst(used: list[set[int]]) -> None:
    starts = [0]
    for weights in used * 3:
        starts.append(starts[-1] + len(weights))

    middles = [(left + right) / 2 for left, right in pairwise(starts)]
    distances = [
        min(
            later - earlier
            for earlier, later in pairwise([at for at, w in zip(middles, used * 3, strict=True) if weight in w])
        )
        for weight in set().union(*used)
    ]
    assert least_reuse(used) == min(distances)


def test_nothing_used_comes_back_never() -> None:
    assert least_reuse([]) == math.inf


@pytest.mark.parametrize("tokens", BATCHES)
def test_spreading_keeps_who_shares_an_expert_and_moves_reuse_apart(tokens: int) -> None:
    drawn = draw_routings(tokens, 8, experts=384, top_k=8, seed=3)
    placed = spread(drawn, 384, seed=3)
    for before, after in zip(drawn, placed, strict=True):
        same_before = before.ids.flatten()[:, None] == before.ids.flatten()
        same_after = after.ids.flatten()[:, None] == after.ids.flatten()
        assert torch.equal(same_before, same_after)
        assert after.ids.dtype == torch.int32
        assert after.ids.is_contiguous()
        assert torch.equal(before.weights, after.weights)

    def reuse(routings: list[Routing]) -> float:
        return least_reuse([set(each.ids.unique().tolist()) for each in routings])

    assert reuse(placed[:4]) >= reuse(drawn[:4])


def test_names_are_uniform_over_the_seeds() -> None:
    hits = torch.zeros(16)
    for seed in range(400):
        (placed,) = spread(draw_routings(3, 1, experts=16, top_k=4, seed=seed), 16, seed=seed + 1)
        hits += torch.bincount(placed.ids.flatten(), minlength=16)

    expected = 400 * 3 * 4 / 16
    # Binomial: the standard deviation is below 16; six of them would fail once in a lifetime.
    assert (hits - expected).abs().max() < 6 * math.sqrt(expected)


# Larger shards have larger experts, which are cold sooner: on the largest cache is enough for them.
@pytest.mark.parametrize(
    ("tensor_parallel", "l2_megabytes"), [*product([8], L2_MEGABYTES), *product([4, 2, 1], L2_MEGABYTES[-1:])]
)
@pytest.mark.parametrize("tokens", BATCHES)
def test_every_batch_and_shard_is_cold_on_every_gpu(tokens: int, tensor_parallel: int, l2_megabytes: int) -> None:
    shard = KIMI_K25.shard(tensor_parallel)
    for expert_bytes in (shard.expert_bytes, shard.w13_bytes, shard.w2_bytes):
        made = rotation(tokens, expert_bytes, l2_megabytes)
        calls = len(made.routings)
        assert calls >= LEAST_CALLS
        assert calls % made.copies == 0
        ids = [each.ids.flatten().tolist() for each in made.routings]
        used = [{(call % made.copies, expert) for expert in experts} for call, experts in enumerate(ids)]
        assert made.bytes_between_uses == least_reuse(used) * expert_bytes
        assert made.bytes_between_uses >= COLD_MARGIN * l2_megabytes * 2**20
        assert made.unique_experts == pytest.approx(shard.unique_experts(tokens), rel=0.05)


def test_one_token_walks_through_all_experts_before_any_comes_back() -> None:
    made = rotation(1, KIMI_K25.shard(8).expert_bytes, 60)
    assert len(made.routings) == 48
    assert sorted(torch.cat([each.ids.flatten() for each in made.routings]).tolist()) == list(range(384))


def test_small_weights_are_copied_rather_than_served_by_the_cache() -> None:
    w2_bytes = KIMI_K25.shard(8).w2_bytes
    assert rotation(1, w2_bytes, 60).copies == 1
    assert rotation(1, w2_bytes, 128).copies == 2


def test_the_seed_repeats_the_rotation() -> None:
    first, again, other = (rotation(8, 3_000_000, 60, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(first.routings, again.routings, strict=True))
    assert not torch.equal(first.routings[0].ids, other.routings[0].ids)


def test_what_cannot_be_cold_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Marlin MoE at 8 tokens cannot be measured cold: .* 4 x the 134 MB L2"):
        rotation(8, 1000, 128)
