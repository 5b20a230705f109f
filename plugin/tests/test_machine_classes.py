"""What a metric runs on names its baselines: the same for the same work, whatever else the host holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import BLACKWELL, H200
from hypothesis import given
from hypothesis import strategies as st
from scripted_host import host, run_on

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.classes import gpus_of_server, is_of_class, machine_class
from pytest_decodegate.machine.fingerprint import provenance
from pytest_decodegate.metric import Json
from pytest_decodegate.serving.command import gpus_of

CARDS = st.sampled_from([H200, BLACKWELL])


@given(cards=CARDS, work=st.integers(0, 8), more=st.integers(0, 8))
def test_a_host_with_more_gpus_has_the_same_provenance_for_the_same_work(
    cards: Mapping[str, Any], work: int, more: int
) -> None:
    small, large = host(max(work, 1), cards).part(work), host(max(work, 1) + more, cards).part(work)
    assert provenance(small, {}, {}) == provenance(large, {}, {})
    assert machine_class(small.machine) == small.machine_class


@given(cards=CARDS, count=st.integers(1, 8))
def test_every_part_of_a_host_has_a_class_of_its_own(cards: Mapping[str, Any], count: int) -> None:
    whole = host(count, cards)
    classes = [part.machine_class for part in whole.parts]
    assert len(set(classes)) == count + 1
    assert classes[-2] == whole.machine_class
    assert classes[-1].startswith("cpu-")


def two_sockets(place: int) -> Mapping[str, Any]:
    """Cards 1 to 4 sit on one socket, the others on another."""

    def ancestor(other: Any) -> int:
        near = (place > 4) == (other.place > 4)
        return int(pynvml.NVML_TOPOLOGY_NODE if near else pynvml.NVML_TOPOLOGY_SYSTEM)

    return {"nvmlDeviceGetTopologyCommonAncestor": ancestor}


@pytest.mark.parametrize(("used", "link"), [(0, None), (1, None), (2, "PCIe-NODE"), (4, "PCIe-NODE"), (5, "PCIe-SYS")])
def test_the_link_is_the_slowest_among_the_gpus_that_are_used(used: int, link: str | None) -> None:
    part = host(8, BLACKWELL, two_sockets).part(used)
    assert part.link == link
    assert provenance(part, {}, {}).stack.get("driver_p2p") == (None if link is None else "not supported")


def test_a_pair_over_nvlink_is_faster_than_any_way_over_pcie() -> None:
    def bridged(place: int) -> Mapping[str, Any]:
        def status(other: Any, index: int) -> int:
            partner = {1: 2, 2: 1, 3: 4, 4: 3}[place] == other.place
            over_nvlink = index != pynvml.NVML_P2P_CAPS_INDEX_NVLINK or partner
            return int(pynvml.NVML_P2P_STATUS_OK if over_nvlink else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)

        return {"nvmlDeviceGetP2PStatus": status}

    four = host(4, H200, bridged)
    assert [four.part(count).link for count in (2, 3, 4)] == ["NVLink", "PCIe-SYS", "PCIe-SYS"]


@pytest.mark.parametrize("machine", [{}, {"gpus": []}, {"cpu": "EPYC"}, {"gpus": [], "cores": 2}])
def test_a_machine_that_names_nothing_is_refused(machine: Mapping[str, Json]) -> None:
    with pytest.raises(BadInput, match=r"names neither GPUs nor cpu and cores \(it has "):
        machine_class(machine)


def test_several_nodes_are_a_class_of_their_own() -> None:
    gpus: list[Json] = [{"name": "H200"}, {"name": "H200"}]
    assert machine_class({"gpus": gpus, "link": "NVLink", "nodes": 2}) == "NVIDIA-H200-x2-NVLink-2nodes"


def test_a_published_class_may_leave_the_link_open() -> None:
    assert is_of_class("NVIDIA-B-x8-PCIe", "NVIDIA-B-x8-PCIe-SYS")
    assert is_of_class("NVIDIA-B-x8-PCIe", "NVIDIA-B-x8-PCIe")
    assert not is_of_class("NVIDIA-B-x8-PCIe", "NVIDIA-B-x8-PCIeX")
    assert not is_of_class("NVIDIA-B-x8-PCIe", "NVIDIA-B-x4-PCIe-SYS")


@pytest.mark.parametrize(
    ("facts", "gpus"),
    [
        ({"tensor_parallel": 2}, 2),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2}, 8),
        ({"tensor_parallel": 4, "data_parallel": "auto"}, 4),
        ({"data_parallel": 4}, None),
        ({"tensor_parallel": "two"}, None),
        ({}, None),
    ],
)
def test_a_server_uses_a_gpu_for_each_rank_that_it_tells_of(facts: Mapping[str, Json], gpus: int | None) -> None:
    assert gpus_of_server(facts) == gpus


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("kimi", 1),
        ("kimi -tp 8", 8),
        ("kimi --tensor-parallel-size=4 -pp 2", 8),
        ("--model kimi --data-parallel-size 2 --tensor_parallel_size 2", 4),
    ],
)
def test_the_gpus_of_a_command_line_are_known_before_its_start(words: str, gpus: int) -> None:
    assert gpus_of(words.split()) == gpus


SUITE = """
    import pytest
    from pytest_decodegate.metric import Metric


    def work():
        pass


    @pytest.mark.perf(metric="kernel")
    def test_kernel(perf):
        perf.measure(Metric.of("kernel", "kernel"), work)


    @pytest.mark.perf(metric="sum[world={world_size}]")
    @pytest.mark.world_size(2, 4)
    def test_sum(perf, world_size):
        perf.measure(Metric.of(f"sum[world={world_size}]", "collective"), work, world_size=world_size)


    @pytest.mark.perf
    def test_on_the_cpu(perf):
        perf.measure(Metric.of("by_hand", "cpu"), work)
