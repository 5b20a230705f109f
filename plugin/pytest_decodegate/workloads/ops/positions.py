"""What depends on a token's id or place: its embedding, the rotation of query and key, the write to the MLA cache.

Launch and latency bound them, so nothing is promised about bytes: their cache is "hot". What rope and kv_write read
takes turns on PLACES places: they are chains of a few reads, and how far each line lies from the SM decides their time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.failures import explained, needs_gpu
from ..runtime.op import PLACES, Op, device, normal, placed, workload
from ..runtime.timing import Traffic, Workload, needs, relative_error, wrong_if_above
from ..versions import workload_fields

if TYPE_CHECKING:
    from ...metric import Json

ERROR_LIMIT = 1e-2
"""Relative error accepted: cosines, sines and the result rounded to bf16 cost 4e-3."""

POSITIONS = 8192
"""Tokens are drawn from so many positions; vLLM's table goes on to the longest context, which costs no time."""

PAGES, PAGE_SIZE = 256, 64
"""Of the cache that is written: room for any batch, and a page as FlashMLA wants it."""

SLOT_BYTES = 8


def rope(tokens: int, tensor_parallel: int = 8, seed: int = 0) -> Workload:
    """Rotate the 64 rotary values of each query head and of the key, in place, by `ops.rotary_embedding`.

    Query bf16 [tokens, heads * 64], key bf16 [tokens, 64], neighbours paired (is_neox False), as DeepSeek's models are.
    A rotation keeps lengths, so the numbers stay finite however often it runs. On an H200 the processes of one run took
    1.76 to 1.85 us at 8 tokens with one place each, every process within 0.2 %.
    """
    needs("vllm", "rope")
    where, heads = device(), KIMI_K25.shard(tensor_parallel).heads
    size = KIMI_K25.qk_rope_head_dim
    query, key = (
        normal(tokens, count * size, where=where, seed=seed + offset) for offset, count in ((0, heads), (1, 1))
    )
    positions = _positions(tokens, where, seed)
    shapes = f"bf16 [{tokens}, {heads} x {size}] and [{tokens}, {size}]"
    with explained("rope", shapes):
        return workload(
            _rope(query, key, positions, shapes, where),
            {**_contract("vllm.rotary_embedding", tokens, seed), "heads": heads},
        )


def _positions(tokens: int, where: str, seed: int) -> Any:
    import torch

    return torch.randint(POSITIONS, (tokens,), generator=torch.Generator().manual_seed(seed)).to(where)


def angles(where: str) -> Any:
    """Angles float64 [POSITIONS, 32]: place times theta ** (-2 i / 64), theta of the model, its yarn left out."""
    import torch

    size = KIMI_K25.qk_rope_head_dim
    powers = torch.arange(0, size, 2, dtype=torch.float64, device=where) / size
    return torch.arange(POSITIONS, dtype=torch.float64, device=where)[:, None] * KIMI_K25.rope_theta**-powers


def _rope(query0: Any, key0: Any, positions0: Any, shapes: str, where: str) -> Op:
    import torch
    import vllm._custom_ops as ops

    turned = angles(where)
    table0 = torch.cat([turned.cos(), turned.sin()], dim=1).to(torch.bfloat16)
    inputs = list(zip(*(placed(each, PLACES) for each in (positions0, query0, key0, table0)), strict=True))

    def restore() -> None:
        for _, query, key, _ in inputs:
            query.copy_(query0)
            key.copy_(key0)

    def call(_: int, place: int) -> Any:
        positions, query, key, table = inputs[place]
        ops.rotary_embedding(positions, query, key, KIMI_K25.qk_rope_head_dim, table, False)
        return query, key

    def wrong(_: int, output: Any) -> str | None:
        pairs = zip(("query", "key"), output, (query0, key0), strict=True)
        errors = ((what, relative_error(got, rotated(given, turned[positions0]))) for what, got, given in pairs)
        found = (wrong_if_above(error, ERROR_LIMIT, f"the {what} of rope") for what, error in errors)
        return next((sentence for sentence in found if sentence), None)

    turning = query0.numel() + key0.numel()
    values = 2 * turning + len(positions0) * KIMI_K25.qk_rope_head_dim
    traffic = Traffic(bytes=float(values * BF16_BYTES), flops=3.0 * turning)
    return Op("rope", shapes, where, call, wrong, traffic, restore=restore, places=PLACES)


