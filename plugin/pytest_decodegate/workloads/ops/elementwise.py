"""RMSNorm with residual, and silu-and-mul: the small kernels between the GEMMs, on what the last one left in the L2.

Launch and latency bound them, so nothing is promised about bytes: their cache is "hot".
"""

from __future__ import annotations

from typing import Any

from ...errors import BadInput
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.failures import explained
from ..runtime.op import Op, device, normal, workload
from ..runtime.timing import Traffic, Workload, needs, relative_error, wrong_if_above
from ..versions import workload_fields

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
            {
                **workload_fields("elementwise"),
                "backend": "vllm.fused_add_rms_norm",
                "dtype": "bfloat16",
                "tokens": tokens,
                "seed": seed,
            },
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
            {
                **workload_fields("elementwise"),
                "backend": "vllm.silu_and_mul",
                "dtype": "bfloat16",
                "tokens": tokens,
                "shape": [rows, 2 * inner],
                "seed": seed,
            },
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
