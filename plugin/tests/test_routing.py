"""Checks of routing and alignment see what is wrong, with fakes of vLLM's ops; signatures against released wheels."""

from __future__ import annotations

from typing import Any

import fake_vllm
import pytest
import wheels
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.workloads.experts import draw_routings
from pytest_decodegate.workloads.ops.routing import BLOCK, separate_scores, wrong_alignment, wrong_choice

torch = pytest.importorskip("torch", reason="workloads run on torch")

batches = st.integers(1, 64)


def routed(tokens: int, seed: int = 0, dtype: Any = None) -> tuple[Any, Any, Any, Any]:
    """Logits, bias, and the right weights and ids for them, as grouped_topk gives them."""
    logits, bias = separate_scores(tokens, dtype or torch.float32, where="cpu", seed=seed)
    scores = logits.float().sigmoid()
    return logits, bias, *weighted(scores, (scores + bias).topk(8, dim=1).indices)


def weighted(scores: Any, ids: Any) -> tuple[Any, Any]:
    """Renormalised weights of the experts `ids`, and these as the kernel writes them."""
    picked = scores.gather(1, ids)
    return picked / picked.sum(dim=1, keepdim=True), ids.to(torch.int32)


def aligned(ids: Any) -> tuple[Any, Any, Any]:
    """As moe_align_block_size gives it, in buffers that have room for more."""
    slots, experts, count = fake_vllm.aligned(ids, BLOCK)
    room = torch.full((2 * BLOCK,), -1, dtype=torch.int32)
    return torch.cat([slots, room]), torch.cat([experts, room[:2]]), count


@given(batches, st.integers(0, 99), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_right_routing_passes_in_any_order(tokens: int, seed: int, dtype: Any) -> None:
    logits, bias, weights, ids = routed(tokens, seed, dtype)
    assert wrong_choice(logits, bias, weights, ids) is None
    assert wrong_choice(logits, bias, weights.flip(1), ids.flip(1)) is None


@given(st.integers(0, 99), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_routing_whose_scores_are_rounded_to_bf16_still_passes(seed: int, dtype: Any) -> None:
    logits, bias, _, _ = routed(64, seed, dtype)
    rounded = logits.float().sigmoid().to(torch.bfloat16).float()
    ids = (rounded + bias).to(torch.bfloat16).float().topk(8, dim=1).indices
    assert wrong_choice(logits, bias, *weighted(rounded, ids)) is None


@pytest.mark.parametrize("tokens", [1, 8, 64])
@given(seed=st.integers(0, 2**31))
def test_a_routing_that_ignores_the_bias_is_always_seen(tokens: int, seed: int) -> None:
    logits, bias, _, _ = routed(tokens, seed)
    scores = logits.sigmoid()
    assert "score higher than what was chosen" in (
        wrong_choice(logits, bias, *weighted(scores, scores.topk(8, dim=1).indices)) or ""
    )


@given(batches, st.integers(0, 99))
def test_weights_that_hold_the_bias_are_seen(tokens: int, seed: int) -> None:
    logits, bias, _, ids = routed(tokens, seed)
    assert "topk weights" in (wrong_choice(logits, bias, *weighted(logits.sigmoid() + bias, ids.long())) or "")


@given(batches)
def test_one_wrong_expert_or_one_named_twice_is_seen(tokens: int) -> None:
    logits, bias, weights, ids = routed(tokens)
    ninth = (logits.sigmoid() + bias).topk(9, dim=1).indices[:, 8:]
    swapped = torch.cat([ids[:, :7], ninth], dim=1)
    assert f"{tokens} of {tokens} tokens, first 0: experts [" in (wrong_choice(logits, bias, weights, swapped) or "")
    assert "twice" in (wrong_choice(logits, bias, weights, ids[:, :1].expand(-1, 8)) or "")
    assert "does not exist" in (wrong_choice(logits, bias, weights, torch.full_like(ids, -1)) or "")


def test_experts_of_equal_score_may_stand_for_one_another() -> None:
    logits, bias, weights, ids = routed(1)
    ninth = (logits.sigmoid() + bias).topk(9, dim=1).indices[0, 8]
    logits[0, ninth], bias[ninth] = logits[0, ids[0, 7]], bias[ids[0, 7]]
    assert wrong_choice(logits, bias, weights, torch.cat([ids[:, :7], ninth.view(1, 1)], dim=1)) is None


def test_weights_that_are_not_renormalised_or_nan_are_seen() -> None:
    logits, bias, weights, ids = routed(4)
    assert "topk weights: relative error 1" in (wrong_choice(logits, bias, weights * 2, ids) or "")
    assert "relative error nan" in (wrong_choice(logits, bias, weights * float("nan"), ids) or "")


@given(batches, st.sampled_from([16, 384]))
def test_a_right_alignment_passes(tokens: int, experts: int) -> None:
    ids = draw_routings(tokens, 1, experts=experts, top_k=8, seed=tokens)[0].ids
    assert wrong_alignment(ids, *aligned(ids)) is None


@given(batches)
def test_a_wrong_alignment_is_seen(tokens: int) -> None:
    ids = draw_routings(tokens, 1, experts=384, top_k=8, seed=tokens)[0].ids
    slots, experts, count = aligned(ids)
    assert "slots after padding, must be" in (wrong_alignment(ids, slots, experts, count + BLOCK) or "")
    assert "lost or there twice" in (wrong_alignment(ids, slots.clamp(min=1), experts, count) or "")
    assert "another expert" in (wrong_alignment(ids, slots, experts.roll(1), count) or "")


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_have_what_is_called(version: str) -> None:
    ops = wheels.source(version, "vllm/_custom_ops.py")
    bound = wheels.signature(ops, "grouped_topk").bind("logits", 1, 1, 8, True, 1.0, "bias", 1).arguments
    assert bound == {
        "scores": "logits",
        "num_expert_group": 1,
        "topk_group": 1,
        "topk": 8,
        "renormalize": True,
        "routed_scaling_factor": 1.0,
        "bias": "bias",
        "scoring_func": 1,
    }
    assert wheels.signature(ops, "moe_sum").bind("parts", "output").arguments == {"input": "parts", "output": "output"}
    align = wheels.source(version, "vllm/model_executor/layers/fused_moe/moe_align_block_size.py")
    arguments = wheels.signature(align, "moe_align_block_size").bind("ids", 8, 384, None, ignore_invalid_experts=True)
    assert list(arguments.arguments)[:3] == ["topk_ids", "block_size", "num_experts"]
    assert "def greedy_sample(logits: torch.Tensor)" in wheels.source(version, "vllm/v1/sample/sampler.py")


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_route_this_model_by_the_fused_kernel(version: str) -> None:
    router = wheels.source(version, "vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py")
    assert "1,  # scoring_func=1 for sigmoid" in router
    assert "envs.VLLM_USE_FUSED_MOE_GROUPED_TOPK" in router
