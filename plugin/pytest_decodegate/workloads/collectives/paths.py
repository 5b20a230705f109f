"""The paths of a collective: by which library it is issued, one by one or from a CUDA graph, in place or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..kimi import BF16_BYTES
from ..runtime.timing import Burst, captured, rotate
from ..versions import clock_fields
from . import communicators

if TYPE_CHECKING:
    from ...metric import Json

CUSTOM_COMMUNICATORS = 8
"""That take turns in a burst: the flags of one stay where they were allocated, and a burst is to be the mean over
several such places. With one, the time of a call differed by 2 % (sd) between fresh processes; with eight, and the host
kept ahead of the device (CudaClock), by 0.7 % between 8 gangs of two H200s. What each contributes was not measured."""

ONE_SHOT_BYTES = 256 << 10
"""Up to here a rank of symmetric memory reads all of every peer; above, each reduces its share and sends it round."""


@dataclass(frozen=True, slots=True)
class PreparedBurst:
    """A burst that is ready to run, and its tensors call by call; `inputs` is `outputs` where it works in place.

    outputs: entries may be replaced by a run of the burst; read them afterwards. barrier: a small collective of the
    same ranks on a buffer of its own, that keeps every rank's stream until all have come. owner: lives as long.
    """

    burst: Burst
    inputs: list[Any]
    outputs: list[Any]
    barrier: Burst | None = None
    contract: Mapping[str, Json] = field(default_factory=dict)
    owner: object = None


@dataclass(frozen=True, slots=True)
class Shape:
    """bf16 elements that this rank puts into each call, and gets out of it."""

    inputs: Sequence[int]
    outputs: Sequence[int]

    @property
    def largest_bytes(self) -> int:
        """Of one input, in bytes."""
        return BF16_BYTES * max(self.inputs)


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
            "mode": "graph" if self.graph else "eager",
            "start": "device barrier" if self.cuda else "host barrier",
        }


CollectiveCall = Callable[[int, Any, Any], object]
"""One collective: (number of the call, input tensor, output tensor); the host has launched it when it returns."""


def torch_path(call: CollectiveCall, *, cuda: bool, graph: bool, in_place: bool = False) -> CollectivePath:
    """torch.distributed on the default group: NCCL for CUDA tensors, gloo for the host's."""

    def issue(shape: Shape) -> PreparedBurst:
        return _prepared(shape, call, "cuda" if cuda else "cpu", graph, in_place, torch_barrier() if cuda else None)

    return CollectivePath(cuda, graph, issue)


def pynccl_path(call: Callable[[Any, int, Any, Any], object], *, graph: bool) -> CollectivePath:
    """PyNccl of vLLM, called as call(communicator, number, input, output) on the current stream."""

    def issue(shape: Shape) -> PreparedBurst:
        communicator = communicators.pynccl()
        barrier = partial(communicator.all_reduce, *buffers("cuda", [1, 1]))
        return _prepared(shape, partial(call, communicator), "cuda", graph, False, barrier)

    return CollectivePath(cuda=True, graph=graph, issue=issue)


def buffers(device: str, elements: Sequence[int]) -> list[Any]:
    """One bf16 tensor of zeros for each number of elements."""
    import torch

    return [torch.zeros(each, dtype=torch.bfloat16, device=device) for each in elements]


def _prepared(
    shape: Shape, call: CollectiveCall, device: str, graph: bool, in_place: bool, barrier: Burst | None
) -> PreparedBurst:
    inputs = buffers(device, shape.inputs)
    outputs = inputs if in_place else buffers(device, shape.outputs)
    burst = rotate([partial(call, *each) for each in zip(range(len(inputs)), inputs, outputs, strict=True)])
    # What GangSource asks NCCL about; the other users of CUDA here have kernels of their own.
    library: dict[str, Json] = {"library": "nccl"} if device == "cuda" else {}
    return PreparedBurst(captured(burst) if graph else burst, inputs, outputs, barrier, library)


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
    inputs = buffers("cuda", shape.inputs)
    count = min(CUSTOM_COMMUNICATORS, len(inputs))
    carriers = [communicators.custom(shape.largest_bytes) for _ in range(count)]
    outputs: list[Any] = [None] * len(inputs)

    def call(index: int) -> None:
        outputs[index] = carriers[index % len(carriers)].custom_all_reduce(inputs[index])

    with ExitStack() as captures:
        for carrier in carriers:
            captures.enter_context(carrier.capture())

        burst = captured(rotate([partial(call, index) for index in range(len(inputs))]))

    return PreparedBurst(burst, inputs, outputs, torch_barrier(), {"communicators": count}, owner=carriers)


def _symm_mem_graph(shape: Shape) -> PreparedBurst:
    """The one-shot or two-shot kernel of torch on symmetric memory; never the multimem one, see `symmetric`."""
    import torch

    inputs = communicators.symmetric(len(shape.inputs), shape.inputs[0])
    name = communicators.host_group().group_name
    one_shot = shape.largest_bytes <= ONE_SHOT_BYTES
    outputs = buffers("cuda", shape.outputs) if one_shot else inputs
    ops = torch.ops.symm_mem

    def call(given: Any, result: Any) -> None:
        if one_shot:
            ops.one_shot_all_reduce_out(given, "sum", name, result)
        else:
            ops.two_shot_all_reduce_(given, "sum", name)

    burst = captured(rotate([partial(call, *pair) for pair in zip(inputs, outputs, strict=True)]))
    algorithm = "one-shot" if one_shot else "two-shot"
    return PreparedBurst(burst, inputs, outputs, torch_barrier(), {"algorithm": algorithm})


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
