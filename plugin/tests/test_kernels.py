"""Names of what ran, and the memory canary, on the CPU; on a GPU the same code sees kernels."""

from __future__ import annotations

import pytest

from pytest_decodegate.workloads.runtime.kernels import launched, per_call
from pytest_decodegate.workloads.runtime.memory_bandwidth import memory_bytes_s
from pytest_decodegate.workloads.runtime.timing import rotate

torch = pytest.importorskip("torch", reason="workloads run on torch")


def test_launches_are_counted_per_call() -> None:
    x = torch.ones(4, 4)
    burst = rotate([lambda: torch.mm(x, x).add_(1), lambda: torch.mm(x, x)])
    assert launched(burst, 2, "cpu") == {"aten::add_": 0.5, "aten::mm": 1}


def test_a_slowdown_on_purpose_is_no_kernel_of_what_is_measured() -> None:
    """Its spin made an injected +3 % CONFOUNDED, as if another kernel ran: measured with torch 2.11 on an H200."""
    names = ["void at::cuda::(anonymous namespace)::spin_kernel(long)", *["void gemm<int>(int)"] * 2]
    assert per_call(names, 2) == {"gemm<int>": 1}


def test_the_memory_of_this_machine_has_a_speed() -> None:
    # From a slow phone to ten times the fastest accelerator: only a wrong unit or a broken clock is outside.
    assert 1e8 < memory_bytes_s("cpu") < 1e14
    assert memory_bytes_s("cpu") == memory_bytes_s("cpu"), "measured once per process"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: kernels and HBM are seen on one")
def test_on_a_gpu_kernels_and_memory_are_seen() -> None:
    x = torch.ones(256, 256, device="cuda")
    names = launched(lambda: torch.mm(x, x), 1, "cuda")
    assert any("gemm" in name.lower() or "nvjet" in name for name in names)
    assert 1e11 < memory_bytes_s("cuda") < 1e14
