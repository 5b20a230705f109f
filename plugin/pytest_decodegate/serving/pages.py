"""Pages on which a server says what it runs, fetched without a proxy.

The promise: facts are picked by name. Such pages also hold keys and paths (SGLang shows its own API key), and nothing
that is not named here leaves this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import uvloop

from ..client.client import PAGE_SECONDS, Client, HttpReply
from ..client.endpoint import Endpoint, model_length, owner
from ..errors import ServerError
from ..metric import Json
from ..printable import printable
from ..redaction import redact_text
from .log_facts import read_facts

Get = Callable[[str], str | None]

_MOST_DIGITS = 15

# Page -> fact -> where it stands there. /server_info is the newer name of SGLang's page, and vLLM's in developer mode;
# as text that is a line of its log, which does not tell of the scheduler.
_SGLANG: Final[Mapping[str, str]] = {
    "version": "version",
    "tensor_parallel": "tp_size",
    "pipeline_parallel": "pp_size",
    "max_model_len": "context_length",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "attention_backend": "attention_backend",
    "moe_backend": "moe_runner_backend",
    "kv_cache_tokens": "max_total_num_tokens",
    "cudagraph_off": "disable_cuda_graph",
    "radix_cache_off": "disable_radix_cache",
    "speculative_method": "speculative_algorithm",
    "draft_tokens": "speculative_num_draft_tokens",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "kv_block_tokens": "page_size",
}
# Null under these is a word: nothing is set. Under others it may be what the engine has yet to choose.
_NONE_IS_SAID: Final = frozenset({"quantization", "speculative_method"})
_VLLM_CONFIG: Final = "/server_info?config_format=json"
_PAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "/version": {"version": "version"},
    "/get_server_info": _SGLANG,
    "/server_info": _SGLANG,
    _VLLM_CONFIG: {
        "max_num_seqs": "vllm_config.scheduler_config.max_num_seqs",
        "max_num_batched_tokens": "vllm_config.scheduler_config.max_num_batched_tokens",
    },
    "/props": {
        "version": "build_info",
        "slots": "total_slots",
        "max_model_len": "default_generation_settings.n_ctx",
    },
}
# Of a server that does not say who it is, all pages.
_ASKED: Final = {"vllm": ("/version", "/server_info", _VLLM_CONFIG)}
_CACHE: Final[Mapping[str, str]] = {
    "kv_cache_blocks": "num_gpu_blocks",
    "kv_block_tokens": "block_size",
    "kv_cache_tokens": "kv_cache_size_tokens",  # vllm/config/cache.py, as the log has it: "KV cache size: N tokens"
    "kv_cache_dtype": "cache_dtype",
    "prefix_caching": "enable_prefix_caching",
}
_CACHE_LINE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'\b(\w{1,100})="([^"]*)"')
_WORDS: Final[Mapping[str, Json]] = {"True": True, "False": False, "None": None}

ENGINES: Final[Mapping[str, str]] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "tensorrt_llm": "tensorrt",
}
"""What /v1/models calls the owner of a model -> the component of a stack."""


def fetch(endpoint: Endpoint, path: str) -> HttpReply:
    """A page, whatever its status; raises ServerError, also for one that has not come in whole after PAGE_SECONDS.

    No proxy: the way to the server is part of what is measured.
    """

    async def ask() -> HttpReply:
        async with Client(endpoint, stall_seconds=PAGE_SECONDS) as client:
            return await client.get(path)

    return uvloop.run(ask())


def page(endpoint: Endpoint, path: str) -> str | None:
    """The body of a page, None where there is none or nobody answers."""
    try:
        reply = fetch(endpoint, path)
    except ServerError:
        return None

    return reply.text if reply.status == 200 else None


def read_pages(get: Get, model: str) -> dict[str, Json]:
    """The facts that a server's pages state, one of ENGINES among them; what none states is left out, never guessed."""
    models = get("/v1/models") or ""
    engine = ENGINES.get(owner(models) or "")
    facts: dict[str, Json] = {"engine": engine} if engine else {}
    for path in _ASKED.get(engine or "", _PAGES):
        answer = _object(get(path))
        facts |= _picked(answer, _PAGES[path])
        if isinstance(config := answer.get("vllm_config"), str):
            facts |= read_facts(config)

    if length := model_length(models, model):
        facts["max_model_len"] = length

    return facts | cache_facts(get("/metrics") or "")


def cache_facts(metrics: str) -> dict[str, Json]:
    """Blocks, type and prefix caching of the KV cache, from the labels of vLLM's /metrics page."""
    line = _CACHE_LINE.search(metrics)
    labels = dict(_LABEL.findall(line[1])) if line else {}
    return {fact: _word(labels[label]) for fact, label in _CACHE.items() if labels.get(label, "None") != "None"}


def _picked(answer: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Json]:
    inner = answer.get("server_args")
    both = {**inner, **answer} if isinstance(inner, dict) else answer
    found = {fact: _at(both, place) for fact, place in fields.items()}
    unset = {fact: None for fact, place in fields.items() if fact in _NONE_IS_SAID and both.get(place, "") is None}
    # No count has more digits; one that has could not be read back from a baseline.
    usable = {fact: value for fact, value in found.items() if isinstance(value, str) or _is_count(value)}
    said = {fact: printable(redact_text(value)) if isinstance(value, str) else value for fact, value in usable.items()}
    return {**unset, **said}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 10**_MOST_DIGITS


def _at(value: Any, place: str) -> Any:
    for key in place.split("."):
        value = value.get(key) if isinstance(value, dict) else None

    return value


def _object(body: str | None) -> dict[str, Any]:
    try:
        answer = json.loads(body or "")
    except ValueError:
        return {}

    return answer if isinstance(answer, dict) else {}


def _word(text: str) -> Json:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else _WORDS.get(text, printable(text))
