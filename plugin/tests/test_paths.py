"""How collectives are issued: what a path promises in its contract, and that the clock starts behind the barrier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_device import ScriptedDevice

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.collectives import communicators, paths
from pytest_decodegate.workloads.collectives.allreduce import _checked, _clock, allreduce, checks
from pytest_decodegate.workloads.collectives.alltoall import ALLGATHER, REDUCE_SCATTER
from pytest_decodegate.workloads.collectives.paths import (
    ALLREDUCE,
    HOT_BUFFERS,
    ONE_SHOT_BYTES,
    SYMMETRIC_ALLOCATIONS,
    CollectivePath,
    PreparedBurst,
    Shape,
    torch_path,
)
from pytest_decodegate.workloads.collectives.result_check import Collective, ResultCheck, total
from pytest_decodegate.workloads.runtime.timing import ALIGN_CYCLES, MOST_ALIGN_CYCLES, CudaClock

torch = pytest.importorskip("torch", reason="collectives run on torch")


@pytest.mark.parametrize("named", [ALLREDUCE, ALLGATHER, REDUCE_SCATTER], ids=["allreduce", "allgather", "scatter"])
def test_a_paths_name_says_how_it_is_issued(named: dict[str, CollectivePath]) -> None:
    for name, path in named.items():
        assert path.cuda is not name.endswith("gloo")
        assert path.graph is name.endswith("graph")
        assert path.contract["mode"] == ("graph" if path.graph else "eager")
        assert path.contract["start"] == ("device barrier" if path.cuda else "host barrier")


Sizes = list[tuple[int, int, int]]


def issued_on_the_host(shape: Shape, seen: Sizes) -> PreparedBurst:
    """A path on the host that notes number and sizes of each call."""
    return torch_path(
        lambda number, given, result: seen.append((number, given.numel(), result.numel())), cuda=False, graph=False
    ).issue(shape)


def addresses(tensors: list[Any]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def test_cold_calls_go_to_distinct_buffers_in_order() -> None:
    seen: Sizes = []
    issued = issued_on_the_host(Shape([4, 6, 8], [8, 12, 16], "cold"), seen)
    issued.burst()
    assert seen == [(0, 4, 8), (1, 6, 12), (2, 8, 16)]
    assert len({*addresses(issued.inputs), *addresses(issued.outputs)}) == 6
    assert issued.contract == {"cache": "cold", "buffers": 3}
    assert issued.witness is None


def test_hot_calls_take_turns_on_a_few_buffers_whatever_their_sizes() -> None:
    seen: Sizes = []
    issued = issued_on_the_host(Shape([4, 6, 8, 2, 5], [8, 12, 16, 4, 10]), seen)
    issued.burst()
    assert seen == [(0, 4, 8), (1, 6, 12), (2, 8, 16), (3, 2, 4), (4, 5, 10)]
    first, second, *rest = addresses(issued.inputs)
    assert rest == [first, second, first]
    assert len({*addresses(issued.inputs), *addresses(issued.outputs[-HOT_BUFFERS:])}) == 2 * HOT_BUFFERS
    assert issued.contract == {"cache": "hot", "buffers": HOT_BUFFERS}


def test_in_place_means_that_the_result_is_where_the_input_was() -> None:
    issued = torch_path(lambda *_: None, cuda=False, graph=False, in_place=True).issue(Shape([4] * 3, [4] * 3))
    issued.burst()
    assert issued.in_place
    assert addresses(issued.outputs[1:]) == addresses(issued.inputs[1:])


ALONE = Collective("AllReduce", lambda *_: 6, lambda _rank, _call, given: total(given))
TURNS = 9


def found_alone(fault_at: int | None, in_place: bool, value: int = 0) -> tuple[str | None, PreparedBurst]:
    """What the check of one rank alone finds, whose collective copies; `fault_at`: the call that changes a value."""

    def copy(number: int, given: Any, result: Any) -> None:
        result.copy_(given)
        if number == fault_at:
            result[value] += 1

    prepared = torch_path(copy, cuda=False, graph=False, in_place=in_place).issue(Shape([6] * TURNS, [6] * TURNS))
    return _checked(ResultCheck("copy", ALONE, prepared, 0, 1, lambda: None)), prepared


@given(fault_at=st.integers(0, TURNS - 1), value=st.integers(0, 5), in_place=st.booleans())
def test_every_value_of_every_call_is_checked_though_calls_take_turns(
    fault_at: int, value: int, in_place: bool
) -> None:
    wrong, _ = found_alone(fault_at, in_place, value)
    assert wrong is not None
    assert f"call {fault_at} of {TURNS}, round 1 of 2 on rank 0: 1 of 6 values are wrong; value {value} is" in wrong


def test_the_barrier_has_run_before_anything_is_sampled() -> None:
    ran: list[str] = []
    prepared = torch_path(lambda *_: None, cuda=False, graph=False, in_place=True).issue(Shape([6], [6]))
    with_barrier = replace(prepared, barrier=lambda: ran.append("barrier"))
    _checked(ResultCheck("copy", ALONE, with_barrier, 0, 1, lambda: None))
    assert ran == ["barrier"]


@pytest.mark.parametrize("in_place", [True, False])
def test_right_numbers_pass_and_leave_zeros_to_be_timed(in_place: bool) -> None:
    wrong, prepared = found_alone(None, in_place)
    assert wrong is None
    assert not any(tensor.any() for tensor in prepared.inputs)


def test_the_burst_that_is_timed_is_checked_beside_its_witness_unless_it_works_in_place() -> None:
    made: list[PreparedBurst] = [found_alone(None, in_place)[1] for in_place in (True, False)]
    parts = [checks(ResultCheck("copy", ALONE, prepared, 0, 1, lambda: None)) for prepared in made]
    assert [[part.prepared is prepared for part in each] for each, prepared in zip(parts, made, strict=True)] == [
        [False],
        [False, True],
    ]


def test_a_state_of_the_cache_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown state 'lukewarm' of the cache; use hot or cold"):
        allreduce("gloo", cache="lukewarm")  # type: ignore[arg-type]


def test_what_decoding_sends_goes_in_one_shot_and_megabytes_do_not() -> None:
    assert Shape([7168], [7168]).largest_bytes == 14_336 <= ONE_SHOT_BYTES
    assert Shape([1 << 20], [1 << 20]).largest_bytes > ONE_SHOT_BYTES


def test_the_interval_starts_behind_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ScriptedDevice().install(monkeypatch)
    clock = CudaClock(400, prelude=lambda: device.done.append("barrier"))
    assert clock.seconds(device.work(2e-3)) == pytest.approx(2e-3)
    assert device.done[-6:] == ["awake", "barrier", "start", "burst", "stop", "wait"]


def test_the_device_sleeps_longer_once_the_host_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ScriptedDevice(passed=iter([False, True, False, True, False])).install(monkeypatch)
    clock = CudaClock(400, ahead=True)
    for _ in range(5):
        clock.seconds(device.work(1e-3))

    assert device.sleeps == [400, 400, 800, 800, 1600]


def test_a_host_that_is_always_late_does_not_make_the_device_sleep_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ScriptedDevice(passed=repeat(True)).install(monkeypatch)
    clock = CudaClock(ALIGN_CYCLES, ahead=True)
    for _ in range(20):
        clock.seconds(device.work(1e-3))

    assert clock.sleep_cycles == MOST_ALIGN_CYCLES


@pytest.mark.parametrize("path", ["eager", "graph"])
def test_only_a_graph_can_be_queued_before_its_interval(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    device = ScriptedDevice(passed=repeat(True)).install(monkeypatch)
    clock = _clock(ALLREDUCE[path], PreparedBurst(lambda: None, [], []))
    for _ in range(2):
        clock.seconds(device.work(1e-3))

    assert device.sleeps == [ALIGN_CYCLES, ALIGN_CYCLES * (2 if path == "graph" else 1)]


class Carrier:
    """A CustomAllreduce that works on the host; it must be capturing when it is called, as vLLM's."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name, self._capturing = log, name, False

    @contextmanager
    def capture(self) -> Iterator[None]:
        self._capturing = True
        yield
        self._capturing = False
        self._log.append(f"{self._name} exchanges handles")

    def custom_all_reduce(self, given: Any) -> Any:
        assert self._capturing
        self._log.append(self._name)
        return given * 2


