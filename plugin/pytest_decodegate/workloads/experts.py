"""The routed experts of one Kimi-K2.5 layer: int4 weights drawn from a seed, routing, and the float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .kimi import INT4_GROUP, KIMI_K25, Shard

if TYPE_CHECKING:
    import torch

WEIGHT_SCALE = 0.02  # initializer_range of the model
ZERO_POINT = 8  # uint4b8: code 8 is weight 0
CODES_PER_WORD = 8  # int4 codes in one int32


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """Symmetric int4 weights of one matrix [out, in]: codes uint8 [out, in] in 0..15, scales bf16 [out, in / 32]."""

    codes: torch.Tensor
    scales: torch.Tensor

    def dequantised(self) -> torch.Tensor:
        """The weights in float64 [out, in]: (code - 8) * scale."""
        centred = self.codes.double() - ZERO_POINT
        return centred * self.scales.double().repeat_interleave(INT4_GROUP, dim=1)

    def packed(self) -> torch.Tensor:
        """GPTQ layout int32 [in / 8, out]: eight consecutive inputs a word, the first in the low bits."""
        import torch

        codes = self.codes.t().to(torch.int64)
        words = codes.reshape(codes.shape[0] // CODES_PER_WORD, CODES_PER_WORD, codes.shape[1])
        shifts = torch.arange(CODES_PER_WORD, device=codes.device).mul(4).reshape(1, -1, 1)
        packed = (words << shifts).sum(dim=1)
        # The sum fills 32 unsigned bits; int32 wants the same bits as a signed number.
        return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def quantise(weight: Any) -> QuantisedMatrix:
    """Symmetric round-to-nearest int4 with one bf16 scale per 32 inputs (max|w| / 7), as compressed-tensors does."""
    import torch

    groups = weight.reshape(weight.shape[0], -1, INT4_GROUP)
    scales = (groups.abs().amax(dim=2) / 7).to(torch.bfloat16)
    codes = (groups / scales.float().unsqueeze(2)).round().clamp(-ZERO_POINT, ZERO_POINT - 1) + ZERO_POINT
    return QuantisedMatrix(codes.to(torch.uint8).reshape(weight.shape), scales)


def expert_weights(shard: Shard, expert: int, seed: int, device: str) -> tuple[Any, Any]:
    """Float32 w13 [2I, hidden] (gate above up) and w2 [hidden, I] of one expert, the same for the same arguments."""
    import torch

    generator = torch.Generator(device).manual_seed(seed * 100_003 + expert)
    inner = shard.expert_intermediate

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device) * WEIGHT_SCALE

    return draw(2 * inner, shard.hidden), draw(shard.hidden, inner)


@dataclass(frozen=True, slots=True)
class Routing:
    """One routing decision: ids int32 [tokens, top_k], distinct in a row; weights float32, rows sum to 2.827."""

    ids: torch.Tensor
    weights: torch.Tensor


def mean_unique_experts(routings: Sequence[Routing]) -> float:
    """Distinct experts that a call reads, on average over `routings`, one a call."""
    return float(sum(routing.ids.unique().numel() for routing in routings) / len(routings))


def draw_routings(tokens: int, count: int, *, experts: int, top_k: int, seed: int) -> list[Routing]:
    """`count` uniform routings of `tokens` tokens, on the CPU.

    For one token the routings walk through a permutation of all experts, so that none repeats until every expert
    was read once: weights come from memory and not from the L2 cache.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    if tokens == 1:
        whole = [torch.randperm(experts, generator=generator) for _ in range(-(-count * top_k // experts))]
        rows = torch.cat([order[: experts // top_k * top_k] for order in whole]).reshape(-1, 1, top_k)
        ids = list(rows[:count])
    else:
        ids = [
            torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)])
            for _ in range(count)
        ]

    return [Routing(chosen.to(torch.int32), _router_weights(chosen.shape, generator)) for chosen in ids]


def _router_weights(shape: Any, generator: Any) -> Any:
    import torch

    scores = torch.rand(shape, generator=generator) + 0.1
    return scores / scores.sum(dim=1, keepdim=True) * KIMI_K25.routed_scaling_factor


def reference(x: Any, routing: Routing, weights_of: Any) -> Any:
    """The layer's routed output in float64 [tokens, hidden]: sum over top-k of weight * w2(silu(gate(x)) * up(x)).

    weights_of(expert) gives float64 (w13, w2) on x's device.
    """
    import torch

    x = x.double()
    out = torch.zeros_like(x)
    ids, weights = routing.ids.to(x.device), routing.weights.to(x.device).double()
    for expert in ids.unique().tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        w13, w2 = weights_of(expert)
        gate, up = (x[token] @ w13.t()).chunk(2, dim=1)
        hidden = torch.nn.functional.silu(gate) * up
        out.index_add_(0, token, (hidden @ w2.t()) * weights[token, slot].unsqueeze(1))

    return out
