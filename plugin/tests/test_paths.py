"""How collectives are issued: what a path promises in its contract, and that the clock starts behind the barrier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.workloads.alltoall import ALLGATHER, REDUCE_SCATTER
from pytest_decodegate.workloads.paths import ALLREDUCE, ONE_SHOT_BYTES, Path, Shape, torch_path
from pytest_decodegate.workloads.timing import CudaClock

torch = pytest.importorskip("torch", reason="collectives run on torch")


@pytest.mark.parametrize("paths", [ALLREDUCE, ALLGATHER, REDUCE_SCATTER], ids=["allreduce", "allgather", "scatter"])
def test_a_paths_name_says_how_it_is_issued(paths: dict[str, Path]) -> None:
    for name, path in paths.items():
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


def test_the_interval_starts_behind_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def event(enable_timing: bool) -> Any:
        name = names.pop(0)
        return SimpleNamespace(
            record=lambda: done.append(name), synchronize=lambda: done.append("wait"), elapsed_time=lambda _: 2.0
        )

    names = ["start", "stop"]
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append(f"sleep {cycles}"), raising=False)
    clock = CudaClock(400, prelude=lambda: done.append("barrier"))
    assert clock.seconds(lambda: done.append("burst")) == 2e-3
    assert done == ["sleep 400", "barrier", "start", "burst", "stop", "wait"]
