"""Expert parallelism at decode: dispatch of hidden states to the ranks of their experts, combine of what comes back.

AllToAll sends a token to a rank once, however many of its eight experts live there, and gets one partial sum back: this
is what DeepEP's normal mode does (its low-latency mode sends a copy per expert). vLLM's default manager (AgRs) gathers
all tokens on all ranks instead, and reduce-scatters the result: AllGather and ReduceScatter below, path "agrs_graph".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ..experts import draw_routings
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.timing import Workload, captured
from ..versions import workload_fields
from . import communicators
from .allreduce import workload
from .paths import (
    CollectiveCall,
    CollectivePath,
    PreparedBurst,
    Shape,
    prepared_burst,
    pynccl_path,
    torch_barrier,
    torch_path,
    turned_buffers,
)
from .result_check import Collective, total

if TYPE_CHECKING:
    from ...metric import Json

Direction = Literal["dispatch", "combine"]

CallSizes = list[list[int]]
"""Tokens or elements that one call moves: [from rank][to rank]."""


def alltoall(
    direction: Direction, path: str, tokens: int = 1, calls: int = KIMI_K25.moe_layers, seed: int = 0
) -> Workload:
    """all_to_all_single of bf16 hidden states, `tokens` tokens a rank, top-8 of 384 drawn uniformly for each call.

    path: one of ALLTOALL. Skips where the path does not exist, with the library's reason.
    """
    rank, ranks = communicators.rank_and_world_size()
    counts = moved_elements(direction, dispatch_counts(tokens, ranks, calls, seed))
    sent, received = [call[rank] for call in counts], [[row[rank] for row in call] for call in counts]
    shape = Shape([sum(row) for row in sent], [sum(row) for row in received])
    contract = alltoall_fields(direction, tokens, seed, counts)
    name = f"AllToAll ({direction})"
    return workload(_alltoall_paths(sent, received), path, _exchanged(name, counts), shape, contract)


def alltoall_fields(direction: Direction, tokens: int, seed: int, counts: Sequence[CallSizes]) -> dict[str, Json]:
    """The part of the contract that is an all-to-all's own; counts: elements that each call moves."""
    moved = sum(sum(row) for call in counts for row in call)
    return {
        **workload_fields("alltoall"),
        "collective": "alltoall",
        "direction": direction,
        "tokens_per_rank": tokens,
        "copies": "one per rank",
        "routing": "uniform",
        "seed": seed,
        "bytes": round(moved * BF16_BYTES / (len(counts) * len(counts[0]))),
    }


def moved_elements(direction: Direction, dispatched: Sequence[CallSizes]) -> list[CallSizes]:
    """Elements of hidden states that each call moves: what was dispatched, or the same on its way back."""
    back = direction == "combine"
    tokens = [list(zip(*call, strict=True)) if back else call for call in dispatched]
    return [[[moved * KIMI_K25.hidden for moved in row] for row in call] for call in tokens]


