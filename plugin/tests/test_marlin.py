"""The Marlin workloads on the CPU, with vLLM's functions played by plain torch: arguments, layouts and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.experts import draw_routings
from pytest_decodegate.workloads.kimi import INT4_GROUP, KIMI_K25
from pytest_decodegate.workloads.marlin import vllm_api
from pytest_decodegate.workloads.marlin.calls import Calls, workload
from pytest_decodegate.workloads.marlin.cold_routing import Rotation, spread
from pytest_decodegate.workloads.marlin.dense import cold_copies, dense_calls, drawn
from pytest_decodegate.workloads.marlin.grouped import GroupedGemm, Which, block_size, gemm_calls, whole_calls
from pytest_decodegate.workloads.marlin.vllm_api import Adapted, MarlinApi, VllmFunction
from pytest_decodegate.workloads.marlin.weights import ExpertLayer, pack
from pytest_decodegate.workloads.runtime.rotation import COLD_MARGIN
from pytest_decodegate.workloads.runtime.timing import Traffic, rotate

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


def played(op: VllmFunction, function: Callable[..., Any]) -> Adapted:
    return Adapted(op, "here", function, frozenset({*op.passed, *op.dropped}))


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


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A second thread has nothing to do in matrices as small as these but to spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def layer() -> ExpertLayer:
    return ExpertLayer(SHARD, 5, API, "cpu")


def rotation_of(tokens: int, copies: int = 2) -> Rotation:
    routings = draw_routings(tokens, 4, experts=SHARD.experts, top_k=SHARD.experts_per_token, seed=5)
    return Rotation(spread(routings, SHARD.experts, 5), copies, 0.0)


def wrong(calls: Calls) -> str | None:
    return calls.wrong(rotate(calls.calls), "Marlin")


@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_the_whole_layer_agrees_with_the_reference(layer: ExpertLayer, tokens: int) -> None:
    assert wrong(whole_calls(SHARD, tokens, rotation_of(tokens), layer, API, seed=5)) is None


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("which", ["w13", "w2"])
def test_each_gemm_agrees_with_the_reference(layer: ExpertLayer, which: Which, tokens: int) -> None:
    gemm = GroupedGemm.of(which, SHARD, tokens)
    assert wrong(gemm_calls(gemm, rotation_of(tokens), layer, API, seed=5)) is None


@pytest.mark.parametrize("tokens", [1, 8])
def test_the_dense_linear_agrees_with_the_reference(tokens: int) -> None:
    matrix = drawn(128, 64, 5, "cpu")
    copies = cold_copies(pack(API, matrix), 10_000)
    assert wrong(dense_calls(matrix, copies, tokens, API, seed=5)) is None


def test_packing_expert_by_expert_holds_every_expert(layer: ExpertLayer) -> None:
    for expert in range(SHARD.experts):
        w13, w2 = layer.dequantised(expert)
        assert torch.equal(unpacked(layer.w13.words[expert], layer.w13.scales[expert]).t(), w13)
        assert torch.equal(unpacked(layer.w2.words[expert], layer.w2.scales[expert]).t(), w2)

    assert layer.w13.bytes == SHARD.experts * SHARD.w13_bytes
    assert layer.w2.bytes == SHARD.experts * SHARD.w2_bytes


def test_a_wrong_weight_of_one_expert_is_seen(layer: ExpertLayer) -> None:
    rotation = rotation_of(8, copies=1)
    calls = whole_calls(SHARD, 8, rotation, layer, API, seed=5)
    expert = int(rotation.routings[0].ids[7, 0])  # of a token that only the full check of the first call looks at
    layer.w2.scales[expert] *= -1
    try:
        assert "Marlin, call 0 of 4: relative error" in (wrong(calls) or "")
    finally:
        layer.w2.scales[expert] *= -1


def test_a_call_that_does_not_write_is_seen(layer: ExpertLayer) -> None:
    calls = whole_calls(SHARD, 2, rotation_of(2), layer, API, seed=5)
    assert wrong(calls) is None
    assert "call 3 of 4: relative error nan" in (calls.wrong(rotate(calls.calls[:-1]), "Marlin") or "")


def test_calls_in_the_wrong_order_are_seen(layer: ExpertLayer) -> None:
    gemm = GroupedGemm.of("w2", SHARD, 4)
    calls = gemm_calls(gemm, rotation_of(4), layer, API, seed=5)
    calls.outputs.reverse()
    assert "call 0 of 4" in (wrong(calls) or "")


def test_a_release_without_a_kept_workspace_makes_its_own_at_each_call(layer: ExpertLayer) -> None:
    seen: list[Any] = []

    def watched(workspace: Any, **more: Any) -> None:
        seen.append(workspace)

    for keeps in (True, False):
        api = replace(API, keeps_workspace=keeps, fused_moe=played(vllm_api.FUSED_MOE, watched))
        whole_calls(SHARD, 1, rotation_of(1), layer, api, seed=5).calls[0]()

    assert seen[0] is not None
    assert seen[1] is None


def test_all_copies_of_the_weights_are_read_in_turn(layer: ExpertLayer) -> None:
    seen: list[int] = []

    def watched(b_qweight: Any, **more: Any) -> None:
        seen.append(b_qweight.data_ptr())

    api = replace(API, grouped_gemm=played(vllm_api.GROUPED_GEMM, watched))
    rotate(gemm_calls(GroupedGemm.of("w13", SHARD, 1), rotation_of(1, copies=2), layer, api, seed=5).calls)()
    assert len(set(seen)) == 2
    assert seen[:2] == seen[2:]


@pytest.mark.parametrize(
    ("tokens", "block"), [(1, 8), (128, 8), (345, 8), (346, 16), (691, 16), (692, 32), (2700, 64), (99_999, 64)]
)
def test_the_block_is_the_first_that_is_not_nearly_full(tokens: int, block: int) -> None:
    assert block_size(tokens, 384, 8) == block


def test_bytes_of_the_gemms_are_those_of_the_ledger() -> None:
    shard = KIMI_K25.shard(8)
    w13, w2 = (GroupedGemm.of(which, shard, 8) for which in ("w13", "w2"))
    assert (w13.expert_bytes, w2.expert_bytes) == (2_064_384, 1_032_192)
    assert (w13.size_k, w13.size_n, w2.size_k, w2.size_n) == (7168, 512, 256, 7168)
    assert w13.activation_bytes == (8 * 7168 + 64 * 512) * 2
    assert w2.activation_bytes == (64 * 256 + 64 * 7168) * 2


def test_dense_copies_fill_the_cache_as_often_as_promised() -> None:
    packed = pack(API, drawn(128, 64, 5, "cpu"))
    copies = cold_copies(packed, 3 * packed.bytes)
    assert len(copies) == 3 * COLD_MARGIN
    assert len({copy.words.data_ptr() for copy in copies}) == len(copies)
    assert all(torch.equal(copy.words, packed.words) for copy in copies)


def test_an_unknown_mode_is_said() -> None:
    calls = Calls([], [], lambda *_: None, 1)
    with pytest.raises(BadInput, match="unknown mode 'lazy'; use graph or eager"):
        workload("Marlin", "any", calls, "lazy", Traffic(1, 1), {}, {})  # type: ignore[arg-type]
