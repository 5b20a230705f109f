"""The routed experts of one Kimi-K2.5 layer on one rank: Marlin on a GPU, a stand-in on a CPU.

By default at the shapes of TP=8 from CUDA graphs, as the reference host decodes; the sweeps over other shards and eager
launches run with --perf-extended.
"""

import pytest

from pytest_decodegate.measure.sampling import Plan
from pytest_decodegate.metric import Metric
from pytest_decodegate.session.perf import Perf
from pytest_decodegate.workloads.marlin.dense import PROJECTIONS, marlin_dense
from pytest_decodegate.workloads.marlin.moe import marlin_gemm, marlin_moe
from pytest_decodegate.workloads.ops.expert_mlp import expert_mlp_cpu

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128]
FEW_BATCHES = [1, 8, 64]
FIRST_BATCHES = [1, 8]
OTHER_SHARDS = [4, 2, 1]

FIRST_RUN = Plan(batch=5, min_samples=10, max_samples=30, precision=0.03, max_warmups=4)
"""The stand-in is what a first run measures: its CPU time is steady, and ten samples of each replicate say so."""

EAGER_BAND = 0.15
"""Launched one by one, small batches wait for the host, whose clock and load are not the GPU's."""

SHARED_BANDS = {1: 0.05, 64: 0.03}
"""By tokens, of the shared expert's GEMMs as INT4: a few us each, whose fresh gangs scatter by 0.6 to 1.1 %."""


@pytest.mark.perf(metric="marlin_moe[m={tokens}]")
@pytest.mark.parametrize("tokens", BATCHES, ids="m={}".format)
def test_marlin_moe(perf: Perf, tokens: int) -> None:
    """11.1 % of the decode step: align, w13 7168 -> 512, silu-mul, w2 256 -> 7168, sum over top-8 of 384 experts."""
    perf.needs_gpu("Marlin; expert_mlp_cpu stands in for it")
    perf.measure(Metric.of(f"marlin_moe[m={tokens}]", "kernel"), marlin_moe, backend=perf.pin("moe"), tokens=tokens)


@pytest.mark.perf(stand_in="expert_mlp_cpu[m={tokens}]")
@pytest.mark.parametrize(
    "tokens",
    [pytest.param(tokens, marks=pytest.mark.perf(extended=tokens not in FIRST_BATCHES)) for tokens in FEW_BATCHES],
    ids="m={}".format,
)
def test_expert_mlp_cpu(perf: Perf, tokens: int) -> None:
    """The stand-in without a GPU: the same expert MLP, dense float32, in CPU time."""
    perf.needs_no_gpu("the expert MLP on the CPU stands in for Marlin only without one")
    perf.measure(Metric.of(f"expert_mlp_cpu[m={tokens}]", "cpu"), expert_mlp_cpu, plan=FIRST_RUN, tokens=tokens)


@pytest.mark.perf(metric="marlin_{which}[m={tokens}]")
@pytest.mark.parametrize("tokens", FEW_BATCHES, ids="m={}".format)
@pytest.mark.parametrize("which", ["w13", "w2"])
def test_marlin_gemm(perf: Perf, which: str, tokens: int) -> None:
    """The two grouped GEMMs apart: in a trace they have the same kernel name."""
    perf.needs_gpu("Marlin")
    perf.measure(
        Metric.of(f"marlin_{which}[m={tokens}]", "kernel"),
        marlin_gemm,
        backend=perf.pin("moe"),
        which=which,
        tokens=tokens,
    )


@pytest.mark.perf(metric="marlin_dense[{projection},m={tokens}]")
@pytest.mark.parametrize("tokens", [1, 64], ids="m={}".format)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_marlin_dense(perf: Perf, projection: str, tokens: int) -> None:
    """Dense W4A16 at the dims of fused_qkv_a and the shared expert: what an INT4 checkpoint of them would run."""
    perf.needs_gpu("Marlin")
    band = None if projection == "fused_qkv_a" else SHARED_BANDS[tokens]
    metric = Metric.of(f"marlin_dense[{projection},m={tokens}]", "kernel", tolerance=band)
    perf.measure(metric, marlin_dense, projection=projection, tokens=tokens)


@pytest.mark.perf(metric="marlin_moe[m={tokens},tp={tensor_parallel}]", extended=True)
@pytest.mark.parametrize("tokens", BATCHES, ids="m={}".format)
@pytest.mark.parametrize("tensor_parallel", OTHER_SHARDS, ids="tp={}".format)
def test_marlin_moe_of_other_shards(perf: Perf, tensor_parallel: int, tokens: int) -> None:
    """The same layer as ranks of TP=4, 2 and 1 hold it; at TP=1 its experts are 9.5 GB."""
    perf.needs_gpu("Marlin")
    metric = Metric.of(f"marlin_moe[m={tokens},tp={tensor_parallel}]", "kernel")
    perf.measure(metric, marlin_moe, backend=perf.pin("moe"), tokens=tokens, tensor_parallel=tensor_parallel)


@pytest.mark.perf(metric="marlin_{which}[m={tokens},tp={tensor_parallel}]", extended=True)
@pytest.mark.parametrize("tokens", FEW_BATCHES, ids="m={}".format)
@pytest.mark.parametrize("which", ["w13", "w2"])
@pytest.mark.parametrize("tensor_parallel", OTHER_SHARDS, ids="tp={}".format)
def test_marlin_gemm_of_other_shards(perf: Perf, which: str, tensor_parallel: int, tokens: int) -> None:
    """The two grouped GEMMs apart at the other shards."""
    perf.needs_gpu("Marlin")
    metric = Metric.of(f"marlin_{which}[m={tokens},tp={tensor_parallel}]", "kernel")
    perf.measure(
        metric, marlin_gemm, backend=perf.pin("moe"), which=which, tokens=tokens, tensor_parallel=tensor_parallel
    )


@pytest.mark.perf(metric="marlin_moe_eager[m={tokens}]", extended=True)
@pytest.mark.parametrize("tokens", BATCHES, ids="m={}".format)
def test_marlin_moe_eager(perf: Perf, tokens: int) -> None:
    """Without a CUDA graph: host launches included, as in a server started with --enforce-eager."""
    perf.needs_gpu("Marlin")
    metric = Metric.of(f"marlin_moe_eager[m={tokens}]", "kernel", tolerance=EAGER_BAND)
    perf.measure(metric, marlin_moe, backend=perf.pin("moe"), tokens=tokens, mode="eager")
