"""Dense W4A16 Marlin: single matrices of the decode step as vLLM's Marlin linear layer multiplies by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ..experts import WEIGHT_SCALE, QuantisedMatrix, quantise
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.failures import explained, needs_gpu
from ..runtime.op import COLD_MARGIN, LEAST_STAY, PLACES, l2_bytes, normal, placed
from ..runtime.reuse import reused
from ..runtime.timing import Traffic, Workload, needs
from . import vllm_api
from .calls import Mode, PreparedCalls, workload
from .cold_routing import LEAST_CALLS
from .vllm_api import MarlinApi
from .weights import PackedMatrix, pack

if TYPE_CHECKING:
    from ...metric import Json

PROJECTIONS = ("fused_qkv_a", "shared_gate_up", "shared_down")


def marlin_dense(
    projection: str, tokens: int, tensor_parallel: int = 8, mode: Mode = "graph", seed: int = 0
) -> Workload:
    """`apply_gptq_marlin_linear` of one projection at the model's dims, in int4 (the checkpoint keeps these in bf16).

    projection: one of PROJECTIONS, shapes as kimi.Shard.projections says; x bf16 [tokens, inputs]. The calls walk
    through copies of the weight that fill the L2 cache COLD_MARGIN times. Raises BadInput if it cannot run here.
    """
    if projection not in PROJECTIONS:
        raise BadInput(f"marlin_dense: no projection {projection!r}; use one of {', '.join(PROJECTIONS)}")

    dims = KIMI_K25.shard(tensor_parallel).projections[projection]
    what, shapes = "dense Marlin", f"{tokens} tokens, {dims.inputs} -> {dims.outputs}, int4 group 32"
    with explained(what, shapes):
        needs("vllm", what)
        needs_gpu(what)
        api = vllm_api.load()
        matrix = drawn(dims.inputs, dims.outputs, seed, "cuda")
        copies = reused("dense Marlin", (dims, seed), lambda: cold_copies(pack(api, matrix), l2_bytes("cuda")))
        calls = dense_calls(matrix, copies, tokens, api, seed)
        traffic = Traffic(
            bytes=copies[0].bytes + tokens * (dims.inputs + dims.outputs) * BF16_BYTES,
            flops=2.0 * tokens * dims.inputs * dims.outputs,
        )
        contract: dict[str, Json] = {
            "cache": "cold",
            "dtype": "bfloat16 x uint4b8 g32",
            "tokens": tokens,
            "shape": [dims.inputs, dims.outputs],
            "places": places_of(len(copies)),
            "seed": seed,
        }
        facts: dict[str, Json] = {"api": api.name, "bytes_between_uses": len(copies) * copies[0].bytes}
        return workload(what, shapes, calls, mode, traffic, contract, facts)


def drawn(size_k: int, size_n: int, seed: int, device: str) -> QuantisedMatrix:
    """One matrix [size_n, size_k] of normal weights, quantised."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return quantise(torch.randn(size_n, size_k, generator=generator, device=device) * WEIGHT_SCALE)


def cold_copies(packed: PackedMatrix, cache_bytes: int) -> list[PackedMatrix]:
    """`packed` and as many copies as it takes for COLD_MARGIN times the cache between two uses of one."""
    count = max(LEAST_CALLS, math.ceil(COLD_MARGIN * cache_bytes / packed.bytes))
    return [packed, *(packed.copy() for _ in range(count - 1))]


def places_of(calls: int) -> int:
    """Places of x for so many calls: PLACES, or as many as leave LEAST_STAY calls in a row at each."""
    return max(1, min(PLACES, calls // LEAST_STAY))


def dense_calls(
    matrix: QuantisedMatrix, copies: list[PackedMatrix], tokens: int, api: MarlinApi, seed: int
) -> PreparedCalls:
    """One call per copy, as MarlinLinearKernel.apply_weights makes it. vLLM allocates the outputs."""
    import torch

    device = matrix.codes.device
    drawn_x = normal(tokens, copies[0].size_k, where=str(device), seed=seed)
    places = placed(drawn_x, places_of(len(copies)))
    nothing = torch.empty(0, dtype=torch.int32, device=device)  # no zero points, no act-order
    workspace = api.make_workspace(device=device, max_blocks_per_sm=api.dense_blocks_per_sm)
    outputs: list[Any] = [None] * len(copies)

    def linear(index: int, packed: PackedMatrix) -> Callable[[], Any]:
        return api.linear.prepared(
            input=places[index * len(places) // len(copies)],
            weight=packed.words,
            weight_scale=packed.scales,
            weight_zp=nothing,
            workspace=workspace,
            wtype=api.uint4b8,
            output_size_per_partition=packed.size_n,
            input_size_per_partition=packed.size_k,
            g_idx=nothing,
            g_idx_sort_indices=nothing,
            is_k_full=True,
        )

    def call(index: int, compute: Callable[[], Any]) -> None:
        outputs[index] = compute()

    def want(_: int, first: int) -> Any:
        return drawn_x[:first].double() @ matrix.dequantised().t()

    return PreparedCalls(
        [partial(call, index, linear(index, packed)) for index, packed in enumerate(copies)], outputs, want, tokens
    )
