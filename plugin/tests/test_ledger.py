"""The decode step as a sum: counts held to a real trace, sums, intervals, replicates and weights."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_step import SHARES, TOTAL_MS, TPOT_S, published
from suite_metrics import suite_metrics

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.ledger import Entry, Ledger, Time, by_category, ledger, parts, weights
from pytest_decodegate.profile.measured import stored_times
from pytest_decodegate.report.ledger import text
from pytest_decodegate.workloads.kimi import KIMI_K25

BASELINES = Path(__file__).parents[2] / "baselines"
SLICE = replace(KIMI_K25, layers=8)
batches = st.sampled_from([1, 8, 64])
ranks = st.sampled_from([1, 2, 4, 8])
seconds = st.floats(1e-7, 1e-3)


def times_of(needed_ranks: int, tokens: int, draw: st.DataObject) -> dict[str, Time]:
    return {
        part.metric: Time(draw.draw(seconds), draw.draw(st.floats(0, 0.05))) for part in parts(needed_ranks, tokens)
    }


def test_the_counts_are_those_of_a_real_step_of_eight_layers() -> None:
    """17 AllReduces, 14 Marlin launches, one gather of the logits: the trace of data/kernel_names.json."""
    counts = {part.metric.split("[")[0]: part.count for part in parts(2, 1, model=SLICE)}
    assert counts["allreduce_pynccl_graph"] == 17
    assert counts["logits_gather"] == counts["lm_head"] == counts["argmax"] == counts["embedding"] == 1
    assert 2 * counts["marlin_moe"] == 14
    # fused_qkv_a, kv_write, mla_decode and rope once a layer; norms of 7168: two a layer and the last one.
    assert {counts[op] for op in ("fused_qkv_a", "kv_write", "mla_decode", "rope", "q_a_norm", "o_proj")} == {8}
    assert counts["add_rms_norm"] == 17
    assert {counts[op] for op in ("router_gate", "topk", "shared_gate_up", "shared_down", "scaled_add")} == {7}
    by_op = Counter(part.metric for part in parts(2, 1, model=SLICE))
    assert by_op["silu_mul_shared[m=1]"] == 2, "of the shared experts, and of the dense layer"


def test_a_whole_step_has_the_models_counts() -> None:
    counts = {part.metric.split("[")[0]: part.count for part in parts(8, 1)}
    assert counts["allreduce_pynccl_graph"] == 123
    assert counts["marlin_moe"] == 60
    assert "allreduce_pynccl_graph" not in {part.metric.split("[")[0] for part in parts(1, 8)}


@pytest.mark.parametrize("tokens", [1, 8, 64])
@pytest.mark.parametrize("of_ranks", [1, 2, 4, 8])
def test_every_part_is_a_metric_of_the_suite(of_ranks: int, tokens: int) -> None:
    known = suite_metrics()
    assert [part.metric for part in parts(of_ranks, tokens) if part.metric not in known] == []


@given(ranks, batches, st.data())
def test_the_step_is_the_chain_and_the_longer_of_two_branches(of_ranks: int, tokens: int, data: st.DataObject) -> None:
    step = ledger(parts(of_ranks, tokens), times_of(of_ranks, tokens, data))
    assert step.missing == ()
    by_branch = {
        branch: math.fsum(entry.seconds for entry in step.entries if entry.branch == branch)
        for branch in ("main", "routed", "shared")
    }
    assert step.seconds == pytest.approx(by_branch["main"] + max(by_branch["routed"], by_branch["shared"]))
    assert step.seconds == pytest.approx(math.fsum(step.of(category) for category in Category))
    errors = [entry.seconds * entry.time.error for entry in step.counted]
    assert max(errors) <= step.error_s * (1 + 1e-12)
    assert step.error_s <= math.fsum(errors) + 1e-12


@given(ranks, batches, st.data())
def test_a_weight_is_how_much_the_step_moves(of_ranks: int, tokens: int, data: st.DataObject) -> None:
    needed, times = parts(of_ranks, tokens), times_of(of_ranks, tokens, data)
    before = ledger(needed, times)
    weighed = weights(before)
    name = data.draw(st.sampled_from(sorted(times)))
    more = 1e-12
    after = ledger(needed, {**times, name: Time(times[name].seconds + more)})
    if after.hidden == before.hidden:
        assert after.seconds - before.seconds == pytest.approx(weighed[name] * more, abs=1e-15)


def test_categories_are_of_kernels_where_what_a_metric_holds_is_measured_too() -> None:
    experts = Entry("marlin_moe[m=8]", Category.MOE_GEMM, 60, Time(90e-6), "routed")
    other = Entry("topk[m=8]", Category.ROUTING, 60, Time(3e-6), "routed")
    step = Ledger((experts, other))
    inside = {"moe_align[m=8]": Time(4e-6), "silu_mul_experts[m=8]": Time(2e-6), "moe_sum[m=8]": Time(1e-6)}
    found = by_category(step, inside)
    assert found[Category.MOE_GEMM] == pytest.approx(60 * 83e-6)
    assert found[Category.ROUTING] == pytest.approx(60 * 8e-6)
    assert found[Category.NORM] == pytest.approx(60 * 2e-6)
    assert sum(found.values()) == pytest.approx(60 * 93e-6)
    some = by_category(step, {name: time for name, time in inside.items() if name != "moe_sum[m=8]"})
    assert some[Category.MOE_GEMM] == pytest.approx(60 * 90e-6), "half of it would look like a gain"


def test_what_nobody_measured_is_missing_and_weighs_nothing() -> None:
    needed = parts(1, 8)
    times = {part.metric: Time(1e-6) for part in needed if not part.metric.startswith("lm_head")}
    known = ledger(needed, times)
    assert known.missing == ("lm_head[m=8]",)
    assert weights(known) == {}


@pytest.mark.parametrize(("tokens", "rest"), [(1, 0.12), (8, 0.06), (64, 0.02)])
def test_what_an_h200_recorded_adds_up_to_its_own_tpot(tokens: int, rest: float) -> None:
    """Kernels, and TPOT of the rank-slice on the other card of that host. What is left of a step of one token, 0.74 ms,
    is the host's work between graphs, which a larger batch hides.
    """
    times = stored_times(map(load, sorted((BASELINES / "NVIDIA-H200-x1").glob("000[34]_*.json"))))
    step = ledger(parts(1, tokens), times)
    assert step.missing == ()
    assert step.seconds == pytest.approx(times[f"tpot[c={tokens}]"].seconds, rel=rest)


def test_the_published_table_comes_out_with_its_shares() -> None:
    step = published()
    assert step.seconds == pytest.approx(TOTAL_MS * 1e-3, rel=1e-3)
    for category, share in SHARES.items():
        assert step.of(category) / step.seconds == pytest.approx(share, abs=1e-3)


def test_the_table_says_the_sum_the_rest_and_what_is_missing() -> None:
    entries = (
        Entry("o_proj[m=1]", Category.GEMM, 61, Time(6e-6, 0.01)),
        Entry("topk[m=1]", Category.ROUTING, 60, Time(3e-6), "routed"),
        Entry("shared_down[m=1]", Category.GEMM, 60, Time(2e-6), "shared"),
    )
    title, header, *lines = text(Ledger(entries, ("lm_head[m=1]",)), "step", 0.7e-3, [])
    assert title == "step"
    assert header.split() == ["part", "of", "the", "step", "category", "count", "us", "each", "ms", "share"]
    assert [line.split()[0] for line in lines[:3]] == ["o_proj[m=1]", "topk[m=1]", "shared_down[m=1]"]
    assert lines[2].endswith("beside")
    assert lines[3:] == [
        "predicted step 0.546 ms [0.539, 0.553]",
        "shared experts run beside the others: 0.120 ms are in no sum",
        "measured TPOT 0.700 ms: +0.154 ms (+22.0%) are in no part",
        "NOT WHOLE: nothing measured lm_head[m=1]",
    ]
    assert TPOT_S < TOTAL_MS * 1e-3, "kernels overlap: a profile's sum is no TPOT"
