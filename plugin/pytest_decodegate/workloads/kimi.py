"""Kimi-K2.5 as data: the dims of the model and of one rank's shard, and what one decode step reads, launches and sends.

Dims: text_config of moonshotai/Kimi-K2.5's config.json. Order and shapes of the ops: vLLM's models/deepseek_v2.py and
layers/attention/mla_attention.py, the same in 0.20.0, 0.26.0 and 0.33.0. Bytes are of weights only, so every floor is
one: activations, KV cache, launches and communication come on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import BadInput

BF16_BYTES = 2
INT4_GROUP = 32  # weights that share one bf16 scale

UNEXPLAINED_ALLREDUCES = 4
"""The reference host's trace shows 127 AllReduces a step; the model's source accounts for 123 of them."""


@dataclass(frozen=True, slots=True)
class Projection:
    """One bf16 GEMM of the step on one rank: `batch` times [tokens, inputs] x [inputs, outputs], `per_step` times."""

    inputs: int
    outputs: int
    per_step: int
    batch: int = 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that one launch reads."""
        return self.batch * self.inputs * self.outputs * BF16_BYTES

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that all launches of one step read: every layer has its own."""
        return self.per_step * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard that one rank holds; all sizes are counts of elements, not bytes.

    experts: that a token may choose from, on whatever rank. local_experts: those that this rank holds.
    """

    model: Model
    tensor_parallel: int
    expert_parallel: int
    hidden: int
    expert_intermediate: int
    shared_intermediate: int
    dense_intermediate: int
    heads: int
    vocabulary: int
    experts: int
    local_experts: int
    experts_per_token: int

    @property
    def w13_bytes(self) -> int:
        """Bytes of one expert's gate and up, hidden -> 2I: int4 weights and bf16 scales."""
        return _int4_bytes(2 * self.hidden * self.expert_intermediate)

    @property
    def w2_bytes(self) -> int:
        """Bytes of one expert's down, I -> hidden: int4 weights and bf16 scales."""
        return _int4_bytes(self.hidden * self.expert_intermediate)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's shard: w13 and w2."""
        return self.w13_bytes + self.w2_bytes

    @property
    def allreduce_bytes(self) -> int:
        """Bytes of one AllReduce per token: the hidden state in bf16."""
        return self.hidden * BF16_BYTES

    @property
    def logits_bytes(self) -> int:
        """Bytes per token that this rank gives to the gather of the logits, in bf16."""
        return self.vocabulary * BF16_BYTES

    @property
    def projections(self) -> dict[str, Projection]:
        """Every bf16 GEMM of the step by name, on this rank. fused_qkv_a and the router gate are replicated."""
        model, hidden = self.model, self.hidden
        q_head = model.qk_nope_head_dim + model.qk_rope_head_dim
        layers, moe = model.layers, model.moe_layers
        return {
            "fused_qkv_a": Projection(hidden, model.q_lora_rank + model.kv_row, layers),
            "q_b": Projection(model.q_lora_rank, self.heads * q_head, layers),
            "w_uk": Projection(model.qk_nope_head_dim, model.kv_lora_rank, layers, batch=self.heads),
            "w_uv": Projection(model.kv_lora_rank, model.v_head_dim, layers, batch=self.heads),
            "o_proj": Projection(self.heads * model.v_head_dim, hidden, layers),
            "dense_gate_up": Projection(hidden, 2 * self.dense_intermediate, model.dense_layers),
            "dense_down": Projection(self.dense_intermediate, hidden, model.dense_layers),
            "router_gate": Projection(hidden, self.experts, moe),
            "shared_gate_up": Projection(hidden, 2 * self.shared_intermediate, moe),
            "shared_down": Projection(self.shared_intermediate, hidden, moe),
            "lm_head": Projection(hidden, self.vocabulary, 1),
        }

    @property
    def fixed_bytes(self) -> int:
        """Bytes of weights that a step reads on this rank whatever the number of tokens."""
        return sum(projection.step_bytes for projection in self.projections.values())

    def unique_experts(self, tokens: int) -> float:
        """Expected number of distinct experts of this rank that `tokens` tokens hit, routed uniformly, independently.

        local * (1 - (1 - top_k / experts) ** tokens); without expert parallelism a rank holds a part of every expert.
        """
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        return self.local_experts * (1 - missed)

    def routed_bytes(self, tokens: int) -> float:
        """Expected bytes of routed experts that a step of `tokens` tokens reads on this rank."""
        return self.model.moe_layers * self.unique_experts(tokens) * self.expert_bytes

    def step_bytes(self, tokens: int) -> float:
        """Expected bytes of weights that a step of `tokens` tokens reads on this rank."""
        return self.fixed_bytes + self.routed_bytes(tokens)

    def step_floor_seconds(self, tokens: int, bytes_s: float) -> float:
        """The least time of a decode step at `bytes_s` bytes per second of memory bandwidth."""
        return self.step_bytes(tokens) / bytes_s

    @property
    def allreduces(self) -> range:
        """AllReduces of the hidden state that one step may show; a range on purpose, because no source explains all.

        At least those of the layers (with expert parallelism the MoE's may be all-to-alls); at most one more for the
        vocabulary-parallel embedding and those that the reference host shows unexplained. None at all on one rank.
        """
        if self.tensor_parallel == 1:
            return range(1)

        least = self.model.layer_allreduces - (self.model.moe_layers if self.expert_parallel > 1 else 0)
        most = self.model.layer_allreduces + 1 + UNEXPLAINED_ALLREDUCES
        return range(least, most + 1)

    @property
    def alltoalls(self) -> range:
        """All-to-alls that one step may show: a dispatch and a combine per MoE layer, with expert parallelism only."""
        return range(2 * self.model.moe_layers + 1 if self.expert_parallel > 1 else 1)

    @property
    def logits_gathers(self) -> int:
        """Gathers of `logits_bytes` per token in one step."""
        return int(self.tensor_parallel > 1)


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
    rms_norm_eps: float = 1e-5
    rope_theta: float = 50_000.0
    rope_factor: float = 64.0
    mscale_all_dim: float = 1.0

    def shard(self, tensor_parallel: int, expert_parallel: int = 1) -> Shard:
        """One rank's share at `tensor_parallel` ranks; raises BadInput if a dim does not divide.

        expert_parallel: ranks over which whole experts are dealt out instead of a part of every expert to each. vLLM
        makes it a multiple of tensor_parallel (TP x DP); 1 is off. Everything but the routed experts stays as it was.
        """
        if expert_parallel > 1 and expert_parallel % tensor_parallel:
            raise BadInput(
                f"Kimi-K2.5: expert_parallel {expert_parallel} is no multiple of tensor_parallel {tensor_parallel}; "
                "vLLM deals the experts out over TP x DP ranks"
            )

        of_expert = tensor_parallel if expert_parallel == 1 else 1
        return Shard(
            model=self,
            tensor_parallel=tensor_parallel,
            expert_parallel=expert_parallel,
            hidden=self.hidden,
            expert_intermediate=_split("expert_intermediate", self.expert_intermediate, of_expert),
            shared_intermediate=_split(
                "shared_intermediate", self.shared_experts * self.expert_intermediate, tensor_parallel
            ),
            dense_intermediate=_split("dense_intermediate", self.dense_intermediate, tensor_parallel),
            heads=_split("heads", self.heads, tensor_parallel),
            vocabulary=_split("vocabulary", self.vocabulary, tensor_parallel),
            experts=self.experts,
            local_experts=_split("experts", self.experts, expert_parallel),
            experts_per_token=self.experts_per_token,
        )

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    @property
    def kv_row(self) -> int:
        """Values of one token in the MLA cache of one layer: the latent and the rotated key, 576."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Scale of the attention scores: yarn's mscale squared over the root of the query's head size.

        mscale = 0.1 * mscale_all_dim * ln(factor) + 1 (yarn_get_mscale in vLLM).
        """
        mscale = 0.1 * self.mscale_all_dim * math.log(self.rope_factor) + 1
        return mscale**2 / math.sqrt(self.qk_nope_head_dim + self.qk_rope_head_dim)

    @property
    def layer_allreduces(self) -> int:
        """AllReduces of the hidden state inside the layers of one decode step: after attention and after the MLP."""
        return 2 * self.layers

    @property
    def launches(self) -> dict[str, int]:
        """Times that each op besides projections and collectives runs in one decode step, on each rank, unfused.

        Keys are the names of their metrics but for rms_norm, the first norm, which has no residual to add; marlin, of
        which marlin_moe and its parts are made; and cast, a copy of the router logits from bf16 to float32, of which
        this model needs none.
        """
        return {
            "embedding": 1,
            "rms_norm": 1,
            "add_rms_norm": 2 * self.layers,
            "q_a_norm": self.layers,
            "kv_a_norm": self.layers,
            "rope": self.layers,
            "kv_write": self.layers,
            "mla_decode": self.layers,
            "topk": self.moe_layers,
            "moe_align": self.moe_layers,
            "marlin": 2 * self.moe_layers,
            "silu_mul_experts": self.moe_layers,
            "silu_mul_shared": self.moe_layers,
            "silu_mul_dense": self.dense_layers,
            "moe_sum": self.moe_layers,
            "scaled_add": self.moe_layers,
            "argmax": 1,
            "cast": 0,
        }


def _int4_bytes(weights: int) -> int:
    """Bytes of `weights` symmetric int4 weights with one bf16 scale a group."""
    return weights // 2 + weights // INT4_GROUP * BF16_BYTES


def _split(name: str, size: int, shards: int) -> int:
    if shards < 1 or size % shards:
        raise BadInput(f"Kimi-K2.5: {name} {size} does not divide into {shards} shards; it does into 1, 2, 4 or 8")

    return size // shards


KIMI_K25 = Model()
