"""Checks of routing and alignment see what is wrong, with fakes of vLLM's ops; signatures against released wheels."""

from __future__ import annotations

from typing import Any

import fake_vllm
import pytest
import wheels
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.workloads.experts import draw_routings
from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.ops.routing import BLOCK, wrong_alignment, wrong_choice

torch = pytest.importorskip("torch", reason="workloads run on torch")

batches = st.integers(1, 64)


def routed(tokens: int) -> tuple[Any, Any, Any, Any]:
    """Logits, bias, and the right weights and ids for them, as grouped_topk gives them."""
    generator = torch.Generator().manual_seed(tokens)
    logits = torch.randn(tokens, KIMI_K25.experts, generator=generator)
    bias = torch.randn(KIMI_K25.experts, generator=generator) / 100
    scores = logits.sigmoid()
    ids = (scores + bias).topk(8, dim=1).indices
    picked = scores.gather(1, ids)
    return logits, bias, picked / picked.sum(dim=1, keepdim=True), ids.to(torch.int32)


def aligned(ids: Any) -> tuple[Any, Any, Any]:
    """As moe_align_block_size gives it, in buffers that have room for more."""
    slots, experts, count = fake_vllm.aligned(ids, BLOCK)
    room = torch.full((2 * BLOCK,), -1, dtype=torch.int32)
    return torch.cat([slots, room]), torch.cat([experts, room[:2]]), count


@given(batches)
def test_a_right_routing_passes_in_any_order(tokens: int) -> None:
    logits, bias, weights, ids = routed(tokens)
    assert wrong_choice(logits, bias, weights, ids) is None
    assert wrong_choice(logits, bias, weights.flip(1), ids.flip(1)) is None


@given(batches)
def test_a_routing_that_ignores_the_bias_or_names_an_expert_twice_is_seen(tokens: int) -> None:
    logits, bias, weights, ids = routed(tokens)
    worst = (logits.sigmoid() + bias).argmin(dim=1, keepdim=True)
    swapped = torch.cat([worst, ids[:, 1:]], dim=1)
    assert "left out that scores higher" in (wrong_choice(logits, bias, weights, swapped) or "")
    assert "twice" in (wrong_choice(logits, bias, weights, ids[:, :1].expand(-1, 8)) or "")
    assert "does not exist" in (wrong_choice(logits, bias, weights, torch.full_like(ids, -1)) or "")


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
