"""Adapters of MLA decode backends: fakes with the signatures of the released wheels compute what they are asked for."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import wheels
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput
from pytest_decodegate.workloads.ops import mla_backends
from pytest_decodegate.workloads.ops.attention import draw_batch, reference
from pytest_decodegate.workloads.ops.mla_backends import DecodeBatch, choose, decode_with, triton_splits
from pytest_decodegate.workloads.runtime.timing import relative_error

torch = pytest.importorskip("torch", reason="workloads run on torch")

TRITON = "vllm/v1/attention/ops/triton_decode_attention.py"
FLASH_ATTN = "vllm/vllm_flash_attn/flash_attn_interface.py"
FLASH_MLA = "vllm/third_party/flashmla/flash_mla_interface.py"
REQUESTS, HEADS, CONTEXT, PAGE = 3, 8, 128, 16


@pytest.fixture
def small_batch() -> tuple[DecodeBatch, Any]:
    """Three requests of 128 tokens and two page tables for them."""
    return draw_batch(REQUESTS, CONTEXT, HEADS, PAGE, copies=2, where="cpu", seed=3)


def attend(query: Any, keys: Any, values: Any, table: Any, lengths: Any, scale: float) -> Any:
    """Attention of [requests, heads, width] over paged keys [pages, page, 1, width], one query token a request."""
    outputs = []
    for request, length in enumerate(lengths.tolist()):
        k, v = (part[table[request].long()].flatten(0, 2)[:length].float() for part in (keys, values))
        outputs.append((query[request].float() @ k.t() * scale).softmax(dim=-1) @ v)

    return torch.stack(outputs).bfloat16()


def with_signature(version: str, path: str, name: str, compute: Callable[[SimpleNamespace], Any]) -> Any:
    """A fake of the function as `version` declares it: what does not bind raises TypeError."""
    signature: inspect.Signature = wheels.signature(wheels.source(version, path), name)

    def fake(*args: Any, **kwargs: Any) -> Any:
        return compute(SimpleNamespace(**signature.bind(*args, **kwargs).arguments))

    return fake


def assert_right(decode: Callable[[Any], Any], batch: DecodeBatch, tables: Any) -> None:
    everyone = list(range(REQUESTS))
    for table in tables:
        assert relative_error(decode(table), reference(batch, table, everyone)) < 1e-2


def test_no_page_is_in_two_tables_or_every_context_would_be_the_same_bytes(
    small_batch: tuple[DecodeBatch, Any],
) -> None:
    batch, tables = small_batch
    assert tables.shape == (2, REQUESTS, CONTEXT // PAGE)
    assert sorted(tables.flatten().tolist()) == list(range(len(batch.cache)))


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_triton_mla_is_called_as_its_layer_does(
    monkeypatch: pytest.MonkeyPatch, small_batch: tuple[DecodeBatch, Any], version: str
) -> None:
    def compute(a: SimpleNamespace) -> None:
        assert a.attn_logits.shape == (REQUESTS, HEADS, a.num_kv_splits, 513)
        assert a.lse.shape == (REQUESTS, HEADS)
        assert (a.page_size, a.is_mla, float(a.k_scale), float(a.v_scale)) == (PAGE, True, 1.0, 1.0)
        a.o.copy_(attend(a.q, a.k_buffer, a.v_buffer, a.req_to_token, a.b_seq_len, a.sm_scale))

    fake = with_signature(version, TRITON, "decode_attention_fwd", compute)
    fake_vllm.gpu(monkeypatch, (12, 0))
    fake_vllm.install(monkeypatch, {f"{mla_backends.MODULES}.triton_mla": {"decode_attention_fwd": fake}})
    batch, tables = small_batch
    assert_right(decode_with("TRITON_MLA", batch), batch, tables)


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_flash_attn_mla_is_called_as_its_layer_does(
    monkeypatch: pytest.MonkeyPatch, small_batch: tuple[DecodeBatch, Any], version: str
) -> None:
    def schedule(a: SimpleNamespace) -> str:
        assert (a.headdim, a.headdim_v, a.page_size, a.num_splits) == (64, 512, PAGE, 32)
        return "schedule"

    def compute(a: SimpleNamespace) -> Any:
        assert (a.fa_version, a.scheduler_metadata, a.num_splits, a.causal) == (3, "schedule", 32, True)
        assert a.cu_seqlens_q.tolist() == list(range(REQUESTS + 1))
        assert (a.max_seqlen_q, a.max_seqlen_k) == (1, CONTEXT)
        query, keys = torch.cat([a.q_v, a.q], dim=-1), torch.cat([a.v, a.k], dim=-1)
        return attend(query, keys, a.v, a.block_table, a.seqused_k, a.softmax_scale)

    fakes = {
        "get_scheduler_metadata": with_signature(version, FLASH_ATTN, "get_scheduler_metadata", schedule),
        "flash_attn_varlen_func": with_signature(version, FLASH_ATTN, "flash_attn_varlen_func", compute),
    }
    fake_vllm.install(monkeypatch, {f"{mla_backends.MODULES}.flashattn_mla": fakes})
    attention = SimpleNamespace(flash_attn_max_num_splits_for_cuda_graph=32)
    monkeypatch.setattr(mla_backends, "_defaults", lambda: SimpleNamespace(attention_config=attention))
    batch, tables = small_batch
    assert_right(decode_with("FLASH_ATTN_MLA", batch), batch, tables)


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_flashmla_is_called_as_its_layer_does(
    monkeypatch: pytest.MonkeyPatch, small_batch: tuple[DecodeBatch, Any], version: str
) -> None:
    def compute(a: SimpleNamespace) -> Any:
        assert (a.tile_scheduler_metadata, a.head_dim_v, a.causal, a.is_fp8_kvcache) == ("schedule", 512, True, False)
        assert a.q.shape == (REQUESTS, 1, HEADS, 576)
        values = a.k_cache[..., : a.head_dim_v]
        output = attend(a.q[:, 0], a.k_cache, values, a.block_table, a.cache_seqlens, a.softmax_scale)
        return output.unsqueeze(1), None

    fakes = {
        "get_mla_metadata": with_signature(version, FLASH_MLA, "get_mla_metadata", lambda _: ("schedule", None)),
        "flash_mla_with_kvcache": with_signature(version, FLASH_MLA, "flash_mla_with_kvcache", compute),
    }
    fake_vllm.install(monkeypatch, {f"{mla_backends.MODULES}.flashmla": fakes})
    batch, tables = small_batch
    assert_right(decode_with("FLASHMLA", batch), batch, tables)


@pytest.mark.parametrize(("context", "splits"), [(16, 1), (1024, 2), (1536, 4), (8192, 16), (32768, 64), (262144, 264)])
def test_triton_splits_are_powers_of_two_up_to_two_a_multiprocessor(context: int, splits: int) -> None:
    assert triton_splits(context, multiprocessors=132) == splits


@given(st.integers(1, 1 << 20), st.integers(1, 200))
def test_more_context_never_means_fewer_splits(context: int, multiprocessors: int) -> None:
    fewer, more = (triton_splits(tokens, multiprocessors) for tokens in (context, context + 512))
    assert 1 <= fewer <= more <= 2 * multiprocessors


@pytest.fixture
def vllm_that_selects(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has a fake platform select the backend of that name, whatever is asked for."""
    configured = {"set_current_vllm_config": lambda _: contextlib.nullcontext()}
    fake_vllm.install(monkeypatch, {"vllm.config": configured})
    monkeypatch.setattr(mla_backends, "_defaults", lambda: None)
    monkeypatch.setattr(mla_backends, "_default_page_size", lambda: 16)

    def select(name: str) -> None:
        backend = SimpleNamespace(get_name=lambda: name, get_preferred_block_size=lambda default: default)
        monkeypatch.setattr(mla_backends, "_selected", lambda *_: backend)

    choose.cache_clear()
    yield select
    choose.cache_clear()


