"""Local models that need no download: a tiny one for a CPU server, and the rank-slice of Kimi-K2.5 for n GPUs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import BadInput
from ..metric import Json
from ..process.user_cache import kept_files
from ..workloads.kimi import INT4_GROUP, KIMI_K25
from . import fixed_plugin
from .tokenizer import byte_level_tokenizer
from .vllm_plugins import plugin_variables, write_plugin

SLICED_FROM = 8
"""The tensor-parallel degree whose per-rank dims a rank-slice keeps."""

_TINY_VOCABULARY = 258


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model folder that vLLM serves.

    vocabulary: number of token ids, all of which decode to text. arguments: command line that the model needs.
    environment: variables that the model needs. facts: what a result must say about it.
    plugins: folder of the plugin that fills its weights, which vLLM's path must have; None if it needs none.
    stand_in: it stands in for a model that needs a GPU, and its numbers go by a name of their own.
    """

    folder: Path
    vocabulary: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    plugins: Path | None = None
    stand_in: bool = False

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What its server needs in its environment, beside what `environment` has."""
        found = plugin_variables(environment, self.plugins, fixed_plugin.FORMAT) if self.plugins else {}
        return {**self.environment, **found}

    def kept(self) -> LocalModel:
        """The same model in a folder whose path is the same at every start, by which vLLM finds what it compiled."""
        folder = kept_files(self.folder)
        return replace(self, folder=folder, plugins=folder.absolute() / _PLUGINS if self.plugins else None)

    def pinned(self, pins: Mapping[str, str]) -> LocalModel:
        """The same model served with the backends of `pins`, as --perf-pin names them; vLLM refuses unknown ones."""
        flags = [word for name, value in sorted(pins.items()) for word in (f"--{name}-backend", value)]
        if not flags:
            return self

        facts: dict[str, Json] = {"pinned": dict(pins)}
        return replace(self, arguments=(*self.arguments, *flags), facts={**self.facts, **facts})


def write_tiny_model(folder: Path) -> LocalModel:
    """A 2-layer Qwen3 that the CPU build of vLLM serves; `folder` is created.

    Its 35 M weights make a token take some 10 ms on two cores: the few hundred us of a busy client are then not seen.
    """
    _write(folder, _tiny_config(), _TINY_VOCABULARY)
    return LocalModel(
        folder=folder,
        vocabulary=_TINY_VOCABULARY,
        arguments=("--load-format", "dummy", *_ALWAYS, "--dtype", "float32", "--enforce-eager"),
        # AMX code paths of oneDNN are not on every machine, and 1 GiB of KV cache is more than this model can use.
        environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "VLLM_CPU_KVCACHE_SPACE": "1"},
        facts={"model": "tiny Qwen3, 2 layers, 35 M dummy weights"},
        stand_in=True,
    )


def write_rank_slice(folder: Path, *, world_size: int, layers: int, servers: int = 1) -> LocalModel:
    """Kimi-K2.5 cut so that each of `world_size` ranks holds exactly what a rank of TP=8 holds, `layers` deep.

    servers: how many share the memory of each GPU, one of which is this one.

    Its weights are those of fixed_plugin, which is written beside it: so its answers can be compared, and its own
    routers choose evenly among the experts. Layer 0 is dense, so BadInput is raised for fewer than 2 layers; also for
    more layers than the model has, and for a folder that cannot be written or holds files of another model.
    """
    if world_size < 1:
        raise BadInput(f"rank-slice: world size {world_size} is below 1")
    if not 2 <= layers <= KIMI_K25.layers:
        raise BadInput(f"rank-slice: {layers} layers; layer 0 is dense, so take 2 to {KIMI_K25.layers}")

    config = _slice_config(world_size, layers)
    arguments = (
        "--load-format",
        fixed_plugin.FORMAT,
        *_ALWAYS,
        "--max-model-len",
        str(_SLICE_LENGTH),
        *(_part_of_memory(servers) if servers > 1 else ()),
        *_parallel(world_size),
    )
    vocabulary = world_size * KIMI_K25.shard(SLICED_FROM).vocabulary
    _write(folder, config, vocabulary, with_weights=True)
    return LocalModel(
        folder=folder,
        vocabulary=vocabulary,
        arguments=arguments,
        environment=_SLICE_ENVIRONMENT,
        facts={
            "model": f"Kimi-K2.5 rank-slice, TP={SLICED_FROM} dims per rank, {layers} layers, fixed weights",
            "arguments": " ".join(arguments),
            "routing": "even, by token",
        },
        plugins=folder.absolute() / _PLUGINS,
    )


def slice_layers(memory_gib: int, servers: int = 1) -> int:
    """As many of the 61 layers as a GPU of `memory_gib` holds beside KV cache and graphs: 61 from 96 GiB on.

    The more layers, the less of a step is the host's: eight of them leave a GPU waiting, and TPOT then scatters by 7 %.
    servers: how many share that memory.
    """
    beside = _FIXED_BYTES + (_SHARED_CACHE_BYTES if servers > 1 else 0)
    fitting = int((memory_gib * _GIB * _WEIGHTS_SHARE / servers - beside) / _LAYER_BYTES)
    return max(2, min(KIMI_K25.layers, fitting))


def slice_depths(memory_gib: int) -> tuple[int, int]:
    """Two depths to extrapolate from: as deep as a GPU of `memory_gib` holds, short of the whole model, and half."""
    deep = min(slice_layers(memory_gib), _DEEPEST_PART)
    return max(2, deep // 2), deep


_DEEPEST_PART = 48
_GIB = 2**30
_WEIGHTS_SHARE = 0.85
_FIXED_BYTES = 6e9  # contexts, embedding, head, activations, graphs
_LAYER_BYTES = 1.27e9  # 384 experts of one layer at TP=8 are 1.19 GB, all else of it 0.08 GB


_SHARED_CACHE_BYTES = 4 * _GIB
"""KV cache of each server that shares its GPUs: 128 streams of a few hundred tokens need half of it at 61 layers."""

_SLICE_LENGTH = 4096  # tokens; the model's own 262144 would only change how much KV cache is set aside
_ALWAYS = ("--no-enable-prefix-caching", "--generation-config", "vllm")
_PLUGINS = "vllm_plugins"

# No simulated routing, should anybody have asked for that: the routers of the fixed weights choose evenly.
# The rest keeps the AllReduce where the reference host has it: in NCCL, not fused and not in symmetric memory.
_SLICE_ENVIRONMENT = {
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}


PART_OF_MEMORY = ("gpu-memory-utilization", "kv-cache-memory-bytes")
"""Flags that say how much of a GPU a server may have; those of servers that share one are ours."""


def _part_of_memory(servers: int) -> tuple[str, ...]:
    """Flags of a server that shares its GPUs.

    The size of the KV cache is given, since vLLM else takes all that it finds free, and counts as its own what another
    server took meanwhile. The share is what it wants to find free at its start, when the other may be up already.
    """
    share, cache = PART_OF_MEMORY
    return (f"--{share}", f"{0.8 / servers:g}", f"--{cache}", str(_SHARED_CACHE_BYTES))


def _parallel(world_size: int) -> tuple[str, ...]:
    # A graph for every batch size up to 512 takes minutes to capture, and only these are measured.
    compilation: dict[str, Json] = {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128]}
    if world_size == 1:
        return ("--compilation-config", json.dumps(compilation))

    compilation["pass_config"] = {"fuse_allreduce_rms": False}
    return (
        "--tensor-parallel-size",
        str(world_size),
        "--disable-custom-all-reduce",
        "--compilation-config",
        json.dumps(compilation),
    )


def _tiny_config() -> dict[str, Json]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "float32",
        "vocab_size": _TINY_VOCABULARY,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **_special_ids(_TINY_VOCABULARY),
    }


def _slice_config(world_size: int, layers: int) -> dict[str, Json]:
    shard = KIMI_K25.shard(SLICED_FROM)
    vocabulary = world_size * shard.vocabulary
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
        "hidden_size": KIMI_K25.hidden,
        "intermediate_size": world_size * shard.dense_intermediate,
        "moe_intermediate_size": world_size * shard.expert_intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": world_size * shard.heads,
        "num_key_value_heads": world_size * shard.heads,
        "q_lora_rank": KIMI_K25.q_lora_rank,
        "kv_lora_rank": KIMI_K25.kv_lora_rank,
        "qk_nope_head_dim": KIMI_K25.qk_nope_head_dim,
        "qk_rope_head_dim": KIMI_K25.qk_rope_head_dim,
        "v_head_dim": KIMI_K25.v_head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "max_position_embeddings": KIMI_K25.max_positions,
        **_experts(),
        **_rope(),
        **_special_ids(vocabulary),
        "quantization_config": _int4_experts(),
    }


def _experts() -> dict[str, Json]:
    return {
        "first_k_dense_replace": KIMI_K25.dense_layers,
        "moe_layer_freq": 1,
        "n_routed_experts": KIMI_K25.experts,
        "num_experts_per_tok": KIMI_K25.experts_per_token,
        "n_shared_experts": KIMI_K25.shared_experts,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": KIMI_K25.routed_scaling_factor,
        "num_nextn_predict_layers": 0,
        "ep_size": 1,
    }


def _rope() -> dict[str, Json]:
    scaling: dict[str, Json] = {
        "type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    return {"rope_theta": 50000.0, "rope_scaling": scaling}


def _int4_experts() -> dict[str, Json]:
    """The model's own quantisation: INT4 routed experts, everything else left in bf16."""
    weights: dict[str, Json] = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": INT4_GROUP,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
    }
    group: dict[str, Json] = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
    }


