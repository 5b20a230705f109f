"""Slowdowns on purpose: read from the environment, put into the right metric and rank, and as long as was asked."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.runtime import slowdown
from pytest_decodegate.workloads.runtime.slowdown import VARIABLE, Slowdown, read_slowdowns, slowed
from pytest_decodegate.workloads.runtime.timing import CpuClock, Workload


def workload(burst: Callable[[], object], calls: int = 1) -> Workload:
    return Workload(burst, calls, CpuClock(), lambda: None, {"clock": "perf_counter"})


def nap() -> None:
    time.sleep(0.02)


def test_several_are_read_with_their_ranks() -> None:
    assert read_slowdowns("marlin_moe[m=8]=2%; allreduce*=0.5%@1;") == (
        Slowdown("marlin_moe[m=8]", 0.02, None),
        Slowdown("allreduce*", 0.005, 1),
    )
    assert read_slowdowns("") == ()


@pytest.mark.parametrize("text", ["2%", "marlin=2", "=2%", "marlin=-1%", "marlin=2%@x"])
def test_what_is_no_slowdown_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not of the form"):
        read_slowdowns(text)


@given(st.text("abc[]=,8*?", min_size=1, max_size=12), st.integers(0, 99), st.none() | st.integers(0, 7))
def test_any_pattern_comes_back(pattern: str, percent: int, rank: int | None) -> None:
    at = "" if rank is None else f"@{rank}"
    assert read_slowdowns(f"{pattern}={percent}%{at}") == (Slowdown(pattern, percent / 100, rank),)


def test_a_bracket_in_a_name_is_itself() -> None:
    assert Slowdown("marlin_moe[m=8]", 0.1, None).matches("marlin_moe[m=8]")
    assert not Slowdown("marlin_moe[m=8]", 0.1, None).matches("marlin_moem")


def test_a_metric_that_is_not_named_keeps_its_workload() -> None:
    plain = workload(nap)
    assert slowed("gemm", plain, {VARIABLE: "marlin*=2%"}) is plain
    assert slowed("gemm", plain, {}) is plain


@pytest.mark.parametrize("calls", [1, 4])
def test_a_burst_is_as_much_longer_as_was_asked(calls: int) -> None:
    plain = workload(nap, calls)
    slow = slowed("nap", plain, {VARIABLE: "nap=300%", "RANK": "1"})
    before, now = (statistics.median(one.sample() for _ in range(3)) for one in (plain, slow))
    assert now > 2.5 * before
    assert slow.calls == calls


def test_only_the_named_rank_is_slowed_but_all_calibrate_in_step() -> None:
    taken: dict[str, int] = {}

    def ranks(rank: str) -> Workload:
        def nap_of_rank() -> None:
            taken[rank] = taken.get(rank, 0) + 1
            nap()

        return slowed("nap", workload(nap_of_rank), {VARIABLE: "nap=300%@1", "RANK": rank})

    first, second = (statistics.median(one.sample() for _ in range(3)) for one in map(ranks, "01"))
    assert second > 2.5 * first
    assert taken["0"] == taken["1"] > 3


def test_how_long_a_burst_is_is_found_when_it_is_sampled_and_not_while_others_set_up() -> None:
    length = [8.0]

    class Crowded:
        """A clock that reads what a burst takes, beside others or alone."""

        def seconds(self, burst: Callable[[], object]) -> float:
            burst()
            return length[0]

    spins: list[float] = []
    plain = Workload(nap, 2, Crowded(), lambda: None, {})
    slow = slowed("nap", plain, {VARIABLE: "nap=50%"})
    length[0] = 0.02
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slowdown, "_host_spin", lambda seconds: lambda: spins.append(seconds))
        for _ in range(3):
            slow.sample()

    assert spins == pytest.approx([0.01] * 3)


def test_a_spin_on_the_device_is_as_long_as_was_asked() -> None:
    torch = pytest.importorskip("torch", reason="the spin is a kernel of torch's")
    if not torch.cuda.is_available():
        pytest.skip("no GPU: the spin is a kernel")

    from pytest_decodegate.workloads.runtime.timing import CudaClock

    matrix = torch.randn(4096, 4096, device="cuda")
    plain = Workload(lambda: matrix @ matrix, 1, CudaClock(), lambda: None, {"clock": "cuda_event"})
    slow = slowed("gemm", plain, {VARIABLE: "gemm=50%"})
    before, now = (statistics.median(one.sample() for _ in range(20)) for one in (plain, slow))
    assert now / before == pytest.approx(1.5, abs=0.1)