def test_what_vllm_selects_is_taken(vllm_that_selects: Callable[[str], None]) -> None:
    vllm_that_selects("FLASH_ATTN_MLA")
    assert choose(None, 8) == mla_backends.MlaBackend("FLASH_ATTN_MLA", 16)


def test_a_pin_that_vllm_does_not_follow_is_refused(vllm_that_selects: Callable[[str], None]) -> None:
    vllm_that_selects("CPU_MLA")
    with pytest.raises(BadInput, match="pinned to 'FLASHMLA', but vLLM takes 'CPU_MLA' on this device"):
        choose("FLASHMLA", 8)


def test_a_backend_without_an_adapter_is_refused_with_those_that_have_one(
    vllm_that_selects: Callable[[str], None],
) -> None:
    vllm_that_selects("CUTLASS_MLA")
    with pytest.raises(BadInput, match=r"selects 'CUTLASS_MLA', .* pin one of FLASH_ATTN_MLA, FLASHMLA, TRITON_MLA"):
        choose(None, 8)


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_have_the_selection_that_is_called(version: str) -> None:
    selector = wheels.source(version, "vllm/v1/attention/selector.py")
    fields = selector.partition("class AttentionSelectorConfig(NamedTuple):")[2].partition("def ")[0]
    for name in ("head_size", "dtype", "kv_cache_dtype", "block_size", "use_mla"):
        assert f"    {name}: " in fields

    platform = wheels.source(version, "vllm/platforms/cuda.py")
    arguments = platform.partition("def get_attn_backend_cls(")[2].partition(")")[0]
    assert [line.split(":")[0].strip() for line in arguments.split(",")][:4] == [
        "cls",
        "selected_backend",
        "attn_selector_config",
        "num_heads",
    ]
    assert "DEFAULT_BLOCK_SIZE: ClassVar[int]" in wheels.source(version, "vllm/config/cache.py")
    assert "def get_preferred_block_size(cls, default_block_size" in wheels.source(
        version, "vllm/v1/attention/backend.py"
    )
    attention = wheels.source(version, "vllm/config/attention.py")
    assert "flash_attn_max_num_splits_for_cuda_graph: int" in attention


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_released_wheels_split_as_is_copied_here(version: str) -> None:
    layer = wheels.source(version, "vllm/v1/attention/backends/mla/triton_mla.py")
    work, blocks = mla_backends.TRITON_WORK_PER_SPLIT, mla_backends.TRITON_BLOCKS_PER_SM
    assert f"min_work_per_split = {work}" in layer or f"_MIN_WORK_PER_SPLIT = {work}" in layer
    assert f"occupancy_multiplier = {blocks}" in layer or f"_SPLIT_OCCUPANCY_MULTIPLIER = {blocks}" in layer
