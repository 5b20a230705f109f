"""vLLM's MLA decode backends: which one it would choose here, and each one's decode kernel as its layer calls it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import BadInput
from ..kimi import KIMI_K25

MODULES = "vllm.v1.attention.backends.mla"

TRITON_WORK_PER_SPLIT = 512
TRITON_BLOCKS_PER_SM = 2
"""How TritonMLAImpl.forward_mqa splits the context, the same from 0.20.0 to 0.33.0."""


@dataclass(frozen=True, slots=True)
class MlaBackend:
    """An MLA decode backend by vLLM's name for it, and the tokens in a page of its cache by default."""

    name: str
    page_size: int


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One decode batch, one query token a request.

    q_nope bf16 [requests, heads, 512] (W_UK absorbed), q_pe bf16 [requests, heads, 64], cache bf16 [pages, page, 576],
    lengths int32 [requests], all equal to `context`. Page tables int32 [requests, context / page] come with each call.
    """

    q_nope: Any
    q_pe: Any
    cache: Any
    lengths: Any
    context: int


Decode = Callable[[Any], Any]
"""From a page table to the attention's output, bf16 [requests, heads, 512]."""


@functools.cache
def choose(pinned: str | None, heads: int) -> MlaBackend:
    """The backend that vLLM's platform selects for MLA with bf16 cache on this device, or `pinned`.

    Raises BadInput if vLLM does not know or does not take `pinned`, or if there is no adapter for what it selects.
    """
    from vllm.config import set_current_vllm_config

    # Some backends look for a configuration when asked what they support; an empty one serves them.
    with set_current_vllm_config(_defaults()):
        selected = _selected(pinned, heads)
        backend = MlaBackend(selected.get_name(), selected.get_preferred_block_size(_default_page_size()))

    if pinned and backend.name != pinned:
        raise BadInput(
            f"MLA decode: pinned to {pinned!r}, but vLLM takes {backend.name!r} on this device; pin that one, or none"
        )
    if backend.name not in ADAPTERS:
        raise BadInput(
            f"MLA decode: vLLM selects {backend.name!r}, which decodegate has no adapter for; pin one of "
            f"{', '.join(ADAPTERS)} with --perf-pin attention=NAME"
        )

    return backend


@functools.cache
def _defaults() -> Any:
    """The configuration of vLLM with nothing configured; making one takes a second."""
    from vllm.config import VllmConfig

    return VllmConfig()


def _selected(pinned: str | None, heads: int) -> Any:
    import torch
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    if pinned and pinned not in AttentionBackendEnum.__members__:
        known = [name for name in AttentionBackendEnum.__members__ if "MLA" in name]
        raise BadInput(f"MLA decode: this vLLM has no attention backend {pinned!r}; it has {', '.join(known)}")

    config = AttentionSelectorConfig(
        head_size=KIMI_K25.kv_row, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None, use_mla=True
    )
    wanted = AttentionBackendEnum[pinned] if pinned else None
    try:
        path = current_platform.get_attn_backend_cls(wanted, config, num_heads=heads)
    except ValueError as error:
        raise BadInput(
            f"MLA decode: vLLM has no backend for this device ({error}); pin another one with --perf-pin "
            "attention=NAME, or leave this test out with -k"
        ) from error

    return resolve_obj_by_qualname(path)


def _default_page_size() -> int:
    from vllm.config.cache import CacheConfig

    size: int = CacheConfig.DEFAULT_BLOCK_SIZE
    return size


def decode_with(name: str, batch: DecodeBatch) -> Decode:
    """The decode kernel of backend `name` on `batch`. What the layers of one step share, its calls share."""
    return ADAPTERS[name](batch)


def _triton(batch: DecodeBatch) -> Decode:
    import torch

    decode_attention_fwd = importlib.import_module(f"{MODULES}.triton_mla").decode_attention_fwd
    query = torch.cat([batch.q_nope, batch.q_pe], dim=-1)
    keys = batch.cache.unsqueeze(2)
    splits = triton_splits(batch.context, torch.cuda.get_device_properties(query.device).multi_processor_count)
    # The kernel's default would be copied from the host, which a graph cannot capture.
    unit = torch.ones((), dtype=torch.float32, device=query.device)

    def decode(table: Any) -> Any:
        output = torch.empty_like(batch.q_nope)
        partial_sums = query.new_empty(*query.shape[:2], splits, output.shape[2] + 1, dtype=torch.float32)
        decode_attention_fwd(
            query,
            keys,
            keys[..., : KIMI_K25.kv_lora_rank],
            output,
            query.new_empty(query.shape[:2]),
            table,
            batch.lengths,
            partial_sums,
            splits,
            KIMI_K25.softmax_scale,
            batch.cache.shape[1],
            k_scale=unit,
            v_scale=unit,
            is_mla=True,
        )
        return output

    return decode


