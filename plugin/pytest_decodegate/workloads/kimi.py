"""Kimi-K2.5 as data: the dims of the text model and of one rank's shard, and the bytes a decode step must read."""

from __future__ import annotations

from dataclasses import dataclass

BF16_BYTES = 2
INT4_GROUP = 32  # weights that share one bf16 scale


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank of a tensor-parallel group holds; all sizes are counts of elements, not bytes."""

    hidden: int
    expert_intermediate: int
    dense_intermediate: int
    heads: int
    vocabulary: int
    experts: int
    experts_per_token: int

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's shard: int4 weights and bf16 scales of w13 (hidden -> 2I) and w2 (I -> hidden)."""
        weights = 3 * self.hidden * self.expert_intermediate
        return weights // 2 + weights // INT4_GROUP * BF16_BYTES

    @property
    def allreduce_bytes(self) -> int:
        """Bytes of one AllReduce per token: the hidden state in bf16."""
        return self.hidden * BF16_BYTES

    def unique_experts(self, tokens: int) -> float:
        """Expected number of distinct experts that `tokens` tokens hit under uniform independent routing."""
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - missed)


@dataclass(frozen=True, slots=True)
class Model:
    """The text model's dims, from the published config.json of moonshotai/Kimi-K2.5 (text_config)."""

    layers: int = 61
    dense_layers: int = 1
    hidden: int = 7168
    heads: int = 64
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    dense_intermediate: int = 18432
    expert_intermediate: int = 2048
    experts: int = 384
    experts_per_token: int = 8
    shared_experts: int = 1
    routed_scaling_factor: float = 2.827
    vocabulary: int = 163840
    max_positions: int = 262144

    def shard(self, tensor_parallel: int) -> Shard:
        """One rank's share at `tensor_parallel` ranks; raises ValueError if a dim does not divide."""
        split = {
            "heads": self.heads,
            "expert_intermediate": self.expert_intermediate,
            "dense_intermediate": self.dense_intermediate,
            "vocabulary": self.vocabulary,
        }
        for name, size in split.items():
            if size % tensor_parallel:
                raise ValueError(f"Kimi-K2.5: {name} {size} does not divide into {tensor_parallel} shards")

        return Shard(
            hidden=self.hidden,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
            **{name: size // tensor_parallel for name, size in split.items()},
        )

    @property
    def layer_allreduces(self) -> int:
        """AllReduces of the hidden state inside the layers of one decode step: after attention and after the MLP."""
        return 2 * self.layers


KIMI_K25 = Model()
