"""The Marlin workloads on the CPU, with vLLM's functions played by plain torch: arguments, layouts and checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fake_marlin import (
    API,
    SHARD,
    played,
    torch,
    unpacked,
)

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.experts import draw_routings
from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.marlin import vllm_api
from pytest_decodegate.workloads.marlin.calls import PreparedCalls, workload
from pytest_decodegate.workloads.marlin.cold_routing import ColdRouting, spread
from pytest_decodegate.workloads.marlin.dense import cold_copies, dense_calls, drawn
from pytest_decodegate.workloads.marlin.grouped import GroupedGemm, Which, block_size, gemm_calls, whole_calls
from pytest_decodegate.workloads.marlin.weights import ExpertLayer, pack
from pytest_decodegate.workloads.runtime.op import COLD_MARGIN
from pytest_decodegate.workloads.runtime.timing import Traffic, rotate


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A second thread has nothing to do in matrices as small as these but to spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def layer() -> ExpertLayer:
    return ExpertLayer(SHARD, 5, API, "cpu")


def rotation_of(tokens: int, copies: int = 2) -> ColdRouting:
    routings = draw_routings(tokens, 4, experts=SHARD.experts, top_k=SHARD.experts_per_token, seed=5)
    return ColdRouting(spread(routings, SHARD.experts, 5), copies, 0.0)


def wrong(calls: PreparedCalls) -> str | None:
    return calls.wrong(rotate(calls.calls), "Marlin")


@pytest.mark.parametrize("tokens", [1, 2, 8])
def test_the_whole_layer_agrees_with_the_reference(layer: ExpertLayer, tokens: int) -> None:
    assert wrong(whole_calls(SHARD, tokens, rotation_of(tokens), layer, API, seed=5)) is None


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("which", ["w13", "w2"])
def test_each_gemm_agrees_with_the_reference(layer: ExpertLayer, which: Which, tokens: int) -> None:
    gemm = GroupedGemm.of(which, SHARD, tokens)
    assert wrong(gemm_calls(gemm, rotation_of(tokens), layer, API, seed=5)) is None


@pytest.mark.parametrize("tokens", [1, 8])
def test_the_dense_linear_agrees_with_the_reference(tokens: int) -> None:
    matrix = drawn(128, 64, 5, "cpu")
    copies = cold_copies(pack(API, matrix), 10_000)
    assert wrong(dense_calls(matrix, copies, tokens, API, seed=5)) is None


def test_packing_expert_by_expert_holds_every_expert(layer: ExpertLayer) -> None:
    for expert in range(SHARD.experts):
        w13, w2 = layer.dequantised(expert)
        assert torch.equal(unpacked(layer.w13.words[expert], layer.w13.scales[expert]).t(), w13)
        assert torch.equal(unpacked(layer.w2.words[expert], layer.w2.scales[expert]).t(), w2)

    assert layer.w13.bytes == SHARD.experts * SHARD.w13_bytes
    assert layer.w2.bytes == SHARD.experts * SHARD.w2_bytes


def test_a_wrong_weight_of_one_expert_is_seen(layer: ExpertLayer) -> None:
    rotation = rotation_of(8, copies=1)
    calls = whole_calls(SHARD, 8, rotation, layer, API, seed=5)
    expert = int(rotation.routings[0].ids[7, 0])  # of a token that only the full check of the first call looks at
    layer.w2.scales[expert] *= -1
    try:
        assert "Marlin, call 0 of 4: relative error" in (wrong(calls) or "")
    finally:
        layer.w2.scales[expert] *= -1


def test_a_call_that_does_not_write_is_seen(layer: ExpertLayer) -> None:
    calls = whole_calls(SHARD, 2, rotation_of(2), layer, API, seed=5)
    assert wrong(calls) is None
    assert "call 3 of 4: relative error nan" in (calls.wrong(rotate(calls.calls[:-1]), "Marlin") or "")


def test_calls_in_the_wrong_order_are_seen(layer: ExpertLayer) -> None:
    gemm = GroupedGemm.of("w2", SHARD, 4)
    calls = gemm_calls(gemm, rotation_of(4), layer, API, seed=5)
    calls.outputs.reverse()
    assert "call 0 of 4" in (wrong(calls) or "")


def test_a_release_without_a_kept_workspace_makes_its_own_at_each_call(layer: ExpertLayer) -> None:
    seen: list[Any] = []

    def watched(workspace: Any, **more: Any) -> None:
        seen.append(workspace)

    for keeps in (True, False):
        api = replace(API, keeps_workspace=keeps, fused_moe=played(vllm_api.FUSED_MOE, watched))
        whole_calls(SHARD, 1, rotation_of(1), layer, api, seed=5).calls[0]()

    assert seen[0] is not None
    assert seen[1] is None


def test_all_copies_of_the_weights_are_read_in_turn(layer: ExpertLayer) -> None:
    seen: list[int] = []

    def watched(b_qweight: Any, **more: Any) -> None:
        seen.append(b_qweight.data_ptr())

    api = replace(API, grouped_gemm=played(vllm_api.GROUPED_GEMM, watched))
    rotate(gemm_calls(GroupedGemm.of("w13", SHARD, 1), rotation_of(1, copies=2), layer, api, seed=5).calls)()
    assert len(set(seen)) == 2
    assert seen[:2] == seen[2:]


@pytest.mark.parametrize(
    ("tokens", "block"), [(1, 8), (128, 8), (345, 8), (346, 16), (691, 16), (692, 32), (2700, 64), (99_999, 64)]
)
def test_the_block_is_the_first_that_is_not_nearly_full(tokens: int, block: int) -> None:
    assert block_size(tokens, 384, 8) == block


def test_bytes_of_the_gemms_are_those_of_the_ledger() -> None:
    shard = KIMI_K25.shard(8)
    w13, w2 = (GroupedGemm.of(which, shard, 8) for which in ("w13", "w2"))
    assert (w13.expert_bytes, w2.expert_bytes) == (2_064_384, 1_032_192)
    assert (w13.size_k, w13.size_n, w2.size_k, w2.size_n) == (7168, 512, 256, 7168)
    assert w13.activation_bytes == (8 * 7168 + 64 * 512) * 2
    assert w2.activation_bytes == (64 * 256 + 64 * 7168) * 2


def test_dense_copies_fill_the_cache_as_often_as_promised() -> None:
    packed = pack(API, drawn(128, 64, 5, "cpu"))
    copies = cold_copies(packed, 3 * packed.bytes)
    assert len(copies) == 3 * COLD_MARGIN
    assert len({copy.words.data_ptr() for copy in copies}) == len(copies)
    assert all(torch.equal(copy.words, packed.words) for copy in copies)


def test_an_unknown_mode_is_said() -> None:
    calls = PreparedCalls([], [], lambda *_: None, 1)
    with pytest.raises(BadInput, match="unknown mode 'lazy'; use graph or eager"):
        workload("Marlin", "any", calls, "lazy", Traffic(1, 1), {}, {})  # type: ignore[arg-type]
