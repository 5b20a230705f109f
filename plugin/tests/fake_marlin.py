"""vLLM's Marlin functions played by plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest

from pytest_decodegate.workloads.kimi import INT4_GROUP, KIMI_K25
from pytest_decodegate.workloads.marlin import vllm_api
from pytest_decodegate.workloads.marlin.vllm_api import AdaptedFunction, MarlinApi, VllmFunction

torch = pytest.importorskip("torch", reason="the workloads are torch's")
SHARD = replace(KIMI_K25.shard(8), hidden=128, expert_intermediate=64, experts=16, local_experts=16)


def unpacked(words: Any, scales: Any) -> Any:
    """Float64 [K, N] of GPTQ words [K / 8, N] and scales [K / 32, N]."""
    shifts = 4 * torch.arange(8).reshape(1, 8, 1)
    codes = ((words.unsqueeze(1) >> shifts) & 15).reshape(-1, words.shape[1])
    return (codes.double() - 8) * scales.double().repeat_interleave(INT4_GROUP, dim=0)


def repack(b_q_weight: Any, perm: Any, size_k: int, size_n: int, num_bits: int) -> Any:
    assert (b_q_weight.shape, num_bits, perm.numel()) == ((size_k // 8, size_n), 4, 0)
    assert b_q_weight.dtype == torch.int32
    assert b_q_weight.is_contiguous()
    return b_q_weight.clone()


def permute_scales(s: Any, size_k: int, size_n: int, group_size: int) -> Any:
    assert (s.shape, s.dtype) == ((size_k // group_size, size_n), torch.bfloat16)
    return s.clone()


def align(topk_ids: Any, block_size: int, num_experts: int, expert_map: None, ignore_invalid_experts: bool) -> Any:
    assert (topk_ids.dtype, int(topk_ids.max()) < num_experts, ignore_invalid_experts) == (torch.int32, True, True)
    return fake_vllm.aligned(topk_ids, block_size)


def grouped_gemm(
    input: Any,  # noqa: A002
    output: Any,
    b_qweight: Any,
    b_scales: Any,
    sorted_token_ids: Any,
    expert_ids: Any,
    num_tokens_past_padded: Any,
    topk_weights: Any,
    moe_block_size: int,
    top_k: int,
    mul_topk_weights: bool,
    size_m: int,
    size_n: int,
    size_k: int,
    use_atomic_add: bool,
    use_fp32_reduce: bool,
    g_idx: Any,
    perm: Any,
    is_k_full: bool,
    **nothing: Any,
) -> Any:
    assert (input.shape, output.shape) == ((size_m, size_k), (size_m * top_k, size_n))
    assert (use_atomic_add, use_fp32_reduce, is_k_full, g_idx, perm) == (False, True, True, None, None)
    for block in range(int(num_tokens_past_padded) // moe_block_size):
        rows = sorted_token_ids[block * moe_block_size : (block + 1) * moe_block_size]
        rows = rows[rows < len(output)]
        expert = int(expert_ids[block])
        result = input[rows // top_k].double() @ unpacked(b_qweight[expert], b_scales[expert])
        output[rows] = (result * (topk_weights.flatten()[rows, None] if mul_topk_weights else 1)).to(output.dtype)

    return output


def fused_moe(hidden_states: Any, w1: Any, w2: Any, topk_ids: Any, topk_weights: Any, output: Any, **more: Any) -> None:
    """Both GEMMs through the fakes above, in the caches that were given; the sum through `moe_sum` as vLLM calls it."""
    (tokens, hidden), top_k = hidden_states.shape, topk_ids.shape[1]
    inner = w2.shape[1] * 8
    rows = tokens * top_k
    cache13, cache2 = more["intermediate_cache13"], more["intermediate_cache2"]
    sorted_ids, experts, padded = align(topk_ids, 8, len(w1), None, True)
    same = {
        "sorted_token_ids": sorted_ids,
        "expert_ids": experts,
        "num_tokens_past_padded": padded,
        "topk_weights": topk_weights,
        "moe_block_size": 8,
        "use_atomic_add": False,
        "use_fp32_reduce": True,
        "g_idx": None,
        "perm": None,
        "is_k_full": True,
    }
    first = cache13.flatten()[: rows * 2 * inner].view(rows, 2 * inner)
    grouped_gemm(hidden_states, first, w1, more["w1_scale"], top_k=top_k, mul_topk_weights=False, size_m=tokens,
                 size_n=2 * inner, size_k=hidden, **same)  # fmt: skip
    gate, up = first.float().chunk(2, dim=1)
    second = cache2.flatten()[: rows * inner].view(rows, inner)
    second.copy_(torch.nn.functional.silu(gate) * up)
    third = cache13.flatten()[: rows * hidden].view(rows, hidden)
    grouped_gemm(second, third, w2, more["w2_scale"], top_k=1, mul_topk_weights=True, size_m=rows, size_n=hidden,
                 size_k=inner, **same)  # fmt: skip
    more["moe_sum"](third.view(tokens, top_k, hidden), output, topk_ids, None)


def linear(input: Any, weight: Any, weight_scale: Any, **more: Any) -> Any:  # noqa: A002
    assert (more["weight_zp"].numel(), more["g_idx"].numel(), more["g_idx_sort_indices"].numel()) == (0, 0, 0)
    weights = unpacked(weight, weight_scale)
    assert weights.shape == (more["input_size_per_partition"], more["output_size_per_partition"])
    return (input.double() @ weights).to(torch.bfloat16)


def moe_sum(input: Any, output: Any) -> None:  # noqa: A002
    output.copy_(input.float().sum(dim=1))


def make_workspace(device: Any, max_blocks_per_sm: int) -> Any:
    return torch.zeros(max_blocks_per_sm, dtype=torch.int32, device=device)


def played(op: VllmFunction, function: Callable[..., Any]) -> AdaptedFunction:
    return AdaptedFunction(op, "here", function, frozenset({*op.passed, *op.dropped}))


API = MarlinApi(
    fused_moe=played(vllm_api.FUSED_MOE, fused_moe),
    grouped_gemm=played(vllm_api.GROUPED_GEMM, grouped_gemm),
    linear=played(vllm_api.LINEAR, linear),
    repack=played(vllm_api.REPACK, repack),
    permute_scales=played(vllm_api.PERMUTE_SCALES, permute_scales),
    make_workspace=played(vllm_api.MAKE_WORKSPACE, make_workspace),
    align=played(vllm_api.ALIGN, align),
    moe_sum=played(vllm_api.MOE_SUM, moe_sum),
    uint4b8=SimpleNamespace(id=7),
    keeps_workspace=True,
    name="played",
)