"""
RUN = ("-v", "-m", "perf", "--perf-replicates=5", "-p", "no:cacheprovider")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(SUITE)
    return pytester


def homes(root: Path) -> dict[str, str]:
    """Metric -> its class, over all stored files."""
    files = [load(path) for path in root.glob("baselines/*/*.json")]
    return {name: each.machine_class for each in files for name in each.metrics}


def test_each_metric_is_recorded_with_what_it_runs_on(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run_on(monkeypatch, host(8))
    suite.runpytest_inprocess(*RUN, "--perf-record").assert_outcomes(passed=4)
    by_hand = homes(suite.path).pop("by_hand")
    assert homes(suite.path) == {
        "kernel": "NVIDIA-H200-x1",
        "sum[world=2]": "NVIDIA-H200-x2-NVLink",
        "sum[world=4]": "NVIDIA-H200-x4-NVLink",
        "by_hand": by_hand,
    }
    assert by_hand.startswith("cpu-")
    (one,) = (suite.path / "baselines" / "NVIDIA-H200-x1").glob("*.json")
    machine = load(one).provenance.machine
    assert isinstance(machine["gpus"], list)
    assert len(machine["gpus"]) == 1
    assert machine["link"] is None


@pytest.mark.parametrize(("gpus", "compared"), [(1, 2), (2, 3), (4, 4), (8, 4)])
def test_a_host_of_any_size_finds_what_another_recorded(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, gpus: int, compared: int
) -> None:
    run_on(monkeypatch, host(4))
    suite.runpytest_inprocess(*RUN, "--perf-record").assert_outcomes(passed=4)
    run_on(monkeypatch, host(gpus))
    result = suite.runpytest_inprocess(*RUN)
    result.assert_outcomes(passed=compared, skipped=4 - compared)
    result.stdout.fnmatch_lines([f"counts: {compared} PASS*"])
    result.stdout.fnmatch_lines(["perf: 1 gated by NVIDIA-H200-x1/0001_*: the only one of this very stack"])


def test_a_declared_change_that_is_not_there_is_red_and_said_before_anything_is_measured(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, host(1))
    only = (*RUN, "--perf-only=kernel")
    suite.runpytest_inprocess(*only, "--perf-record").assert_outcomes(passed=1)
    same = suite.runpytest_inprocess(*only, "--perf-change=nccl")
    same.assert_outcomes(failed=1)
    same.stdout.fnmatch_lines(
        [
            "perf: 1 INVALID already: no stored stack differs in what was declared (nccl), not even NVIDIA-H200-x1/*",
            "kernel: INVALID: *",
            "*the declared change (nccl) does not show: *",
        ]
    )
    run_on(monkeypatch, host(1), stack={"torch": "2.11", "nccl": "2.30"})
    changed = suite.runpytest_inprocess(*only, "--perf-change=nccl")
    changed.assert_outcomes(passed=1)
    changed.stdout.fnmatch_lines(["counts: 1 PASS*"])


def test_a_pass_says_what_one_stored_session_does_not_cover(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, host(2))
    suite.runpytest_inprocess(*RUN, "--perf-record")
    result = suite.runpytest_inprocess(*RUN)
    result.stdout.fnmatch_lines(
        [
            "one baseline session cannot show how much sessions differ; 0.15 % is taken *83 kernels*",
            "one baseline session cannot show how much sessions differ; * to * (2 metrics)",
        ]
    )


def test_a_slower_kernel_is_seen_on_a_host_of_another_size(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, host(2))
    suite.runpytest_inprocess(*RUN, "--perf-record").assert_outcomes(passed=3, skipped=1)
    run_on(monkeypatch, host(8), seconds=1.5e-5)
    result = suite.runpytest_inprocess(*RUN, "--perf-only=kernel")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["kernel: REGRESSED*"])
