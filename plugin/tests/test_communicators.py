"""vLLM's communicators: what is called has the parameters it is called with, and what is disabled says why."""

from __future__ import annotations

import ast
import contextlib
import inspect
import logging
import unittest
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import wheels

from pytest_decodegate.workloads.collectives import communicators

COMMUNICATORS = "vllm/distributed/device_communicators"

# File, class, method, parameters that are passed by name or position.
CALLS = [
    (f"{COMMUNICATORS}/pynccl.py", "PyNcclCommunicator", "__init__", ["group", "device"]),
    (f"{COMMUNICATORS}/pynccl.py", "PyNcclCommunicator", "all_reduce", ["in_tensor", "out_tensor"]),
    (f"{COMMUNICATORS}/pynccl.py", "PyNcclCommunicator", "all_gather", ["output_tensor", "input_tensor"]),
    (f"{COMMUNICATORS}/pynccl.py", "PyNcclCommunicator", "reduce_scatter", ["output_tensor", "input_tensor"]),
    (f"{COMMUNICATORS}/custom_all_reduce.py", "CustomAllreduce", "__init__", ["group", "device"]),
    (f"{COMMUNICATORS}/custom_all_reduce.py", "CustomAllreduce", "capture", []),
    (f"{COMMUNICATORS}/custom_all_reduce.py", "CustomAllreduce", "custom_all_reduce", ["input"]),
    (f"{COMMUNICATORS}/all2all.py", "AgRsAll2AllManager", "__init__", ["cpu_group"]),
    (
        f"{COMMUNICATORS}/all2all.py",
        "AgRsAll2AllManager",
        "dispatch",
        ["hidden_states", "topk_weights", "topk_ids"],
    ),
    (f"{COMMUNICATORS}/all2all.py", "AgRsAll2AllManager", "combine", ["hidden_states"]),
    (f"{COMMUNICATORS}/base_device_communicator.py", "DeviceCommunicatorBase", "all_gatherv", ["input_"]),
]

BY_NAME = {"dispatch": "is_sequence_parallel", "combine": "is_sequence_parallel"}

ATTRIBUTES = [
    (f"{COMMUNICATORS}/pynccl.py", ["self.disabled"]),
    (f"{COMMUNICATORS}/custom_all_reduce.py", ["self.disabled", "self.max_size"]),
]

FUNCTIONS = [
    ("init_distributed_environment", ["world_size", "rank", "distributed_init_method", "local_rank", "backend"]),
    ("initialize_model_parallel", ["prefill_context_model_parallel_size", "backend"]),
    ("get_ep_group", []),
    ("get_world_group", []),
]


releases = pytest.mark.parametrize("release", [wheels.INSTALLED, *wheels.VERSIONS])


