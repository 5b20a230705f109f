"""Rotations long enough to be cold, bursts long enough for the clock, and checks that cannot pass on old numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.workloads.runtime import op as op_module
from pytest_decodegate.workloads.runtime.op import (
    LEAST_COPIES,
    LEAST_STAY,
    PLACES,
    SPREAD_BYTES,
    Op,
    calls_per_burst,
    copies_to_be_cold,
    normal,
    placed,
    spread,
    weight_copies,
    workload,
)
from pytest_decodegate.workloads.runtime.timing import Traffic, relative_error, wrong_if_above
from pytest_decodegate.workloads.versions import CLOCKS

torch = pytest.importorskip("torch", reason="workloads run on torch")

L2_BYTES = 50 << 20
sizes = st.floats(1.0, 1e10)


@pytest.fixture(autouse=True)
def an_l2_of_50_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_module, "l2_bytes", lambda device: L2_BYTES if device == "cuda" else 0)


@given(sizes)
def test_copies_are_as_few_as_the_cache_forgets(read_bytes: float) -> None:
    copies = copies_to_be_cold(read_bytes, "cuda")
    needed = op_module.COLD_MARGIN * L2_BYTES
    assert copies * read_bytes >= needed * (1 - 1e-12)
    assert copies == 1 or (copies - 1) * read_bytes < needed


@given(sizes)
def test_a_burst_is_whole_rounds_within_its_limits(read_bytes: float) -> None:
    copies = copies_to_be_cold(read_bytes, "cuda")
    calls = calls_per_burst(read_bytes, copies, "cuda")
    assert calls % copies == 0
    assert op_module.LEAST_CALLS <= calls < max(op_module.MOST_CALLS, copies) + copies


def test_without_a_gpu_each_copy_is_used_once() -> None:
    copies = copies_to_be_cold(1e6, "cpu")
    assert calls_per_burst(1e6, copies, "cpu") == copies > 1


def doubling(call: Any, restore: Any = None) -> Op:
    """An op that should give 2, 2, 2, ... on each of two copies."""

    def wrong(copy: int, output: Any) -> str | None:
        return wrong_if_above(relative_error(output, torch.full_like(output, 2.0)), 1e-6, f"copy {copy}")

    return Op("doubling", "[4]", "cpu", call, wrong, Traffic(1.0, 1.0), copies=2, restore=restore)


def test_right_numbers_pass_and_the_contract_says_how() -> None:
    made = workload(doubling(lambda _: torch.ones(4) * 2), {"tokens": 1})
    assert made.check() is None
    assert made.sample() > 0
    assert made.contract["tokens"] == 1
    assert (made.contract["mode"], made.contract["device"], made.contract["clock"]) == ("eager", "cpu", "perf_counter")
    assert made.contract["clock_version"] == CLOCKS["perf_counter"]


def test_the_last_copy_is_checked_too() -> None:
    made = workload(doubling(lambda copy: torch.ones(4) * (2 if copy == 0 else 3)), {})
    assert "copy 1: relative error 0.5" in (made.check() or "")


def test_an_output_that_is_not_written_again_does_not_pass() -> None:
    kept = [torch.full((4,), 2.0), torch.full((4,), 2.0)]
    made = workload(doubling(lambda copy: kept[copy]), {})
    assert made.check() is None  # nothing to overwrite before the first burst
    assert "relative error nan" in (made.check() or "")


def test_an_op_that_overwrites_its_input_is_checked_on_fresh_input_again_and_again() -> None:
    inputs = [torch.ones(4), torch.ones(4)]

    def restore() -> None:
        for tensor in inputs:
            tensor.fill_(1.0)

    made = workload(doubling(lambda copy: inputs[copy].mul_(2), restore), {})
    made.burst()
    assert made.check() is None
    assert made.check() is None


def test_integers_are_overwritten_with_what_no_index_is() -> None:
    output = torch.tensor([3, 1])
    op_module.poison([(output, None), None])
    assert output.tolist() == [-1, -1]


def test_normal_numbers_come_again_for_the_same_seed_only() -> None:
    first, again, other = (normal(64, where="cpu", seed=seed, scale=0.02) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype is torch.bfloat16
    assert 0.01 < float(first.float().std()) < 0.03


@pytest.fixture
def made_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Room for the copies in the order of calls; capturing is a fake that hands back what it should capture."""
    called: list[int] = []
    monkeypatch.setattr(op_module, "captured", lambda burst: burst)
    monkeypatch.setattr(op_module, "CudaClock", lambda _cycles, *, ahead: None)
    return called


