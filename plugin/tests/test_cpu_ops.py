"""The ops that vLLM has for a CPU, run for real at the model's dims in a process of their own, as a rank runs them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import vllm_process

from pytest_decodegate.metric import FOLLOWS_STACK

torch = pytest.importorskip("torch", reason="workloads run on torch")
pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="needs vLLM's build for CPUs"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the perf tests check the same numbers"),
]

RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "mla_decode": ("ops.attention:mla_decode", {"tokens": 3, "context": 1024, "backend": "CPU_MLA"}),
    "mla_decode at tp 4": (
        "ops.attention:mla_decode",
        {"tokens": 1, "context": 48, "backend": "CPU_MLA", "tensor_parallel": 4},
    ),
    "add_rms_norm": ("ops.elementwise:add_rms_norm", {"tokens": 3}),
    "silu_mul_experts": ("ops.elementwise:silu_mul", {"part": "experts", "tokens": 3}),
    "q_a_norm": ("ops.elementwise:rms_norm", {"part": "q_a", "tokens": 3}),
    "kv_a_norm": ("ops.elementwise:rms_norm", {"part": "kv_a", "tokens": 3}),
    "scaled_add": ("ops.elementwise:scaled_add", {"tokens": 3}),
    "rope": ("ops.positions:rope", {"tokens": 3}),
    "embedding": ("ops.positions:embedding", {"tokens": 3}),
    "argmax": ("ops.routing:argmax", {"tokens": 3}),
}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown backend": (
        "ops.attention:mla_decode",
        {"tokens": 1, "context": 16, "backend": "CRYSTAL_BALL"},
        "this vLLM has no attention backend 'CRYSTAL_BALL'; it has ",
    ),
    "backend of another device": (
        "ops.attention:mla_decode",
        {"tokens": 1, "context": 16, "backend": "TRITON_MLA"},
        "pinned to 'TRITON_MLA', but vLLM takes '",
    ),
    "broken page": (
        "ops.attention:mla_decode",
        {"tokens": 1, "context": 17, "backend": "CPU_MLA"},
        "context 17 is no multiple of CPU_MLA's page of 16 tokens",
    ),
    "unknown part": ("ops.elementwise:silu_mul", {"part": "head", "tokens": 1}, "no part 'head' of the step"),
    "custom AllReduce": (
        "collectives.communicators:custom",
        {"largest_bytes": 14_336},
        "vLLM's CustomAllreduce is disabled: Custom allreduce is disabled because of missing custom allreduce library",
    ),
    "topk": ("ops.routing:topk", {"tokens": 1}, "topk needs an NVIDIA GPU"),
    "moe_align": ("ops.routing:moe_align", {"tokens": 1}, "moe_align needs an NVIDIA GPU"),
    "moe_sum": ("ops.routing:moe_sum", {"tokens": 1}, "moe_sum needs an NVIDIA GPU"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What a rank says of every case; importing vLLM takes ten seconds, so all share one process."""
    refused = {case: (name, params) for case, (name, params, _) in REFUSED.items()}
    return vllm_process.opened({**RIGHT, **refused})


@pytest.mark.parametrize("case", RIGHT)
def test_numbers_are_right(answers: dict[str, dict[str, Any]], case: str) -> None:
    answer = answers[case]
    assert answer.get("refused") is None
    assert answer["wrong"] is None
    assert answer["seconds"] > 0
    assert answer["contract"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("case", "traffic"),
    [
        ("mla_decode", {"bytes": 3 * 1024 * 576 * 2, "flops": 2 * 3 * 8 * 1024 * (576 + 512)}),
        ("add_rms_norm", {"bytes": (4 * 3 + 1) * 7168 * 2, "flops": 5 * 3 * 7168}),
        ("silu_mul_experts", {"bytes": 3 * 24 * 256 * 2, "flops": 5 * 24 * 256}),
        ("q_a_norm", {"bytes": (2 * 3 + 1) * 1536 * 2, "flops": 4 * 3 * 1536}),
        ("kv_a_norm", {"bytes": (2 * 3 + 1) * 512 * 2, "flops": 4 * 3 * 512}),
        ("scaled_add", {"bytes": 3 * 3 * 7168 * 2, "flops": 2 * 3 * 7168}),
        ("rope", {"bytes": (2 * 3 * 9 * 64 + 3 * 64) * 2, "flops": 3 * 3 * 9 * 64}),
        ("embedding", {"bytes": 3 * (2 * 7168 * 2 + 8), "flops": 0}),
        ("argmax", {"bytes": 3 * 163_840 * 4, "flops": 3 * 163_840}),
    ],
)
def test_traffic_is_what_the_op_must_move(
    answers: dict[str, dict[str, Any]], case: str, traffic: dict[str, float]
) -> None:
    assert answers[case]["traffic"] == traffic


def test_the_attention_backend_and_the_pin_are_in_the_contract(answers: dict[str, dict[str, Any]]) -> None:
    contract = answers["mla_decode at tp 4"]["contract"]
    assert (contract["backend"], contract["pinned"], contract["heads"]) == ("CPU_MLA", True, 16)
    assert answers["mla_decode at tp 4"]["facts"]["page_size"] == 16


@pytest.mark.parametrize("case", RIGHT)
def test_nothing_of_vllm_is_in_the_contract_but_in_fields_that_follow_the_stack(
    answers: dict[str, dict[str, Any]], case: str
) -> None:
    """Or an upgrade of vLLM would make it another measurement."""
    fixed = {name: value for name, value in answers[case]["contract"].items() if name not in FOLLOWS_STACK}
    assert "vllm" not in str(fixed)
    assert not {"page_size", "copies", "api"} & set(fixed)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_in_a_sentence(answers: dict[str, dict[str, Any]], case: str) -> None:
    assert REFUSED[case][2] in answers[case]["refused"]
