"""What ranks run in the tests of collectives: honest workloads, and faults put under them in torch.distributed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_decodegate.workloads.collectives import alltoall, communicators
from pytest_decodegate.workloads.collectives.allreduce import allreduce, allreduce_sweep
from pytest_decodegate.workloads.collectives.logits import logits_gather
from pytest_decodegate.workloads.collectives.own_part import own_part
from pytest_decodegate.workloads.runtime.failures import explained
from pytest_decodegate.workloads.runtime.timing import Workload

CALLS = 5
SKIPPED = 2
PROMPT_SECONDS, SLOW_SECONDS = 0.001, 0.01


def gloo_workloads() -> dict[str, Callable[[], Workload]]:
    return {
        "allreduce": lambda: allreduce("gloo", tokens=2, calls=CALLS),
        "sweep": lambda: allreduce_sweep("gloo", 1 << 16, most_calls=3),
        "dispatch": lambda: alltoall.alltoall("dispatch", "gloo", tokens=1, calls=CALLS),
        "combine": lambda: alltoall.alltoall("combine", "gloo", tokens=3, calls=CALLS),
        "allgather": lambda: alltoall.allgather("gloo", tokens=3, calls=CALLS),
        "reduce_scatter": lambda: alltoall.reduce_scatter("gloo", tokens=3, calls=CALLS),
        "logits_gather": lambda: logits_gather("gloo", tokens=2, calls=CALLS),
    }


def check_and_time_all() -> dict[str, tuple[str | None, float, dict[str, Any]]]:
    taken = {}
    for name, make in gloo_workloads().items():
        workload = make()
        taken[name] = workload.check(), workload.sample(), workload.contract

    return taken


def check_all_with_one_wrong(who: int) -> dict[str, str | None]:
    """Each collective's check while rank `who` finds one value changed after its second call."""
    found = {}
    for name, make in gloo_workloads().items():
        with _under(_Changed(who)):
            found[name] = make().check()

    return found


def wrong_sum(who: int) -> Workload:
    return _checked_under(_Changed(who))


def stale_buffer(who: int) -> Workload:
    return _checked_under(_Stale(who))


def skipped_call(who: int) -> Workload:
    return _checked_under(_Skipping(who))


def check_hanging(who: int) -> str | None:
    return _checked_under(_Sleeping(who)).check()


def straggling(who: int) -> list[float]:
    workload = allreduce("gloo", calls=CALLS)
    rank, _ = communicators.rank_and_world_size()
    seconds = SLOW_SECONDS if rank == who else PROMPT_SECONDS
    return own_part(workload.burst, cuda=False, work=lambda: time.sleep(seconds))


def out_of_memory() -> None:
    import torch

    with explained("Marlin MoE", "8 tokens"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.51 GiB.")


def missing_on(who: int) -> None:
    rank, _ = communicators.rank_and_world_size()
    communicators.module("no_such_vllm" if rank == who else "json", "the custom kernel")


def check_on_device(path: str, calls: int) -> tuple[str | None, float]:
    workload = allreduce(path, calls=calls)
    return workload.check(), workload.sample()


def check_exchange_on_device(name: str, path: str) -> tuple[str | None, float]:
    workload = {
        "dispatch": lambda: alltoall.alltoall("dispatch", path, tokens=8),
        "combine": lambda: alltoall.alltoall("combine", path, tokens=8),
        "allgather": lambda: alltoall.allgather(path, tokens=8),
        "reduce_scatter": lambda: alltoall.reduce_scatter(path, tokens=8),
    }[name]()
    return workload.check(), workload.sample()


class _Fault(ABC):
    """Stands in for every collective of torch.distributed that runs on the buffers; `who` is the rank at fault."""

    def __init__(self, who: int) -> None:
        self.guilty = communicators.rank_and_world_size()[0] == who
        self.calls = 0

    def __call__(self, real: Callable[..., Any], *tensors: Any) -> None:
        if self.guilty:
            self.guiltily(real, *tensors)
        else:
            real(*tensors)
        self.calls += 1

    @abstractmethod
    def guiltily(self, real: Callable[..., Any], *tensors: Any) -> None:
        """What the guilty rank does instead of `real`."""


class _Changed(_Fault):
    def guiltily(self, real: Callable[..., Any], *tensors: Any) -> None:
        real(*tensors)
        if self.calls == 1:
            tensors[0].view(-1)[100] += 1


class _Stale(_Fault):
    def __init__(self, who: int) -> None:
        super().__init__(who)
        self.kept: dict[int, Any] = {}

    def guiltily(self, real: Callable[..., Any], *tensors: Any) -> None:
        real(*tensors)
        tensors[0].copy_(self.kept.setdefault(self.calls % CALLS, tensors[0].clone()))


class _Skipping(_Fault):
    """Leaves out one call, and makes up for it at the end of the burst, so that nobody hangs."""

    def guiltily(self, real: Callable[..., Any], *tensors: Any) -> None:
        if self.calls % CALLS != SKIPPED:
            real(*tensors)
        if self.calls % CALLS == CALLS - 1:
            real(tensors[0].clone())


class _Sleeping(_Fault):
    def guiltily(self, real: Callable[..., Any], *tensors: Any) -> None:
        time.sleep(3600)


def _checked_under(fault: _Fault) -> Workload:
    workload = allreduce("gloo", calls=CALLS)
    honest = workload.check

    def check() -> str | None:
        with _under(fault):
            return honest()

    workload.check = check
    return workload


@contextmanager
def _under(fault: _Fault) -> Iterator[None]:
    import torch.distributed as dist

    names = ("all_reduce", "all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor")
    real = {name: getattr(dist, name) for name in names}
    for name in names:
        setattr(dist, name, _faulty(fault, real[name]))
    try:
        yield
    finally:
        for name in names:
            setattr(dist, name, real[name])


def _faulty(fault: _Fault, real: Callable[..., Any]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        fault(lambda *tensors: real(*tensors, *arguments[len(tensors) :]), *_tensors(arguments))

    return call


def _tensors(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(argument for argument in arguments if hasattr(argument, "data_ptr"))
