"""Predictions from a ledger: the published one of the reference host, and what holds for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_step import TPOT_S, published

from pytest_decodegate.errors import BadInput
from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.ledger import Entry, Ledger, Time
from pytest_decodegate.profile.what_if import exchanged, faster, other_ranks, speculative, without

NCCL = "allreduce_nccl"
errors = st.floats(0, 0.05)


def step(allreduce_s: float = 78e-6, error: float = 0.0) -> Ledger:
    return Ledger(
        (
            Entry(NCCL, Category.ALLREDUCE, 127, Time(allreduce_s, error)),
            Entry("casts", Category.CAST, 60, Time(4e-6, error)),
            Entry("o_proj", Category.GEMM, 61, Time(6e-6, error)),
        )
    )


def test_the_reference_hosts_what_if() -> None:
    """60 MoE AllReduces of 78 us become 60 all-to-alls of 19 us: 3.54 ms, 29 % of a TPOT of 12.1 ms."""
    by = Entry("alltoall", Category.COLLECTIVES, 60, Time(19e-6))
    found = exchanged(step(), NCCL, 60, by, of_s=TPOT_S)
    assert found.saved_s == pytest.approx(3.54e-3)
    assert found.share == pytest.approx(0.29, abs=0.005)
    assert str(found) == "60 allreduce_nccl of 78 us become 60 alltoall of 19 us: saves 3.54 ms, 29%; predicted"
    assert exchanged(published(), NCCL, 60, by).saved_s == pytest.approx(3.54e-3, rel=0.01), "77.8 us before rounding"


@given(errors, st.integers(1, 127))
def test_what_stays_the_same_adds_no_error(error: float, count: int) -> None:
    by = Entry("alltoall", Category.COLLECTIVES, count, Time(19e-6))
    found = exchanged(step(error=error), NCCL, count, by)
    assert found.saved_s == pytest.approx(count * (78e-6 - 19e-6))
    assert found.error_s == pytest.approx(count * 78e-6 * error)
    lo, hi = found.interval
    assert lo <= found.saved_s <= hi


def test_a_faster_kernel_and_no_casts() -> None:
    found = faster(step(), NCCL, Time(4e-6), "allreduce_custom")
    assert found.saved_s == pytest.approx(127 * 74e-6)
    assert "127 allreduce_custom of 4 us" in found.what
    assert without(step(), Category.CAST).saved_s == pytest.approx(60 * 4e-6)
    assert str(without(step(), Category.CAST)).startswith("no dtype cast: saves 0.24 ms")
    slower = faster(step(), NCCL, Time(80e-6), "allreduce_ring")
    assert ": costs 0.25 ms" in str(slower)


SILU = "silu_mul_shared"


def twice(routed_s: float) -> Ledger:
    """One metric at two places, as in the real step: of the dense layer, and of the shared experts beside others."""
    return Ledger(
        (
            Entry(SILU, Category.NORM, 1, Time(2e-6, 0.1)),
            Entry("marlin_moe", Category.MOE_GEMM, 60, Time(routed_s), "routed"),
            Entry(SILU, Category.NORM, 60, Time(2e-6, 0.1), "shared"),
        )
    )


def test_a_metric_that_stands_twice_is_uncertain_as_one() -> None:
    shared, routed = twice(1e-6), twice(10e-6)
    assert shared.error_s == pytest.approx(61 * 2e-7)
    assert routed.error_s == pytest.approx(2e-7)
    nothing = Ledger((Entry("other", Category.NORM, 1, Time(1e-6)),))
    assert other_ranks(shared, nothing, 1).error_s == pytest.approx(61 * 2e-7)
    assert other_ranks(shared, routed, 1).error_s == pytest.approx(60 * 2e-7), "the one outside the branch stays"


def test_a_metric_that_stands_twice_is_faster_at_both_places() -> None:
    found = faster(twice(1e-6), SILU, Time(1.5e-6), "fused")
    assert found.saved_s == pytest.approx(61 * 0.5e-6)
    assert found.what == "61 silu_mul_shared of 2 us become 61 fused of 1.5 us"


@given(st.integers(1, 61))
def test_calls_of_a_metric_that_stands_twice_are_exchanged_and_the_others_stay(count: int) -> None:
    by = Entry("fused", Category.NORM, count, Time(1.9e-6))
    found = exchanged(twice(0.0), SILU, count, by)
    assert found.saved_s == pytest.approx(count * 0.1e-6)
    with pytest.raises(BadInput, match="silu_mul_shared has 61 calls a step, of which 62 cannot be exchanged"):
        exchanged(twice(0.0), SILU, 62, by)


def test_other_ranks_compare_two_ledgers() -> None:
    found = other_ranks(step(78e-6, 0.01), step(40e-6, 0.01), 4)
    assert found.saved_s == pytest.approx(127 * 38e-6)
    assert found.error_s == pytest.approx(127 * 0.01 * (78e-6**2 + 40e-6**2) ** 0.5)
    assert "[+" in str(found)


def test_speculation_by_hand() -> None:
    """Acceptance 0.5 with one draft: 1.5 tokens a step."""
    now, verifying = step(), step(80e-6)
    found = speculative(now, verifying, 1, 0.5, Time(1e-3))
    assert found.saved_s == pytest.approx(now.seconds - (verifying.seconds + 1e-3) / 1.5)
    assert "1.50 tokens a step" in found.what


@given(st.integers(1, 8), st.floats(0, 1), st.floats(0, 1))
def test_more_acceptance_saves_more(drafts: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    less, more = (speculative(step(), step(), drafts, acceptance, Time(1e-4)) for acceptance in (low, high))
    assert less.saved_s <= more.saved_s + 1e-12
    assert speculative(step(), step(), drafts, 1.0, Time(0.0)).saved_s == pytest.approx(
        step().seconds * drafts / (drafts + 1)
    )


def test_what_cannot_be_is_refused_by_name() -> None:
    by = Entry("alltoall", Category.COLLECTIVES, 60, Time(19e-6))
    with pytest.raises(BadInput, match="the step has no 'allgather'; it has allreduce_nccl, casts, o_proj"):
        exchanged(step(), "allgather", 1, by)
    with pytest.raises(BadInput, match="allreduce_nccl has 127 calls a step, of which 128 cannot be exchanged"):
        exchanged(step(), NCCL, 128, by)
    with pytest.raises(BadInput, match=r"acceptance 1\.5 with 2 drafts; give 0 to 1"):
        speculative(step(), step(), 2, 1.5, Time(0.0))
