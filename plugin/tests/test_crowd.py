"""Strangers on GPUs that NVML does not let us tell apart: more processes than ours, and memory that grew."""

from __future__ import annotations

import pytest
from fake_sensor import FakeSensor, look
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.machine import watch as watch_module
from pytest_decodegate.machine.crowd import LEAST_GROWN_MIB, Crowd, grown
from pytest_decodegate.machine.nvml import GpuProcess
from pytest_decodegate.machine.watch import Watch

HOST_PIDS = (4_100_001, 4_100_002, 4_100_003)
"""Above any pid of this machine, as a container's NVML names them."""


def crowd(ours: int, *looks: int) -> Crowd:
    found = Crowd(ours)
    for count in looks:
        found.add({pid: GpuProcess(pid, "unknown", None) for pid in range(count)})

    return found


@given(st.integers(1, 8), st.lists(st.integers(0, 12), max_size=5))
def test_more_processes_than_ours_in_any_look_are_strangers(ours: int, looks: list[int]) -> None:
    found = list(crowd(ours, *looks).strangers())
    assert bool(found) == (max(looks, default=0) > ours)
    if found:
        assert found[0].startswith(f"{max(looks)} processes computed on the GPUs and only {ours} of them can be ours")
        assert found[0].cause is Cause.STRANGER


def test_where_each_could_be_told_nobody_counts() -> None:
    assert list(crowd(0, 5).strangers()) == []


@given(st.lists(st.integers(0, 100_000), max_size=6))
def test_memory_that_grew_by_a_context_is_somebodys(used: list[int]) -> None:
    found = grown("GPU 3", used)
    assert bool(found) == (bool(used) and used[-1] - used[0] >= LEAST_GROWN_MIB)
    if found:
        assert found == f"GPU 3: somebody took {used[-1] - used[0]} MiB of its memory meanwhile, a stranger or a leak"


def watched(monkeypatch: pytest.MonkeyPatch, running: int, ours: int, memory: tuple[int, ...] = (0,)) -> Watch:
    """A watch inside a container: NVML names pids that nobody here has, and so many of ours use CUDA."""
    own = set(range(1, ours + 1))
    monkeypatch.setattr(watch_module, "may_map", lambda pid, library: pid in own)
    processes = tuple(GpuProcess(pid, "unknown", None) for pid in HOST_PIDS[:running])
    sensor = FakeSensor(samples=[look()], running=processes, memory_mib=memory, wanted=3)
    with Watch(["GPU-a"], lambda: own, period_seconds=0.001, sensor=sensor) as watch:
        assert sensor.enough.wait(30)

    return watch


@pytest.mark.parametrize(("running", "ours", "strangers"), [(2, 2, 0), (3, 2, 1), (1, 2, 0), (0, 2, 0)])
def test_a_watch_in_a_container_counts(
    monkeypatch: pytest.MonkeyPatch, running: int, ours: int, strangers: int
) -> None:
    invalid = watched(monkeypatch, running, ours).report().invalid
    assert [found.cause for found in invalid] == [Cause.STRANGER] * strangers
    assert all("pid 4100001" in found for found in invalid)


def test_memory_that_grows_while_ranks_measure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, 1, 1, (1000, 1100)).report().grown == ()
    (found,) = watched(monkeypatch, 1, 1, (1000, 1000 + LEAST_GROWN_MIB)).report().grown
    assert found.startswith("GPU 0 (GPU-a): somebody took 512 MiB")
