"""Times that memory does not allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.floors import CEILING_MARGIN, Work, rates, too_fast

COLD = {"cache": "cold"}
H200 = Work(bytes=24.8e6, flops=90e6, memory_bytes_s=4.2e12)


def test_rates_are_bytes_and_operations_per_second() -> None:
    facts = rates(10e-6, H200)
    assert facts == pytest.approx({"bytes_s": 2.48e12, "flop_s": 9e12, "memory_share": 2.48 / 4.2})
    assert "memory_share" not in rates(10e-6, Work(1.0, 1.0, None))


def test_what_the_cache_served_is_said_with_the_figures() -> None:
    problem = too_fast(4e-6, H200, COLD)
    assert problem is not None
    assert "a call takes 4.00 us, but 24.8 MB cannot be read in less than 5.37 us at the 4200 GB/s" in problem


@given(st.floats(1e-7, 1e-2), st.floats(1e3, 1e12), st.floats(1e9, 1e13))
def test_only_a_time_under_the_floor_is_refused(seconds: float, size: float, ceiling: float) -> None:
    work = Work(size, 1.0, ceiling)
    assert (too_fast(seconds, work, COLD) is not None) == (seconds < size / (CEILING_MARGIN * ceiling))
    assert too_fast(seconds, work, {"cache": "hot"}) is None
    assert too_fast(seconds, Work(size, 1.0, None), COLD) is None
