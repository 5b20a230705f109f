"""Int4 weights in Marlin's layout, quantised for real and packed one matrix at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from ..experts import QuantisedMatrix, expert_weights, quantise
from ..kimi import INT4_GROUP, Shard
from ..runtime.reuse import reused
from .vllm_api import MarlinApi

BITS = 4


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix [size_n, size_k], or one per expert: words int32 [..., K / 16, 2 N], scales bf16 [..., K / 32, N]."""

    words: Any
    scales: Any
    size_k: int
    size_n: int

    @property
    def bytes(self) -> int:
        """Bytes of the words and scales."""
        return int(self.words.nbytes + self.scales.nbytes)

    def copy(self) -> PackedMatrix:
        """The same numbers elsewhere in memory."""
        return PackedMatrix(self.words.clone(), self.scales.clone(), self.size_k, self.size_n)


def pack(api: MarlinApi, matrix: QuantisedMatrix) -> PackedMatrix:
    """Marlin's tiles of one matrix: GPTQ words repacked, scales permuted, as vLLM does after loading."""
    import torch

    size_n, size_k = matrix.codes.shape
    words = api.repack(
        b_q_weight=matrix.packed().contiguous(),
        perm=torch.empty(0, dtype=torch.int32, device=matrix.codes.device),  # no act-order
        size_k=size_k,
        size_n=size_n,
        num_bits=BITS,
    )
    scales = api.permute_scales(s=matrix.scales.t().contiguous(), size_k=size_k, size_n=size_n, group_size=INT4_GROUP)
    return PackedMatrix(words, scales, size_k, size_n)


class ExpertLayer:
    """The routed experts of one layer's shard: w13 [experts, 2I, hidden] and w2 [experts, hidden, I], packed.

    vLLM's gptq_marlin_moe_repack and marlin_moe_permute_scales do nothing but loop over the experts; packing each one
    as it is drawn gives the same tensors without a second full copy (9.5 GB at TP=1).
    """

    def __init__(self, shard: Shard, seed: int, api: MarlinApi, device: str) -> None:
        self._shard, self._seed, self._device = shard, seed, device
        first13, first2 = (pack(api, matrix) for matrix in self._drawn(0))
        self.w13, self.w2 = _room_for(first13, shard.experts), _room_for(first2, shard.experts)
        for expert in range(shard.experts):
            for all_experts, matrix in zip((self.w13, self.w2), self._drawn(expert), strict=True):
                packed = pack(api, matrix)
                all_experts.words[expert], all_experts.scales[expert] = packed.words, packed.scales

    def _drawn(self, expert: int) -> tuple[QuantisedMatrix, QuantisedMatrix]:
        w13, w2 = expert_weights(self._shard, expert, self._seed, self._device)
        return quantise(w13), quantise(w2)

    def dequantised(self, expert: int) -> tuple[Any, Any]:
        """Float64 (w13, w2) of one expert, drawn and quantised again: keeping all of them would take 17 GB."""
        w13, w2 = self._drawn(expert)
        return w13.dequantised(), w2.dequantised()


def _room_for(expert: PackedMatrix, experts: int) -> PackedMatrix:
    words, scales = (each.new_empty(experts, *each.shape) for each in (expert.words, expert.scales))
    return PackedMatrix(words, scales, expert.size_k, expert.size_n)


def expert_layer(shard: Shard, seed: int, api: MarlinApi) -> ExpertLayer:
    """The layer on this rank's GPU, shared by the workloads of one shard and seed."""
    return reused("marlin experts", (shard, seed), partial(ExpertLayer, shard, seed, api, "cuda"))
