"""Norm and activation: checks that see wrong numbers, and the calls against released wheels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import wheels

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.ops.elementwise import add_rms_norm, rms_norm, scaled_add, silu_mul
from pytest_decodegate.workloads.runtime import op as op_module
from pytest_decodegate.workloads.runtime.op import PLACES

torch = pytest.importorskip("torch", reason="workloads run on torch")


def norm(x: Any, residual: Any, weight: Any, epsilon: float, *, forgets_residual: bool = False) -> None:
    """fused_add_rms_norm in plain torch."""
    total = x.float() + residual.float()
    if not forgets_residual:
        residual.copy_(total)

    x.copy_(total * (total.square().mean(dim=1, keepdim=True) + epsilon).rsqrt() * weight.float())


def install(monkeypatch: pytest.MonkeyPatch, **ops: Any) -> None:
    fake_vllm.install(monkeypatch, {"vllm._custom_ops": ops})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_right_norm_passes_however_often_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fused_add_rms_norm=norm)
    made = add_rms_norm(4)
    made.burst()
    assert made.check() is None
    assert made.contract["backend"] == "vllm.fused_add_rms_norm"


def test_a_norm_stays_finite_when_it_runs_on_its_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[Any] = []

    def noted(x: Any, residual: Any, weight: Any, epsilon: float) -> None:
        norm(x, residual, weight, epsilon)
        last[:] = [x, residual]

    install(monkeypatch, fused_add_rms_norm=noted)
    made = add_rms_norm(1)
    for _ in range(2000):
        made.burst()

    assert all(bool(tensor.isfinite().all()) for tensor in last)


def test_a_norm_that_leaves_the_residual_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fused_add_rms_norm=lambda *args: norm(*args, forgets_residual=True))
    assert "the residual of add_rms_norm: relative error" in (add_rms_norm(2).check() or "")


def test_gate_and_up_the_wrong_way_round_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(output: Any, x: Any) -> None:
        gate, up = x.float().chunk(2, dim=1)
        output.copy_(torch.nn.functional.silu(up) * gate)

    install(monkeypatch)
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(silu_and_mul=swapped), raising=False)
    assert "silu_mul_experts: relative error" in (silu_mul("experts", 2).check() or "")


@pytest.mark.parametrize(
    ("part", "tensor_parallel", "shape"),
    [("experts", 8, [24, 512]), ("shared", 8, [3, 512]), ("dense", 8, [3, 4608]), ("experts", 2, [24, 2048])],
)
def test_activations_have_the_shapes_of_the_step(
    monkeypatch: pytest.MonkeyPatch, part: str, tensor_parallel: int, shape: list[int]
) -> None:
    install(monkeypatch)
    assert silu_mul(part, 3, tensor_parallel).contract["shape"] == shape


def test_a_part_that_the_step_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(BadInput, match="no part 'head' of the step; use one of experts, shared, dense"):
        silu_mul("head", 1)


def test_a_norm_of_the_wrong_columns_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(output: Any, x: Any, weight: Any, epsilon: float) -> None:
        output.copy_(x.float() * (x.float().square().mean(dim=1, keepdim=True) + epsilon).rsqrt() * weight.float())

    install(monkeypatch, rms_norm=plain)
    assert rms_norm("q_a", 3).check() is None
    assert rms_norm("kv_a", 3).contract["shape"] == [3, 512]
    install(monkeypatch, rms_norm=lambda output, x, *more: plain(output, x.roll(1, dims=1), *more))
    assert "kv_a_norm: relative error" in (rms_norm("kv_a", 3).check() or "")
    with pytest.raises(BadInput, match="no part 'x' of the step; use one of q_a, kv_a"):
        rms_norm("x", 1)


def test_norms_take_turns_on_places_of_rows_and_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []

    def noted(_: Any, x: Any, weight: Any, *__: Any) -> None:
        read.append((x.data_ptr(), weight.data_ptr()))

    install(monkeypatch, rms_norm=noted)
    monkeypatch.setattr(op_module, "calls_per_burst", lambda *_: 2 * PLACES)
    made = rms_norm("kv_a", 3)
    made.burst()
    assert made.contract["places"] == PLACES
    assert read[::2] == read[1::2]
    assert len({x for x, _ in read}) == len({weight for _, weight in read}) == PLACES


def test_a_sum_that_forgets_the_factor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = scaled_add(2)
    assert made.check() is None
    honest = torch.Tensor.add
    monkeypatch.setattr(torch.Tensor, "add", lambda self, other, alpha=1: honest(self, other))
    assert "scaled_add: relative error" in (made.check() or "")


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_have_what_is_called(version: str) -> None:
    ops = wheels.source(version, "vllm/_custom_ops.py")
    arguments = wheels.signature(ops, "fused_add_rms_norm").bind("x", "residual", "weight", 1e-5).arguments
    assert list(arguments) == ["input", "residual", "weight", "epsilon"]
    plain = wheels.signature(ops, "rms_norm").bind("output", "x", "weight", 1e-5).arguments
    assert list(plain) == ["out", "input", "weight", "epsilon"]
    activation = wheels.source(version, "vllm/model_executor/layers/activation.py")
    assert "self.op = torch.ops._C.silu_and_mul\n" in activation
