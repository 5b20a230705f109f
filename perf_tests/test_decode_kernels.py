"""Every kernel of the decode step but Marlin and the collectives, at the shapes of one rank of TP=8, in CUDA graphs.

Sweeps over more batch sizes and other shards run with --perf-extended.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pytest_decodegate.metric import Metric
from pytest_decodegate.session.perf import Perf
from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.ops.attention import mla_decode
from pytest_decodegate.workloads.ops.elementwise import add_rms_norm, rms_norm, scaled_add, silu_mul
from pytest_decodegate.workloads.ops.positions import embedding, kv_write, rope
from pytest_decodegate.workloads.ops.projections import projection
from pytest_decodegate.workloads.ops.routing import argmax, moe_align, moe_sum, topk
from pytest_decodegate.workloads.runtime.timing import Workload

BATCHES = [1, 8, 64]
MORE_BATCHES = [2, 4, 16, 32, 128]
CONTEXTS = [1024, 8192, 32768]
OTHER_SHARDS = [4, 2, 1]

PROJECTIONS = list(KIMI_K25.shard(8).projections)
SHARDED = [op for op in PROJECTIONS if op not in ("fused_qkv_a", "router_gate")]

STREAMS = ("fused_qkv_a", "o_proj", "dense_gate_up", "dense_down", "lm_head")
"""Projections that read 14 MB and more on a rank of TP=8: memory bounds them."""

LATENCY_BAND = 0.03
"""Kernels of 2 to 5 us are bound by launch and latency: a clock step or the placement of a buffer moves them by more
than the 2 % that the longer ones hold. Beside one recorded session most of these keep 2 %, as `decodegate baselines`
says. 3 % of 3 us, 61 times a step, is 6 us of 11 ms."""

SCATTERING_BAND = 0.05
"""Of what scatters by 0.6 to 1.6 % between fresh gangs, and of what no shipped file holds yet."""

SCATTERING = {
    *[("w_uv", 1), ("moe_align", 64), ("add_rms_norm", 1), ("add_rms_norm", 64), ("silu_mul_experts", 1)],
    ("moe_sum", 64),
}

RESTLESS_BAND = 0.08
"""Of two kernels of 1.4 and 4 us that scatter by 2 and 3 % between fresh gangs, as recorded on two hosts, and of argmax
at few tokens: one card of four does it in 5 % less than the others, and it runs once a step."""

RESTLESS = {("silu_mul_shared", 1), ("moe_align", 8), ("argmax", 1), ("argmax", 8)}

SMALL: dict[str, tuple[Callable[..., Workload], dict[str, Any]]] = {
    "embedding": (embedding, {}),
    "add_rms_norm": (add_rms_norm, {}),
    "q_a_norm": (rms_norm, {"part": "q_a"}),
    "kv_a_norm": (rms_norm, {"part": "kv_a"}),
    "rope": (rope, {}),
    "kv_write": (kv_write, {}),
    "topk": (topk, {}),
    "moe_align": (moe_align, {}),
    "silu_mul_experts": (silu_mul, {"part": "experts"}),
    "silu_mul_shared": (silu_mul, {"part": "shared"}),
    "moe_sum": (moe_sum, {}),
    "scaled_add": (scaled_add, {}),
    "argmax": (argmax, {}),
}

batches = partial(pytest.mark.parametrize, "tokens", ids="m={}".format)


NOT_RECORDED = ("embedding", "q_a_norm", "kv_a_norm", "rope", "kv_write", "scaled_add")


def band(op: str, tokens: int, tensor_parallel: int = 8) -> float | None:
    """The metric's band: None is the default of kernels."""
    if op in STREAMS:
        return None
    if (op, tokens) in RESTLESS and tensor_parallel == 8:
        return RESTLESS_BAND

    recorded = tokens in BATCHES and tensor_parallel == 8 and op not in NOT_RECORDED
    return LATENCY_BAND if recorded and (op, tokens) not in SCATTERING else SCATTERING_BAND


def attention_band(tokens: int, context: int) -> float | None:
    """The band of MLA decode: None is the default of kernels. A single sequence does not fill the GPU."""
    if tokens > 1:
        return None

    return LATENCY_BAND if context > CONTEXTS[0] else SCATTERING_BAND


def measure_projection(perf: Perf, op: str, tokens: int, tensor_parallel: int = 8) -> None:
    """Gate one projection under the name op[m=tokens], or op[m=tokens,tp=N] at another shard than TP=8."""
    shard = "" if tensor_parallel == 8 else f",tp={tensor_parallel}"
    perf.needs_gpu(f"{op}; its numbers are tested on a CPU by plugin/tests")
    metric = Metric.of(f"{op}[m={tokens}{shard}]", "kernel", tolerance=band(op, tokens, tensor_parallel))
    perf.measure(metric, projection, op=op, tokens=tokens, tensor_parallel=tensor_parallel)


# The decorator on top varies fastest: the batch sizes of one op share its weights.
@pytest.mark.perf(metric="{op}[m={tokens}]")
@batches(BATCHES)
@pytest.mark.parametrize("op", PROJECTIONS)
def test_projection(perf: Perf, op: str, tokens: int) -> None:
    """The bf16 GEMMs: 4.54 GB of weights a step, of which fused_qkv_a is the largest stream at M=1."""
    measure_projection(perf, op, tokens)


@pytest.mark.perf(metric="{op}[m={tokens}]", extended=True)
@batches(MORE_BATCHES)
@pytest.mark.parametrize("op", PROJECTIONS)
def test_projection_more_batches(perf: Perf, op: str, tokens: int) -> None:
    """Where the library changes its kernel between batch sizes: 16 to 17 is where the min-latency ones end."""
    measure_projection(perf, op, tokens)


@pytest.mark.perf(metric="{op}[m={tokens},tp={tensor_parallel}]", extended=True)
@batches(BATCHES)
@pytest.mark.parametrize("op", SHARDED)
@pytest.mark.parametrize("tensor_parallel", OTHER_SHARDS, ids="tp={}".format)
def test_projection_other_shards(perf: Perf, op: str, tokens: int, tensor_parallel: int) -> None:
    """The shapes of a rank of TP=4, 2 and 1; the replicated ones are the same for all."""
    measure_projection(perf, op, tokens, tensor_parallel)


@pytest.mark.perf(metric="{op}[m={tokens}]")
@batches(BATCHES)
@pytest.mark.parametrize("op", SMALL)
def test_small_op(perf: Perf, op: str, tokens: int) -> None:
    """What is neither GEMM nor attention, from the embedding to the sampling: some 730 launches that move little."""
    perf.needs_gpu(f"{op}; its numbers are tested on a CPU where vLLM has it there")
    workload, params = SMALL[op]
    metric = Metric.of(f"{op}[m={tokens}]", "kernel", tolerance=band(op, tokens))
    perf.measure(metric, workload, tokens=tokens, **params)


@pytest.mark.perf(metric="mla_decode[m={tokens},context={context}]")
@pytest.mark.parametrize("context", CONTEXTS, ids="context={}".format)
@batches(BATCHES)
def test_mla_decode(perf: Perf, tokens: int, context: int) -> None:
    """MLA decode by vLLM's backend for the GPU, or by the one that --perf-pin attention=NAME asks for."""
    perf.needs_gpu("MLA decode; its numbers are tested on a CPU with vLLM's CPU_MLA")
    tolerance = attention_band(tokens, context)
    metric = Metric.of(f"mla_decode[m={tokens},context={context}]", "kernel", tolerance=tolerance)
    perf.measure(metric, mla_decode, tokens=tokens, context=context, backend=perf.pin("attention"))