def dispatch_counts(tokens: int, ranks: int, calls: int, seed: int) -> list[CallSizes]:
    """Tokens from each rank to each rank, call by call; a rank holds 384 / ranks consecutive experts.

    A token counts once for a rank that holds any of its experts, its own rank included. Raises BadInput where the
    experts cannot be dealt out evenly.
    """
    import torch

    experts = KIMI_K25.shard(1, ranks).local_experts
    routings = draw_routings(
        ranks * tokens, calls, experts=KIMI_K25.experts, top_k=KIMI_K25.experts_per_token, seed=seed
    )
    counts = []
    for routing in routings:
        hit = torch.zeros(ranks * tokens, ranks, dtype=torch.int64)
        hit.scatter_(1, routing.ids.long() // experts, 1)
        counts.append(hit.view(ranks, tokens, ranks).sum(dim=1).tolist())

    return counts


def allgather(path: str, tokens: int = 1, calls: int = KIMI_K25.moe_layers) -> Workload:
    """AllGather of bf16 [tokens, 7168] of every rank, as AgRs dispatches; path: one of ALLGATHER."""
    ranks, elements = communicators.rank_and_world_size()[1], tokens * KIMI_K25.hidden
    shape = Shape([elements] * calls, [ranks * elements] * calls)
    return workload(ALLGATHER, path, gathered(elements), shape, whole_fields("allgather", tokens, ranks))


def gathered(elements: int) -> Collective:
    """AllGather of `elements` elements of every rank: all of them, in the order of the ranks."""
    import torch

    return Collective("AllGather", lambda *_: elements, lambda _rank, _call, given: torch.cat(list(given)))


def reduce_scatter(path: str, tokens: int = 1, calls: int = KIMI_K25.moe_layers) -> Workload:
    """ReduceScatter(sum) of bf16 [ranks * tokens, 7168], as AgRs combines; path: one of REDUCE_SCATTER."""
    ranks, elements = communicators.rank_and_world_size()[1], tokens * KIMI_K25.hidden
    scattered = Collective(
        "ReduceScatter", lambda *_: ranks * elements, lambda rank, _call, given: total(given).split(elements)[rank]
    )
    shape = Shape([ranks * elements] * calls, [elements] * calls)
    return workload(REDUCE_SCATTER, path, scattered, shape, whole_fields("reduce_scatter", tokens, ranks))


def whole_fields(collective: str, tokens: int, ranks: int) -> dict[str, Json]:
    """Contract of a collective whose larger buffer holds the tokens of all ranks."""
    return {
        **workload_fields("gather_scatter"),
        "collective": collective,
        "tokens_per_rank": tokens,
        "bytes": ranks * tokens * KIMI_K25.hidden * BF16_BYTES,
    }


def _exchanged(name: str, counts: Sequence[CallSizes]) -> Collective:
    """What reaches a rank: from each rank in turn the slice that is meant for it."""
    import torch

    def result(rank: int, call: int, given: Sequence[Any]) -> Any:
        return torch.cat([whole.split(row)[rank] for whole, row in zip(given, counts[call], strict=True)])

    return Collective(name, lambda rank, call: sum(counts[call][rank]), result)


def _alltoall_paths(sent: list[list[int]], received: list[list[int]]) -> dict[str, CollectivePath]:
    import torch.distributed as dist

    def call(number: int, given: Any, result: Any) -> None:
        dist.all_to_all_single(result, given, received[number], sent[number])

    return {name: torch_path(call, cuda=name != "gloo", graph=name == "graph") for name in ALLTOALL}


def _all_gather(_number: int, given: Any, result: Any) -> None:
    import torch.distributed as dist

    dist.all_gather_into_tensor(result, given)


def _reduce_scatter(_number: int, given: Any, result: Any) -> None:
    import torch.distributed as dist

    dist.reduce_scatter_tensor(result, given)


def _pynccl_all_gather(communicator: Any, _number: int, given: Any, result: Any) -> None:
    communicator.all_gather(result, given)


def _pynccl_reduce_scatter(communicator: Any, _number: int, given: Any, result: Any) -> None:
    communicator.reduce_scatter(result, given)


def _agrs(shape: Shape, *, dispatch: bool) -> PreparedBurst:
    """Through vLLM's AgRsAll2AllManager; router weights and expert ids go with the hidden states, as in a layer."""
    manager = communicators.all2all()
    inputs = turned_buffers("cuda", shape.inputs, shape.turns)
    tokens = shape.inputs[0] // KIMI_K25.hidden
    (routing,) = draw_routings(tokens, 1, experts=KIMI_K25.experts, top_k=KIMI_K25.experts_per_token, seed=0)
    weights, ids = routing.weights.cuda(), routing.ids.cuda()

    def call(number: int) -> Any:
        hidden = inputs[number].view(-1, KIMI_K25.hidden)
        if dispatch:
            return manager.dispatch(hidden, weights, ids, is_sequence_parallel=True)[0]

        return manager.combine(hidden, is_sequence_parallel=True)

    contract: dict[str, Json] = {"library": "nccl"}
    return prepared_burst(shape, inputs, call, captured, barrier=torch_barrier(), contract=contract)


def _paths(gloo_or_nccl: CollectiveCall, pynccl: Any, *, dispatch: bool) -> dict[str, CollectivePath]:
    return {
        "gloo": torch_path(gloo_or_nccl, cuda=False, graph=False),
        "graph": torch_path(gloo_or_nccl, cuda=True, graph=True),
        "pynccl_graph": pynccl_path(pynccl, graph=True),
        "agrs_graph": CollectivePath(cuda=True, graph=True, issue=partial(_agrs, dispatch=dispatch)),
    }


ALLTOALL = ("gloo", "eager", "graph")
"""torch.distributed: gloo on the host; NCCL one by one or captured."""

ALLGATHER: Mapping[str, CollectivePath] = _paths(_all_gather, _pynccl_all_gather, dispatch=True)
REDUCE_SCATTER: Mapping[str, CollectivePath] = _paths(_reduce_scatter, _pynccl_reduce_scatter, dispatch=False)
"""By name: torch.distributed on gloo or captured on NCCL, vLLM's PyNccl, and vLLM's manager."""
