"""What a vLLM server says about itself in its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ..metric import Json
from ..printable import printable
from ..redaction import redact_text

JIT_IN_INFERENCE: Final = "JIT compilation during inference"
"""vLLM 0.26 and later warn so when a kernel is compiled while serving: that time is in the samples."""

# "(EngineCore pid=5327) INFO 11-29 18:46:04 [utils.py:347] text" -> "text"
_PREFIX = re.compile(r"^(\([^)]*\) )?([A-Z]+ )?(\d\d-\d\d \d\d:\d\d:\d\d )?(\[[\w./]+:\d+\] )?")
_HEADLINE_CHARACTERS = 120
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _text(found: str) -> Json:
    return None if found == "None" else found


def _count(found: str) -> Json:
    return int(found.replace(",", ""))


def _flag(found: str) -> Json:
    return found == "True"


def _names(found: str) -> Json:
    return list(re.findall(r"'([^']+)'", found))


# Wordings of 0.20 to 0.33. The attention backend has one when vLLM chose it and another when --attention-backend did.
_PATTERNS: Final[Mapping[str, tuple[str, Callable[[str], Json]]]] = {
    "vllm": (r"Initializing a V1 LLM engine \(v([^)]+)\)", _text),
    "dtype": (r"\bdtype=torch\.(\w+)", _text),
    "quantization": (r"\bquantization=([\w-]+)", _text),
    "kv_cache_dtype": (r"\bkv_cache_dtype=(\w+)", _text),
    "load_format": (r"\bload_format=(\w+)", _text),
    "tensor_parallel": (r"\btensor_parallel_size=(\d+)", _count),
    "max_model_len": (r"\bmax_seq_len=(\d+)", _count),
    "prefix_caching": (r"\benable_prefix_caching=(True|False)", _flag),
    "enforce_eager": (r"\benforce_eager=(True|False)", _flag),
    "cudagraph_mode": (r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", _text),
    "fuse_allreduce_rms": (r"'fuse_allreduce_rms': (True|False)", _flag),
    "attention_backend": (r"Using (\w+) (?:attention backend out of|backend\.)", _text),
    "moe_backend": (r"Using '?(\w+)'? \w+ MoE backend", _text),
    "allreduce_backends": (r"Using (\[[^\]]*\]) all-reduce backends \(in dispatch order\) for group 'tp", _names),
    "nccl": (r"vLLM is using nccl==([\w.]+)", _text),
    "kv_cache_tokens": (r"KV cache size: ([\d,]+) tokens", _count),
    "speculative_method": (r"\bspeculative_config=SpeculativeConfig\(method='([\w-]+)'", _text),
    "draft_tokens": (r"\bspeculative_config=SpeculativeConfig\([^)]*num_spec_tokens=(\d+)", _count),
    "jit_monitor": (r"(Kernel JIT monitor activated)", bool),
}
# The engine's time, last, holds those between it and the weights; a start takes some more for processes and imports.
_START: Final[Mapping[str, str]] = {
    "weights": r"Model loading took .* and ([\d.]+) seconds",
    "compilation": r"torch\.compile (?:took|takes) ([\d.]+) s in total",
    "graphs": r"Graph capturing finished in ([\d.]+) secs",
    "kernels": r"JIT kernel warmup finished in ([\d.]+) ?s",
    "engine": r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s",
}


def read_facts(log: str) -> dict[str, Json]:
    """The facts that `log` states; what it does not state is left out, never guessed."""
    facts: dict[str, Json] = {}
    for name, (pattern, convert) in _PATTERNS.items():
        if match := re.search(pattern, log):
            facts[name] = convert(match[1])

    return facts


def start_times(log: str) -> dict[str, float]:
    """Seconds of each part of a start that `log` tells of, in the worker that took the longest."""
    found = {name: [float(time) for time in re.findall(pattern, log)] for name, pattern in _START.items()}
    return {name: max(times) for name, times in found.items() if times}


def lines(log: str) -> list[str]:
    """The log's lines that say something, as a terminal would show them: a progress bar is its last state.

    Secrets are redacted, and what a terminal would obey is written as it reads.
    """
    shown = (_ANSI.sub("", line).rstrip().rpartition("\r")[2] for line in log.split("\n"))
    return [printable(redact_text(line)) for line in shown if line.strip()]


def headline(log: str) -> str:
    """The last line without vLLM's prefix of process, level, time and source, cut short; empty if there is none."""
    said = lines(log)
    last = _PREFIX.sub("", said[-1]).strip() if said else ""
    return last if len(last) <= _HEADLINE_CHARACTERS else f"{last[: _HEADLINE_CHARACTERS - 3]}..."


def compiled_in_inference(log: str) -> tuple[str, ...]:
    """Lines that report a kernel compiled while requests were served."""
    return tuple(line for line in lines(log) if JIT_IN_INFERENCE in line)
