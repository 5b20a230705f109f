"""The calls of Marlin's grouped GEMM on a layer's experts, argument for argument as vLLM makes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ...errors import BadInput
from ..experts import Routing, reference
from ..kimi import BF16_BYTES, Shard
from ..runtime.op import normal
from ..runtime.timing import Burst
from .calls import PreparedCalls
from .cold_routing import ColdRouting
from .vllm_api import MOE_BLOCKS_PER_SM, MarlinApi
from .weights import ExpertLayer, PackedMatrix

Which = Literal["w13", "w2"]


def whole_calls(
    shard: Shard, tokens: int, rotation: ColdRouting, layer: ExpertLayer, api: MarlinApi, seed: int
) -> PreparedCalls:
    """The calls of fused_marlin_moe on the rotation's device; they share their caches, as a server's layers do."""
    import torch

    x = normal(tokens, shard.hidden, where=_device(rotation), seed=seed)
    rows, inner = tokens * shard.experts_per_token, shard.expert_intermediate
    caches = x.new_empty(rows * max(2 * inner, shard.hidden)), x.new_empty(rows, inner)
    workspace = _workspace(api, x.device) if api.keeps_workspace else None
    weights = _copies([layer.w13, layer.w2], rotation.copies)
    outputs = [torch.empty_like(x) for _ in rotation.routings]

    total = api.moe_sum.function  # looked up here: finding and fitting it is no part of an eager call

    def moe_sum(of_rows: Any, output: Any, *_: Any) -> None:  # later releases add ids and expert map
        total(of_rows, output)

    def call(index: int) -> Burst:
        w13, w2 = weights[index % rotation.copies]
        routing = rotation.routings[index]
        return api.fused_moe.prepared(
            hidden_states=x,
            w1=w13.words,
            w2=w2.words,
            bias1=None,
            bias2=None,
            w1_scale=w13.scales,
            w2_scale=w2.scales,
            topk_weights=routing.weights,
            topk_ids=routing.ids,
            quant_type_id=api.uint4b8.id,
            global_num_experts=shard.experts,
            moe_sum=moe_sum,
            workspace=workspace,
            intermediate_cache13=caches[0],
            intermediate_cache2=caches[1],
            output=outputs[index],
        )

    def want(index: int, first: int) -> Any:
        routing = rotation.routings[index]
        few = Routing(routing.ids[:first], routing.weights[:first])
        return reference(x[:first], few, layer.dequantised)

    return PreparedCalls([call(index) for index in range(len(outputs))], outputs, want, tokens)


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One of the two GEMMs: each of its rows meets the [size_k, size_n] of its expert."""

    which: Which
    size_k: int
    size_n: int
    expert_bytes: int
    tokens: int
    experts: int
    experts_per_token: int

    @classmethod
    def of(cls, which: Which, shard: Shard, tokens: int) -> GroupedGemm:
        """Raises BadInput for another `which`."""
        hidden, inner = shard.hidden, shard.expert_intermediate
        dims = {"w13": (hidden, 2 * inner, shard.w13_bytes), "w2": (inner, hidden, shard.w2_bytes)}
        if which not in dims:
            raise BadInput(f"marlin_gemm: unknown GEMM {which!r}; use w13 or w2")

        return cls(which, *dims[which], tokens, shard.experts, shard.experts_per_token)

    @property
    def rows(self) -> int:
        """Rows of its output."""
        return self.tokens * self.experts_per_token

    @property
    def top_k(self) -> int:
        """Output rows that share an input row."""
        return self.experts_per_token if self.which == "w13" else 1

    @property
    def activation_bytes(self) -> int:
        """Bytes of its input and output."""
        return (self.rows // self.top_k * self.size_k + self.rows * self.size_n) * BF16_BYTES


def gemm_calls(
    gemm: GroupedGemm, rotation: ColdRouting, layer: ExpertLayer, api: MarlinApi, seed: int
) -> PreparedCalls:
    """The calls of one grouped GEMM, with the arguments that _fused_marlin_moe gives it."""
    inputs = normal(gemm.rows // gemm.top_k, gemm.size_k, where=_device(rotation), seed=seed)
    outputs = [inputs.new_empty(gemm.rows, gemm.size_n) for _ in rotation.routings]
    workspace = _workspace(api, inputs.device)
    weights = _copies([layer.w13 if gemm.which == "w13" else layer.w2], rotation.copies)
    calls = []
    for index, (routing, output) in enumerate(zip(rotation.routings, outputs, strict=True)):
        (packed,) = weights[index % rotation.copies]
        call = partial(_gemm_call, gemm, api, workspace=workspace, inputs=inputs)
        calls.append(call(packed=packed, routing=routing, output=output))

    want = partial(_gemm_reference, gemm, inputs, rotation.routings, layer)
    return PreparedCalls(calls, outputs, want, gemm.tokens)


def _gemm_call(
    gemm: GroupedGemm,
    api: MarlinApi,
    *,
    workspace: Any,
    inputs: Any,
    packed: PackedMatrix,
    routing: Routing,
    output: Any,
) -> Burst:
    block = block_size(gemm.tokens, gemm.experts, gemm.experts_per_token)
    sorted_ids, expert_ids, padded = api.align(
        topk_ids=routing.ids,
        block_size=block,
        num_experts=gemm.experts,
        expert_map=None,
        ignore_invalid_experts=True,
    )
    return api.grouped_gemm.prepared(
        input=inputs,
        output=output,
        b_qweight=packed.words,
        b_bias=None,
        b_scales=packed.scales,
        a_scales=None,
        global_scale=None,
        b_qzeros=None,
        workspace=workspace,
        sorted_token_ids=sorted_ids,
        expert_ids=expert_ids,
        num_tokens_past_padded=padded,
        topk_weights=routing.weights,
        moe_block_size=block,
        top_k=gemm.top_k,
        mul_topk_weights=gemm.which == "w2",
        b_q_type=api.uint4b8,
        size_m=len(inputs),
        size_n=gemm.size_n,
        size_k=gemm.size_k,
        use_atomic_add=False,
        use_fp32_reduce=True,
        is_zp_float=False,
        g_idx=None,
        perm=None,
        is_k_full=True,
    )


def _gemm_reference(
    gemm: GroupedGemm, inputs: Any, routings: list[Routing], layer: ExpertLayer, index: int, first: int
) -> Any:
    """Float64 rows [first * 8, size_n] of call `index` for its first tokens."""
    ids = routings[index].ids[:first].flatten()
    rows = inputs.double().repeat_interleave(gemm.top_k, dim=0)[: len(ids)]
    out = rows.new_empty(len(ids), gemm.size_n)
    for expert in ids.unique().tolist():
        weight = layer.dequantised(expert)[0 if gemm.which == "w13" else 1]
        out[ids == expert] = rows[ids == expert] @ weight.t()

    return out * routings[index].weights[:first].double().reshape(-1, 1) if gemm.which == "w2" else out


def block_size(tokens: int, experts: int, top_k: int) -> int:
    """Rows that the kernel takes at a time, as fused_marlin_moe chooses them without activation quantisation."""
    sizes = (8, 16, 32, 48, 64)
    return next((size for size in sizes if tokens * top_k / experts / size < 0.9), sizes[-1])


def _device(rotation: ColdRouting) -> str:
    return str(rotation.routings[0].ids.device)


def _workspace(api: MarlinApi, device: Any) -> Any:
    return api.make_workspace(device=device, max_blocks_per_sm=MOE_BLOCKS_PER_SM)


def _copies(matrices: list[PackedMatrix], copies: int) -> list[list[PackedMatrix]]:
    return [matrices, *([each.copy() for each in matrices] for _ in range(copies - 1))]
