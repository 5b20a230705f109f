"""Workloads around the experts and after the last layer: top-k, alignment to blocks, sum over top-8, greedy sampling.

These work on what the kernel before left in the L2, so nothing is promised about bytes: their cache is "hot".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..experts import draw_routings
from ..kimi import BF16_BYTES, KIMI_K25
from ..runtime.failures import explained, needs_gpu
from ..runtime.op import Op, device, normal, workload
from ..runtime.timing import Traffic, Workload, needs, relative_error, wrong_if_above
from ..versions import workload_fields
from .projections import logits_dtype

if TYPE_CHECKING:
    from ...metric import Json

ERROR_LIMIT = 1e-2
"""Relative error of weights and sums accepted: rounding to bf16, as some releases do, costs 4e-3."""

GROUPS = 1  # n_group and topk_group of this model: every expert competes with every other
SIGMOID = 1  # code of the scoring function in ops.grouped_topk
SCALE_LATER = 1.0  # this model's factor of 2.827 is applied to the experts' output, not to the weights

BIAS, GAP = 0.2, 0.01
"""Of the data of topk: the largest bias, and how far the scores of the best experts lie apart. Rounding a logit and its
score to bf16 moves a score by less than 0.004."""

TIE = 1e-6
"""Scores closer than this are one to a kernel that computes in float32."""

BLOCK = 8
"""Rows that Marlin computes together, as fused_marlin_moe chooses for every decode batch of this model."""

FLOAT32_BYTES = INT32_BYTES = 4


def topk(tokens: int, seed: int = 0) -> Workload:
    """Top-8 of 384 by sigmoid + bias, weights renormalised, by `ops.grouped_topk` as GroupedTopKRouter calls it.

    Logits [tokens, 384] of the type that the router gate gives here, bias float32; weights float32 and ids int32
    [tokens, 8] come out. GPU only.
    """
    needs("vllm", "topk")
    needs_gpu("topk")
    dtype = logits_dtype(tokens)
    logits, bias = separate_scores(tokens, dtype, where="cuda", seed=seed)
    name = str(dtype).removeprefix("torch.")
    shapes = f"{name} [{tokens}, {KIMI_K25.experts}]"
    with explained("topk", shapes):
        return workload(_topk(logits, bias, shapes), _contract(f"vllm.grouped_topk of {name}", tokens, seed))


def separate_scores(tokens: int, dtype: Any, *, where: str, seed: int) -> tuple[Any, Any]:
    """Logits of `dtype` [tokens, 384] and bias float32 [384] for which the right choice is plain.

    sigmoid(logits) + bias of a token's best sixteen experts lie GAP apart, which no rounding to bf16 bridges, and the
    bias, uniform within BIAS, decides: without it other experts are the best.
    """
    import torch

    generator = torch.Generator(where).manual_seed(seed)
    experts, best = KIMI_K25.experts, 2 * KIMI_K25.experts_per_token
    highest = 1 - 1.25 * BIAS  # so that all scores stay between 0.25 of BIAS and 1 less that
    ladder = highest - GAP * torch.arange(best, device=where)
    rest = torch.linspace(float(ladder[-1]) - GAP, 1.25 * BIAS, experts - best, device=where)
    order = torch.rand(tokens, experts, generator=generator, device=where).argsort(dim=1)
    bias = BIAS * (2 * torch.rand(experts, generator=generator, device=where) - 1)
    return (torch.cat([ladder, rest])[order] - bias).logit().to(dtype), bias


def _topk(logits: Any, bias: Any, shapes: str) -> Op:
    import vllm._custom_ops as ops

    chosen = KIMI_K25.experts_per_token

    def call(_: int) -> Any:
        weights, ids = ops.grouped_topk(logits, GROUPS, GROUPS, chosen, True, SCALE_LATER, bias, SIGMOID)
        return weights, ids

    def wrong(_: int, output: Any) -> str | None:
        return wrong_choice(logits, bias, *output)

    traffic = Traffic(
        bytes=logits.numel() * logits.element_size() + logits.shape[0] * chosen * (FLOAT32_BYTES + INT32_BYTES),
        flops=5.0 * logits.numel(),
    )
    return Op("topk", shapes, "cuda", call, wrong, traffic)


def wrong_choice(logits: Any, bias: Any, weights: Any, ids: Any) -> str | None:
    """The fault of a routing, or None: experts named twice, others than the best eight, or weights that are off.

    The scores of the chosen, in order, must be those of the reference in float64; only experts within TIE of each other
    may stand for one another.
    """
    import torch

    scores = logits.double().sigmoid()
    ids = ids.long()
    if not ((ids >= 0) & (ids < scores.shape[1])).all() or (ids.sort(dim=1).values.diff(dim=1) == 0).any():
        return "topk: an expert is named twice, or does not exist"

    biased = scores + bias.double()
    best = biased.topk(ids.shape[1], dim=1)
    chosen = biased.gather(1, ids).sort(dim=1, descending=True).values
    if len(rows := ((best.values - chosen).abs() > TIE).any(dim=1).nonzero()):
        row = int(rows[0])
        lost = sorted(set(best.indices[row].tolist()) - set(ids[row].tolist()))
        return f"topk: {len(rows)} of {len(ids)} tokens, first {row}: experts {lost} score higher than what was chosen"

    picked = scores.gather(1, ids)
    error = relative_error(weights, picked / picked.sum(dim=1, keepdim=True, dtype=torch.float64))
    return wrong_if_above(error, ERROR_LIMIT, "topk weights")


def moe_align(tokens: int, seed: int = 0) -> Workload:
    """Sort token slots by expert and pad each expert's to whole blocks of 8: vLLM's moe_align_block_size. GPU only.

    ids int32 [tokens, 8], uniform; slots, experts of the blocks, and the padded count come out, all int32.
    """
    needs("vllm", "moe_align")
    needs_gpu("moe_align")
    ids = draw_routings(tokens, 1, experts=KIMI_K25.experts, top_k=KIMI_K25.experts_per_token, seed=seed)[0].ids.cuda()
    shapes = f"int32 [{tokens}, {KIMI_K25.experts_per_token}], {KIMI_K25.experts} experts"
    with explained("moe_align", shapes):
        contract = _contract("vllm.moe_align_block_size", tokens, seed)
        return workload(_align(ids, shapes), {**contract, "block": BLOCK})


def _align(ids: Any, shapes: str) -> Op:
    from vllm.model_executor.layers.fused_moe.moe_align_block_size import moe_align_block_size

    def call(_: int) -> Any:
        return moe_align_block_size(ids, BLOCK, KIMI_K25.experts, None, ignore_invalid_experts=True)

    def wrong(_: int, output: Any) -> str | None:
        return wrong_alignment(ids, *output)

    padded = int(ids.unique().numel()) * BLOCK
    traffic = Traffic(bytes=(ids.numel() + padded + padded // BLOCK + 1) * INT32_BYTES, flops=0.0)
    return Op("moe_align", shapes, "cuda", call, wrong, traffic)


def wrong_alignment(ids: Any, slots: Any, experts: Any, count: Any) -> str | None:
    """The fault of an alignment, or None: the padded count, or slots lost, repeated or in another expert's block."""
    used = -(-ids.flatten().long().bincount() // BLOCK) * BLOCK
    if int(count) != int(used.sum()):
        return f"moe_align: {int(count)} slots after padding, must be {int(used.sum())}"

    placed = slots[: int(count)].long().reshape(-1, BLOCK)
    real = placed < ids.numel()
    if placed[real].sort().values.tolist() != list(range(ids.numel())):
        return "moe_align: a slot is lost or there twice"

    owners = experts[: len(placed)].long().unsqueeze(1).expand_as(placed)[real]
    if (ids.flatten()[placed[real]].long() != owners).any():
        return "moe_align: a slot is in a block of another expert"

    return None


def moe_sum(tokens: int, seed: int = 0) -> Workload:
    """Sum over the eight experts of a token by `ops.moe_sum`: bf16 [tokens, 8, 7168] to [tokens, 7168]. GPU only."""
    needs("vllm", "moe_sum")
    needs_gpu("moe_sum")
    size = (tokens, KIMI_K25.experts_per_token, KIMI_K25.hidden)
    parts = normal(*size, where="cuda", seed=seed)
    shapes = f"bf16 {list(size)}"
    with explained("moe_sum", shapes):
        return workload(_sum(parts, shapes), _contract("vllm.moe_sum", tokens, seed))


def _sum(parts: Any, shapes: str) -> Op:
    import vllm._custom_ops as ops

    def call(_: int) -> Any:
        output = parts.new_empty(parts.shape[0], parts.shape[2])
        ops.moe_sum(parts, output)
        return output

    def wrong(_: int, output: Any) -> str | None:
        return wrong_if_above(relative_error(output, parts.double().sum(dim=1)), ERROR_LIMIT, "moe_sum")

    values = parts.numel() + parts.shape[0] * parts.shape[2]
    return Op("moe_sum", shapes, "cuda", call, wrong, Traffic(values * BF16_BYTES, float(parts.numel())))


def argmax(tokens: int, seed: int = 0) -> Workload:
    """Greedy sampling: index of the largest of float32 logits [tokens, 163840], by vLLM's Sampler.greedy_sample."""
    import torch

    needs("vllm", "argmax")
    where = device()
    generator = torch.Generator(where).manual_seed(seed)
    logits = torch.empty(tokens, KIMI_K25.vocabulary, device=where).normal_(generator=generator)
    shapes = f"float32 [{tokens}, {KIMI_K25.vocabulary}]"
    with explained("argmax", shapes):
        return workload(_argmax(logits, shapes, where), _contract("vllm.Sampler.greedy_sample", tokens, seed))


def _argmax(logits: Any, shapes: str, where: str) -> Op:
    from vllm.v1.sample.sampler import Sampler

    def call(_: int) -> Any:
        return Sampler.greedy_sample(logits)

    def wrong(_: int, output: Any) -> str | None:
        bad = (output.flatten().long() != logits.double().argmax(dim=1)).nonzero()
        return f"argmax: {len(bad)} of {len(logits)} rows, first {int(bad[0])}" if len(bad) else None

    traffic = Traffic(logits.numel() * FLOAT32_BYTES, float(logits.numel()))
    return Op("argmax", shapes, where, call, wrong, traffic)


def _contract(backend: str, tokens: int, seed: int) -> dict[str, Json]:
    return {**workload_fields("routing"), "backend": backend, "tokens": tokens, "seed": seed}