def rotated(x: Any, turned: Any) -> Any:
    """Rows of `x` [tokens, heads * 64] with each pair of neighbours turned by `turned` [tokens, 32], in float64."""
    import torch

    pairs = x.double().view(len(x), -1, turned.shape[1], 2)
    cos, sin = turned.cos()[:, None], turned.sin()[:, None]
    first, second = pairs.unbind(-1)
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(1)


def kv_write(tokens: int, seed: int = 0) -> Workload:
    """Put the latent bf16 [tokens, 512] and the rotated key [tokens, 64] into slots of the MLA cache of one layer.

    By `ops.concat_and_cache_mla`, cache bf16 [pages, 64, 576], slots drawn without repetition. GPU only.
    """
    needs("vllm", "kv_write")
    needs_gpu("kv_write")
    where = device()
    latent = normal(tokens, KIMI_K25.kv_lora_rank, where=where, seed=seed)
    key = normal(tokens, KIMI_K25.qk_rope_head_dim, where=where, seed=seed + 1)
    shapes = f"bf16 [{tokens}, {KIMI_K25.kv_row}]"
    with explained("kv_write", shapes):
        op = _kv_write(latent, key, draw_slots(tokens, where, seed), shapes, where)
        return workload(op, _contract("vllm.concat_and_cache_mla", tokens, seed))


def draw_slots(tokens: int, where: str, seed: int) -> Any:
    """Distinct slots int64 [tokens] of the cache."""
    import torch

    return torch.randperm(PAGES * PAGE_SIZE, generator=torch.Generator().manual_seed(seed))[:tokens].to(where)


def _kv_write(latent: Any, key: Any, slots: Any, shapes: str, where: str) -> Op:
    import torch
    import vllm._custom_ops as ops

    cache = latent.new_zeros(PAGES, PAGE_SIZE, KIMI_K25.kv_row)
    scale = torch.ones(1, device=where)
    inputs = list(zip(*(placed(each, PLACES) for each in (latent, key, slots)), strict=True))

    def call(_: int, place: int) -> Any:
        here, key_here, slots_here = inputs[place]
        ops.concat_and_cache_mla(here, key_here, cache, slots_here, "auto", scale)
        return cache

    def wrong(_: int, output: Any) -> str | None:
        return wrong_write(output.flatten(0, 1), slots, torch.cat([latent, key], dim=1))

    traffic = Traffic(bytes=float(slots.numel() * (2 * KIMI_K25.kv_row * BF16_BYTES + SLOT_BYTES)), flops=0.0)
    return Op("kv_write", shapes, where, call, wrong, traffic, places=PLACES)


def wrong_write(rows: Any, slots: Any, written: Any) -> str | None:
    """The fault of a write into a cache that was all NaN before, or None: a slot that differs, or one too many."""
    if not (rows[slots] == written).all():
        return "kv_write: a slot does not hold what was written to it"
    if (others := int((~rows.isnan()).any(dim=1).sum()) - len(slots)) > 0:
        return f"kv_write: {others} slots hold numbers that were not written"

    return None


def embedding(tokens: int, tensor_parallel: int = 8, seed: int = 0) -> Workload:
    """Rows of this rank's part of the vocabulary for ids int64 [tokens], all held here: bf16 [tokens, 7168]."""
    import torch

    where, rows = device(), KIMI_K25.shard(tensor_parallel).vocabulary
    weight = normal(rows, KIMI_K25.hidden, where=where, seed=seed)
    ids = torch.randint(rows, (tokens,), generator=torch.Generator().manual_seed(seed)).to(where)
    shapes = f"{tokens} of bf16 [{rows}, {KIMI_K25.hidden}]"

    def call(_: int) -> Any:
        return torch.nn.functional.embedding(ids, weight)

    def wrong(_: int, output: Any) -> str | None:
        bad = (output != weight[ids]).any(dim=1).nonzero()
        return f"embedding: {len(bad)} of {tokens} rows, first {int(bad[0])}" if len(bad) else None

    traffic = Traffic(bytes=float(tokens * (2 * KIMI_K25.hidden * BF16_BYTES + SLOT_BYTES)), flops=0.0)
    with explained("embedding", shapes):
        op = Op("embedding", shapes, where, call, wrong, traffic)
        return workload(op, {**_contract("torch.embedding", tokens, seed), "rows": rows})


def _contract(backend: str, tokens: int, seed: int) -> dict[str, Json]:
    return {**workload_fields("positions"), "backend": backend, "dtype": "bfloat16", "tokens": tokens, "seed": seed}
