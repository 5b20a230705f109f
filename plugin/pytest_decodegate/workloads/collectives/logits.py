"""The gather of the logits, the one collective of a decode step that is no AllReduce of the hidden state."""

from __future__ import annotations

from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.timing import Workload
from ..versions import workload_fields
from . import communicators
from .allreduce import workload
from .alltoall import ALLGATHER, gathered
from .paths import Shape

CALLS = 16
"""A step has one; a burst of several lets the interval be long beside the clock's resolution."""


def logits_gather(path: str, tokens: int = 1, calls: int = CALLS, tensor_parallel: int = 8) -> Workload:
    """AllGather of bf16 [tokens, 163840 / tensor_parallel] of every rank; path: one of alltoall.ALLGATHER.

    tensor_parallel: whose part of the vocabulary a rank holds, whatever the number of ranks here.
    """
    ranks, vocabulary = communicators.rank_and_world_size()[1], KIMI_K25.shard(tensor_parallel).vocabulary
    elements = tokens * vocabulary
    return workload(
        ALLGATHER,
        path,
        gathered(elements),
        Shape([elements] * calls, [ranks * elements] * calls),
        {
            **workload_fields("logits_gather"),
            "collective": "allgather",
            "tokens": tokens,
            "vocabulary": vocabulary,
            "bytes": ranks * elements * BF16_BYTES,
        },
    )
