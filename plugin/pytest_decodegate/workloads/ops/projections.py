"""The bf16 GEMMs of the decode step, through the calls that vLLM makes for an unquantised layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import BadInput
from ..experts import WEIGHT_SCALE
from ..kimi import KIMI_K25, Projection
from ..runtime.failures import explained
from ..runtime.op import PLACES, SPREAD_BYTES, Op, device, normal, placed, spread, weight_copies, workload
from ..runtime.reuse import reused
from ..runtime.timing import Traffic, Workload, needs, relative_error, wrong_if_above
from ..versions import workload_fields

ERROR_LIMIT = 1e-2
"""Relative error accepted: rounding the result to bf16 costs 2e-3, a wrong kernel far more."""

MIN_LATENCY_TOKENS = 16
"""vLLM's min-latency kernels take up to so many tokens."""

REFERENCE_ROWS = 4096
"""Rows of a weight that the float64 reference holds at a time: all of lm_head would take 1.2 GB."""

ABSORBED = ("w_uk", "w_uv")
"""The two halves of kv_b_proj, which MLA multiplies head by head."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """A way to compute a projection. name: of the call. run(x, weight): as vLLM hands them over, gives the output."""

    name: str
    run: Callable[[Any, Any], Any]


def projection(op: str, tokens: int, tensor_parallel: int = 8, seed: int = 0) -> Workload:
    """One GEMM of the step, `op` as named by kimi.Shard.projections, for `tokens` tokens on one rank of TP.

    x bf16 [tokens, inputs] (W_UK and W_UV: per head), weights bf16, as many copies as make them come from memory.
    Raises BadInput for an unknown op or a shape that does not divide.
    """
    shape = _shape(op, tensor_parallel)
    with explained(op, _described(shape, tokens)):
        return _projection(op, shape, tokens, seed)


def _projection(op: str, shape: Projection, tokens: int, seed: int) -> Workload:
    where = device()
    copies = weight_copies(shape.weight_bytes, where)
    weights = reused("projections", (op, shape, seed), lambda: _weights(op, shape, copies, where, seed))
    places = _activations(op, shape, tokens, where, seed)
    gemm = gemm_for(op, tokens, where)

    def wrong(copy: int, output: Any) -> str | None:
        error = relative_error(output, _reference(places[-1], weights[copy]))
        return wrong_if_above(error, ERROR_LIMIT, f"{op} by {gemm.name}, {tokens} tokens, weight {copy} of {copies}")

    return workload(
        Op(
            name=op,
            shapes=_described(shape, tokens),
            device=where,
            copies=copies,
            call=lambda copy, place: gemm.run(places[place], weights[copy]),
            wrong=wrong,
            traffic=_traffic(shape, tokens),
            rotating_bytes=shape.weight_bytes,
            cold=True,
            places=len(places),
        ),
        {
            **workload_fields("projection"),
            "backend": gemm.name,
            "dtype": "bfloat16",
            "tokens": tokens,
            "shape": [shape.batch, shape.inputs, shape.outputs],
            "seed": seed,
        },
    )


def _shape(op: str, tensor_parallel: int) -> Projection:
    projections = KIMI_K25.shard(tensor_parallel).projections
    if op not in projections:
        raise BadInput(f"projection: no op {op!r} in the decode step; use one of {', '.join(projections)}")

    return projections[op]


def _described(shape: Projection, tokens: int) -> str:
    heads = f"{shape.batch} x " if shape.batch > 1 else ""
    return f"bf16 {heads}[{tokens}, {shape.inputs}] x [{shape.inputs}, {shape.outputs}]"


def _traffic(shape: Projection, tokens: int) -> Traffic:
    """Weights only: inputs come from the L2 and outputs stay there, so counting them would put the floor too high."""
    return Traffic(bytes=float(shape.weight_bytes), flops=2.0 * shape.batch * tokens * shape.inputs * shape.outputs)


def _weights(op: str, shape: Projection, copies: int, where: str, seed: int) -> list[Any]:
    """`copies` weights [outputs, inputs]; for W_UK [heads, 128, 512], for W_UV [heads, 512, 128].

    vLLM keeps one kv_b_proj [heads * (128 + 128), 512] and hands bmm transposed views of it, no copies.
    """
    nope, value = KIMI_K25.qk_nope_head_dim, KIMI_K25.v_head_dim
    size = (shape.batch, nope + value, KIMI_K25.kv_lora_rank) if op in ABSORBED else (shape.outputs, shape.inputs)
    if op not in ABSORBED and shape.weight_bytes >= SPREAD_BYTES:
        draw = lambda number: normal(*size, where=where, seed=seed + number, scale=WEIGHT_SCALE)  # noqa: E731
        return spread(copies, draw, shape.weight_bytes, where)

    weights = normal(copies, *size, where=where, seed=seed, scale=WEIGHT_SCALE).unbind()
    if op not in ABSORBED:
        return list(weights)

    return [weight[:, :nope] if op == "w_uk" else weight[:, nope:].transpose(1, 2) for weight in weights]


def _activations(op: str, shape: Projection, tokens: int, where: str, seed: int) -> list[Any]:
    """Inputs bf16 [tokens, inputs], or [heads, tokens, inputs] as views of what the step holds token by token.

    The same numbers at PLACES places.
    """
    width = shape.inputs + (KIMI_K25.qk_rope_head_dim if op == "w_uk" else 0)
    size = (tokens, shape.batch, width) if op in ABSORBED else (tokens, width)
    places = placed(normal(*size, where=where, seed=seed + 1), PLACES)
    return [x[..., : shape.inputs].transpose(0, 1) if op in ABSORBED else x for x in places]


def _reference(x: Any, weight: Any) -> Any:
    import torch

    if weight.dim() == 3:
        return x.double() @ weight.double()

    return torch.cat([x.double() @ rows.double().t() for rows in weight.split(REFERENCE_ROWS)], dim=1)


def gemm_for(op: str, tokens: int, where: str) -> Gemm:
    """The call that vLLM makes for `op`: a min-latency kernel where its layer would take one, else its plain GEMM."""
    if op in ABSORBED:
        return Gemm("torch.bmm", _bmm_token_major if op == "w_uv" else _bmm_head_major)
    if where != "cuda":
        return Gemm("torch.linear", _linear)

    needs("vllm", op)
    special = {"fused_qkv_a": _fused_a, "router_gate": _router}.get(op)
    return (special and special(tokens)) or _dispatched()


def _linear(x: Any, weight: Any) -> Any:
    import torch

    return torch.nn.functional.linear(x, weight)


def _bmm_head_major(x: Any, weight: Any) -> Any:
    """(heads, tokens, 128) x (heads, 128, 512), into a buffer of that order."""
    import torch

    return torch.bmm(x, weight, out=x.new_empty(x.shape[0], x.shape[1], weight.shape[2]))


def _bmm_token_major(x: Any, weight: Any) -> Any:
    """(heads, tokens, 512) x (heads, 512, 128), into a view of the buffer [tokens, heads * 128] that o_proj reads."""
    import torch

    return torch.bmm(x, weight, out=x.new_empty(x.shape[1], x.shape[0], weight.shape[2]).transpose(0, 1))


def _dispatched() -> Gemm:
    """What UnquantizedLinearMethod.apply calls; on CUDA it leads to torch's linear and does not look at the layer."""
    from vllm.model_executor.layers.utils import dispatch_unquantized_gemm

    gemm = dispatch_unquantized_gemm()
    plain = getattr(gemm, "__name__", "") == "default_unquantized_gemm"
    name = "torch.linear" if plain else f"vllm.{getattr(gemm, '__name__', repr(gemm))}"
    return Gemm(name, lambda x, weight: gemm(None, x, weight, None))


