"""Marlin on a real GPU: our clock against Triton's on the same hot calls, numbers right, cold dearer than hot."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_decodegate.workloads.marlin.dense import marlin_dense
from pytest_decodegate.workloads.marlin.moe import marlin_gemm, marlin_moe
from pytest_decodegate.workloads.runtime import rank
from pytest_decodegate.workloads.runtime.reuse import reused
from pytest_decodegate.workloads.runtime.timing import Workload

GPUS = list(Path("/dev").glob("nvidia[0-9]*"))
SAMPLES = 50

pytestmark = [
    pytest.mark.skipif(not GPUS, reason="needs a GPU, this machine has none"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm"),
    # Importing vLLM warns of deprecations in torch and others, which are theirs to mend.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True, scope="module")
def _free_the_gpu() -> Iterator[None]:
    yield
    for family in ("marlin experts", "dense Marlin"):
        reused(family, "nothing", lambda: None)

    rank.empty_device_cache()


def hot_seconds(workload: Workload) -> float:
    assert workload.hot is not None
    burst = workload.hot()
    workload.sample(burst)
    return statistics.median(workload.sample(burst) for _ in range(SAMPLES))


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_our_hot_time_agrees_with_do_bench_cudagraph_within_2_percent(tokens: int) -> None:
    from triton.testing import do_bench_cudagraph

    workload = marlin_moe(tokens, mode="eager")
    assert workload.check() is None
    assert workload.hot is not None
    eager = workload.hot()  # `calls` launches of one routing, which Triton captures for itself
    triton_seconds = do_bench_cudagraph(eager, rep=20, return_mode="median") / 1e3 / workload.calls
    ours = hot_seconds(marlin_moe(tokens))
    assert ours == pytest.approx(triton_seconds, rel=0.02)


@pytest.mark.parametrize("which", ["w13", "w2"])
@pytest.mark.parametrize("tokens", [1, 8, 64, 128])
def test_each_gemm_is_right(which: str, tokens: int) -> None:
    assert marlin_gemm(which, tokens).check() is None  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("projection", ["fused_qkv_a", "shared_gate_up", "shared_down"])
def test_dense_is_right(projection: str, mode: str) -> None:
    assert marlin_dense(projection, 8, mode=mode).check() is None  # type: ignore[arg-type]


def test_what_the_cache_holds_is_faster_than_what_memory_holds() -> None:
    """8 experts' w13 are 16.5 MB; if hot were no faster, the rotation would not be cold."""
    workload = marlin_gemm("w13", 1)
    cold = statistics.median(workload.sample() for _ in range(SAMPLES))
    assert hot_seconds(workload) < cold
