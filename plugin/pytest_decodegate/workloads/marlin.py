"""vLLM's Marlin W4A16 grouped GEMM at Kimi-K2.5 dims: the routed experts of one layer, on one GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from .experts import Routing, draw_routings, expert_weights, quantise, reference
from .kimi import INT4_GROUP, KIMI_K25, Shard
from .timing import CudaClock, Workload, captured, needs, relative_error, rotate, wrong_if_above

ERROR_LIMIT = 1e-2
"""Relative error accepted: bf16 rounding of the two intermediate results costs 3e-3, a wrong kernel far more."""

L2_MARGIN = 4
"""Bytes read between two uses of one expert, as a multiple of the L2 cache, that count as cold."""

BITS = 4


def _fused_marlin_moe() -> Callable[..., Any]:
    """The function where this vLLM keeps it: since some release after 0.20 under `experts`."""
    try:
        from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    except ImportError:
        from vllm.model_executor.layers.fused_moe.fused_marlin_moe import fused_marlin_moe

    moe: Callable[..., Any] = fused_marlin_moe
    return moe


def _repack(packed: Any, size_k: int, size_n: int) -> Any:
    """GPTQ words [experts, K / 8, N] to Marlin tiles; releases before 0.33 also take an (empty) permutation."""
    import torch
    import vllm._custom_ops as ops

    takes_perm = "perm" in inspect.signature(ops.gptq_marlin_moe_repack).parameters
    empty = torch.empty((packed.shape[0], 0), dtype=torch.int32, device=packed.device)
    perm = {"perm": empty} if takes_perm else {}
    return ops.gptq_marlin_moe_repack(packed, size_k=size_k, size_n=size_n, num_bits=BITS, **perm)


class _Layer:
    """The quantised experts of one layer in Marlin's layout, and the call that vLLM makes on them."""

    def __init__(self, shard: Shard, seed: int) -> None:
        import torch
        from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_moe_permute_scales
        from vllm.scalar_type import scalar_types

        self.shard, self.seed = shard, seed
        hidden, inner, experts = shard.hidden, shard.expert_intermediate, shard.experts
        packed13 = torch.empty(experts, hidden // 8, 2 * inner, dtype=torch.int32, device="cuda")
        packed2 = torch.empty(experts, inner // 8, hidden, dtype=torch.int32, device="cuda")
        scales13 = torch.empty(experts, hidden // INT4_GROUP, 2 * inner, dtype=torch.bfloat16, device="cuda")
        scales2 = torch.empty(experts, inner // INT4_GROUP, hidden, dtype=torch.bfloat16, device="cuda")
        for expert in range(experts):
            w13, w2 = map(quantise, expert_weights(shard, expert, seed, "cuda"))
            packed13[expert], scales13[expert] = w13.packed(), w13.scales.t()
            packed2[expert], scales2[expert] = w2.packed(), w2.scales.t()

        self.w13, self.w2 = _repack(packed13, hidden, 2 * inner), _repack(packed2, inner, hidden)
        self.scales13 = marlin_moe_permute_scales(scales13, hidden, 2 * inner, INT4_GROUP)
        self.scales2 = marlin_moe_permute_scales(scales2, inner, hidden, INT4_GROUP)
        self._moe = _fused_marlin_moe()
        self._quant_type_id = scalar_types.uint4b8.id

    def __call__(self, x: Any, routing: Routing) -> Any:
        return self._moe(
            x,
            self.w13,
            self.w2,
            None,
            None,
            self.scales13,
            self.scales2,
            routing.weights,
            routing.ids,
            quant_type_id=self._quant_type_id,
            global_num_experts=self.shard.experts,
        )

    def dequantised(self, expert: int) -> tuple[Any, Any]:
        """Float64 (w13, w2) of one expert, drawn and quantised again: keeping all of them would take 17 GB."""
        w13, w2 = map(quantise, expert_weights(self.shard, expert, self.seed, "cuda"))
        return w13.dequantised(), w2.dequantised()


def marlin_moe(tokens: int, tensor_parallel: int = 8, seed: int = 0) -> Workload:
    """`fused_marlin_moe` (align, w13, silu-mul, w2, sum over top-8) for `tokens` tokens, captured in a CUDA graph.

    x bf16 [tokens, 7168]; 384 experts, int4 group 32, w13 7168 -> 2I, w2 I -> 7168 with I = 2048 / tensor_parallel.
    Raises RuntimeError if the rotation over experts is too short to be cold.
    """
    import torch

    needs("vllm", "Marlin MoE")
    shard = KIMI_K25.shard(tensor_parallel)
    calls = calls_per_graph(shard, tokens)
    cold = _cold_bytes(shard, tokens, calls)
    layer = _Layer(shard, seed)
    routings = [
        Routing(routing.ids.cuda(), routing.weights.cuda())
        for routing in draw_routings(tokens, calls, experts=shard.experts, top_k=shard.experts_per_token, seed=seed)
    ]
    x = torch.randn(tokens, shard.hidden, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    x = x.to(torch.bfloat16)
    outputs: list[Any] = [None] * calls

    def call(index: int) -> None:
        outputs[index] = layer(x, routings[index])

    replay = captured(rotate([partial(call, index) for index in range(calls)]))

    def check() -> str | None:
        for output in outputs:
            output.fill_(float("nan"))  # an output that the graph does not write must not pass on old numbers

        replay()
        for index in (0, calls - 1):
            error = relative_error(outputs[index], reference(x, routings[index], layer.dequantised))
            if wrong := wrong_if_above(error, ERROR_LIMIT, f"Marlin MoE, call {index} of the graph"):
                return wrong

        return None

    return Workload(
        burst=replay,
        calls=calls,
        clock=CudaClock(),
        check=check,
        contract={
            "clock": "cuda_event",
            "mode": "graph",
            "cache": "cold",
            "kernel": "vllm.fused_marlin_moe",
            "dtype": "bfloat16 x uint4b8 g32",
            "tokens": tokens,
            "experts": shard.experts,
            "shard": [shard.hidden, shard.expert_intermediate],
            "calls": calls,
            "routing": "uniform",
            "seed": seed,
        },
        facts={"bytes_between_uses": round(cold), "unique_experts": _unique(routings)},
    )


def calls_per_graph(shard: Shard, tokens: int) -> int:
    """Calls in the graph: every expert once for one token (48 disjoint sets of 8), fewer for larger batches."""
    return shard.experts // shard.experts_per_token if tokens == 1 else max(8, 24 // max(1, tokens // 8))


def _unique(routings: list[Routing]) -> float:
    return float(sum(routing.ids.unique().numel() for routing in routings) / len(routings))


def _cold_bytes(shard: Shard, tokens: int, calls: int) -> float:
    """Expected bytes of weights read between two uses of one expert; refuses a rotation that the L2 could serve."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    per_call = shard.unique_experts(tokens) * shard.expert_bytes
    # With one token the sets are disjoint; otherwise an expert comes back after experts / unique calls on average.
    reuse_calls = calls if tokens == 1 else shard.experts / shard.unique_experts(tokens)
    cold = per_call * reuse_calls
    if cold < L2_MARGIN * l2_bytes:
        raise RuntimeError(
            f"Marlin MoE at {tokens} tokens: {cold / 1e6:.0f} MB between two uses of an expert is less than "
            f"{L2_MARGIN} x the {l2_bytes / 1e6:.0f} MB L2 cache, so the cache would serve the weights"
        )

    return cold
