"""Algorithm and bus bandwidth, as nccl-tests prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.bandwidth import CROSSINGS, bus_factor, rates


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [("allreduce", 2, 1.0), ("allreduce", 8, 1.75), ("allgather", 8, 0.875), ("reduce_scatter", 4, 0.75)],
)
def test_factors_are_those_of_nccl_tests(collective: str, ranks: int, factor: float) -> None:
    assert bus_factor(collective, ranks) == factor


def test_rates_of_a_printed_line() -> None:
    """1 GiB AllReduce over 8 ranks in 4 ms: algbw 268.4 GB/s, busbw 469.8 GB/s."""
    facts = rates({"collective": "allreduce", "bytes": 1 << 30, "world_size": 8}, 4e-3)
    assert facts == {
        "algbw_bytes_s": pytest.approx(268.4e9, rel=1e-3),
        "busbw_bytes_s": pytest.approx(469.8e9, rel=1e-3),
    }


@given(st.integers(2, 64), st.floats(1e-7, 1.0), st.integers(1, 1 << 30))
def test_the_bus_carries_at_most_twice_the_payload(ranks: int, seconds: float, size: int) -> None:
    for name in CROSSINGS:
        facts = rates({"collective": name, "bytes": size, "world_size": ranks}, seconds)
        algbw, busbw = facts["algbw_bytes_s"], facts["busbw_bytes_s"]
        assert isinstance(algbw, float)
        assert isinstance(busbw, float)
        assert 0 < busbw < 2 * algbw


def test_what_is_no_collective_has_no_bandwidth() -> None:
    assert rates({"clock": "cuda_event", "tokens": 1}, 1e-5) == {}


def test_a_collective_that_nccl_tests_has_no_factor_for_has_none_either() -> None:
    assert rates({"collective": "broadcast_by_pigeon", "bytes": 8, "world_size": 2}, 1e-5) == {}
    with pytest.raises(KeyError):
        bus_factor("broadcast_by_pigeon", 2)
