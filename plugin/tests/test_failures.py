"""Failures that ops are known for arrive as one sentence; the others as they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_decodegate.errors import BadInput, GangError
from pytest_decodegate.workloads.runtime.failures import explained, needs_gpu

torch = pytest.importorskip("torch", reason="the failures are torch's")

SHAPES = "8 tokens, 7168 -> 512"


def said_of(error: Exception) -> str:
    with pytest.raises(BadInput) as caught, explained("Marlin MoE", SHAPES):
        raise error

    assert caught.value.__cause__ is error
    return str(caught.value)


@pytest.mark.parametrize(
    ("error", "what", "way_out"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.51 GiB.\nMore"),
            "out of memory",
            "replicates",
        ),
        (
            RuntimeError("CUDA error: no kernel image is available for execution on the device"),
            "no machine code",
            "driver",
        ),
        (RuntimeError("CUDA error: a PTX JIT compilation failed"), "no machine code", "newer driver"),
        (
            RuntimeError("CUDA error: the provided PTX was compiled with an unsupported toolchain."),
            "PTX",
            "newer driver",
        ),
        (ImportError("cannot import name 'fused_marlin_moe' from 'vllm.model_executor'"), "does not have", "release"),
        (RuntimeError("Invalid thread config: thread_k = -1"), "does not take these shapes", "tensor-parallel size"),
        (AssertionError("Hidden size mismatch w1"), "does not take these shapes", "1, 2, 4 or 8"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else type(value).__name__,
)
def test_a_known_failure_is_one_sentence_with_op_shapes_and_way_out(error: Exception, what: str, way_out: str) -> None:
    said = said_of(error)
    assert said.startswith(f"Marlin MoE ({SHAPES}): ")
    assert what in said
    assert way_out in said
    assert str(error).splitlines()[0] in said
    assert "\n" not in said


def test_an_op_that_torch_does_not_have_is_recognised_by_its_real_error() -> None:
    said = r"Marlin \(any\): the vLLM that is installed does not have this op .*no_such_op"
    with pytest.raises(BadInput, match=said), explained("Marlin", "any"):
        torch.ops._moe_C.no_such_op(1)


def test_an_attribute_that_we_misspell_is_not_blamed_on_vllm() -> None:
    with pytest.raises(AttributeError, match="no_such_field"), explained("Marlin", "any"):
        _ = SimpleNamespace().no_such_field


@pytest.mark.parametrize("error", [ValueError("seven is not eight"), GangError("a rank is gone"), KeyError("x")])
def test_everything_else_passes_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explained("Marlin", "any"):
        raise error

    assert caught.value is error


def test_it_explains_each_call_of_a_function_that_it_decorates() -> None:
    @explained("Marlin", "any")
    def check() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    for _ in range(2):
        with pytest.raises(BadInput, match="out of memory"):
            check()


def test_no_gpu_is_said_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=r"Marlin MoE needs an NVIDIA GPU, and torch .* sees none; check nvidia-smi"):
        needs_gpu("Marlin MoE")


@pytest.mark.parametrize(("capability", "enough"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_an_old_gpu_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], enough: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    if enough:
        needs_gpu("Marlin MoE")
        return

    with pytest.raises(BadInput, match=r"needs a GPU of compute capability 8\.0 or newer; Tesla T4 has 7\.5"):
        needs_gpu("Marlin MoE")
