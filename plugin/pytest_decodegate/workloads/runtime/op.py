"""An op of the decode step as a workload: rotated over copies of what it reads, captured in a CUDA graph on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..versions import clock_fields
from .failures import explained
from .timing import ALIGN_CYCLES, CpuClock, CudaClock, Traffic, Workload, captured, graph_fields, rotate

if TYPE_CHECKING:
    from ...metric import Json
    from .timing import Burst

COLD_MARGIN = 4
"""Bytes read between two uses of one copy, as a multiple of the L2 cache, that count as cold."""

CPU_COPIES = 2
"""Enough to run the rotation for real; times without a GPU are not gated."""

BURST_BYTES = 1e9
LEAST_CALLS, MOST_CALLS = 4, 128
"""Calls of a burst: as many as read a gigabyte together, some 0.3 ms on an H200, of which the resolution of an event
(0.5 us) is nothing, within these limits (or once round all copies where those are more)."""


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the step, and how it runs on each of `copies` copies of its data.

    name, shapes: for messages.
    call(copy): runs it once and returns the tensor, or the tuple of tensors, that it wrote.
    wrong(copy, output): what is wrong with that output, in a sentence, or None.
    rotating_bytes: what one call reads from its own copy. cold: whether it must come from memory on every call.
    restore: of an op that overwrites its input: puts the input back, so that one call on each copy can be checked.
    """

    name: str
    shapes: str
    device: str
    call: Callable[[int], Any]
    wrong: Callable[[int, Any], str | None]
    traffic: Traffic
    copies: int = 1
    rotating_bytes: float = 0.0
    cold: bool = False
    restore: Callable[[], None] | None = None


def device() -> str:
    """The device that ops run on in this rank: "cuda", or "cpu" where torch sees no GPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def normal(*size: int, where: str, seed: int, scale: float = 1.0) -> Any:
    """Normally distributed bf16 numbers of deviation `scale`, the same for the same arguments on one kind of device."""
    import torch

    generator = torch.Generator(where).manual_seed(seed)
    return torch.empty(size, dtype=torch.bfloat16, device=where).normal_(0, scale, generator=generator)


def l2_bytes(device: str) -> int:
    """Size of the L2 cache of the current GPU; 0 on a CPU, where nothing is promised about caches."""
    import torch

    if device != "cuda":
        return 0

    size: int = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return size


def copies_to_be_cold(read_bytes: float, device: str) -> int:
    """Copies of `read_bytes` each that a rotation needs so that the L2 has forgotten a copy when it comes again."""
    if device != "cuda":
        return CPU_COPIES

    return max(1, math.ceil(COLD_MARGIN * l2_bytes(device) / read_bytes))


def calls_per_burst(rotating_bytes: float, copies: int, device: str) -> int:
    """Calls of one burst: whole rounds over the copies, long enough for the clock."""
    if device != "cuda":
        return copies

    wanted = min(MOST_CALLS, max(LEAST_CALLS, BURST_BYTES / max(1.0, rotating_bytes)))
    return copies * math.ceil(wanted / copies)


def workload(op: Op, contract: dict[str, Json]) -> Workload:
    """The op as a workload: on a GPU one graph of all calls, on a CPU the calls one by one."""
    cuda = op.device == "cuda"
    calls = calls_per_burst(op.rotating_bytes, op.copies, op.device)
    # One output per copy is held: the others' memory is used again, as activations are in the step.
    outputs: list[Any] = [None] * op.copies

    def call(copy: int) -> None:
        outputs[copy] = op.call(copy)

    one_round = [partial(call, copy) for copy in range(op.copies)]
    burst = as_burst(one_round * (calls // op.copies), op.device)
    once = as_burst(one_round, op.device) if op.restore else burst
    return Workload(
        burst=burst,
        calls=calls,
        clock=CudaClock(ALIGN_CYCLES, ahead=True) if cuda else CpuClock(),
        check=explained(op.name, op.shapes)(partial(_wrong, op, once, outputs)),
        contract={
            **clock_fields("cuda_event" if cuda else "perf_counter"),
            **(graph_fields() if cuda else {"mode": "eager"}),
            "device": op.device,
            "cache": "cold" if op.cold and cuda else "hot",
            "calls": calls,
            **contract,
        },
        traffic=op.traffic,
        hot=partial(_hot, op, calls) if op.cold and 2 * op.rotating_bytes <= l2_bytes(op.device) else None,
        facts={"copies": op.copies, "bytes_between_uses": round(op.copies * op.rotating_bytes)} if op.cold else {},
    )


def _wrong(op: Op, burst: Burst, outputs: Sequence[Any]) -> str | None:
    """Looks at what `burst`, the one that is timed unless the op eats its input, left on the first and last copy."""
    poison(outputs)
    if op.restore:
        op.restore()

    burst()
    answers = (op.wrong(copy, outputs[copy]) for copy in sorted({0, op.copies - 1}))
    return next((answer for answer in answers if answer), None)


def as_burst(calls: Sequence[Burst], device: str) -> Burst:
    """All `calls` in order: captured in a graph on a GPU, as they are on a CPU."""
    return captured(rotate(calls)) if device == "cuda" else rotate(calls)


def poison(outputs: Sequence[Any]) -> None:
    """Overwrite outputs with what no op gives, so that one which is not written again cannot pass."""
    for output in outputs:
        for tensor in output if isinstance(output, tuple) else (output,):
            if tensor is not None:
                tensor.fill_(float("nan") if tensor.is_floating_point() else -1)


def _hot(op: Op, calls: int) -> Burst:
    return as_burst([partial(op.call, 0)] * calls, op.device)