def _special_ids(vocabulary: int) -> dict[str, Json]:
    # Some code reads these; none of them is special to the tokenizer, so that every sampled id becomes text.
    return {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}


def _write(folder: Path, config: Mapping[str, Json], vocabulary: int, *, with_weights: bool = False) -> None:
    """with_weights: the plugin that fills them, too."""
    tokenizer_config: dict[str, Json] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    files = {
        "config.json": config,
        "tokenizer.json": byte_level_tokenizer(vocabulary),
        "tokenizer_config.json": tokenizer_config,
    }
    try:
        _make_room(folder, {*files, _PLUGINS})
        if with_weights:
            write_plugin(folder / _PLUGINS, fixed_plugin.FORMAT, fixed_plugin)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"model folder {str(folder)!r} cannot be written: {error.strerror}; give a new folder that you may write to"
        ) from error


def _make_room(folder: Path, names: Collection[str]) -> None:
    """Create the folder; raises BadInput if it holds files that no model of ours has, such as somebody's weights."""
    folder.mkdir(parents=True, exist_ok=True)
    if strange := sorted(file.name for file in folder.iterdir() if file.name not in names):
        raise BadInput(
            f"model folder {str(folder)!r} holds {strange[0]!r}, so it is another model's, and would be overwritten; "
            "give a new folder"
        )
