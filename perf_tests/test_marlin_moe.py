"""The routed experts of one Kimi-K2.5 layer on one rank of TP=8: Marlin on a GPU, a stand-in on a CPU."""

import pytest

from pytest_decodegate.metric import Metric
from pytest_decodegate.perf import Perf
from pytest_decodegate.workloads.expert_mlp import expert_mlp_cpu
from pytest_decodegate.workloads.marlin import marlin_moe


@pytest.mark.perf
@pytest.mark.parametrize("tokens", [1, 8, 64], ids="m={}".format)
def test_marlin_moe(perf: Perf, tokens: int) -> None:
    """11.1 % of the decode step: w13 7168 -> 512, silu-mul, w2 256 -> 7168 over top-8 of 384 experts."""
    if perf.has_gpu:
        perf.measure(Metric.of(f"marlin_moe[m={tokens}]", "kernel"), marlin_moe, tokens=tokens)
    else:
        perf.measure(Metric.of(f"expert_mlp_cpu[m={tokens}]", "cpu"), expert_mlp_cpu, tokens=tokens)
