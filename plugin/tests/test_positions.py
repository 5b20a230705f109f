"""Embedding, rotation and cache write: checks that see wrong numbers, and the calls against released wheels."""

from __future__ import annotations

from typing import Any

import fake_vllm
import pytest
import wheels
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.workloads.kimi import KIMI_K25
from pytest_decodegate.workloads.ops import positions
from pytest_decodegate.workloads.ops.positions import draw_slots, embedding, rope, rotated, wrong_write
from pytest_decodegate.workloads.runtime import op as op_module
from pytest_decodegate.workloads.runtime.op import PLACES

torch = pytest.importorskip("torch", reason="workloads run on torch")


def rotary_embedding(places: Any, query: Any, key: Any, *more: Any) -> None:
    """As vLLM's: in place, pairs of neighbours unless is_neox."""
    size, table, is_neox = more
    cos, sin = table[places].float().chunk(2, dim=1)
    for x in (query, key):
        heads = x.view(len(x), -1, size)
        first, second = (heads.chunk(2, dim=-1)) if is_neox else (heads[..., ::2], heads[..., 1::2])
        turned = first * cos[:, None] - second * sin[:, None], second * cos[:, None] + first * sin[:, None]
        first.copy_(turned[0]), second.copy_(turned[1])


def install(monkeypatch: pytest.MonkeyPatch, **ops: Any) -> None:
    fake_vllm.install(monkeypatch, {"vllm._custom_ops": ops})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_right_rotation_passes_however_often_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, rotary_embedding=rotary_embedding)
    made = rope(4)
    for _ in range(50):
        made.burst()

    assert made.check() is None
    assert made.contract["heads"] == 8


def test_halves_instead_of_neighbours_and_wrong_places_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, rotary_embedding=lambda *args: rotary_embedding(*args[:-1], True))
    assert "the query of rope: relative error" in (rope(4).check() or "")
    install(monkeypatch, rotary_embedding=lambda places, *args: rotary_embedding(places + 1, *args))
    assert "relative error" in (rope(4).check() or "")
    install(monkeypatch, rotary_embedding=lambda p, q, k, *args: rotary_embedding(p, q, k.clone(), *args))
    assert "the key of rope: relative error" in (rope(4).check() or "")


def test_calls_take_turns_on_places_of_all_that_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, ...]] = []

    def noted(*args: Any) -> None:
        read.append(tuple(arg.data_ptr() for arg in args if isinstance(arg, torch.Tensor)))

    def write(latent: Any, key: Any, cache: Any, slots: Any, *_: Any) -> None:
        cache.flatten(0, 1)[slots] = torch.cat([latent, key], dim=1)
        noted(latent, key, slots)

    def turn(*args: Any) -> None:
        rotary_embedding(*args)
        noted(*args)

    install(monkeypatch, rotary_embedding=turn, concat_and_cache_mla=write)
    monkeypatch.setattr(op_module, "calls_per_burst", lambda *_: 2 * PLACES)
    monkeypatch.setattr(positions, "needs_gpu", lambda _: None)
    for made, inputs in ((rope(4), 4), (positions.kv_write(4), 3)):
        read.clear()
        made.burst()
        assert made.contract["places"] == PLACES
        assert read[::2] == read[1::2]
        assert [len(set(column)) for column in zip(*read, strict=True)] == [PLACES] * inputs
        assert made.check() is None


@given(st.integers(1, 5), st.integers(1, 3))
def test_a_rotation_keeps_lengths_and_turns_back(tokens: int, heads: int) -> None:
    x = torch.randn(tokens, heads * 64, generator=torch.Generator().manual_seed(tokens), dtype=torch.float64)
    turned = torch.rand(tokens, 32, generator=torch.Generator().manual_seed(heads), dtype=torch.float64)
    there = rotated(x, turned)
    assert torch.allclose(there.norm(), x.norm())
    assert torch.allclose(rotated(there, -turned), x)


@given(st.integers(1, 64))
def test_a_write_to_the_cache_must_hit_its_slots_and_no_other(tokens: int) -> None:
    slots = draw_slots(tokens, "cpu", seed=tokens)
    written = torch.ones(tokens, 4)
    rows = torch.full((16384, 4), torch.nan)
    rows[slots] = written
    assert wrong_write(rows, slots, written) is None
    assert "a slot does not hold" in (wrong_write(rows.roll(1, 0), slots, written) or "")
    free = int(rows.isnan().any(dim=1).nonzero()[0])
    rows[free] = 1.0
    assert wrong_write(rows, slots, written) == "kv_write: 1 slots hold numbers that were not written"


def test_an_embedding_of_the_wrong_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = embedding(3)
    assert made.check() is None
    assert made.contract["rows"] == KIMI_K25.vocabulary // 8
    honest = torch.nn.functional.embedding
    monkeypatch.setattr(torch.nn.functional, "embedding", lambda ids, weight: honest(ids - ids % 2 + 1, weight))
    assert "of 3 rows, first" in (made.check() or "")


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_have_what_is_called(version: str) -> None:
    ops = wheels.source(version, "vllm/_custom_ops.py")
    bound = wheels.signature(ops, "rotary_embedding").bind("places", "query", "key", 64, "table", False).arguments
    assert list(bound) == ["positions", "query", "key", "head_size", "cos_sin_cache", "is_neox"]
    write = wheels.signature(ops, "concat_and_cache_mla").bind("latent", "key", "cache", "slots", "auto", "scale")
    assert list(write.arguments) == ["kv_c", "k_pe", "kv_cache", "slot_mapping", "kv_cache_dtype", "scale"]
