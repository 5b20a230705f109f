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
    return None if found == "None" else printable(found)


def _count(found: str) -> Json:
    return int(found.replace(",", ""))


def _flag(found: str) -> Json:
    return found == "True"


def _names(found: str) -> Json:
    return list(map(printable, re.findall(r"'([^']+)'", found)))


# Every repeat is bounded: a log in which the beginning of a wording stands again and again is still read once.
# Wordings of 0.20 to 0.33. The attention backend has one when vLLM chose it and another when --attention-backend did.
_PATTERNS: Final[Mapping[str, tuple[str, Callable[[str], Json]]]] = {
    "vllm": (r"Initializing a V1 LLM engine \(v([^)\s]{1,80})\)", _text),
    "dtype": (r"\bdtype=torch\.(\w+)", _text),
    "quantization": (r"\bquantization=([\w-]+)", _text),
    "kv_cache_dtype": (r"\bkv_cache_dtype=(\w+)", _text),
    "load_format": (r"\bload_format=(\w+)", _text),
    "tensor_parallel": (r"\btensor_parallel_size=(\d{1,9})\b", _count),
    "max_model_len": (r"\bmax_seq_len=(\d{1,15})\b", _count),
    "prefix_caching": (r"\benable_prefix_caching=(True|False)", _flag),
    "enforce_eager": (r"\benforce_eager=(True|False)", _flag),
    "cudagraph_mode": (r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", _text),
    "fuse_allreduce_rms": (r"'fuse_allreduce_rms': (True|False)", _flag),
    "attention_backend": (r"Using (\w+) (?:attention backend out of|backend\.)", _text),
    "moe_backend": (r"Using '?(\w+)'? \w+ MoE backend", _text),
    "allreduce_backends": (r"Using (\[[^\]]{0,500}\]) all-reduce backends \(in dispatch order\) for group 'tp", _names),
    "nccl": (r"vLLM is using nccl==([\w.]+)", _text),
    "kv_cache_tokens": (r"KV cache size: (\d[\d,]{0,24}) tokens", _count),
    "speculative_method": (r"\bspeculative_config=SpeculativeConfig\(method='([\w-]+)'", _text),
    "draft_tokens": (r"\bspeculative_config=SpeculativeConfig\([^)]{0,2000}num_spec_tokens=(\d{1,9})\b", _count),
    "jit_monitor": (r"(Kernel JIT monitor activated)", bool),
}
# The engine's time, last, holds those between it and the weights; a start takes some more for processes and imports.
_SECONDS: Final = r"(\d{1,12}(?:\.\d{1,12})?)"
_START: Final[Mapping[str, str]] = {
    "weights": rf"Model loading took .{{0,80}} and {_SECONDS} seconds",
    "compilation": rf"torch\.compile (?:took|takes) {_SECONDS} s in total",
    "graphs": rf"Graph capturing finished in {_SECONDS} secs",
    "kernels": rf"JIT kernel warmup finished in {_SECONDS} ?s",
    "engine": rf"init engine \(profile, create kv cache, warmup model\) took {_SECONDS} s",
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