@pytest.mark.parametrize(("calls", "used"), [(10, "abcdefgh"), (2, "ab")])
def test_the_custom_kernels_communicators_take_turns(monkeypatch: pytest.MonkeyPatch, calls: int, used: str) -> None:
    log: list[str] = []
    names = iter("abcdefgh")
    monkeypatch.setattr(communicators, "custom", lambda _largest: Carrier(log, next(names)))
    monkeypatch.setattr(paths, "captured", lambda burst: (burst(), burst)[1])
    monkeypatch.setattr(paths, "torch_barrier", lambda: None)
    monkeypatch.setattr(paths, "buffers", lambda _device, sizes: [torch.ones(size) for size in sizes])
    issued = ALLREDUCE["custom_graph"].issue(Shape([2] * calls, [2] * calls))
    assert issued.contract == {"cache": "hot", "buffers": HOT_BUFFERS, "communicators": len(used)}
    assert log[:calls] == [used[call % len(used)] for call in range(calls)]
    # Each rank lets them exchange their handles in the same order, or the handles would be mixed up.
    assert log[calls:] == [f"{name} exchanges handles" for name in reversed(used)]
    held = [result and result.tolist() for result in issued.outputs[:-HOT_BUFFERS]]
    assert held == [None] * (calls - HOT_BUFFERS)  # given back, as the step does
    assert [result.tolist() for result in issued.outputs[-HOT_BUFFERS:]] == [[2.0, 2.0]] * HOT_BUFFERS


def test_symmetric_allocations_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[Any]] = []
    used: list[int] = []

    def symmetric(count: int, elements: int) -> list[Any]:
        made.append([torch.ones(elements) for _ in range(count)])
        return made[-1]

    monkeypatch.setattr(communicators, "symmetric", symmetric)
    monkeypatch.setattr(communicators, "host_group", lambda: SimpleNamespace(group_name="all"))
    monkeypatch.setattr(paths, "captured", lambda burst: (burst(), burst)[1])
    monkeypatch.setattr(paths, "torch_barrier", lambda: None)
    monkeypatch.setattr(paths, "buffers", lambda _device, sizes: [torch.ones(size) for size in sizes])
    ops = SimpleNamespace(one_shot_all_reduce_out=lambda given, *_: used.append(given.data_ptr()))
    monkeypatch.setattr(torch.ops, "symm_mem", ops)
    issued = ALLREDUCE["symm_mem_graph"].issue(Shape([4] * 20, [4] * 20))
    assert [len(place) for place in made] == [1] * SYMMETRIC_ALLOCATIONS
    places = addresses([place[0] for place in made])
    assert used == [places[call % SYMMETRIC_ALLOCATIONS] for call in range(20)]
    assert issued.contract["allocations"] == SYMMETRIC_ALLOCATIONS
