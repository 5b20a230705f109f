"""What a vLLM server says about itself in its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ..metric import Json
from ..printable import printable, without_colours
from ..redaction import redact_text

JIT_IN_INFERENCE: Final = "JIT compilation during inference"
"""vLLM 0.26 and later warn so when a kernel is compiled while serving: that time is in the samples."""

# "(EngineCore pid=5327) INFO 11-29 18:46:04 [utils.py:347] text" -> "text"
_PREFIX = re.compile(r"^(\([^)]*\) )?([A-Z]+ )?(\d\d-\d\d \d\d:\d\d:\d\d )?(\[[\w./]+:\d+\] )?")
_WORKER = re.compile(r"^\([^)]*\)")
_HEADLINE_CHARACTERS = 120


def _text(found: str) -> Json:
    return None if found == "None" else printable(found)


def _count(found: str) -> Json:
    return int(found.replace(",", ""))


def _flag(found: str) -> Json:
    return found == "True"


def _names(found: str) -> Json:
    return list(map(printable, re.findall(r"'([^']+)'", found)))


# Scheme of the weights in the oracles of vllm/model_executor/layers/fused_moe; backends are of two words there, too.
_MOE_SCHEMES: Final = "W4A8 Int8|Unquantized|Fp8|NvFp4|Mxfp4|MxFp8|Int8|W4A8|WNA16|Humming"
# platforms/cuda.py, rocm.py, cpu.py and xpu.py of vLLM; other backends than of attention are announced in like words.
_OTHERS: Final = r"(?!(?:MoE|GDN|KDA|Mamba|ReplaySSM|prefill|modeling|custom|attention|backend)\b)"
_ATTENTION: Final = (
    rf"Using ({_OTHERS}\w{{1,60}}(?: {_OTHERS}\w{{1,60}}){{0,3}}?) (?:attention )?backend"
    r"(?: out of potential backends| \(selected via --attention-backend\)| on (?:V1 engine|XPU)\b|\.(?=\s|$))"
)

# Every repeat is bounded: a log in which the beginning of a wording stands again and again is still read once.
# Wordings of 0.20 to 0.33. The attention backend has one when vLLM chose it and another when --attention-backend did.
_PATTERNS: Final[Mapping[str, tuple[str, Callable[[str], Json]]]] = {
    "vllm": (r"Initializing a V1 LLM engine \(v([^)\s]{1,80})\)", _text),
    "dtype": (r"\bdtype=torch\.(\w+)", _text),
    "quantization": (r"\bquantization=([\w-]+)", _text),
    "kv_cache_dtype": (r"\bkv_cache_dtype=(\w+)", _text),
    "load_format": (r"\bload_format=(\w+)", _text),
    "tensor_parallel": (r"\btensor_parallel_size=(\d{1,9})\b", _count),
    "pipeline_parallel": (r"\bpipeline_parallel_size=(\d{1,9})\b", _count),
    "data_parallel": (r"\bdata_parallel_size=(\d{1,9})\b", _count),
    "max_model_len": (r"\bmax_seq_len=(\d{1,15})\b", _count),
    "prefix_caching": (r"\benable_prefix_caching=(True|False)", _flag),
    "chunked_prefill": (r"\benable_chunked_prefill=(True|False)", _flag),
    "max_num_batched_tokens": (r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,15})\b", _count),
    "enforce_eager": (r"\benforce_eager=(True|False)", _flag),
    "cudagraph_mode": (r"'cudagraph_mode': <CUDAGraphMode\.(\w+)", _text),
    "fuse_allreduce_rms": (r"'fuse_allreduce_rms': (True|False)", _flag),
    "attention_backend": (_ATTENTION, _text),
    "moe_backend": (rf"Using '?([\w ]{{1,80}}?)'?(?: (?:{_MOE_SCHEMES}))? MoE backend", _text),
    "allreduce_backends": (r"Using (\[[^\]]{0,500}\]) all-reduce backends \(in dispatch order\) for group 'tp", _names),
    "nccl": (r"vLLM is using nccl==([\w.]+)", _text),
    "kv_cache_tokens": (r"KV cache size: (\d[\d,]{0,24}) tokens", _count),
    "speculative_method": (r"\bspeculative_config=(?:SpeculativeConfig\(method=')?(None\b|(?<=method=')[\w-]+)", _text),
    "draft_tokens": (r"\bspeculative_config=SpeculativeConfig\([^)]{0,2000}num_spec_tokens=(\d{1,9})\b", _count),
    "jit_monitor": (r"(Kernel JIT monitor activated)", bool),
}
# config/compilation.py, resolve_cudagraph_mode_and_sizes, and config/vllm.py: after the config was printed.
_CUDAGRAPH_CHANGED: Final = re.compile(
    r"setting cudagraph_mode=(?:CUDAGraphMode\.)?(\w+)"
    r"|Overriding cudagraph_mode (?:from \S+ |\S+ )?to (?:CUDAGraphMode\.)?(\w+)"
    r"|piecewise capture.*Overriding to (?:CUDAGraphMode\.)?(\w+)"
)
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
            facts[name] = convert(match[1].strip())

    if changed := list(_CUDAGRAPH_CHANGED.finditer(log)):
        facts["cudagraph_mode"] = next(filter(None, changed[-1].groups()))

    return facts


def start_times(log: str) -> dict[str, float]:
    """Seconds of each part of a start that `log` tells of, in the worker that took the longest.

    A worker compiles its model and a draft one after the other; the other parts are told once.
    """
    found: dict[str, dict[str, list[float]]] = {name: {} for name in _START}
    for line in lines(log):
        worker = _WORKER.match(line)
        for name, pattern in _START.items():
            for time in re.findall(pattern, line):
                found[name].setdefault(worker[0] if worker else "", []).append(float(time))

    whole = {name: sum if name == "compilation" else max for name in _START}
    return {name: max(map(whole[name], times.values())) for name, times in found.items() if times}


def lines(log: str) -> list[str]:
    """The log's lines that say something, as a terminal would show them: a progress bar is its last state.

    Secrets are redacted, and what a terminal would obey is written as it reads.
    """
    shown = (without_colours(line).rstrip().rpartition("\r")[2] for line in log.split("\n"))
    return [printable(redact_text(line)) for line in shown if line.strip()]


def headline(log: str) -> str:
    """The last line without vLLM's prefix of process, level, time and source, cut short; empty if there is none."""
    said = lines(log)
    last = _PREFIX.sub("", said[-1]).strip() if said else ""
    return last if len(last) <= _HEADLINE_CHARACTERS else f"{last[: _HEADLINE_CHARACTERS - 3]}..."


def compiled_in_inference(log: str) -> tuple[str, ...]:
    """Lines that report a kernel compiled while requests were served."""
    return tuple(line for line in lines(log) if JIT_IN_INFERENCE in line)
