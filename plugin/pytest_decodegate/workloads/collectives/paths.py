"""The paths of a collective: by which library it is issued, one by one or from a CUDA graph, in place or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ...machine.nccl_library import answering_torch, file_of, version_of
from ..kimi import BF16_BYTES
from ..runtime.timing import Burst, captured, mode_fields, rotate
from ..versions import clock_fields
from . import communicators

if TYPE_CHECKING:
    from ...metric import Json

CUSTOM_COMMUNICATORS = 8
"""That take turns in a burst: the flags of one stay where they were allocated, and a burst is to be the mean over
several such places. With one, the time of a call differed by 2 % (sd) between fresh processes; with eight, and the host
kept ahead of the device (CudaClock), by 0.7 % between 8 gangs of two H200s. What each contributes was not measured."""

SYMMETRIC_ALLOCATIONS = 8
"""That take turns in a burst, for the same reason: each has flags of its own. On two H200s the time of a call differed
by 2.2 % between allocations of one process at 14 KB and by 5 % at 0.9 MB; with eight in turn, by 0.1 to 0.2 % (sd) and
0.1 to 1.2 % between three gangs, twice."""

CacheState = Literal["hot", "cold"]

HOT_BUFFERS = 2
"""That take turns while the cache is to be hot: in the step the GEMM before has just written what is summed, to one of
the few blocks that the allocator hands out in turn. One, two and four gave the same on two H200s."""

ONE_SHOT_BYTES = 256 << 10
"""Up to here a rank of symmetric memory reads all of every peer; above, each reduces its share and sends it round."""


@dataclass(frozen=True, slots=True)
class PreparedBurst:
    """A burst that is ready to run, and its tensors call by call.

    inputs: calls that take turns on a buffer have the same, or a part of it. outputs: entries are replaced by a run of
    the burst, and None where a later call has used the buffer again: `last` calls have theirs. in_place: the output is
    the input. barrier: a small collective of the same ranks on a buffer of its own, that keeps every rank's stream
    until all have come. witness: makes a burst of the same calls on the same buffers, whose `inputs` are copied to the
    buffers and whose `outputs` from them, call by call: every call can be checked. owner: lives as long. facts: seen
    while it was set up; reported, not compared.
    """

    burst: Burst
    inputs: list[Any]
    outputs: list[Any]
    in_place: bool = False
    barrier: Burst | None = None
    contract: Mapping[str, Json] = field(default_factory=dict)
    witness: Callable[[], PreparedBurst] | None = None
    last: int = 0
    owner: object = None
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """bf16 elements that this rank puts into each call, and gets out of it.

    cache: "hot" has the calls take turns on HOT_BUFFERS buffers, as the step's do; with "cold" each call has its own,
    which for large messages then come from memory.
    """

    inputs: Sequence[int]
    outputs: Sequence[int]
    cache: CacheState = "hot"

    @property
    def largest_bytes(self) -> int:
        """Of one input, in bytes."""
        return BF16_BYTES * max(self.inputs)

    @property
    def turns(self) -> int:
        """Buffers that the calls take turns on."""
        return min(HOT_BUFFERS, len(self.inputs)) if self.cache == "hot" else len(self.inputs)

    @property
    def contract(self) -> dict[str, Json]:
        """The fields that say so."""
        return {"cache": self.cache, "buffers": self.turns}


@dataclass(frozen=True, slots=True)
class CollectivePath:
    """One way to issue a collective: on cuda or host, from a graph or not, and how its calls are built for a shape."""

    cuda: bool
    graph: bool
    issue: Callable[[Shape], PreparedBurst]

    @property
    def contract(self) -> dict[str, Json]:
        """The fields that say how it is issued and timed."""
        return {
            **clock_fields("cuda_event" if self.cuda else "perf_counter"),
            **mode_fields(self.graph),
            "start": "device barrier" if self.cuda else "host barrier",
        }


CollectiveCall = Callable[[int, Any, Any], object]
"""One collective: (number of the call, input tensor, output tensor); the host has launched it when it returns."""


def torch_path(call: CollectiveCall, *, cuda: bool, graph: bool, in_place: bool = False) -> CollectivePath:
    """torch.distributed on the default group: NCCL for CUDA tensors, gloo for the host's."""

    def issue(shape: Shape) -> PreparedBurst:
        if not cuda:
            return _prepared(shape, call, "cpu", graph, in_place, None)

        return replace(_prepared(shape, call, "cuda", graph, in_place, torch_barrier()), facts=answered_by_torch())

    return CollectivePath(cuda, graph, issue)