def test_a_burst_on_a_gpu_goes_round_all_copies_and_its_hot_twin_stays_on_one(made_on_a_gpu: list[int]) -> None:
    def call(copy: int) -> Any:
        made_on_a_gpu.append(copy)
        return torch.ones(4)

    size = 20 << 20
    copies = copies_to_be_cold(size, "cuda")
    op = Op("reading", "[4]", "cuda", call, lambda *_: None, Traffic(size, 1.0), copies, size, cold=True)
    made = workload(op, {})
    made.burst()
    assert made.contract["cache"] == "cold"
    assert made_on_a_gpu == list(range(copies)) * (made.calls // copies)
    made_on_a_gpu.clear()
    assert made.hot is not None
    made.hot()()
    assert made_on_a_gpu == [0] * made.calls


@pytest.mark.usefixtures("made_on_a_gpu")
def test_what_the_cache_cannot_hold_has_no_hot_twin() -> None:
    size = 300 << 20
    op = Op("reading", "[4]", "cuda", lambda _: torch.ones(4), lambda *_: None, Traffic(size, 1.0), 1, size, cold=True)
    assert workload(op, {}).hot is None


@pytest.mark.usefixtures("made_on_a_gpu")
def test_what_lives_in_the_cache_promises_nothing_about_memory() -> None:
    op = Op("tiny", "[4]", "cuda", lambda _: torch.ones(4), lambda *_: None, Traffic(1.0, 1.0))
    made = workload(op, {})
    assert (made.contract["cache"], made.contract["mode"], made.calls) == ("hot", "graph", op_module.MOST_CALLS)
    assert made.hot is None
    assert "bytes_between_uses" not in made.facts


@given(st.floats(1e6, 1e10), st.integers(2, PLACES))
def test_a_burst_stays_long_enough_at_each_place(read_bytes: float, places: int) -> None:
    copies = weight_copies(read_bytes, "cuda")
    calls = calls_per_burst(read_bytes, copies, "cuda", places)
    assert copies >= LEAST_COPIES
    assert calls % copies == 0
    op = Op("reading", "[4]", "cuda", lambda *_: None, lambda *_: None, Traffic(1.0, 1.0), copies, places=places)
    order = [place for (place,) in op_module._places(op, calls)]
    assert order == sorted(order)
    stays = [order.count(place) for place in range(places)]
    assert max(stays) - min(stays) <= 1
    assert min(stays) >= (LEAST_STAY if 2 * read_bytes <= L2_BYTES else 1)


def test_the_calls_of_a_burst_read_at_each_place_in_turn_from_each_copy(made_on_a_gpu: list[Any]) -> None:
    def call(copy: int, place: int) -> Any:
        made_on_a_gpu.append((copy, place))
        return torch.ones(4)

    size = 20 << 20
    copies = weight_copies(size, "cuda")
    op = Op("reading", "[4]", "cuda", call, lambda *_: None, Traffic(size, 1.0), copies, size, cold=True, places=PLACES)
    made = workload(op, {})
    made.burst()
    assert made.contract["places"] == PLACES
    assert [copy for copy, _ in made_on_a_gpu] == list(range(copies)) * (made.calls // copies)
    assert sorted({place for _, place in made_on_a_gpu}) == list(range(PLACES))
    made_on_a_gpu.clear()
    assert made.hot is not None
    made.hot()()
    assert [copy for copy, _ in made_on_a_gpu] == [0] * made.calls
    assert sorted({place for _, place in made_on_a_gpu}) == list(range(PLACES))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, PLACES))
def test_the_places_of_an_input_hold_its_numbers_and_do_not_overlap(shape: list[int], places: int) -> None:
    tensor = normal(*shape, where="cpu", seed=3)
    made = placed(tensor, places)
    assert all(torch.equal(each, tensor) for each in made)
    starts = sorted(each.data_ptr() for each in made)
    size = tensor.numel() * tensor.element_size()
    assert all(after - before >= max(size, op_module.PLACE_STRIDE) for before, after in pairwise(starts))
    assert not any(start % 256 for start in (each - starts[0] for each in starts))


class Card:
    """Free memory that shrinks with what is taken of it; the second gap is refused, as by another gang."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gaps: list[int] = []
        self.emptied = 0
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 << 30, 141 << 30))
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty_cache)

    def empty(self, size: int, **_: Any) -> object:
        self.gaps.append(size)
        if len(self.gaps) == 2:
            raise torch.OutOfMemoryError

        return object()

    def empty_cache(self) -> None:
        self.emptied += 1


def test_large_weights_are_allocated_apart_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)
    assert spread(4, str, SPREAD_BYTES, "cuda") == ["0", "1", "2", "3"]
    assert card.gaps == [1 << 30] * 3
    assert card.emptied == 1
    assert spread(4, str, SPREAD_BYTES - 1, "cuda") == spread(4, str, SPREAD_BYTES, "cpu") == ["0", "1", "2", "3"]
    assert (len(card.gaps), card.emptied) == (3, 1)
