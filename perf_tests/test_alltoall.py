"""Expert parallelism at decode: hidden states to the ranks of their experts and back, 60 layers a step."""

from collections.abc import Callable
from typing import Literal

import pytest

from pytest_decodegate.metric import Metric
from pytest_decodegate.session.perf import Perf
from pytest_decodegate.workloads.collectives.alltoall import allgather, alltoall, reduce_scatter
from pytest_decodegate.workloads.runtime.timing import Workload

GLOO_BAND = 0.75
"""Two ranks on shared cores wait for the scheduler as much as for each other: it is shown, and gates nothing."""

AGRS_HALVES: dict[str, Callable[..., Workload]] = {"allgather": allgather, "reduce_scatter": reduce_scatter}

WHERE = "NCCL; gloo is measured by test_alltoall_gloo"


def batches(*always: int) -> list[object]:
    """M = 1 to 64 tokens a rank; those not in `always` are extended."""
    return [
        pytest.param(tokens, id=f"m={tokens}", marks=[pytest.mark.perf(extended=tokens not in always)])
        for tokens in (1, 2, 4, 8, 16, 32, 64)
    ]


@pytest.mark.perf(metric="alltoall_{direction}[m={tokens},world={world_size}]")
@pytest.mark.world_size(2, 4, 8)
@pytest.mark.parametrize("tokens", batches(1, 8, 64))
@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_alltoall(perf: Perf, world_size: int, tokens: int, direction: Literal["dispatch", "combine"]) -> None:
    """all_to_all_single over NCCL in a CUDA graph, `tokens` tokens a rank, top-8 of 384, one copy per rank."""
    perf.needs_gpu(WHERE)
    metric = Metric.of(f"alltoall_{direction}[m={tokens},world={world_size}]", "collective")
    perf.measure(metric, alltoall, world_size=world_size, direction=direction, path="graph", tokens=tokens)


@pytest.mark.perf(metric="{half}_{path}[m={tokens},world={world_size}]")
@pytest.mark.world_size(2, 4, 8)
@pytest.mark.parametrize("tokens", batches(8))
@pytest.mark.parametrize("path", ["pynccl_graph", "agrs_graph"])
@pytest.mark.parametrize("half", AGRS_HALVES)
def test_gather_and_scatter(perf: Perf, world_size: int, half: str, path: str, tokens: int) -> None:
    """What vLLM's default manager does instead: all tokens to all ranks, a sum back; bare and through the manager."""
    perf.needs_gpu(WHERE)
    metric = Metric.of(f"{half}_{path}[m={tokens},world={world_size}]", "collective")
    perf.measure(metric, AGRS_HALVES[half], world_size=world_size, path=path, tokens=tokens)


@pytest.mark.perf(stand_in="alltoall_{direction}_gloo[m=8,world={world_size}]", extended=True, advisory=True)
@pytest.mark.world_size(2, 4, 8)
@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_alltoall_gloo(perf: Perf, world_size: int, direction: Literal["dispatch", "combine"]) -> None:
    """The stand-in without a GPU: the same routing and bytes over gloo on loopback."""
    perf.needs_no_gpu("gloo stands in for NCCL only without one")
    metric = Metric.of(f"alltoall_{direction}_gloo[m=8,world={world_size}]", "collective", tolerance=GLOO_BAND)
    perf.measure(metric, alltoall, world_size=world_size, direction=direction, path="gloo", tokens=8)


@pytest.mark.perf(stand_in="{half}_gloo[m=8,world={world_size}]", extended=True, advisory=True)
@pytest.mark.world_size(2, 4, 8)
@pytest.mark.parametrize("half", AGRS_HALVES)
def test_gather_and_scatter_gloo(perf: Perf, world_size: int, half: str) -> None:
    """The stand-in without a GPU for the two halves of vLLM's default manager."""
    perf.needs_no_gpu("gloo stands in for NCCL only without one")
    metric = Metric.of(f"{half}_gloo[m=8,world={world_size}]", "collective", tolerance=GLOO_BAND)
    perf.measure(metric, AGRS_HALVES[half], world_size=world_size, path="gloo", tokens=8)
