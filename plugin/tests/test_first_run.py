"""What `pytest -m perf` measures without a GPU by default: few stand-ins, and what gates of them is steady."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_decodegate.settings.markers import marker_advisory, marker_extended

PERF_TESTS = Path(__file__).parents[2] / "perf_tests"

STAND_INS = ("_cpu", "_gloo")
"""In the names of tests that measure without a GPU."""


def test_a_first_run_gates_cpu_time_and_shows_what_waits_for_other_processes(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\n")
    items, _ = pytester.inline_genitems(PERF_TESTS, "-m", "perf", "--perf-extended", "-p", "no:cacheprovider", "-q")
    stand_ins = [item for item in items if any(name in item.name for name in STAND_INS)]
    default = [item for item in stand_ins if not marker_extended(item)]
    gating = [item.name for item in default if not marker_advisory(item)]
    shown = [item.name for item in default if marker_advisory(item)]
    assert sorted(gating) == ["test_expert_mlp_cpu[m=1]", "test_expert_mlp_cpu[m=8]"]
    assert shown == ["test_tpot_cpu[c=1]"]

    over_gloo = {item.name.split("[")[0]: marker_advisory(item) for item in stand_ins if "gloo" in item.name}
    assert over_gloo == {
        "test_allreduce_gloo": True,
        "test_alltoall_gloo": True,
        "test_gather_and_scatter_gloo": True,
    }
    extended = {item.name for item in stand_ins if marker_extended(item)}
    assert {"test_expert_mlp_cpu[m=64]", "test_tpot_cpu_sweep[c=8]", "test_tpot_cpu_sweep[c=16]"} <= extended
