"""The workloads' numbers, on the CPU: quantisation, routing, the stand-in, and that wrong numbers are seen."""

from __future__ import annotations

import time

import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.experts import draw_routings, quantise, reference
from pytest_decodegate.workloads.ops.expert_mlp import expert_mlp_cpu
from pytest_decodegate.workloads.runtime import rank
from pytest_decodegate.workloads.runtime.timing import (
    CpuClock,
    Workload,
    needs,
    on_one_thread,
    relative_error,
    rotate,
    wrong_if_above,
)
from pytest_decodegate.workloads.versions import CLOCKS, WORKLOADS

torch = pytest.importorskip("torch", reason="workloads run on torch")


def test_quantised_weights_are_within_half_a_step() -> None:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    matrix = quantise(weight)
    half_step = matrix.scales.double().repeat_interleave(32, dim=1) / 2
    # A bf16 scale is off by up to 2^-9, which the largest code feels seven times.
    assert ((matrix.dequantised() - weight).abs() <= half_step * 1.03).all()


def test_packed_words_hold_every_code_in_gptq_order() -> None:
    matrix = quantise(torch.randn(16, 64, generator=torch.Generator().manual_seed(2)))
    packed = matrix.packed()
    assert packed.shape == (8, 16)
    unpacked = torch.stack([(packed >> (4 * place)) & 15 for place in range(8)], dim=1).reshape(64, 16).t()
    assert torch.equal(unpacked.to(torch.uint8), matrix.codes)


def test_one_token_routings_visit_every_expert_before_any_comes_back() -> None:
    routings = draw_routings(1, 48, experts=384, top_k=8, seed=3)
    ids = torch.cat([routing.ids.flatten() for routing in routings])
    assert sorted(ids.tolist()) == list(range(384))


def test_one_token_routings_go_round_again_when_more_are_asked() -> None:
    routings = draw_routings(1, 5, experts=16, top_k=8, seed=3)
    assert len(routings) == 5
    assert all(routing.ids.unique().numel() == 8 for routing in routings)


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_routing_is_distinct_scaled_and_repeatable(tokens: int) -> None:
    first, again = (draw_routings(tokens, 3, experts=384, top_k=8, seed=5) for _ in range(2))
    for routing, same in zip(first, again, strict=True):
        assert torch.equal(routing.ids, same.ids)
        assert all(row.unique().numel() == 8 for row in routing.ids)
        assert torch.allclose(routing.weights.sum(dim=1), torch.tensor(2.827))


def test_reference_is_the_plain_formula() -> None:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2, 16, generator=generator).double()
    w13 = torch.randn(4, 8, 16, generator=generator).double()
    w2 = torch.randn(4, 16, 4, generator=generator).double()
    routing = draw_routings(2, 1, experts=4, top_k=2, seed=7)[0]
    want = torch.zeros_like(x)
    for token in range(2):
        for slot in range(2):
            expert = int(routing.ids[token, slot])
            gate, up = (w13[expert] @ x[token]).chunk(2)
            hidden = gate / (1 + torch.exp(-gate)) * up
            want[token] += routing.weights[token, slot].double() * (w2[expert] @ hidden)

    assert relative_error(reference(x, routing, lambda expert: (w13[expert], w2[expert])), want) < 1e-12


@pytest.mark.parametrize("error", [0.02, float("nan"), float("inf")])
def test_an_error_that_is_not_below_the_limit_is_said(error: float) -> None:
    assert "relative error" in (wrong_if_above(error, 1e-2, "GEMM") or "")
    assert wrong_if_above(0.009, 1e-2, "GEMM") is None


def test_expert_mlp_is_right_and_samples_are_times() -> None:
    workload = expert_mlp_cpu(tokens=8)
    assert workload.check() is None
    assert workload.sample() > 0
    assert workload.contract["device"] == "cpu"


def test_the_stand_in_is_timed_by_what_its_one_thread_used_and_not_by_what_it_waited() -> None:
    """Or its time on a shared host is that of whoever else is there."""
    workload = expert_mlp_cpu(tokens=1)
    used = []

    def burst() -> None:
        used.append(torch.get_num_threads())
        time.sleep(0.5)

    before = torch.get_num_threads()
    waited = workload.sample(burst) * workload.calls
    own = expert_mlp_cpu(tokens=1).sample(on_one_thread(burst))
    assert max(waited, own) < 0.5
    assert used[-1] == 1
    assert torch.get_num_threads() == before
    assert workload.contract["clock"] == "process_time"
    assert workload.contract["clock_version"] == CLOCKS["process_time"]
    assert workload.contract["workload_version"] == WORKLOADS["expert_mlp"]
    assert workload.contract["threads"] == 1


def test_a_missing_module_is_named_with_the_python_that_lacks_it() -> None:
    with pytest.raises(BadInput, match=r"Marlin MoE needs 'no_such_vllm', which .*python.* cannot import") as error:
        needs("no_such_vllm", "Marlin MoE")

    assert "run pytest in the environment that serves" in str(error.value)


def test_rotation_makes_every_call_once_in_order() -> None:
    made: list[int] = []
    rotate([lambda: made.append(1), lambda: made.append(2)])()
    assert made == [1, 2]


def wrong_workload() -> Workload:
    return Workload(lambda: None, 1, CpuClock(), lambda: "seven is not eight", {"clock": "perf_counter"})


def test_the_rank_checks_on_opening_samples_and_forgets() -> None:
    from pytest_decodegate.gang.protocol import Function

    opened = rank.open_workload("wrong", Function.of(wrong_workload), {})
    assert opened.wrong == "seven is not eight"
    assert len(rank.take_samples("wrong", 4).seconds) == 4
    rank.close_workload("wrong")
    with pytest.raises(KeyError):
        rank.take_samples("wrong", 1)


def test_what_a_rank_examines_beside_the_samples() -> None:
    workload = expert_mlp_cpu(tokens=1)
    rank._open["examined"] = workload
    found = rank.examine("examined")
    launches = rank.kernels("examined")
    rank.close_workload("examined")

    assert workload.traffic is not None
    assert workload.traffic.bytes == 8 * 3 * 7168 * 256 * 4
    assert workload.traffic.flops == 2 * 3 * 7168 * 256 * 8
    assert found.memory_bytes_s is not None
    assert (found.hot_s, found.own_s, found.location) == (None, None, None)
    assert found.align_cycles is None, "the host's clock needs no sleep before it"
    assert launches["aten::matmul"] == 16, "two GEMMs for each of eight experts"
