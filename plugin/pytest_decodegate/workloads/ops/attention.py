"""MLA decode attention over a paged bf16 cache, by the backend that vLLM chooses for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import BadInput
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.failures import explained
from ..runtime.op import Op, copies_to_be_cold, device, normal, workload
from ..runtime.timing import Traffic, Workload, needs, relative_error, wrong_if_above
from ..versions import workload_fields
from .mla_backends import DecodeBatch, MlaBackend, choose, decode_with

if TYPE_CHECKING:
    from ...metric import Json

ERROR_LIMIT = 1e-2
"""Relative error accepted: probabilities and result rounded to bf16 cost 4e-3, a wrong page or length far more."""


def mla_decode(
    tokens: int, context: int, tensor_parallel: int = 8, backend: str | None = None, seed: int = 0
) -> Workload:
    """Attention of `tokens` requests, one query token each, over `context` tokens of cache each, one layer, one rank.

    q bf16 [tokens, 64 / tensor_parallel, 576]; cache bf16 [pages, page size, 576] with random page tables, as many
    tables over pages of their own as make the cache come from memory. backend: vLLM's name of a backend to pin.
    Raises BadInput for a backend that vLLM does not take or a context that is no multiple of its page size.
    """
    heads = KIMI_K25.shard(tensor_parallel).heads
    needs("vllm", "MLA decode")
    shapes = f"{tokens} requests x {heads} heads, context {context}"
    with explained("MLA decode", shapes):
        chosen = choose(backend, heads)
        op = _op(tokens, context, heads, chosen, shapes, seed)
        contract: dict[str, Json] = {
            **workload_fields("attention"),
            "backend": chosen.name,
            "pinned": backend is not None,
            "dtype": "bfloat16",
            "tokens": tokens,
            "context": context,
            "heads": heads,
            "seed": seed,
        }
        made = workload(op, contract)

    made.facts["page_size"] = chosen.page_size  # no contract: it follows the backend, which an upgrade may swap
    return made


def _op(tokens: int, context: int, heads: int, chosen: MlaBackend, shapes: str, seed: int) -> Op:
    if context % chosen.page_size:
        raise BadInput(
            f"MLA decode: context {context} is no multiple of {chosen.name}'s page of {chosen.page_size} tokens; "
            "take one that is"
        )

    where = device()
    cache_bytes = _cache_bytes(tokens, context)
    copies = copies_to_be_cold(cache_bytes, where)
    batch, tables = draw_batch(tokens, context, heads, chosen.page_size, copies, where, seed)
    decode = decode_with(chosen.name, batch)

    def wrong(copy: int, output: Any) -> str | None:
        asked = sorted({0, tokens - 1})
        error = relative_error(output[asked], reference(batch, tables[copy], asked))
        return wrong_if_above(error, ERROR_LIMIT, f"MLA decode by {chosen.name} ({shapes}), table {copy} of {copies}")

    return Op(
        name="MLA decode",
        shapes=shapes,
        device=where,
        copies=copies,
        call=lambda copy: decode(tables[copy]),
        wrong=wrong,
        traffic=_traffic(tokens, context, heads),
        rotating_bytes=cache_bytes,
        cold=True,
    )


def draw_batch(
    tokens: int, context: int, heads: int, page_size: int, copies: int, where: str, seed: int
) -> tuple[DecodeBatch, Any]:
    """The batch, and page tables int32 [copies, tokens, pages of one request] that share no page."""
    import torch

    pages = context // page_size
    order = torch.randperm(copies * tokens * pages, generator=torch.Generator().manual_seed(seed))
    batch = DecodeBatch(
        q_nope=normal(tokens, heads, KIMI_K25.kv_lora_rank, where=where, seed=seed),
        q_pe=normal(tokens, heads, KIMI_K25.qk_rope_head_dim, where=where, seed=seed + 1),
        cache=normal(copies * tokens * pages, page_size, KIMI_K25.kv_row, where=where, seed=seed + 2),
        lengths=torch.full((tokens,), context, dtype=torch.int32, device=where),
        context=context,
    )
    return batch, order.to(where, torch.int32).reshape(copies, tokens, pages)


def _cache_bytes(tokens: int, context: int) -> int:
    return tokens * context * KIMI_K25.kv_row * BF16_BYTES


def _traffic(tokens: int, context: int, heads: int) -> Traffic:
    """The cache, read once for all heads, as bytes; queries and outputs stay in the L2. Scores 576, values 512 wide."""
    return Traffic(
        bytes=float(_cache_bytes(tokens, context)),
        flops=2.0 * tokens * heads * context * (KIMI_K25.kv_row + KIMI_K25.kv_lora_rank),
    )


def reference(batch: DecodeBatch, table: Any, requests: list[int]) -> Any:
    """softmax(scale * q k) v in float64 [requests, heads, 512] for some requests: all of them would not fit."""
    import torch

    query = torch.cat([batch.q_nope, batch.q_pe], dim=-1).double()

    def attend(request: int) -> Any:
        rows = batch.cache[table[request].long()].flatten(0, 1)[: batch.context].double()
        weights = (query[request] @ rows.t() * KIMI_K25.softmax_scale).softmax(dim=-1)
        return weights @ rows[:, : KIMI_K25.kv_lora_rank]

    return torch.stack([attend(request) for request in requests])
