"""Communicators that carry a collective: gloo for the host, and vLLM's, opened as vLLM opens them.

What cannot be used here skips the test on all ranks at once, with the reason that the library gives.
"""

from __future__ import annotations

import importlib
import logging
import os
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from ...gang.worker import state

VLLM = "vllm.distributed.device_communicators"

T = TypeVar("T")

_reasons: dict[str, str] = {}
"""What a library said when it disabled itself, by module: vLLM says it once per process only."""


def host_group() -> Any:
    """A gloo group of all ranks, one per process: for barriers, and for vLLM to exchange handles."""
    import torch.distributed as dist

    return made_once("host group", lambda: dist.new_group(backend="gloo"))


def host_barrier() -> None:
    """Wait on the host until every rank is here."""
    import torch.distributed as dist

    dist.barrier(group=host_group())


def rank_and_world_size() -> tuple[int, int]:
    """The number of this rank, and how many ranks there are."""
    import torch.distributed as dist

    return dist.get_rank(), dist.get_world_size()


def agree(reason: str | None) -> None:
    """Skip on every rank if any rank has a reason why it cannot go on; None is none. Every rank must call it."""
    import torch.distributed as dist

    reasons: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, reason, group=host_group())
    for rank, given in enumerate(reasons):
        if given is not None:
            unavailable(given if reasons.count(given) == len(reasons) else f"{given} (on rank {rank})")


def unavailable(reason: str) -> NoReturn:
    """Skip the test with `reason` if all ranks say so: what is to be measured does not exist here."""
    raise unittest.SkipTest(reason)


def needs_cuda(what: str) -> None:
    """Skip where the ranks have no GPU; `what` says what wants one."""
    import torch

    agree(
        None if torch.cuda.is_available() else f"{what} needs CUDA, which torch {torch.__version__} does not see here"
    )


def module(name: str, what: str) -> Any:
    """The module `name`; skips with the ImportError's text on all ranks if one of them cannot import it."""
    loaded, reason = None, None
    try:
        loaded = importlib.import_module(name)
    except ImportError as error:
        reason = f"{what} needs {name}, which this Python cannot import: {error}"

    agree(reason)
    return loaded


def pynccl() -> Any:
    """The PyNcclCommunicator of vLLM over all ranks, one per process: NCCL keeps its memory for as long as it lives."""
    pynccl = module(f"{VLLM}.pynccl", "PyNccl")

    def enabled() -> Any:
        # It wants a group that is not NCCL's to exchange the unique id.
        communicator = pynccl.PyNcclCommunicator(host_group(), device=_device())
        _agree_enabled("PyNccl", communicator.disabled, _pynccl_reason(communicator))
        return communicator

    return made_once("pynccl", enabled)


def _pynccl_reason(communicator: Any) -> str | None:
    """It disables itself without a word."""
    from vllm import envs

    if not communicator.disabled:
        return None

    return "VLLM_DISABLE_PYNCCL is set" if envs.VLLM_DISABLE_PYNCCL else "vLLM could not load an NCCL library"


def custom(largest_bytes: int) -> Any:
    """A vLLM CustomAllreduce for messages of up to `largest_bytes`, of its own for one workload.

    Its IPC handles point into buffers that the workload frees, so it must not outlive them. PyNccl comes first, where
    it can be used, as vLLM opens them: in processes that had opened them the other way round, graphs of NCCL were
    launch-bound on two pairs of H200s.
    """
    with suppress(unittest.SkipTest):
        pynccl()

    what = "vLLM's CustomAllreduce"
    name = f"{VLLM}.custom_all_reduce"
    custom_all_reduce = module(name, what)
    from vllm import envs

    if not envs.VLLM_SKIP_P2P_CHECK:
        _world_group()  # its ranks write and read the file of the check together
    with _said_by(name):
        communicator = custom_all_reduce.CustomAllreduce(group=host_group(), device=_device())

    _agree_enabled(what, communicator.disabled, _reasons.get(name))
    agree(None if largest_bytes < communicator.max_size else f"{what} takes less than {communicator.max_size} bytes")
    return communicator