def _has_min_latency_kernels() -> bool:
    """The condition of GateLinear and DeepSeekV2FusedQkvAProjLinear: Hopper or data-centre Blackwell."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return bool((major, minor) == (9, 0) or major == 10)


def _fused_a(tokens: int) -> Gemm | None:
    """As deepseek_v2._min_latency_fused_qkv_a_proj_impl, which every release from 0.20 to 0.33 has."""
    import torch
    import vllm._custom_ops as ops

    if tokens > MIN_LATENCY_TOKENS or not _has_min_latency_kernels() or not hasattr(torch.ops._C, "dsv3_fused_a_gemm"):
        return None

    def run(x: Any, weight: Any) -> Any:
        output = torch.empty(x.shape[0], weight.shape[0], dtype=torch.bfloat16, device=x.device)
        ops.dsv3_fused_a_gemm(output, x, weight.t())
        return output

    return Gemm("dsv3_fused_a_gemm", run)


def _router(tokens: int) -> Gemm | None:
    """As GateLinear.forward for this model, which asks for no float32 logits; releases after 0.26 lack the kernel."""
    import torch
    import vllm._custom_ops as ops

    # Since 0.25 Blackwell takes the plain GEMM from 9 tokens on (vllm#44217).
    most = MIN_LATENCY_TOKENS if torch.cuda.get_device_capability()[0] == 9 else MIN_LATENCY_TOKENS // 2
    built = hasattr(ops, "dsv3_router_gemm") and hasattr(torch.ops._moe_C, "dsv3_router_gemm")
    if tokens > most or not _has_min_latency_kernels() or not built:
        return None

    dtype = router_dtype()
    name = f"dsv3_router_gemm to {str(dtype).removeprefix('torch.')}"
    return Gemm(name, lambda x, weight: ops.dsv3_router_gemm(x, weight, dtype))


def router_dtype() -> Any:
    """Type of the router logits that dsv3_router_gemm writes.

    0.20 sets bf16 after construction; later releases leave None, which torch.empty takes as its default, float32. The
    op that 0.20 has for float32 logits is gone since.
    """
    import torch
    import vllm._custom_ops as ops

    return torch.bfloat16 if hasattr(ops, "router_gemm_bf16_fp32") else torch.get_default_dtype()


def logits_dtype(tokens: int) -> Any:
    """Type of the router logits on this GPU for `tokens` tokens: bf16 unless the min-latency kernel writes another."""
    import torch

    return router_dtype() if _router(tokens) else torch.bfloat16
