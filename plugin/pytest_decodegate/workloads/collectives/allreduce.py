"""Workloads of AllReduce of the hidden state, by each path that matters; and how any collective becomes a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from ...errors import BadInput
from ...gang.worker import note
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.timing import ALIGN_CYCLES, CpuClock, CudaClock, Workload
from ..versions import workload_fields
from . import communicators
from .links import device_links
from .own_part import own_part
from .paths import ALLREDUCE, CacheState, CollectivePath, PreparedBurst, Shape
from .result_check import Collective, ResultCheck, total

if TYPE_CHECKING:
    from ...metric import Json

SWEEP_BYTES = 1 << 30
"""Of the buffers of a sweep's burst: large messages come in shorter bursts."""


def allreduce(
    path: str, tokens: int = 1, calls: int = KIMI_K25.layer_allreduces, cache: CacheState = "hot"
) -> Workload:
    """AllReduce(sum) of bf16 [tokens, 7168], a burst of `calls`.

    path: one of paths.ALLREDUCE. cache: "hot" on a few buffers in turn, as in the step; "cold" on distinct ones.
    Skips where the path does not exist, with the library's reason; raises BadInput for a path that nobody knows.
    """
    return _allreduce(path, tokens * KIMI_K25.hidden, calls, cache, {"tokens": tokens})


def allreduce_sweep(path: str, size_bytes: int, most_calls: int = KIMI_K25.layer_allreduces) -> Workload:
    """AllReduce(sum) of `size_bytes` of bf16, for algbw and busbw over sizes that decoding does not use."""
    calls = max(1, min(most_calls, SWEEP_BYTES // size_bytes))
    return _allreduce(path, size_bytes // BF16_BYTES, calls, "hot", {})


def _allreduce(path: str, elements: int, calls: int, cache: CacheState, contract: Mapping[str, Json]) -> Workload:
    summed = Collective("AllReduce", lambda *_: elements, lambda _rank, _call, given: total(given))
    shape = Shape([elements] * calls, [elements] * calls, _known_state(cache))
    return workload(ALLREDUCE, path, summed, shape, allreduce_fields(elements, contract))


def allreduce_fields(elements: int, more: Mapping[str, Json]) -> dict[str, Json]:
    """The part of the contract that is an AllReduce's own; more: what else tells its size."""
    return {**workload_fields("allreduce"), "collective": "allreduce", "bytes": elements * BF16_BYTES, **more}


def _known_state(cache: CacheState) -> CacheState:
    if cache not in get_args(CacheState):
        raise BadInput(f"AllReduce: unknown state {cache!r} of the cache; use {' or '.join(get_args(CacheState))}")

    return cache


def workload(
    paths: Mapping[str, CollectivePath], name: str, collective: Collective, shape: Shape, contract: Mapping[str, Json]
) -> Workload:
    """`collective` by the path `name` out of `paths`, ready to be checked and timed. Every rank must call it.

    The device-side sleep gives all ranks the time to queue, and grows on a rank whose host needs longer for a graph;
    the collective after it lets no rank's stream begin before all have come. So neither the host's launches nor their
    skew between ranks are part of the interval.
    """
    path = _known(paths, name, collective)
    what = f"{collective.name} by {name}"
    if path.cuda:
        communicators.needs_cuda(what)

    prepared = path.issue(shape)
    note(f"{what}: {len(prepared.inputs)} calls are ready, checking numbers")
    check = ResultCheck(what, collective, prepared, *communicators.rank_and_world_size(), communicators.host_barrier)
    return Workload(
        burst=prepared.burst,
        calls=len(prepared.inputs),
        clock=_clock(path, prepared),
        check=partial(_checked, check),
        align=communicators.host_barrier,
        own_part=partial(own_part, prepared.burst, path.cuda),
        links=device_links if path.cuda else None,
        facts=dict(prepared.facts),
        contract={
            **issued(path, name, len(prepared.inputs), check.world_size),
            **contract,
            **prepared.contract,
        },
    )


def issued(path: CollectivePath, name: str, calls: int, world_size: int) -> dict[str, Json]:
    """The part of the contract that every collective by the path `name` has."""
    return {
        **path.contract,
        "path": name,
        "reduce": "max over ranks, sample by sample",
        "dtype": "bfloat16",
        "calls": calls,
        "world_size": world_size,
    }


def _known(paths: Mapping[str, CollectivePath], name: str, collective: Collective) -> CollectivePath:
    if name not in paths:
        raise BadInput(f"{collective.name}: unknown path {name!r}; use one of {', '.join(paths)}")

    return paths[name]


def _clock(path: CollectivePath, prepared: PreparedBurst) -> CpuClock | CudaClock:
    # One by one, the host's launches are what is timed: it cannot be ahead of them.
    return CudaClock(ALIGN_CYCLES, prepared.barrier, ahead=path.graph) if path.cuda else CpuClock()


def _checked(check: ResultCheck) -> str | None:
    """The check, and a note of where the ranks are: it is quoted if one of them hangs in the samples."""
    if check.prepared.barrier:
        check.prepared.barrier()  # a library sets up its communicator, and takes memory, at the first call of it

    found = [part() for part in checks(check)]  # all, whatever is found: every rank makes equally many calls
    wrong = next((text for text in found if text), None)
    for tensor in check.prepared.inputs:
        tensor.zero_()  # zeros stay zeros however often they are summed in place; numbers would overflow

    note(f"{check.what}: numbers are {'wrong' if wrong else 'right, being timed'}")
    return wrong


def checks(check: ResultCheck) -> list[ResultCheck]:
    """`check` of the burst that is timed; where its calls take turns on buffers, first of a witness of every call.

    In place, with turns, the witness alone: each call sums what the one before it left, and no number bears 122 sums.
    """
    prepared = check.prepared
    if prepared.witness is None:
        return [check]

    witness = replace(check, prepared=prepared.witness())
    return [witness] if prepared.in_place else [witness, check]
