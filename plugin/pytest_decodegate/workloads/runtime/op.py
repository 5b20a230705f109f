"""An op of the decode step as a workload: rotated over copies of what it reads, captured in a CUDA graph on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..versions import clock_fields
from .failures import explained
from .timing import ALIGN_CYCLES, CpuClock, CudaClock, Traffic, Workload, captured, mode_fields, rotate

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


PLACES = 8
"""Addresses that a small input takes in turn. All SMs read it, and where its few lines lie decides how long that takes:
on two H200s dense_down[m=1] took 10.8 or 11.05 us, o_proj[m=1] 6.25 or 6.34, fused_qkv_a[m=1] 12.9 to 13.4, by the
place of x alone, in every process another; rope[m=8] 1.76 to 1.85. The place of the output and of cuBLAS's workspace
did nothing."""

LEAST_STAY = 8
"""Calls in a row at one place: the first finds its input in memory, as no call of the step does."""

PLACE_STRIDE = (256 << 10) + 4352
"""Bytes from one place to the next at least: no multiple of what caches and channels are dealt out by."""

LEAST_COPIES = 8
"""Of weights that must come from memory. One copy of lm_head[m=64] took 75.7 to 82.1 us by where it lay, ten of them in
turn 78.9 to 79.9 in four processes on two H200s."""

SPREAD_BYTES = 128 << 20
"""Weights from this size on are allocated one by one and apart: what the driver hands out in a row is alike. Six copies
of lm_head in a row took 75.9 us in two processes and 79.3 in two others."""

GAP_BYTES = 1 << 30
GAP_SHARE = 1 / 64
"""Between two of them, but no more than that share of what is free: other gangs prepare on the same card."""


@dataclass(frozen=True, slots=True)
class Op:
    """An op of the step, and how it runs on each of `copies` copies of its data.

    name, shapes: for messages.
    call(copy): runs it once and returns the tensor, or the tuple of tensors, that it wrote; where `places` is more than
    one call(copy, place), which reads its small inputs there.
    wrong(copy, output): what is wrong with that output, in a sentence, or None.
    rotating_bytes: what one call reads from its own copy. cold: whether it must come from memory on every call.
    restore: of an op that overwrites its input: puts the input back, so that one call on each copy can be checked.
    """

    name: str
    shapes: str
    device: str
    call: Callable[..., Any]
    wrong: Callable[[int, Any], str | None]
    traffic: Traffic
    copies: int = 1
    rotating_bytes: float = 0.0
    cold: bool = False
    restore: Callable[[], None] | None = None
    places: int = 1


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


def fits_l2(read_bytes: float, device: str) -> bool:
    """Whether what a call reads stays in the L2 cache until the next one: it takes half of that at most."""
    return 2 * read_bytes <= l2_bytes(device)


def copies_to_be_cold(read_bytes: float, device: str) -> int:
    """Copies of `read_bytes` each that a rotation needs so that the L2 has forgotten a copy when it comes again."""
    if device != "cuda":
        return CPU_COPIES

    return max(1, math.ceil(COLD_MARGIN * l2_bytes(device) / read_bytes))


def weight_copies(read_bytes: float, device: str) -> int:
    """The same of weights: also enough that a burst is the mean over several places of them."""
    return max(LEAST_COPIES if device == "cuda" else 1, copies_to_be_cold(read_bytes, device))


def calls_per_burst(rotating_bytes: float, copies: int, device: str, places: int = 1) -> int:
    """Calls of one burst: whole rounds over the copies, long enough for the clock, and for a stay at each place."""
    if device != "cuda":
        return copies

    wanted = min(MOST_CALLS, max(LEAST_CALLS, BURST_BYTES / max(1.0, rotating_bytes)))
    stay = LEAST_STAY if fits_l2(rotating_bytes, device) else 1  # else the input is gone after every call
    return copies * math.ceil(max(wanted, places * stay if places > 1 else 0) / copies)


def placed(tensor: Any, places: int) -> list[Any]:
    """Copies of the contiguous `tensor` at that many places; PLACE_STRIDE apart, or its size and that."""
    import torch

    size = tensor.numel() * tensor.element_size()
    stride = PLACE_STRIDE * math.ceil(size / PLACE_STRIDE)
    whole = torch.empty(places * stride, dtype=torch.uint8, device=tensor.device)
    parts = [whole[start : start + size] for start in range(0, places * stride, stride)]
    return [part.view(tensor.dtype).view(tensor.shape).copy_(tensor) for part in parts]


def spread(count: int, make: Callable[[int], Any], size_bytes: float, device: str) -> list[Any]:
    """What `make(number)` gives, `count` times; large ones on a GPU with gaps between them, which are given back."""
    import torch

    gaps: list[Any] = []
    made = []
    for number in range(count):
        made.append(make(number))
        if device == "cuda" and size_bytes >= SPREAD_BYTES and number < count - 1:
            gap = min(GAP_BYTES, int(torch.cuda.mem_get_info()[0] * GAP_SHARE))
            with suppress(torch.OutOfMemoryError):  # another gang may have taken what was free
                gaps.append(torch.empty(gap, dtype=torch.uint8, device=device))

    if gaps:
        gaps.clear()
        torch.cuda.empty_cache()

    return made


def workload(op: Op, contract: dict[str, Json]) -> Workload:
    """The op as a workload: on a GPU one graph of all calls, on a CPU the calls one by one."""
    cuda = op.device == "cuda"
    calls = calls_per_burst(op.rotating_bytes, op.copies, op.device, op.places)
    # One output per copy is held: the others' memory is used again, as activations are in the step.
    outputs: list[Any] = [None] * op.copies

    def call(copy: int, *place: int) -> None:
        outputs[copy] = op.call(copy, *place)

    order = [(number % op.copies, *place) for number, place in enumerate(_places(op, calls))]
    burst = as_burst([partial(call, *each) for each in order], op.device)
    once = as_burst([partial(call, *each) for each in order[: op.copies]], op.device) if op.restore else burst
    return Workload(
        burst=burst,
        calls=calls,
        clock=CudaClock(ALIGN_CYCLES, ahead=True) if cuda else CpuClock(),
        check=explained(op.name, op.shapes)(partial(_wrong, op, once, outputs)),
        contract={
            **clock_fields("cuda_event" if cuda else "perf_counter"),
            **mode_fields(cuda),
            "device": op.device,
            "cache": "cold" if op.cold and cuda else "hot",
            "calls": calls,
            "places": op.places,
            **contract,
        },
        traffic=op.traffic,
        hot=partial(_hot, op, calls) if op.cold and fits_l2(op.rotating_bytes, op.device) else None,
        facts={"copies": op.copies, "bytes_between_uses": round(op.copies * op.rotating_bytes)} if op.cold else {},
    )


def _places(op: Op, calls: int) -> list[tuple[int, ...]]:
    """The place of each call, as arguments: one after the other, each for as many calls in a row; none of a single."""
    return [(number * op.places // calls,) if op.places > 1 else () for number in range(calls)]


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
    return as_burst([partial(op.call, 0, *place) for place in _places(op, calls)], op.device)