def symmetric(count: int, elements: int) -> list[Any]:
    """`count` bf16 tensors of `elements` each that every rank can reach, from torch's symmetric memory.

    The multicast object that torch would make beside them is not asked for: only one-shot and two-shot kernels run,
    which read and write peers directly, and a multicast object left behind can put GPUs out of service.
    """
    import torch

    what = "torch's symmetric memory"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    symmetric_memory = module("torch.distributed._symmetric_memory", what)
    whole, reason = None, None
    try:
        whole = symmetric_memory.empty(count * elements, dtype=torch.bfloat16, device=_device())
        symmetric_memory.rendezvous(whole, host_group().group_name)
    except RuntimeError as error:
        reason = f"{what} is not usable: {str(error).splitlines()[0]}"

    agree(reason)
    assert whole is not None
    return list(whole.split(elements))


def all2all() -> Any:
    """The AgRsAll2AllManager of vLLM, its default for expert parallelism, with all ranks in one such group."""
    what = "vLLM's AgRsAll2AllManager"
    manager: Any = getattr(module(f"{VLLM}.all2all", what), "AgRsAll2AllManager", None)
    agree(None if manager else f"this vLLM has no AgRsAll2AllManager in {VLLM}.all2all")
    # Before 0.26 it asked the forward context of a running engine for the sizes of its messages.
    agree(None if hasattr(manager, "_get_sizes") else f"{what} of this vLLM works inside a running engine only")
    group = _expert_group()
    base = module(f"{VLLM}.base_device_communicator", what).DeviceCommunicatorBase
    communicator = type(group.device_communicator)
    lacks = communicator.all_gatherv is base.all_gatherv
    agree(f"{what}: {communicator.__name__} has no all_gatherv" if lacks else None)
    return _in_vllm_config(lambda: manager(group.cpu_group))


def _expert_group() -> Any:
    """The expert-parallel group of vLLM, with all ranks in it.

    The ranks are laid out along prefill context parallelism, so that no tensor-parallel group opens the communicators
    of AllReduce beside it; the expert-parallel group is the same in every layout.
    """
    parallel = module("vllm.distributed.parallel_state", "vLLM's expert-parallel group")

    def opened() -> Any:
        world_size = rank_and_world_size()[1]
        parallel.initialize_model_parallel(prefill_context_model_parallel_size=world_size, backend=_backend())
        return parallel.get_ep_group()

    _world_group()
    return made_once("vllm expert group", lambda: _in_vllm_config(opened))


def _world_group() -> Any:
    """The group that vLLM takes all ranks for; it joins the process group that is there."""
    parallel = module("vllm.distributed.parallel_state", "vLLM's world group")

    def opened() -> Any:
        rank, world_size = rank_and_world_size()
        parallel.init_distributed_environment(
            world_size, rank, "env://", local_rank=int(os.environ["LOCAL_RANK"]), backend=_backend()
        )
        return parallel.get_world_group()

    return made_once("vllm world group", lambda: _in_vllm_config(opened))


def _backend() -> str:
    import torch

    return "nccl" if torch.cuda.is_available() else "gloo"


def _in_vllm_config(make: Callable[[], T]) -> T:
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        return make()


def _agree_enabled(what: str, disabled: bool, reason: str | None) -> None:
    agree(f"{what} is disabled: {reason or 'it gives no reason'}" if disabled else None)


@contextmanager
def _said_by(name: str) -> Iterator[None]:
    """Keep the last thing that the module `name` logs, in `_reasons`."""

    class LastMessage(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _reasons[name] = record.getMessage()

    handler = LastMessage(logging.INFO)
    logger = logging.getLogger(name)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)  # some reasons are no warnings
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _device() -> Any:
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def made_once(name: str, make: Callable[[], T]) -> T:
    """The object that `make` gives, made once per process; dropped with the rank's state before its groups are."""
    key = f"collectives: {name}"
    if key not in state:
        state[key] = make()

    held: T = state[key]
    return held