def pynccl_path(call: Callable[[Any, int, Any, Any], object], *, graph: bool) -> CollectivePath:
    """PyNccl of vLLM, called as call(communicator, number, input, output) on the current stream."""

    def issue(shape: Shape) -> PreparedBurst:
        communicator = communicators.pynccl()
        barrier = partial(communicator.all_reduce, *buffers("cuda", [1, 1]))
        prepared = _prepared(shape, partial(call, communicator), "cuda", graph, False, barrier)
        return replace(prepared, facts=answered_by(communicator.nccl.lib))

    return CollectivePath(cuda=True, graph=graph, issue=issue)


def answered_by_torch() -> dict[str, Json]:
    """The version of NCCL that answers torch in this rank, and its file."""
    import torch

    version = ".".join(map(str, torch.cuda.nccl.version()))
    return {"nccl_answered": {"version": version, "file": answering_torch()}}


def answered_by(library: Any) -> dict[str, Json]:
    """The version that `library`, the ctypes.CDLL through which a communicator calls NCCL, gives, and its file."""
    return {"nccl_answered": {"version": version_of(library), "file": file_of(library)}}


def buffers(device: str, elements: Sequence[int]) -> list[Any]:
    """One bf16 tensor of zeros for each number of elements."""
    import torch

    return [torch.zeros(each, dtype=torch.bfloat16, device=device) for each in elements]


def in_turn(held: Sequence[Any], elements: Sequence[int]) -> list[Any]:
    """For each call as many elements as it takes, of the buffer out of `held` whose turn it is."""
    return [held[call % len(held)][:size] for call, size in enumerate(elements)]


def turned_buffers(device: str, elements: Sequence[int], turns: int) -> list[Any]:
    """For each call a bf16 tensor of zeros; every `turns` calls come to the same buffer again."""
    sizes = elements if turns == len(elements) else [max(elements)] * turns
    return in_turn(buffers(device, sizes), elements)


def prepared_burst(
    shape: Shape,
    inputs: list[Any],
    call: Callable[[int], Any],
    launch: Callable[[Burst], Burst],
    *,
    in_place: bool = False,
    barrier: Burst | None = None,
    contract: Mapping[str, Json] | None = None,
    owner: object = None,
) -> PreparedBurst:
    """The burst of all calls of `shape`. call: makes one by its number, and returns its output. launch: what makes a
    burst of calls one that is timed, as `captured`.
    """
    count = len(inputs)
    outputs: list[Any] = [None] * count

    def keep(number: int) -> None:
        outputs[number - shape.turns] = None  # so that an allocator hands the memory out again, as in the step
        outputs[number] = call(number)

    burst = launch(rotate([partial(keep, number) for number in range(count)]))
    witness = partial(_witness, shape, inputs, call, launch) if shape.turns < count else None
    fields = {**shape.contract, **(contract or {})}
    return PreparedBurst(burst, inputs, outputs, in_place, barrier, fields, witness, shape.turns, owner)


def _witness(
    shape: Shape, inputs: list[Any], call: Callable[[int], Any], launch: Callable[[Burst], Burst]
) -> PreparedBurst:
    device = inputs[0].device
    given, seen = buffers(device, shape.inputs), buffers(device, shape.outputs)

    def witnessed(number: int) -> None:
        inputs[number].copy_(given[number])
        seen[number].copy_(call(number).flatten())

    return PreparedBurst(launch(rotate([partial(witnessed, number) for number in range(len(inputs))])), given, seen)


def as_it_is(burst: Burst) -> Burst:
    """`burst`: how calls are launched one by one."""
    return burst


