"""The AllReduce of the hidden state, issued in each of the ways that matter: eager, captured, and as vLLM does."""

from __future__ import annotations

from functools import partial
from typing import Any

from .kimi import KIMI_K25
from .timing import ALIGN_CYCLES, Burst, CpuClock, CudaClock, Workload, captured, needs, rotate

PERIOD = 7
"""Test data repeat with this period: (1..7) * (rank + 1) summed over 8 ranks is at most 252, exact in bf16."""


class _Buffers:
    """One buffer of `elements` bf16 per call, filled with data that differ per rank, call and element."""

    def __init__(self, calls: int, elements: int, device: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.tensors = [torch.zeros(elements, dtype=torch.bfloat16, device=device) for _ in range(calls)]

    def _pattern(self, call: int) -> Any:
        import torch

        positions = torch.arange(self.tensors[call].numel(), device=self.tensors[call].device)
        return (positions + call) % PERIOD + 1

    def fill(self) -> None:
        for call, tensor in enumerate(self.tensors):
            tensor.copy_(self._pattern(call) * (self.rank + 1))

    def clear(self) -> None:
        """Zeros stay zeros however often they are summed in place; the patterns would overflow to inf."""
        for tensor in self.tensors:
            tensor.zero_()

    def wrong(self, results: list[Any]) -> str | None:
        """The first call whose sum is wrong on this rank, named; every element is compared exactly."""
        total = self.world_size * (self.world_size + 1) // 2
        for call, result in enumerate(results):
            bad = (result.double() != self._pattern(call).double() * total).nonzero()
            if len(bad):
                at = int(bad[0])
                want = int(self._pattern(call)[at]) * total
                return (
                    f"AllReduce, call {call} of {len(results)} on rank {self.rank}: {len(bad)} of {result.numel()} "
                    f"sums are wrong; element {at} is {float(result[at]):g}, must be {want}"
                )

        return None


def _workload(mode: str, buffers: _Buffers, results: list[Any], burst: Burst, cuda: bool) -> Workload:
    import torch.distributed as dist

    host_group = dist.new_group(backend="gloo")

    def align() -> None:
        dist.barrier(group=host_group)

    def check() -> str | None:
        buffers.fill()
        align()
        burst()
        wrong = buffers.wrong(results)
        buffers.clear()
        return wrong

    calls = len(buffers.tensors)
    return Workload(
        burst=burst,
        calls=calls,
        clock=CudaClock(sleep_cycles=ALIGN_CYCLES) if cuda else CpuClock(),
        check=check,
        align=align,
        contract={
            "clock": "cuda_event" if cuda else "perf_counter",
            "mode": mode,
            "reduce": "max over ranks, sample by sample",
            "bytes": buffers.tensors[0].numel() * buffers.tensors[0].element_size(),
            "dtype": "bfloat16",
            "calls": calls,
            "world_size": buffers.world_size,
        },
    )


def allreduce(mode: str, tokens: int = 1, calls: int = KIMI_K25.layer_allreduces) -> Workload:
    """AllReduce(sum) of bf16 [tokens, 7168], a burst of `calls` on distinct buffers.

    mode: "gloo" (CPU), "eager" (torch.distributed over NCCL, launched one by one), "graph" (the same, captured), or
    "pynccl_graph" (vLLM's PyNccl in a CUDA graph, as vLLM decodes). Raises ValueError for another mode.
    """
    if mode not in _MODES:
        raise ValueError(f"allreduce: unknown mode {mode!r}; use one of {', '.join(_MODES)}")

    return _MODES[mode](calls, tokens * KIMI_K25.hidden)


def _gloo(calls: int, elements: int) -> Workload:
    buffers = _Buffers(calls, elements, "cpu")
    return _workload("gloo", buffers, buffers.tensors, _in_place(buffers), cuda=False)


def _eager(calls: int, elements: int) -> Workload:
    buffers = _Buffers(calls, elements, "cuda")
    return _workload("eager", buffers, buffers.tensors, _in_place(buffers), cuda=True)


def _graph(calls: int, elements: int) -> Workload:
    buffers = _Buffers(calls, elements, "cuda")
    return _workload("graph", buffers, buffers.tensors, captured(_in_place(buffers)), cuda=True)


def _in_place(buffers: _Buffers) -> Burst:
    import torch.distributed as dist

    return rotate([partial(dist.all_reduce, tensor) for tensor in buffers.tensors])


def _pynccl_graph(calls: int, elements: int) -> Workload:
    import torch
    import torch.distributed as dist

    needs("vllm", "the AllReduce through PyNccl")
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator

    # PyNccl opens its own communicator and wants a group that is not NCCL's to exchange the unique id.
    device = torch.device("cuda", torch.cuda.current_device())
    communicator = PyNcclCommunicator(dist.new_group(backend="gloo"), device=device)
    buffers = _Buffers(calls, elements, "cuda")
    results = [torch.empty_like(tensor) for tensor in buffers.tensors]

    def call(index: int) -> None:
        communicator.all_reduce(buffers.tensors[index], results[index])

    burst = captured(rotate([partial(call, index) for index in range(calls)]))
    return _workload("pynccl_graph", buffers, results, burst, cuda=True)


_MODES = {"gloo": _gloo, "eager": _eager, "graph": _graph, "pynccl_graph": _pynccl_graph}
