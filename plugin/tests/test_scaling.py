"""Collectives against the world size: what is put beside what, and both bandwidths."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gate.evidence.bandwidth import CROSSINGS
from pytest_decodegate.metric import Json
from pytest_decodegate.report.scaling import curves, scaling_table

Measured = tuple[str, Mapping[str, Json], float]

names = st.sampled_from(["allreduce_graph[{}]", "allreduce_graph[m=2,{}]", "alltoall[{},m=8]", "x[m=1,{},path=y]"])
sizes = st.lists(st.integers(2, 64), unique=True, max_size=4)


def measured(name: str, size: int, seconds: float, **more: Json) -> Measured:
    contract: dict[str, Json] = {"collective": "allreduce", "world_size": size, "bytes": 14_336, **more}
    return name.format(f"world={size}"), contract, seconds


@given(names, sizes)
def test_one_curve_from_two_sizes_on_whatever_the_order(name: str, world: list[int]) -> None:
    found = curves(measured(name, size, 1e-5 * size) for size in world)
    assert len(found) == (len(world) > 1)
    for curve in found:
        assert [point.world_size for point in curve.points] == sorted(world)
        assert [point.seconds for point in curve.points] == [1e-5 * size for size in sorted(world)]
        assert "world" not in curve.name
        assert not {"[]", ",]", "[,", ",,"} & {curve.name[at : at + 2] for at in range(len(curve.name))}


@given(st.sampled_from(sorted(CROSSINGS)), st.integers(2, 64), st.floats(1e-7, 1.0))
def test_bandwidths_are_those_of_nccl_tests(collective: str, size: int, seconds: float) -> None:
    ((_, point),) = [
        one.points for one in curves(measured("c[{}]", each, seconds, collective=collective) for each in (1, size))
    ]
    assert point.algbw_bytes_s == pytest.approx(14_336 / seconds)
    share = (size - 1) / size * (2 if collective == "allreduce" else 1)
    assert point.busbw_bytes_s == pytest.approx(14_336 / seconds * share)


def test_paths_and_messages_are_kept_apart() -> None:
    found = curves(
        measured(name, size, 1e-5)
        for size in (2, 4)
        for name in ("allreduce_graph[{}]", "allreduce_pynccl_graph[{}]", "allreduce_graph[m=2,{}]")
    )
    assert [curve.name for curve in found] == ["allreduce_graph", "allreduce_pynccl_graph", "allreduce_graph[m=2]"]


@pytest.mark.parametrize("change", [{"collective": None}, {"collective": "broadcast"}, {"bytes": None}])
def test_what_is_no_collective_is_left_out(change: dict[str, Json]) -> None:
    assert curves(measured("x[{}]", size, 1e-5, **change) for size in (2, 4)) == []


def test_the_table() -> None:
    pynccl = [measured("allreduce_pynccl_graph[{}]", *each) for each in [(2, 7.3e-6), (4, 9.7e-6), (8, 14.6e-6)]]
    custom = [measured("allreduce_custom_graph[{}]", *each) for each in [(4, 4.22e-6), (2, 3.96e-6)]]
    assert list(scaling_table(curves([*pynccl, *custom]))) == [
        "collectives against the world size:",
        "  collective              world size  per call  of smallest  payload   algbw      busbw",
        "  allreduce_pynccl_graph  2           7.30 us   1.00x        14,336 B  1.96 GB/s  1.96 GB/s",
        "                          4           9.70 us   1.33x        14,336 B  1.48 GB/s  2.22 GB/s",
        "                          8           14.6 us   2.00x        14,336 B  982 MB/s   1.72 GB/s",
        "  allreduce_custom_graph  2           3.96 us   1.00x        14,336 B  3.62 GB/s  3.62 GB/s",
        "                          4           4.22 us   1.07x        14,336 B  3.40 GB/s  5.10 GB/s",
    ]


def test_no_table_of_one_world_size() -> None:
    assert list(scaling_table(curves([measured("allreduce_graph[{}]", 2, 7.3e-6)]))) == []
