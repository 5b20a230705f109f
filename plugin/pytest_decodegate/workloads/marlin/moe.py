"""vLLM's Marlin W4A16 grouped GEMM at Kimi-K2.5 dims: the routed experts of one layer, whole and GEMM by GEMM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BadInput
from ..kimi import BF16_BYTES, KIMI_K25, Shard
from ..runtime.failures import explained, needs_gpu
from ..runtime.op import l2_bytes
from ..runtime.timing import Traffic, Workload, needs
from . import vllm_api
from .calls import Mode, workload
from .cold_routing import ColdRouting, cold_rotation
from .grouped import GroupedGemm, Which, gemm_calls, whole_calls
from .vllm_api import MarlinApi
from .weights import expert_layer

if TYPE_CHECKING:
    from ...metric import Json

BACKEND = "marlin"

LEAST_INNER = 64
"""The kernel's tiles along an expert's intermediate size."""


def marlin_moe(
    tokens: int, tensor_parallel: int = 8, mode: Mode = "graph", seed: int = 0, backend: str | None = None
) -> Workload:
    """`fused_marlin_moe` as vLLM's MarlinExperts calls it: align, w13, silu-mul, w2, ops.moe_sum over the top-8.

    x bf16 [tokens, 7168]; 384 experts, int4 group 32, w13 7168 -> 2I, w2 I -> 7168 with I = 2048 / tensor_parallel;
    mode "graph" (captured) or "eager"; backend: the one that the user pins, if any. Raises BadInput if that is not
    Marlin, or if it cannot run here or cannot be measured cold.
    """
    shard = KIMI_K25.shard(tensor_parallel)
    what, shapes = "Marlin MoE", _described(shard, tokens)
    with explained(what, shapes):
        _needs(what, shard, backend)
        api = vllm_api.load()
        rotation = _rotation(shard, tokens, shard.expert_bytes, seed, what)
        calls = whole_calls(shard, tokens, rotation, expert_layer(shard, seed, api), api, seed)
        traffic = Traffic(
            bytes=rotation.unique_experts * shard.expert_bytes + 2 * tokens * shard.hidden * BF16_BYTES,
            flops=sum(_flops(shard, tokens, which) for which in ("w13", "w2")),
        )
        return workload(
            what, shapes, calls, mode, traffic, layer_fields(shard, tokens, seed), _facts(rotation, api, backend)
        )


def marlin_gemm(
    which: Which,
    tokens: int,
    tensor_parallel: int = 8,
    mode: Mode = "graph",
    seed: int = 0,
    backend: str | None = None,
) -> Workload:
    """One of the two grouped GEMMs as fused_marlin_moe launches it; the routing is aligned to blocks before timing.

    which: "w13" [tokens, 7168] -> [tokens * 8, 2I], or "w2" [tokens * 8, I] -> [tokens * 8, 7168] times the router's
    weights. For the rest see `marlin_moe`.
    """
    shard = KIMI_K25.shard(tensor_parallel)
    what, shapes = f"Marlin {which}", _described(shard, tokens)
    with explained(what, shapes):
        _needs(what, shard, backend)
        api = vllm_api.load()
        gemm = GroupedGemm.of(which, shard, tokens)
        rotation = _rotation(shard, tokens, gemm.expert_bytes, seed, what)
        calls = gemm_calls(gemm, rotation, expert_layer(shard, seed, api), api, seed)
        traffic = Traffic(
            bytes=rotation.unique_experts * gemm.expert_bytes + gemm.activation_bytes,
            flops=_flops(shard, tokens, which),
        )
        contract = layer_fields(shard, tokens, seed) | {"gemm": which}
        return workload(what, shapes, calls, mode, traffic, contract, _facts(rotation, api, backend))


def _described(shard: Shard, tokens: int) -> str:
    return f"{tokens} tokens, top-8 of {shard.experts}, {shard.hidden} -> {shard.expert_intermediate}, int4 group 32"


def _needs(what: str, shard: Shard, backend: str | None) -> None:
    if backend and backend.lower() != BACKEND:
        raise BadInput(f"{what}: --perf-pin moe={backend} asks for another backend than Marlin; leave it out with -k")

    needs("vllm", what)
    needs_gpu(what)
    if shard.expert_intermediate % LEAST_INNER:
        raise ValueError(f"expert size {shard.expert_intermediate} is not divisible by {LEAST_INNER}")


def _rotation(shard: Shard, tokens: int, expert_bytes: int, seed: int, what: str) -> ColdRouting:
    return cold_rotation(
        tokens,
        experts=shard.experts,
        top_k=shard.experts_per_token,
        expert_bytes=expert_bytes,
        seed=seed,
        l2_bytes=l2_bytes("cuda"),
        what=what,
    ).to("cuda")


def _flops(shard: Shard, tokens: int, which: Which) -> float:
    """Two for each weight of each expert that a token meets; the kernel pads rows to blocks of 8, not counted."""
    matrices = 2 if which == "w13" else 1
    return 2.0 * matrices * tokens * shard.experts_per_token * shard.hidden * shard.expert_intermediate


def layer_fields(shard: Shard, tokens: int, seed: int) -> dict[str, Json]:
    """The part of the contract that is a layer's own."""
    return {
        "backend": BACKEND,
        "cache": "cold",
        "dtype": "bfloat16 x uint4b8 g32",
        "tokens": tokens,
        "experts": shard.experts,
        "shard": [shard.hidden, shard.expert_intermediate],
        "routing": "uniform, each expert back as late as can be",
        "seed": seed,
    }


def _facts(rotation: ColdRouting, api: MarlinApi, backend: str | None) -> dict[str, Json]:
    return {
        "api": api.name,
        "pinned": backend is not None,
        "bytes_between_uses": round(rotation.bytes_between_uses),
        "unique_experts": rotation.unique_experts,
        "weight_copies": rotation.copies,
    }
