"""The bf16 GEMMs of the step: numbers at the real dims on a CPU, and which call vLLM would make on which GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import wheels

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.ops import projections
from pytest_decodegate.workloads.ops.projections import gemm_for, logits_dtype, projection

torch = pytest.importorskip("torch", reason="workloads run on torch")

HOPPER, BLACKWELL, WORKSTATION_BLACKWELL = (9, 0), (10, 0), (12, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the perf tests check the same numbers")
@pytest.mark.parametrize("op", KIMI_K25.shard(8).projections)
def test_numbers_are_right_at_the_models_dims(op: str) -> None:
    # The float64 references of these three would take as long as all the others together.
    tensor_parallel = 64 if op in ("lm_head", "dense_gate_up", "dense_down") else 8
    made = projection(op, 2, tensor_parallel)
    assert made.check() is None
    assert made.sample() > 0
    assert made.contract["backend"] == ("torch.bmm" if op in ("w_uk", "w_uv") else "torch.linear")
    assert made.traffic is not None
    weight_bytes = KIMI_K25.shard(tensor_parallel).projections[op].weight_bytes
    assert (made.traffic.bytes, made.traffic.flops) == (weight_bytes, 2 * weight_bytes)  # two tokens, two bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the perf tests check the same numbers")
def test_a_wrong_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "_linear", lambda x, weight: torch.nn.functional.linear(x, weight) * 1.02)
    assert "q_b by torch.linear, 1 tokens, weight 0 of 2: relative error 0.02" in (projection("q_b", 1).check() or "")


def test_batches_of_one_op_share_its_weights_and_other_shards_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = projections._weights

    def noted(op: str, *rest: Any) -> list[Any]:
        made.append(op)
        return real(op, *rest)

    monkeypatch.setattr(projections, "_weights", noted)
    for tokens, tensor_parallel in [(1, 32), (2, 32), (2, 64)]:
        projection("w_uv", tokens, tensor_parallel, seed=5)

    assert len(made) == 2


def test_an_op_that_the_step_does_not_have_is_named() -> None:
    with pytest.raises(BadInput, match=r"no op 'v_proj' in the decode step; use one of fused_qkv_a, q_b"):
        projection("v_proj", 1)


def test_a_shard_that_does_not_divide_is_named() -> None:
    with pytest.raises(BadInput, match="does not divide into 48 shards"):
        projection("q_b", 1, tensor_parallel=48)


class Calls:
    """vLLM's functions as fakes that compute the product and note which was asked."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def dsv3_fused_a_gemm(self, output: Any, mat_a: Any, mat_b: Any) -> None:
        self.made.append("fused_a")
        output.copy_(mat_a @ mat_b)

    def dsv3_router_gemm(self, hidden_states: Any, router_weight: Any, output_dtype: Any) -> Any:
        self.made.append("router")
        return (hidden_states.float() @ router_weight.float().t()).to(output_dtype)

    def dispatched(self, layer: None, x: Any, weight: Any, bias: None) -> Any:
        self.made.append("linear")
        return torch.nn.functional.linear(x, weight, bias)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A vLLM that has both min-latency kernels, as 0.25 and 0.26 do."""
    calls = Calls()
    calls.dispatched.__func__.__name__ = "default_unquantized_gemm"  # type: ignore[attr-defined]
    ops = {"dsv3_fused_a_gemm": calls.dsv3_fused_a_gemm, "dsv3_router_gemm": calls.dsv3_router_gemm}
    fake_vllm.install(
        monkeypatch,
        {
            "vllm._custom_ops": ops,
            "vllm.model_executor.layers.utils": {"dispatch_unquantized_gemm": lambda: calls.dispatched},
        },
    )
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(dsv3_fused_a_gemm=None), raising=False)
    monkeypatch.setattr(torch.ops, "_moe_C", SimpleNamespace(dsv3_router_gemm=None), raising=False)
    return calls


@pytest.mark.parametrize(
    ("capability", "op", "tokens", "made", "name"),
    [
        (HOPPER, "fused_qkv_a", 16, "fused_a", "dsv3_fused_a_gemm"),
        (HOPPER, "fused_qkv_a", 17, "linear", "torch.linear"),
        (BLACKWELL, "fused_qkv_a", 1, "fused_a", "dsv3_fused_a_gemm"),
        (WORKSTATION_BLACKWELL, "fused_qkv_a", 1, "linear", "torch.linear"),
        (HOPPER, "router_gate", 16, "router", "dsv3_router_gemm to float32"),
        (HOPPER, "router_gate", 17, "linear", "torch.linear"),
        (BLACKWELL, "router_gate", 8, "router", "dsv3_router_gemm to float32"),
        (BLACKWELL, "router_gate", 9, "linear", "torch.linear"),
        (WORKSTATION_BLACKWELL, "router_gate", 1, "linear", "torch.linear"),
        (HOPPER, "o_proj", 1, "linear", "torch.linear"),
    ],
)
def test_the_call_is_the_one_that_vllms_layer_would_make(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    capability: tuple[int, int],
    op: str,
    tokens: int,
    made: str,
    name: str,
) -> None:
    fake_vllm.gpu(monkeypatch, capability)
    gemm = gemm_for(op, tokens, "cuda")
    x, weight = torch.randn(tokens, 32).bfloat16(), torch.randn(8, 32).bfloat16()
    product = gemm.run(x, weight)
    assert calls.made == [made]
    assert gemm.name == name
    assert torch.allclose(product.double(), x.double() @ weight.double().t(), rtol=0.05, atol=0.1)


def test_a_release_without_the_router_kernel_takes_the_plain_gemm(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    fake_vllm.gpu(monkeypatch, HOPPER)
    monkeypatch.delattr(sys.modules["vllm._custom_ops"], "dsv3_router_gemm")
    assert gemm_for("router_gate", 1, "cuda").name == "torch.linear"
    assert logits_dtype(1) is torch.bfloat16


@pytest.mark.usefixtures("calls")
def test_router_logits_have_the_type_that_the_release_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.gpu(monkeypatch, HOPPER)
    assert logits_dtype(16) is torch.float32
    assert logits_dtype(17) is torch.bfloat16
    monkeypatch.setattr(sys.modules["vllm._custom_ops"], "router_gemm_bf16_fp32", None, raising=False)
    assert logits_dtype(16) is torch.bfloat16


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_have_what_is_called(version: str) -> None:
    ops = wheels.source(version, "vllm/_custom_ops.py")
    utils = wheels.source(version, "vllm/model_executor/layers/utils.py")
    wheels.signature(ops, "dsv3_fused_a_gemm").bind("output", "x", "weight.t()")
    wheels.signature(utils, "dispatch_unquantized_gemm").bind()
    wheels.signature(utils, "default_unquantized_gemm").bind(None, "x", "weight", None)
    if "def dsv3_router_gemm(" in ops:
        wheels.signature(ops, "dsv3_router_gemm").bind("x", "weight", "dtype")


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_choose_by_the_conditions_that_are_copied_here(version: str) -> None:
    model = wheels.source(version, "vllm/model_executor/models/deepseek_v2.py")
    assert f"if 0 < num_tokens <= {projections.MIN_LATENCY_TOKENS}:" in model
    assert "current_platform.is_device_capability(90)" in model
    gate = wheels.source(version, "vllm/model_executor/layers/fused_moe/router/gate_linear.py")
    if "dsv3_router_gemm" in gate:
        assert "_dsv3_max_batch = 16 if is_hopper else 8" in gate or "x.shape[0] <= 16" in gate
        sets_bf16 = "self.gate.set_out_dtype(\n            torch.float32\n" in model
        assert sets_bf16 == ("def router_gemm_bf16_fp32(" in wheels.source(version, "vllm/_custom_ops.py"))
