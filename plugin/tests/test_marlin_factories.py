"""What the Marlin workloads promise at the model's dims, and what they refuse; nothing is drawn or launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_marlin import API

from pytest_decodegate.errors import BadInput
from pytest_decodegate.metric import FOLLOWS_STACK, Json
from pytest_decodegate.workloads.marlin import moe, vllm_api
from pytest_decodegate.workloads.marlin.cold_routing import ColdRouting
from pytest_decodegate.workloads.marlin.dense import PROJECTIONS, marlin_dense
from pytest_decodegate.workloads.marlin.moe import marlin_gemm, marlin_moe
from pytest_decodegate.workloads.runtime.timing import Traffic

WEIGHTS = 7168 * 256
"""Of one matrix of one expert at TP=8."""


class Promised:
    """What the factories hand over with their calls."""

    traffic: Traffic
    contract: dict[str, Json]
    facts: dict[str, Json]

    def keep(self, _what: str, _shapes: str, _calls: None, _mode: str, *kept: Any) -> None:
        self.traffic, self.contract, self.facts = kept


@pytest.fixture
def promised(monkeypatch: pytest.MonkeyPatch) -> Promised:
    kept = Promised()
    for name in ("needs", "needs_gpu", "expert_layer", "whole_calls", "gemm_calls"):
        monkeypatch.setattr(moe, name, lambda *_: None)

    monkeypatch.setattr(moe, "workload", kept.keep)
    monkeypatch.setattr(moe, "l2_bytes", lambda _: 60 << 20)
    monkeypatch.setattr(ColdRouting, "to", lambda rotation, _: rotation)
    monkeypatch.setattr(vllm_api, "load", lambda: API)
    return kept


def test_traffic_of_the_whole_layer_is_the_ledgers(promised: Promised) -> None:
    marlin_moe(1)
    assert promised.traffic == Traffic(bytes=8 * 3_096_576 + 2 * 14_336, flops=2 * 3 * 8 * WEIGHTS)


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("w13", Traffic(bytes=8 * 2_064_384 + 2 * (7168 + 8 * 512), flops=2 * 2 * 8 * WEIGHTS)),
        ("w2", Traffic(bytes=8 * 1_032_192 + 2 * 8 * (256 + 7168), flops=2 * 8 * WEIGHTS)),
    ],
)
def test_traffic_of_one_gemm_is_the_ledgers(promised: Promised, which: Any, expected: Traffic) -> None:
    marlin_gemm(which, 1)
    assert promised.traffic == expected
    assert promised.contract["gemm"] == which


@pytest.mark.parametrize("tokens", [1, 8])
def test_the_contract_names_the_measurement_and_nothing_of_vllm(promised: Promised, tokens: int) -> None:
    """What an upgrade of vLLM may change stands among the facts, or in a field that follows the stack."""
    marlin_moe(tokens)
    assert (promised.contract["cache"], promised.contract["tokens"]) == ("cold", tokens)
    assert promised.contract["shard"] == [7168, 256]
    fixed = {name: value for name, value in promised.contract.items() if name not in FOLLOWS_STACK}
    assert "vllm" not in str(fixed)
    assert "marlin" not in str(fixed)
    assert promised.facts["api"] == "played"


@pytest.mark.parametrize(("pin", "pinned"), [(None, False), ("marlin", True), ("MARLIN", True)])
def test_a_pin_is_told_among_the_facts(promised: Promised, pin: str | None, pinned: bool) -> None:
    marlin_moe(1, backend=pin)
    assert promised.facts["pinned"] is pinned
    assert promised.contract["backend"] == "marlin"


@pytest.mark.parametrize(
    ("factory", "parameters", "said"),
    [
        (marlin_moe, {"tensor_parallel": 3}, "2048 does not divide into 3"),
        (marlin_moe, {"backend": "humming"}, "--perf-pin moe=humming asks for another backend than Marlin"),
        (marlin_gemm, {"which": "w4"}, "unknown GEMM 'w4'; use w13 or w2"),
        (marlin_dense, {"projection": "q_b"}, f"no projection 'q_b'; use one of {', '.join(PROJECTIONS)}"),
    ],
    ids=["shard", "pin", "gemm", "projection"],
)
@pytest.mark.usefixtures("promised")
def test_what_cannot_be_measured_is_said(factory: Callable[..., Any], parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        factory(tokens=1, **parameters)


@pytest.mark.usefixtures("promised")
def test_a_shard_below_the_kernels_tile_is_refused_with_the_way_out() -> None:
    with pytest.raises(BadInput, match=r"Marlin MoE \(1 tokens, .* 7168 -> 32, .*32 is not divisible by 64.*1, 2, 4"):
        marlin_moe(1, tensor_parallel=64)
