"""What an attached server says of how it was started: settings that gate stored comparisons, by names of flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..metric import Json

FLAGS: Final[Mapping[str, str]] = {
    "tensor_parallel": "tensor-parallel-size",
    "pipeline_parallel": "pipeline-parallel-size",
    "data_parallel": "data-parallel-size",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv-cache-dtype",
    "kv_block_tokens": "block-size",
    "prefix_caching": "enable-prefix-caching",
    "chunked_prefill": "enable-chunked-prefill",
    "max_num_seqs": "max-num-seqs",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "enforce_eager": "enforce-eager",
    "speculative_method": "speculative-method",
    "draft_tokens": "draft-tokens",
    "cudagraph_off": "disable-cuda-graph",
    "radix_cache_off": "disable-radix-cache",
    "slots": "slots",
}
"""Facts of a server that somebody has set -> the flag, as --perf-change declares it: vLLM's name where vLLM has one.

How much memory was left for its KV cache is none, and max_model_len is part of a metric's contract.
"""

_OF_ENGINE: Final[Mapping[str, frozenset[str]]] = {
    "vllm": frozenset(FLAGS) - {"cudagraph_off", "radix_cache_off", "slots"},
    "sglang": frozenset(FLAGS) - {"enforce_eager", "chunked_prefill", "prefix_caching", "slots"},
    "llamacpp": frozenset({"kv_cache_dtype", "quantization", "slots"}),
    "tensorrt": frozenset(FLAGS) - {"cudagraph_off", "radix_cache_off", "slots", "enforce_eager"},
}
"""The facts that a server of each engine has at all."""


def settings_said(facts: Mapping[str, Json]) -> dict[str, Json]:
    """Every setting as "flag:NAME", for a provenance: its value, or null for what no page says.

    facts: of an attached server. That nothing is set is said too, and is "none".
    """
    return {
        f"flag:{flag}": ("none" if facts[fact] is None else facts[fact]) if fact in facts else None
        for fact, flag in FLAGS.items()
    }


def settings_unsaid(facts: Mapping[str, Json]) -> tuple[str, ...]:
    """The flags that a server of this engine has and that none of its pages says."""
    known = _OF_ENGINE.get(str(facts.get("engine", "vllm")), frozenset())
    silent = (flag for fact, flag in FLAGS.items() if fact in known and fact not in facts)
    # Without a method there are no draft tokens to tell of.
    return tuple(flag for flag in silent if flag != "draft-tokens" or facts.get("speculative_method", "") is not None)
