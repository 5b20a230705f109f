"""The expert MLP on the CPU, dense float32 at the real dims: it stands in for Marlin on a machine without a GPU.

One thread and its CPU time: a second OpenMP thread spins while the first has lost its core to another process, and the
time then says who else was there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..experts import Routing, draw_routings, expert_weights, mean_unique_experts, reference
from ..kimi import KIMI_K25, Shard
from ..runtime.reuse import reused
from ..runtime.timing import (
    CpuTimeClock,
    Traffic,
    Workload,
    on_one_thread,
    relative_error,
    rotate,
    wrong_if_above,
)
from ..versions import clock_fields, workload_fields

EXPERTS = 16
"""Experts held: 384 of them in float32 would need 8.4 GB a replicate. Two disjoint sets of 8, 176 MB each."""

CALLS = {1: 2}
"""Calls per sample by token count: one token walks through both sets; other counts take one call."""

ERROR_LIMIT = 1e-5

FLOAT32_BYTES = 4


def _layer(x: Any, w13: Any, w2: Any, routing: Routing) -> Any:
    import torch

    out = torch.zeros_like(x)
    for expert in routing.ids.unique().tolist():
        token, slot = (routing.ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token] @ w13[expert].t()).chunk(2, dim=1)
        hidden = torch.nn.functional.silu(gate) * up
        out.index_add_(0, token, (hidden @ w2[expert].t()) * routing.weights[token, slot].unsqueeze(1))

    return out


def expert_mlp_cpu(tokens: int, tensor_parallel: int = 8, seed: int = 0) -> Workload:
    """Top-8 expert MLP of one layer for `tokens` tokens on one CPU thread.

    x float32 [tokens, 7168]; w13 [16, 2 * I, 7168], w2 [16, 7168, I] with I = 2048 / tensor_parallel.
    """
    import torch

    shard = KIMI_K25.shard(tensor_parallel)
    w13, w2 = reused("expert_mlp_cpu", (tensor_parallel, seed), partial(_weights, shard, seed))
    calls = CALLS.get(tokens, 1)
    routings = draw_routings(tokens, calls, experts=EXPERTS, top_k=shard.experts_per_token, seed=seed)
    x = torch.randn(tokens, shard.hidden, generator=torch.Generator().manual_seed(seed))
    return Workload(
        burst=on_one_thread(rotate([partial(_layer, x, w13, w2, routing) for routing in routings])),
        calls=calls,
        clock=CpuTimeClock(),
        check=partial(_wrong, x, w13, w2, routings),
        contract={
            **clock_fields("process_time"),
            **workload_fields("expert_mlp"),
            "threads": 1,
            "mode": "eager",
            "device": "cpu",
            "dtype": "float32",
            "tokens": tokens,
            "experts": EXPERTS,
            "shard": [shard.hidden, shard.expert_intermediate],
            "calls": calls,
            "seed": seed,
        },
        traffic=_traffic(shard, tokens, routings),
    )


def _wrong(x: Any, w13: Any, w2: Any, routings: list[Routing]) -> str | None:
    for routing in routings:
        want = reference(x, routing, lambda expert: (w13[expert].double(), w2[expert].double()))
        error = relative_error(_layer(x, w13, w2, routing), want)
        if wrong := wrong_if_above(error, ERROR_LIMIT, "expert MLP"):
            return wrong

    return None


def _traffic(shard: Shard, tokens: int, routings: list[Routing]) -> Traffic:
    """Weights of the experts that a call reads on average, in float32, and a multiply and an add for each of theirs."""
    weights = 3 * shard.hidden * shard.expert_intermediate
    return Traffic(
        bytes=mean_unique_experts(routings) * weights * FLOAT32_BYTES,
        flops=2.0 * weights * tokens * shard.experts_per_token,
    )


def _weights(shard: Shard, seed: int) -> tuple[Any, Any]:
    import torch

    inner = shard.expert_intermediate
    w13 = torch.empty(EXPERTS, 2 * inner, shard.hidden)
    w2 = torch.empty(EXPERTS, shard.hidden, inner)
    for expert in range(EXPERTS):
        w13[expert], w2[expert] = expert_weights(shard, expert, seed, "cpu")

    return w13, w2