def triton_splits(context: int, multiprocessors: int) -> int:
    """Parts of the context that are worked on at once: a power of two, 512 tokens or more each, at most two per SM."""
    ideal = max(1, context // TRITON_WORK_PER_SPLIT)
    return min(1 << (ideal - 1).bit_length(), multiprocessors * TRITON_BLOCKS_PER_SM)


def _flash_attn(batch: DecodeBatch) -> Decode:
    import torch

    module = importlib.import_module(f"{MODULES}.flashattn_mla")
    latent = KIMI_K25.kv_lora_rank
    starts = torch.arange(batch.q_nope.shape[0] + 1, dtype=torch.int32, device=batch.cache.device)
    # With a full CUDA graph vLLM bounds the splits, so that the scratch can be allocated at capture.
    splits = _defaults().attention_config.flash_attn_max_num_splits_for_cuda_graph
    schedule = _flash_attn_schedule(module, batch, starts, splits)

    def decode(table: Any) -> Any:
        return module.flash_attn_varlen_func(
            q=batch.q_pe,
            k=batch.cache[..., latent:].unsqueeze(-2),
            v=batch.cache[..., :latent].unsqueeze(-2),
            q_v=batch.q_nope,
            max_seqlen_q=1,
            cu_seqlens_q=starts,
            max_seqlen_k=batch.context,
            seqused_k=batch.lengths,
            block_table=table,
            softmax_scale=KIMI_K25.softmax_scale,
            causal=True,
            fa_version=3,
            scheduler_metadata=schedule,
            num_splits=splits,
        )

    return decode


def _flash_attn_schedule(module: Any, batch: DecodeBatch, starts: Any, splits: int) -> Any:
    """Made once for all layers of a step, as FlashAttnMLAMetadataBuilder._schedule_decode does."""
    requests, heads, latent = batch.q_nope.shape
    return module.get_scheduler_metadata(
        batch_size=requests,
        max_seqlen_q=1,
        max_seqlen_k=batch.context,
        num_heads_q=heads,
        num_heads_kv=1,
        headdim=batch.q_pe.shape[2],
        cache_seqlens=batch.lengths,
        qkv_dtype=batch.cache.dtype,
        headdim_v=latent,
        page_size=batch.cache.shape[1],
        cu_seqlens_q=starts,
        causal=True,
        num_splits=splits,
    )


def _flash_mla(batch: DecodeBatch) -> Decode:
    import torch

    module = importlib.import_module(f"{MODULES}.flashmla")
    query = torch.cat([batch.q_nope, batch.q_pe], dim=-1).unsqueeze(1)
    # Filled in by the first call and used by all others, as by the layers of one step.
    schedule, _ = module.get_mla_metadata(batch.lengths, query.shape[2], 1, is_fp8_kvcache=False)

    def decode(table: Any) -> Any:
        output, _ = module.flash_mla_with_kvcache(
            q=query,
            k_cache=batch.cache.unsqueeze(-2),
            block_table=table,
            cache_seqlens=batch.lengths,
            head_dim_v=KIMI_K25.kv_lora_rank,
            tile_scheduler_metadata=schedule,
            softmax_scale=KIMI_K25.softmax_scale,
            causal=True,
            is_fp8_kvcache=False,
        )
        return output.squeeze(1)

    return decode


def _cpu(batch: DecodeBatch) -> Decode:
    import torch
    import vllm._custom_ops as ops

    query = torch.cat([batch.q_nope, batch.q_pe], dim=-1)

    def decode(table: Any) -> Any:
        output = torch.zeros_like(batch.q_nope)
        ops.mla_decode_kvcache_cpu(output, query, batch.cache, KIMI_K25.softmax_scale, table, batch.lengths)
        return output

    return decode


ADAPTERS: dict[str, Callable[[DecodeBatch], Decode]] = {
    "FLASH_ATTN_MLA": _flash_attn,
    "FLASHMLA": _flash_mla,
    "TRITON_MLA": _triton,
    "CPU_MLA": _cpu,
}
