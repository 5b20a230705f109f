"""Names of kernels from libraries, wheels and traces, and the category that each belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import traces
from traces import Invented

from pytest_decodegate.errors import BadInput
from pytest_decodegate.profile import categories, torch_trace, truth
from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.reading import read_profile
from pytest_decodegate.workloads.kimi import KIMI_K25

NAMES = {
    ("allreduce", "NCCL"): [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL",
        "ncclDevKernel_AllReduce_bf16_RING",
        "ncclDevKernel_AllReduce_bf16_TREE(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllReduce_RING_LL_Sum_half",
    ],
    ("allreduce", "NCCL symmetric"): [
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16",
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16_profile",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16",
    ],
    ("allreduce", "custom"): [
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    ],
    ("allreduce", "symmetric memory"): [
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    ],
    ("allreduce", "FlashInfer"): [
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(AllReduceFusionPattern)1>()"
    ],
    ("collectives", "AllGather"): ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"],
    ("collectives", "ReduceScatter"): ["ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"],
    ("collectives", "all-to-all"): ["ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"],
    ("collectives", "other NCCL"): ["ncclDevKernel_Broadcast_RING_LL"],
    ("moe_gemm", "Marlin"): ["void marlin_moe_wna16::Marlin<1125899906909960l, 256, 1, 8, 8, true>(int4 const*)"],
    ("moe_gemm", "Humming"): ["humming_kernel_w4a16"],
    ("moe_gemm", "Triton"): ["fused_moe_kernel"],
    ("gemm", "Marlin dense"): ["void marlin::Marlin<1125899906909960l, 256, 1, 8, 8, true>(int4 const*)"],
    ("gemm", "fused_qkv_a"): ["void fused_a_gemm_kernel<1, 2112, 7168, 16, 8, 256, 16>(__nv_bfloat16*)"],
    ("gemm", "cuBLAS"): ["nvjet_sm90_tst_192x8_64x8_1x1_h_bz_splitK_TNT", "void gemv2T_kernel_val<int, int>()"],
    ("gemm", "split-K reduction"): ["void cublasLt::splitKreduce_kernel<32, 16, int, float>(int)"],
    ("gemm", "other"): [
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>()"
    ],
    ("attention", "Triton MLA"): ["_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"],
    ("attention", "FlashAttention"): [
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int> > >(int)",
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8> > > >(int)",
        "void flash_fwd_splitkv_mla_kernel<int>(int)",
    ],
    ("attention", "KV cache"): ["void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16>(int)"],
    ("routing", "top-k"): [
        "void vllm::moe::grouped_topk_fused_small_expert_count_kernel<float, float>(float*)",
        "void vllm::moe::single_group_topk_warp_kernel<float>(float*)",
        "void vllm::moe::topkGatingSoftmax<int>(float const*)",
    ],
    ("routing", "align and sort"): [
        "void vllm::moe::moe_align_block_size_kernel<long>(long const*)",
        "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int>(int const*)",
        "void vllm::moe::count_and_sort_expert_tokens_kernel<long>(long const*)",
    ],
    ("routing", "router gate"): ["void router_gemm_kernel_float_output<__nv_bfloat16, 128, 8, 1, 384, 7168>(float*)"],
    ("routing", "sum of experts"): [
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
        "void vllm::moe::moe_sum_vec_kernel<c10::BFloat16, int, 8, false>(c10::BFloat16*)",
    ],
    ("cast", "dtype cast"): [
        "bfloat16tofloat32_copy_kernel",
        "triton_poi_fused__to_copy_3",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(), LoadWithCast<1> >(int)",
    ],
    ("norm", "norm"): [
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "triton_red_fused_fused_add_rms_norm_2",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
    ],
    ("norm", "activation"): ["void vllm::act_and_mul_kernel<c10::BFloat16>(c10::BFloat16*)"],
    ("norm", "rotary"): ["void vllm::rotary_embedding_kernel<c10::BFloat16, false>(long const*)"],
    ("sampling", "sampling"): [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float> > >()"
    ],
    ("memory", "copy"): ["Memcpy HtoD (Pinned -> Device)", "[CUDA memcpy Device-to-Device]"],
    ("memory", "fill"): [
        "Memset (Device)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int> >()",
    ],
    ("rest", "rest"): ["a_kernel_of_the_future"],
}


@pytest.mark.parametrize(("expected", "name"), [(key, name) for key, names in NAMES.items() for name in names])
def test_a_kernel_is_of_its_category(expected: tuple[str, str], name: str) -> None:
    assert categories.built_in().classify(name) == expected


def test_every_category_has_a_rule_and_a_label() -> None:
    assert {Category(category) for category, _ in NAMES} == set(Category)
    assert len({category.label for category in Category}) == len(Category)


def test_kernels_that_were_seen_on_gpus_are_known() -> None:
    """All but three additions of integers, which take 0.3 % of a step."""
    names = {kernel.name for kernel in torch_trace.read(traces.SLICE[0]).kernels}
    rest = [name for name in names if categories.built_in().classify(name).category == Category.REST]
    assert len(names) > 50
    assert all("CUDAFunctor" in name for name in rest)
    assert len(rest) == 3


@pytest.mark.parametrize("renamed", [traces.NCCL_231, "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16"])
def test_an_upgrade_of_nccl_loses_no_allreduce(tmp_path: Path, renamed: str) -> None:
    profile = read_profile(traces.two_ranks(tmp_path, allreduce=renamed)).profile
    assert profile.of(Category.ALLREDUCE).calls == 7


COUNTS = truth.expected(replace(KIMI_K25, layers=4), 2)


def test_expected_counts_of_the_model() -> None:
    whole, part = truth.expected(KIMI_K25, 8), truth.expected(replace(KIMI_K25, layers=8), 2)
    assert (whole.allreduces, whole.moe_gemms, whole.casts_in_layers) == (123, 120, 0)
    assert (part.allreduces, part.moe_gemms) == (17, 14)
    assert truth.expected(KIMI_K25, 1).allreduces == 0


def said(folder: Path, **fields: Any) -> str:
    profile = read_profile(traces.two_ranks(folder, **{"layers": 3, **fields})).profile
    return "; ".join(truth.problems(profile, COUNTS))


def test_too_few_are_a_problem(tmp_path: Path) -> None:
    text = said(tmp_path)
    assert "7 AllReduces a step, and 4 layers need 9" in text
    assert "7 fit --layers 3" in text


def test_a_renamed_allreduce_is_a_problem(tmp_path: Path) -> None:
    profile = read_profile(traces.two_ranks(tmp_path, allreduce="ring_kernel_of_the_future", late_us=0)).profile
    assert "no AllReduce kernel recognised: names changed?" in truth.problems(profile, COUNTS)[0]
    assert "no AllReduce kernel recognised" in truth.problems(profile, None)[0]
    assert [kernel.name for kernel in truth.unknown(profile)] == ["ring_kernel_of_the_future"]


def test_more_allreduces_than_needed_are_none(tmp_path: Path) -> None:
    assert "AllReduces" not in said(tmp_path, layers=5)


def test_another_backend_is_a_problem(tmp_path: Path) -> None:
    def humming(document: dict[str, list[dict[str, str]]]) -> None:
        for event in document["traceEvents"]:
            event["name"] = event["name"].replace("marlin_moe_wna16::Marlin", "humming_kernel")

    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1), humming)
    text = "; ".join(truth.problems(read_profile([path]).profile, COUNTS))
    assert "0 Marlin launches a step, and 4 layers need 6; the MoE GEMMs are of Humming" in text


def test_casts_between_the_layers_are_a_problem(tmp_path: Path) -> None:
    assert "2 dtype casts a step inside the layers" in said(tmp_path, extra=((traces.CAST, 2.0),))


def test_own_rules_come_first(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[rule]]\ncategory = "allreduce"\nkind = "mine"\npattern = "^ring_kernel"\n')
    rules = categories.read(path)
    assert rules.classify("ring_kernel_of_the_future") == (Category.ALLREDUCE, "mine")
    assert rules.classify(traces.NCCL) == (Category.ALLREDUCE, "NCCL")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule", "is no TOML"),
        ("", "holds nothing"),
        ("x = 1", "holds x"),
        ('[[rule]]\ncategory = "gemm"', "rule 1: needs category and pattern"),
        ('[[rule]]\ncategory = "gemm"\npattern = 3', "rule 1: pattern = 3 is no text"),
        ('[[rule]]\ncategory = "gems"\npattern = "x"', "category 'gems' is not known; write one of allreduce"),
        ('[[rule]]\ncategory = "gemm"\npattern = "("', "is no regular expression"),
    ],
)
def test_rules_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"mine\.toml") as error:
        categories.read(path)
    assert message in str(error.value)
