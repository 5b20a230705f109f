"""How collectives are issued: what a path promises in its contract, and that the clock starts behind the barrier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.workloads.collectives import communicators, paths
from pytest_decodegate.workloads.collectives.allreduce import _clock
from pytest_decodegate.workloads.collectives.alltoall import ALLGATHER, REDUCE_SCATTER
from pytest_decodegate.workloads.collectives.paths import (
    ALLREDUCE,
    ONE_SHOT_BYTES,
    CollectivePath,
    PreparedBurst,
    Shape,
    torch_path,
)
from pytest_decodegate.workloads.runtime.timing import ALIGN_CYCLES, MOST_ALIGN_CYCLES, CudaClock

torch = pytest.importorskip("torch", reason="collectives run on torch")


@pytest.mark.parametrize("named", [ALLREDUCE, ALLGATHER, REDUCE_SCATTER], ids=["allreduce", "allgather", "scatter"])
def test_a_paths_name_says_how_it_is_issued(named: dict[str, CollectivePath]) -> None:
    for name, path in named.items():
        assert path.cuda is not name.endswith("gloo")
        assert path.graph is name.endswith("graph")
        assert path.contract["mode"] == ("graph" if path.graph else "eager")
        assert path.contract["start"] == ("device barrier" if path.cuda else "host barrier")


def test_calls_go_to_distinct_buffers_in_order() -> None:
    seen: list[tuple[int, int, int]] = []
    path = torch_path(
        lambda number, given, result: seen.append((number, given.numel(), result.numel())), cuda=False, graph=False
    )
    issued = path.issue(Shape([4, 6, 8], [8, 12, 16]))
    issued.burst()
    assert seen == [(0, 4, 8), (1, 6, 12), (2, 8, 16)]
    assert len({tensor.data_ptr() for tensor in [*issued.inputs, *issued.outputs]}) == 6


def test_in_place_means_that_the_result_is_where_the_input_was() -> None:
    issued = ALLREDUCE["gloo"].issue(Shape([4, 4], [4, 4]))
    assert issued.outputs is issued.inputs


def test_what_decoding_sends_goes_in_one_shot_and_megabytes_do_not() -> None:
    assert Shape([7168], [7168]).largest_bytes == 14_336 <= ONE_SHOT_BYTES
    assert Shape([1 << 20], [1 << 20]).largest_bytes > ONE_SHOT_BYTES


class Device:
    """Stands in for the stream: notes what is queued; `passed` says whether it has passed the start already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, passed: Iterator[bool]) -> None:
        self.done: list[str] = []
        self._names, self._passed = ["start", "stop"], passed
        monkeypatch.setattr(torch.cuda, "Event", self._event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.done.append(f"sleep {cycles}"), raising=False)

    def _event(self, enable_timing: bool) -> Any:
        name = self._names.pop(0)
        return SimpleNamespace(
            record=lambda: self.done.append(name),
            query=lambda: next(self._passed),
            synchronize=lambda: self.done.append("wait"),
            elapsed_time=lambda _: 2.0,
        )


def test_the_interval_starts_behind_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, iter([]))
    clock = CudaClock(400, prelude=lambda: device.done.append("barrier"))
    assert clock.seconds(lambda: device.done.append("burst")) == 2e-3
    assert device.done == ["sleep 400", "barrier", "start", "burst", "stop", "wait"]


def test_the_device_sleeps_longer_once_the_host_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, iter([False, True, False, True, False]))
    clock = CudaClock(400, ahead=True)
    for _ in range(5):
        clock.seconds(lambda: None)

    assert [step for step in device.done if step.startswith("sleep")] == [
        f"sleep {cycles}" for cycles in (400, 400, 800, 800, 1600)
    ]


def test_a_host_that_is_always_late_does_not_make_the_device_sleep_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    Device(monkeypatch, repeat(True))
    clock = CudaClock(ALIGN_CYCLES, ahead=True)
    for _ in range(20):
        clock.seconds(lambda: None)

    assert clock.sleep_cycles == MOST_ALIGN_CYCLES


@pytest.mark.parametrize("path", ["eager", "graph"])
def test_only_a_graph_can_be_queued_before_its_interval(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    device = Device(monkeypatch, repeat(True))
    clock = _clock(ALLREDUCE[path], PreparedBurst(lambda: None, [], []))
    for _ in range(2):
        clock.seconds(lambda: None)

    sleeps = [step for step in device.done if step.startswith("sleep")]
    assert sleeps == [f"sleep {ALIGN_CYCLES}", f"sleep {ALIGN_CYCLES * (2 if path == 'graph' else 1)}"]


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
    assert issued.contract == {"communicators": len(used)}
    assert log[:calls] == [used[call % len(used)] for call in range(calls)]
    # Each rank lets them exchange their handles in the same order, or the handles would be mixed up.
    assert log[calls:] == [f"{name} exchanges handles" for name in reversed(used)]
    assert [result.tolist() for result in issued.outputs] == [[2.0, 2.0]] * calls
