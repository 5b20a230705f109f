"""Bandwidth of a collective as nccl-tests states it (doc/PERFORMANCE.md of NVIDIA/nccl-tests)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...metric import Json


CROSSINGS = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1, "alltoall": 1}
"""How often the others' share of the payload, (n - 1) / n, crosses the link of each of n ranks."""


def bus_factor(collective: str, world_size: int) -> float:
    """Ratio of busbw to algbw as nccl-tests has it. Raises KeyError for a collective that CROSSINGS lacks."""
    return CROSSINGS[collective] * (world_size - 1) / world_size


def rates(contract: Mapping[str, Json], seconds: float) -> dict[str, Json]:
    """Facts "algbw_bytes_s" (payload / time) and "busbw_bytes_s" of one call; none if `contract` is not of a collective
    in CROSSINGS.

    The payload is what nccl-tests calls size: the buffer of AllReduce, the gathered one of AllGather, the one to be
    scattered of ReduceScatter, what one rank sends to all (itself included) of AlltoAll.
    """
    collective, size, ranks = contract.get("collective"), contract.get("bytes"), contract.get("world_size")
    if not isinstance(collective, str) or collective not in CROSSINGS:
        return {}
    if not (isinstance(size, int | float) and isinstance(ranks, int)):
        return {}

    algbw = size / seconds
    return {"algbw_bytes_s": algbw, "busbw_bytes_s": algbw * bus_factor(collective, ranks)}
