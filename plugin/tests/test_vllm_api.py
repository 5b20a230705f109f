"""Our calls into vLLM's Marlin against the signatures of the real releases, installed and downloaded."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import wheels

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.marlin import vllm_api
from pytest_decodegate.workloads.marlin.vllm_api import AdaptedFunction, VllmFunction

OPS = {value.name: value for value in vars(vllm_api).values() if isinstance(value, VllmFunction)}

WITH_G_IDX = {"0.20.0": True, "0.25.1": True, "0.26.0": True, "0.33.0": False}
OLD_PATH = {"0.20.0": True, "0.25.1": False, "0.26.0": False, "0.33.0": False}


def home_in(version: str, op: VllmFunction) -> str:
    """The module that holds `op` in the wheel: the first of its homes that is there and defines it."""
    for home in op.homes:
        path = f"{home.replace('.', '/')}.py"
        if wheels.has(version, path) and f"def {op.name}(" in wheels.source(version, path):
            return home

    pytest.fail(f"vllm {version} has {op.name} in none of {op.homes}")


def signature_in(version: str, op: VllmFunction) -> inspect.Signature:
    path = f"{home_in(version, op).replace('.', '/')}.py"
    return wheels.signature(wheels.source(version, path), op.name)


@pytest.mark.parametrize("version", [*wheels.VERSIONS, wheels.INSTALLED])
@pytest.mark.parametrize("name", OPS)
def test_our_keywords_fit_the_release(version: str, name: str) -> None:
    op = OPS[name]
    signature = signature_in(version, op)
    keywords = op.keywords(signature)  # raises if one is not accepted, or a required one is missing
    signature.bind(**dict.fromkeys(keywords))
    assert set(op.passed) <= keywords
    if version in WITH_G_IDX:
        assert bool(set(op.dropped) & keywords) == (WITH_G_IDX[version] and bool(op.dropped))


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_the_generation_is_told_by_path_and_signature(version: str) -> None:
    home = home_in(version, vllm_api.FUSED_MOE)
    keywords = vllm_api.GROUPED_GEMM.keywords(signature_in(version, vllm_api.GROUPED_GEMM))
    name = vllm_api.generation(home, keywords)
    assert name.startswith("fused_moe.fused_marlin_moe" if OLD_PATH[version] else "fused_moe.experts.marlin_moe")
    assert name.endswith("with g_idx" if WITH_G_IDX[version] else "without g_idx")


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_a_server_keeps_the_workspace_exactly_where_we_think(version: str) -> None:
    """Where there is no such function, _fused_marlin_moe makes a workspace at each call, and so do we."""
    utils = wheels.source(version, "vllm/model_executor/layers/quantization/utils/marlin_utils.py")
    moe = wheels.source(version, f"{home_in(version, vllm_api.FUSED_MOE).replace('.', '/')}.py")
    keeps = f"def {vllm_api.KEPT_WORKSPACE}(" in utils
    assert f"workspace = {vllm_api.KEPT_WORKSPACE if keeps else 'marlin_make_workspace_new'}(" in moe
    blocks = vllm_api.MOE_BLOCKS_PER_SM
    assert f"MARLIN_MAX_BLOCKS_PER_SM = {blocks}\n" in utils if keeps else f"(hidden_states.device, {blocks})" in moe


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_the_release_still_launches_the_grouped_gemms_as_we_do(version: str) -> None:
    """The arguments that are numbers in gemm_calls, as they stand in _fused_marlin_moe; and the choice of the block."""
    moe = wheels.source(version, f"{home_in(version, vllm_api.FUSED_MOE).replace('.', '/')}.py")
    inner = moe[moe.index("def _fused_marlin_moe(") : moe.index("def batched_fused_marlin_moe(")]
    assert inner.count("ops.moe_wna16_marlin_gemm(") == 2
    assert inner.count("use_atomic_add=False,") == inner.count("use_fp32_reduce=True,") == 2
    assert inner.count("top_k=1,") == inner.count("top_k=num_topk,") == 1
    assert "for block_size_m in [8, 16, 32, 48, 64]:\n        if M * topk / E / block_size_m < 0.9:" in inner
    assert "ignore_invalid_experts=True," in inner


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_a_server_sums_over_the_experts_by_the_op_that_we_pass(version: str) -> None:
    moe = wheels.source(version, f"{home_in(version, vllm_api.FUSED_MOE).replace('.', '/')}.py")
    assert "ops.moe_sum(input, output)" in moe[moe.index("class MarlinExperts(") :]


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_packing_expert_by_expert_is_what_the_release_does(version: str) -> None:
    """ExpertLayer relies on it: the functions over all experts are loops and nothing else."""
    ops = wheels.source(version, "vllm/_custom_ops.py")
    utils = wheels.source(version, "vllm/model_executor/layers/quantization/utils/marlin_utils.py")
    repack = ops[ops.index("def gptq_marlin_moe_repack(") :]
    assert "output[e] = torch.ops._C.gptq_marlin_repack(\n            b_q_weight[e]," in repack
    permute = utils[utils.index("def marlin_moe_permute_scales(") :]
    assert "output[e] = marlin_permute_scales(s[e], size_k, size_n, group_size, is_a_8bit)" in permute


def test_a_renamed_argument_is_said_and_not_dropped() -> None:
    def gemm(a: Any, weight: Any) -> None: ...

    with pytest.raises(BadInput, match=r"vLLM's gemm no longer takes b: .*update decodegate"):
        VllmFunction("gemm", (), ("a", "b")).keywords(inspect.signature(gemm))


def test_a_new_required_argument_is_said() -> None:
    def gemm(a: Any, scales: Any, bias: Any = None) -> None: ...

    with pytest.raises(BadInput, match=r"vLLM's gemm now also wants scales: "):
        VllmFunction("gemm", (), ("a",)).keywords(inspect.signature(gemm))


def test_an_op_is_loaded_from_the_first_home_that_has_it() -> None:
    op = VllmFunction("run", ("pytest_decodegate.no_such_module", "asyncio", "subprocess"), ("main",))
    assert op.load().home == "asyncio"


def test_an_op_that_is_nowhere_is_said_with_each_reason() -> None:
    op = VllmFunction("no_such_function", ("pytest_decodegate.no_such_module", "pytest_decodegate.errors"), ())
    with pytest.raises(BadInput, match=r"no no_such_function \(No module named .*; module .*errors' has"):
        op.load()


@pytest.mark.parametrize("takes_perm", [True, False])
def test_an_old_argument_goes_only_to_a_release_that_takes_it(takes_perm: bool) -> None:
    def old(a: int, perm: str) -> tuple[int, str]:
        return a, perm

    def new(a: int) -> tuple[int]:
        return (a,)

    op = VllmFunction("repack", (), ("a",), dropped=("perm",))
    function = old if takes_perm else new
    adapted = AdaptedFunction(op, "", function, op.keywords(inspect.signature(function)))
    assert adapted(a=1, perm="none") == ((1, "none") if takes_perm else (1,))
    with pytest.raises(TypeError, match=r"repack is called with \['a'\], its keywords are \['a', 'perm'\]"):
        adapted.prepared(a=1)


def test_a_signature_is_read_from_source_without_importing_it() -> None:
    text = (
        "import nothing\n@overload\ndef f(a): ...\nif cuda:\n    def f(a, /, b: int = 3, *r, c, d=None, **more): pass"
    )
    assert str(wheels.signature(text, "f")) == "(a, /, b='3', *r, c, d='None', **more)"
    with pytest.raises(LookupError, match="no function 'g'"):
        wheels.signature(text, "g")