def method(source: str, class_name: str, name: str) -> inspect.Signature:
    (body,) = [
        node.body for node in wheels.parsed(source).body if isinstance(node, ast.ClassDef) and node.name == class_name
    ]
    (found,) = [ast.unparse(node) for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    return wheels.signature(found, name)


@releases
def test_methods_take_what_they_are_given_and_require_nothing_else(release: str) -> None:
    for path, class_name, name, positional in CALLS:
        parameters = method(wheels.source(release, path), class_name, name).parameters
        assert list(parameters)[: len(positional) + 1] == ["self", *positional], (class_name, name)
        if name in BY_NAME:
            assert BY_NAME[name] in parameters

        required = [each.name for each in parameters.values() if each.default is each.empty]
        assert set(required) <= {"self", *positional}, (class_name, name)


@releases
def test_attributes_that_are_read_are_set(release: str) -> None:
    for path, attributes in ATTRIBUTES:
        assigned = {
            ast.unparse(target)
            for node in ast.walk(wheels.parsed(wheels.source(release, path)))
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        assert set(attributes) <= assigned, path


@releases
def test_groups_are_opened_by_functions_that_exist(release: str) -> None:
    source = wheels.source(release, "vllm/distributed/parallel_state.py")
    for name, parameters in FUNCTIONS:
        assert set(parameters) <= set(wheels.signature(source, name).parameters), name


@pytest.mark.parametrize(("release", "usable"), [("0.20.0", False), ("0.26.0", True), ("0.33.0", True)])
def test_the_manager_that_needs_a_running_engine_is_told_apart(release: str, usable: bool) -> None:
    manager = wheels.source(release, f"{COMMUNICATORS}/all2all.py").partition("class AgRsAll2AllManager")[2]
    assert ("def _get_sizes" in manager.partition("\nclass ")[0]) is usable


def test_torchs_symmetric_kernels_have_the_schema_that_is_called() -> None:
    torch = pytest.importorskip("torch")
    names = {
        "one_shot_all_reduce_out": ["input", "reduce_op", "group_name", "out"],
        "two_shot_all_reduce_": ["input", "reduce_op", "group_name"],
    }
    for name, arguments in names.items():
        schema = getattr(torch.ops.symm_mem, name).default._schema
        assert [argument.name for argument in schema.arguments] == arguments


# --- what a communicator cannot do is a skip with its reason


@pytest.fixture
def only_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A gloo group of one rank, which keeps nothing from other tests."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(communicators, "state", {})
    monkeypatch.setattr(communicators, "_reasons", {})
    monkeypatch.setattr(communicators, "_device", lambda: "cuda:0")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def skipped(make: Callable[[], object]) -> str:
    with pytest.raises(unittest.SkipTest) as caught:
        make()

    return str(caught.value)


@pytest.mark.usefixtures("only_rank")
@pytest.mark.parametrize(
    ("switched_off", "reason"),
    [(True, "VLLM_DISABLE_PYNCCL is set"), (False, "vLLM could not load an NCCL library")],
)
def test_pynccl_that_disables_itself_without_a_word_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, switched_off: bool, reason: str
) -> None:
    disabled = SimpleNamespace(disabled=True)
    fakes: dict[str, dict[str, Any]] = {
        f"{communicators.VLLM}.pynccl": {"PyNcclCommunicator": lambda *_, **__: disabled},
        "vllm.envs": {"VLLM_DISABLE_PYNCCL": switched_off},
    }
    fake_vllm.install(monkeypatch, fakes)
    assert skipped(communicators.pynccl) == f"PyNccl is disabled: {reason}"


def custom_all_reduce(refuses: str | None) -> dict[str, Any]:
    """A module whose CustomAllreduce is enabled, or disables itself and says why, once per process as vLLM does."""
    left = [refuses]

    class CustomAllreduce:
        max_size = 8 << 20

        def __init__(self, group: object, device: object) -> None:
            assert (group, device) == (communicators.host_group(), "cuda:0")
            self.disabled = refuses is not None
            if reason := left.pop() if left else None:
                logging.getLogger(f"{communicators.VLLM}.custom_all_reduce").info(reason)

    return {"CustomAllreduce": CustomAllreduce}


def install_custom(monkeypatch: pytest.MonkeyPatch, refuses: str | None = None) -> None:
    fakes = {
        f"{communicators.VLLM}.custom_all_reduce": custom_all_reduce(refuses),
        "vllm.envs": {"VLLM_SKIP_P2P_CHECK": True},
    }
    fake_vllm.install(monkeypatch, fakes)


@pytest.mark.usefixtures("only_rank")
def test_the_custom_kernels_reason_is_quoted_again_although_vllm_gives_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_custom(monkeypatch, refuses="more than two PCIe-only GPUs")
    for _ in range(2):
        said = skipped(lambda: communicators.custom(largest_bytes=14_336))
        assert said == "vLLM's CustomAllreduce is disabled: more than two PCIe-only GPUs"


@pytest.mark.usefixtures("only_rank")
def test_a_message_that_the_custom_kernel_does_not_take_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    install_custom(monkeypatch)
    assert not communicators.custom(largest_bytes=14_336).disabled
    assert "takes less than 8388608 bytes" in skipped(lambda: communicators.custom(largest_bytes=8 << 20))


class Base:
    """DeviceCommunicatorBase: all_gatherv is there, but does nothing."""

    def all_gatherv(self) -> None: ...


class Bare(Base):
    """Of a device that has no all_gatherv of its own."""


class Gathering(Base):
    def all_gatherv(self) -> None: ...


class Manager:
    def __init__(self, cpu_group: object) -> None:
        self.cpu_group = cpu_group


class Usable(Manager):
    def _get_sizes(self) -> None: ...


def install_exchange(
    monkeypatch: pytest.MonkeyPatch, manager: type[Manager] | None, communicator: type[Base]
) -> list[dict[str, object]]:
    """A vLLM with that manager and communicator; what its groups are opened with."""
    opened: list[dict[str, object]] = []
    group = SimpleNamespace(cpu_group="experts", device_communicator=communicator())
    parallel = {
        "init_distributed_environment": lambda *_, **more: opened.append(more),
        "initialize_model_parallel": lambda **more: opened.append(more),
        "get_world_group": lambda: "world",
        "get_ep_group": lambda: group,
    }
    fakes: dict[str, dict[str, Any]] = {
        f"{communicators.VLLM}.all2all": {"AgRsAll2AllManager": manager} if manager else {},
        f"{communicators.VLLM}.base_device_communicator": {"DeviceCommunicatorBase": Base},
        "vllm.distributed.parallel_state": parallel,
        "vllm.config": {"VllmConfig": dict, "set_current_vllm_config": contextlib.nullcontext},
    }
    fake_vllm.install(monkeypatch, fakes)
    monkeypatch.setenv("LOCAL_RANK", "0")
    return opened


@pytest.mark.usefixtures("only_rank")
@pytest.mark.parametrize(
    ("manager", "communicator", "reason"),
    [
        (None, Gathering, "this vLLM has no AgRsAll2AllManager in "),
        (Manager, Gathering, "of this vLLM works inside a running engine only"),
        (Usable, Bare, "vLLM's AgRsAll2AllManager: Bare has no all_gatherv"),
    ],
)
def test_a_manager_that_cannot_be_used_is_a_skip_that_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, manager: type[Manager] | None, communicator: type[Base], reason: str
) -> None:
    install_exchange(monkeypatch, manager, communicator)
    assert reason in skipped(communicators.all2all)


@pytest.mark.usefixtures("only_rank")
def test_the_managers_group_is_opened_once_and_without_tensor_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    opened = install_exchange(monkeypatch, Usable, Gathering)
    made = [communicators.all2all(), communicators.all2all()]
    assert [one.cpu_group for one in made] == ["experts", "experts"]
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    assert opened == [
        {"local_rank": 0, "backend": backend},
        {"prefill_context_model_parallel_size": 1, "backend": backend},
    ]
