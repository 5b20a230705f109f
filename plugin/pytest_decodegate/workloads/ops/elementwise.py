"""The small kernels between GEMMs: RMSNorm with and without residual, silu-and-mul, and the sum of the experts' halves.

They work on what the last kernel left in the L2; launch and latency bound them, so nothing is promised about bytes:
their cache is "hot".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.failures import explained
from ..runtime.op import PLACES, Op, device, normal, placed, workload
from ..runtime.timing import Traffic, Workload, needs, relative_error, wrong_if_above
from ..versions import workload_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...metric import Json

ERROR_LIMIT = 1e-2
"""Relative error accepted: rounding the sum, the product and the result to bf16 costs 4e-3."""


def add_rms_norm(tokens: int, seed: int = 0) -> Workload:
    """Add x to the residual in place, then x = RMSNorm(residual) * weight, both in place, by `ops.fused_add_rms_norm`.

    x, residual bf16 [tokens, 7168]. However often it runs, the numbers stay finite: a residual of 256 times what is
    added no longer changes in bf16.
    """
    needs("vllm", "add_rms_norm")
    where = device()
    x, residual = (normal(tokens, KIMI_K25.hidden, where=where, seed=seed + offset) for offset in (0, 1))
    weight = 1 + normal(KIMI_K25.hidden, where=where, seed=seed + 2, scale=0.1)
    shapes = f"bf16 [{tokens}, {KIMI_K25.hidden}]"
    with explained("add_rms_norm", shapes):
        return workload(
            _norm(x, residual, weight, shapes, where),
            _contract("vllm.fused_add_rms_norm", tokens, seed, [tokens, KIMI_K25.hidden]),
        )


def _norm(x0: Any, residual0: Any, weight: Any, shapes: str, where: str) -> Op:
    import vllm._custom_ops as ops

    x, residual = x0.clone(), residual0.clone()

    def restore() -> None:
        x.copy_(x0)
        residual.copy_(residual0)

    def call(_: int) -> Any:
        ops.fused_add_rms_norm(x, residual, weight, KIMI_K25.rms_norm_eps)
        return x, residual

    def wrong(_: int, output: Any) -> str | None:
        total = x0.double() + residual0.double()
        root = (total.square().mean(dim=1, keepdim=True) + KIMI_K25.rms_norm_eps).sqrt()
        return _far("the residual of add_rms_norm", output[1], total) or _far(
            "add_rms_norm", output[0], total / root * weight.double()
        )

    values = 4 * x.numel() + weight.numel()
    traffic = Traffic(bytes=values * BF16_BYTES, flops=5.0 * x.numel())
    return Op("add_rms_norm", shapes, where, call, wrong, traffic, restore=restore)


def rms_norm(part: str, tokens: int, seed: int = 0) -> Workload:
    """RMSNorm(x) * weight by `ops.rms_norm`, of one part of what fused_qkv_a gives: bf16 [tokens, 1536 or 512].

    part: "q_a" or "kv_a"; x is a view of rows that are 2112 long, as in the step, at PLACES places in turn, as is the
    weight. Raises BadInput for another.
    """
    needs("vllm", "rms_norm")
    first, width = _norm_part(part)
    where = device()
    shapes = f"bf16 [{tokens}, {width}]"
    rows = placed(normal(tokens, KIMI_K25.q_lora_rank + KIMI_K25.kv_row, where=where, seed=seed), PLACES)
    inputs = [x[:, first : first + width] for x in rows]
    if where == "cpu":  # whose kernel takes whole rows only
        inputs = [x.contiguous() for x in inputs]

    weights = placed(1 + normal(width, where=where, seed=seed + 1, scale=0.1), PLACES)
    with explained(f"{part}_norm", shapes):
        return workload(
            _plain_norm(f"{part}_norm", inputs, weights, shapes, where),
            _contract("vllm.rms_norm", tokens, seed, [tokens, width]),
        )


def _norm_part(part: str) -> tuple[int, int]:
    """The first column and the width of a part of the rows that fused_qkv_a gives."""
    parts = {"q_a": (0, KIMI_K25.q_lora_rank), "kv_a": (KIMI_K25.q_lora_rank, KIMI_K25.kv_lora_rank)}
    if part not in parts:
        raise BadInput(f"rms_norm: no part {part!r} of the step; use one of {', '.join(parts)}")

    return parts[part]


def _plain_norm(name: str, inputs: Sequence[Any], weights: Sequence[Any], shapes: str, where: str) -> Op:
    import vllm._custom_ops as ops

    x, weight = inputs[0], weights[0]

    def call(_: int, place: int) -> Any:
        output = x.new_empty(x.shape)
        ops.rms_norm(output, inputs[place], weights[place], KIMI_K25.rms_norm_eps)
        return output

    def wrong(_: int, output: Any) -> str | None:
        root = (x.double().square().mean(dim=1, keepdim=True) + KIMI_K25.rms_norm_eps).sqrt()
        return _far(name, output, x.double() / root * weight.double())

    traffic = Traffic(bytes=(2 * x.numel() + weight.numel()) * BF16_BYTES, flops=4.0 * x.numel())
    return Op(name, shapes, where, call, wrong, traffic, places=len(inputs))


def scaled_add(tokens: int, seed: int = 0) -> Workload:
    """Shared + 2.827 * routed, bf16 [tokens, 7168] each, before the AllReduce of an MoE layer, by one torch.add.

    vLLM writes it as two operations, which its compiler fuses into one kernel like this.
    """
    where = device()
    routed, shared = (normal(tokens, KIMI_K25.hidden, where=where, seed=seed + offset) for offset in (0, 1))
    factor = KIMI_K25.routed_scaling_factor
    shapes = f"bf16 [{tokens}, {KIMI_K25.hidden}]"

    def call(_: int) -> Any:
        return shared.add(routed, alpha=factor)

    def wrong(_: int, output: Any) -> str | None:
        return _far("scaled_add", output, shared.double() + factor * routed.double())

    traffic = Traffic(bytes=3 * routed.numel() * BF16_BYTES, flops=2.0 * routed.numel())
    with explained("scaled_add", shapes):
        op = Op("scaled_add", shapes, where, call, wrong, traffic)
        return workload(op, _contract("torch.add", tokens, seed, [tokens, KIMI_K25.hidden]))


def _contract(backend: str, tokens: int, seed: int, shape: list[Json]) -> dict[str, Json]:
    return {
        **workload_fields("elementwise"),
        "backend": backend,
        "dtype": "bfloat16",
        "tokens": tokens,
        "shape": shape,
        "seed": seed,
    }


def silu_mul(part: str, tokens: int, tensor_parallel: int = 8, seed: int = 0) -> Workload:
    """silu(gate) * up by `torch.ops._C.silu_and_mul`, x bf16 [rows, 2I] to [rows, I] with gate before up.

    part: "experts" (rows = tokens x top-8), "shared" or "dense" (rows = tokens). Raises BadInput for another.
    """
    needs("vllm", "silu_mul")
    rows, inner = _silu_shape(part, tokens, tensor_parallel)
    where = device()
    shapes = f"bf16 [{rows}, {2 * inner}]"
    with explained(f"silu_mul_{part}", shapes):
        return workload(
            _silu(f"silu_mul_{part}", normal(rows, 2 * inner, where=where, seed=seed), shapes, where),
            _contract("vllm.silu_and_mul", tokens, seed, [rows, 2 * inner]),
        )


def _silu_shape(part: str, tokens: int, tensor_parallel: int) -> tuple[int, int]:
    shard = KIMI_K25.shard(tensor_parallel)
    shapes = {
        "experts": (tokens * shard.experts_per_token, shard.expert_intermediate),
        "shared": (tokens, shard.shared_intermediate),
        "dense": (tokens, shard.dense_intermediate),
    }
    if part not in shapes:
        raise BadInput(f"silu_mul: no part {part!r} of the step; use one of {', '.join(shapes)}")

    return shapes[part]


def _silu(name: str, x: Any, shapes: str, where: str) -> Op:
    import torch
    import vllm._custom_ops  # noqa: F401 - registers torch.ops._C

    inner = x.shape[1] // 2

    def call(_: int) -> Any:
        output = x.new_empty(x.shape[0], inner)
        torch.ops._C.silu_and_mul(output, x)
        return output

    def wrong(_: int, output: Any) -> str | None:
        gate, up = x.double().chunk(2, dim=1)
        return _far(name, output, torch.nn.functional.silu(gate) * up)

    traffic = Traffic(bytes=3 * x.shape[0] * inner * BF16_BYTES, flops=5.0 * x.shape[0] * inner)
    return Op(name, shapes, where, call, wrong, traffic)


def _far(what: str, got: Any, want: Any) -> str | None:
    return wrong_if_above(relative_error(got, want), ERROR_LIMIT, what)