def _prepared(
    shape: Shape, call: CollectiveCall, device: str, graph: bool, in_place: bool, barrier: Burst | None
) -> PreparedBurst:
    inputs = turned_buffers(device, shape.inputs, shape.turns)
    outputs = inputs if in_place else turned_buffers(device, shape.outputs, shape.turns)

    def made(number: int) -> Any:
        call(number, inputs[number], outputs[number])
        return outputs[number]

    # What GangSource asks NCCL about; the other users of CUDA here have kernels of their own.
    library: dict[str, Json] = {"library": "nccl"} if device == "cuda" else {}
    launch = captured if graph else as_it_is
    return prepared_burst(shape, inputs, made, launch, in_place=in_place, barrier=barrier, contract=library)


def torch_barrier() -> Burst:
    """An AllReduce of one element by torch.distributed over NCCL, on a buffer of its own."""
    import torch.distributed as dist

    return partial(dist.all_reduce, *buffers("cuda", [1]))


def _all_reduce(_number: int, tensor: Any, _same: Any) -> None:
    import torch.distributed as dist

    dist.all_reduce(tensor)


def _pynccl_all_reduce(communicator: Any, _number: int, given: Any, result: Any) -> None:
    communicator.all_reduce(given, result)


def _custom_graph(shape: Shape) -> PreparedBurst:
    """A kernel of vLLM over CUDA IPC, captured in its `capture()`, at whose end the ranks exchange buffer handles."""
    inputs = turned_buffers("cuda", shape.inputs, shape.turns)
    count = min(CUSTOM_COMMUNICATORS, len(inputs))
    carriers = [communicators.custom(shape.largest_bytes) for _ in range(count)]

    def call(index: int) -> Any:
        return carriers[index % len(carriers)].custom_all_reduce(inputs[index])

    def launch(burst: Burst) -> Burst:
        with ExitStack() as captures:
            for carrier in carriers:
                captures.enter_context(carrier.capture())

            return captured(burst)

    contract: dict[str, Json] = {"communicators": count}
    return prepared_burst(shape, inputs, call, launch, barrier=torch_barrier(), contract=contract, owner=carriers)


def _symm_mem_graph(shape: Shape) -> PreparedBurst:
    """The one-shot or two-shot kernel of torch on symmetric memory; never the multimem one, see `symmetric`."""
    import torch

    allocations = min(SYMMETRIC_ALLOCATIONS, len(shape.inputs))
    each = -(-shape.turns // allocations)
    places = [communicators.symmetric(each, shape.inputs[0]) for _ in range(allocations)]
    # The next call goes to the next allocation, so that a burst is the mean over all of them.
    inputs = in_turn([place[number] for number in range(each) for place in places], shape.inputs)
    name = communicators.host_group().group_name
    one_shot = shape.largest_bytes <= ONE_SHOT_BYTES
    outputs = turned_buffers("cuda", shape.outputs, shape.turns) if one_shot else inputs
    ops = torch.ops.symm_mem

    def call(number: int) -> Any:
        if one_shot:
            ops.one_shot_all_reduce_out(inputs[number], "sum", name, outputs[number])
        else:
            ops.two_shot_all_reduce_(inputs[number], "sum", name)

        return outputs[number]

    contract: dict[str, Json] = {"algorithm": "one-shot" if one_shot else "two-shot", "allocations": allocations}
    return prepared_burst(
        shape, inputs, call, captured, in_place=not one_shot, barrier=torch_barrier(), contract=contract
    )


ALLREDUCE: Mapping[str, CollectivePath] = {
    "gloo": torch_path(_all_reduce, cuda=False, graph=False, in_place=True),
    "eager": torch_path(_all_reduce, cuda=True, graph=False, in_place=True),
    "graph": torch_path(_all_reduce, cuda=True, graph=True, in_place=True),
    "pynccl_eager": pynccl_path(_pynccl_all_reduce, graph=False),
    "pynccl_graph": pynccl_path(_pynccl_all_reduce, graph=True),
    "custom_graph": CollectivePath(cuda=True, graph=True, issue=_custom_graph),
    "symm_mem_graph": CollectivePath(cuda=True, graph=True, issue=_symm_mem_graph),
}
"""By name: torch.distributed one by one or captured, vLLM's PyNccl likewise (captured is how vLLM decodes), vLLM's
custom kernel over IPC, torch's symmetric memory, and gloo on the host."""
