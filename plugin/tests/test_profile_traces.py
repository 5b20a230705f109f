"""Two recorded traces of a rank-slice against figures counted from them by hand, and traces with known contents."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import traces
from traces import Invented

from pytest_decodegate.errors import BadInput
from pytest_decodegate.profile import categories, nsys_export, ranks, torch_trace, truth
from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.ranks import SteadySteps
from pytest_decodegate.profile.reading import ReadProfile, read_profile, read_traces
from pytest_decodegate.workloads.kimi import KIMI_K25

SLICE = replace(KIMI_K25, layers=8)
RULES = categories.built_in()


@pytest.fixture(scope="module")
def recorded() -> ReadProfile:
    return read_profile(traces.SLICE)


def reductions(steady: SteadySteps) -> list[float]:
    return [
        launch.duration_us
        for row in steady.steps
        for launch in row[0].launches
        if launch.category == Category.ALLREDUCE
    ]


def test_the_slice_launches_what_the_model_needs(recorded: ReadProfile) -> None:
    profile = recorded.profile
    assert (profile.steps, profile.streams, profile.tokens, profile.ranks) == (31, 1, 1, (0, 1))
    assert profile.of(Category.ALLREDUCE).calls == 17
    assert profile.launches(Category.MOE_GEMM, "Marlin") == 14
    assert profile.casts_in_layers == 0
    assert truth.problems(profile, truth.expected(SLICE, 2)) == []
    assert truth.unknown(profile) == []


def test_allreduce_is_the_least_over_ranks_call_by_call(recorded: ReadProfile) -> None:
    """The README of the traces: 527 calls, median 7.04, mean 7.01, 6.30 to 8.35 us."""
    calls = reductions(recorded.steady)
    assert len(calls) == 527
    assert statistics.median(calls) == pytest.approx(7.04, abs=0.005)
    assert statistics.fmean(calls) == pytest.approx(7.01, abs=0.005)
    assert (min(calls), max(calls)) == pytest.approx((6.30, 8.35), abs=0.005)
    assert recorded.profile.of(Category.ALLREDUCE).us_per_call == pytest.approx(7.01, abs=0.005)


def test_waiting_is_apart(recorded: ReadProfile) -> None:
    """Mean of a call on rank 0 is 238.69 us and 9.30 us on rank 1, of which 7.01 us are the AllReduce."""
    waits = [238.69 - 7.01, 9.30 - 7.01]
    reduce_ms = 17 * statistics.fmean(waits) / 1e3
    gathers_ms = recorded.profile.waiting_ms - reduce_ms
    assert 0 <= gathers_ms < 0.03
    assert recorded.profile.busy_ms < recorded.profile.kernel_ms < 2 * recorded.profile.busy_ms


def test_marlins_two_gemms_are_told_apart(recorded: ReadProfile) -> None:
    """Means over both ranks: 13.72 and 13.76 us for w13, 9.82 and 9.84 us for w2."""
    found = [kernel for kernel in recorded.profile.kernels if kernel.kind == "Marlin"]
    assert [kernel.calls for kernel in found] == [7, 7]
    assert [kernel.us_per_call for kernel in found] == pytest.approx([13.74, 9.83], abs=0.01)


def test_the_period_is_that_of_the_recording(recorded: ReadProfile) -> None:
    periods = [step.period_us for row in recorded.steady.steps for step in row if step.period_us is not None]
    assert statistics.median(periods) == pytest.approx(5253.8, rel=0.002)


def test_steps_are_found_without_annotations(recorded: ReadProfile) -> None:
    bare = [replace(trace, marks=()) for trace in read_traces(traces.SLICE)]
    steady = ranks.align(bare, RULES)
    assert steady.found_by == "pattern"
    assert len(steady.steps) >= 29
    assert statistics.fmean(reductions(steady)) == pytest.approx(7.01, abs=0.01)


def test_categories_add_up(recorded: ReadProfile) -> None:
    profile = recorded.profile
    assert sum(found.ms for found in profile.categories) == pytest.approx(profile.kernel_ms)
    assert sum(found.share for found in profile.categories) == pytest.approx(1)
    assert sum(kernel.ms for kernel in profile.kernels) == pytest.approx(profile.kernel_ms)
    for found in profile.categories:
        assert statistics.fmean(found.ms_by_step) == pytest.approx(found.ms)


def test_a_late_rank_costs_no_category(tmp_path: Path) -> None:
    late = read_profile(traces.two_ranks(tmp_path, late_us=50)).profile
    together = read_profile(traces.two_ranks(tmp_path, late_us=0)).profile
    assert late.waiting_ms == pytest.approx(0.025)  # 50 us on one of two ranks
    assert together.waiting_ms == 0
    assert late.of(Category.ALLREDUCE).ms == pytest.approx((90 - 50 + 6 * 7) / 1e3)
    assert late.of(Category.MOE_GEMM).ms_by_step == pytest.approx(together.of(Category.MOE_GEMM).ms_by_step)


def test_operator_rows_are_no_kernels(tmp_path: Path) -> None:
    assert read_profile(traces.two_ranks(tmp_path)).profile.of(Category.ALLREDUCE).calls == 7


def test_kernels_that_overlap_are_busy_once(tmp_path: Path) -> None:
    def overlap(document: dict[str, Any]) -> None:
        for event in list(document["traceEvents"]):
            if event["name"] == traces.GEMM:
                beside = {**event, "name": "triton_poi_fused_3", "ts": event["ts"] + 5, "tid": 8}
                document["traceEvents"].append({**beside, "args": {**event["args"], "stream": 8}})

    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1), overlap)
    profile = read_profile([path]).profile
    assert profile.kernel_ms - profile.busy_ms == pytest.approx(0.017)  # 15 us with the GEMM, 2 us with argmax
    assert profile.stream_ms[8] == pytest.approx(0.020)


@pytest.mark.parametrize("annotated", [True, False])
def test_prefill_is_cut_off(tmp_path: Path, annotated: bool) -> None:
    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1, steps=6), annotated=annotated)
    profile = read_profile([path]).profile
    assert profile.of(Category.MOE_GEMM).us_per_call == pytest.approx(12)
    assert sum(profile.cut.values()) >= 15
    assert profile.found_by == ("annotations" if annotated else "pattern")


def test_detailed_annotations_are_read(tmp_path: Path) -> None:
    def detailed(document: dict[str, Any]) -> None:
        for event in document["traceEvents"]:
            if event["name"] == "execute_context_0(0)_generation_1(1)":
                event["name"] = "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk77sqsq1sqsk77)"

    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1), detailed)
    assert read_profile([path]).profile.steps == 4


def test_steps_of_another_batch_size_are_left_out(tmp_path: Path) -> None:
    def two_streams(document: dict[str, Any]) -> None:
        for event in document["traceEvents"]:
            if (event.get("args") or {}).get("External id") == 2:
                event["name"] = "execute_context_0(0)_generation_2(2)"

    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1), two_streams)
    assert read_profile([path]).profile.cut["steps of 2 streams"] == 1
    assert read_profile([path], streams=2).profile.steps == 1
    with pytest.raises(BadInput, match="no step decodes 3 streams; those in it decode 1, 2"):
        read_profile([path], streams=3)


def test_a_step_of_another_shape_is_left_out(tmp_path: Path) -> None:
    def first_gemm_twice(document: dict[str, Any]) -> None:
        event = next(event for event in document["traceEvents"] if event["name"] == traces.GEMM and event["ts"] > 1e4)
        document["traceEvents"].append({**event, "ts": event["ts"] + 0.5})

    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1), first_gemm_twice)
    profile = read_profile([path]).profile
    assert (profile.steps, profile.cut["steps of another shape (warm-up, or not whole)"]) == (3, 1)


def test_a_rank_that_was_recorded_longer_is_cut_to_the_others(tmp_path: Path) -> None:
    long = Invented(rank=0, steps=8)
    short = Invented(rank=1, steps=8, late_us=30)

    def without_first(document: dict[str, Any]) -> None:
        start = short.starts[2] - 5
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("ts", 1e9) > start]

    paths = [
        traces.torch_trace(tmp_path / "rank0.json", long),
        traces.torch_trace(tmp_path / "rank1.json", short, without_first),
    ]
    profile = read_profile(paths).profile
    assert profile.steps == 6
    assert profile.waiting_ms == pytest.approx(0.015)


def test_clocks_of_two_hosts_may_differ(tmp_path: Path) -> None:
    paths = [
        traces.torch_trace(tmp_path / f"rank{rank}.json", Invented(rank=rank, late_us=30 * rank, offset_us=3e5 * rank))
        for rank in (0, 1)
    ]
    assert read_profile(paths).profile.waiting_ms == pytest.approx(0.015)


def test_order_in_the_file_means_nothing(tmp_path: Path) -> None:
    def shuffled(document: dict[str, Any]) -> None:
        random.Random(4).shuffle(document["traceEvents"])

    path = tmp_path / "rank0.json"
    in_order = read_profile([traces.torch_trace(path, Invented(world=1))]).profile
    assert read_profile([traces.torch_trace(path, Invented(world=1), shuffled)]).profile == in_order


@pytest.mark.parametrize("ranges", [True, False])
def test_nsys_gives_what_torch_gives(tmp_path: Path, ranges: bool) -> None:
    invented = [Invented(rank=rank, late_us=50 * rank, steps=6) for rank in (0, 1)]
    torch = read_profile(traces.two_ranks(tmp_path, steps=6)).profile
    nsys = read_profile([traces.nsys_export(tmp_path / "x.sqlite", invented, ranges=ranges)]).profile
    assert nsys.found_by == ("annotations" if ranges else "pattern")
    for ours, theirs in zip(nsys.categories, torch.categories, strict=True):
        if ours.category != Category.MEMORY:  # nsys does not say how a copy went
            assert ours.calls == theirs.calls
            assert ours.ms == pytest.approx(theirs.ms)
    assert nsys.waiting_ms == pytest.approx(torch.waiting_ms)


def test_names_of_ten_thousand_characters(tmp_path: Path) -> None:
    name = "void cutlass::device_kernel<" + "cute::tuple<cute::C<64>, " * 400 + "int" + ">" * 401 + "(int)"
    path = traces.torch_trace(tmp_path / "rank0.json", Invented(world=1, extra=((name, 30.0),)))
    kernel = next(kernel for kernel in read_profile([path]).profile.kernels if kernel.name.startswith("cutlass::"))
    assert (kernel.category, kernel.kind, kernel.calls) == (Category.GEMM, "other", 2)
    assert len(kernel.name) <= 400


def test_one_file_of_an_export_is_one_run(tmp_path: Path) -> None:
    export = traces.nsys_export(tmp_path / "x.sqlite", [Invented(world=1)])
    assert [trace.rank for trace in nsys_export.read(export)] == [0]
    with pytest.raises(BadInput, match="give it alone"):
        read_traces([export, traces.torch_trace(tmp_path / "rank1.json", Invented(rank=1))])


def test_ranks_by_their_names(tmp_path: Path) -> None:
    def silent(document: dict[str, Any]) -> None:
        del document["distributedInfo"]

    path = traces.torch_trace(tmp_path / "dp0_pp0_tp3_rank3.17.pt.trace.json.gz", Invented(), silent)
    assert torch_trace.read(path).rank == 3
