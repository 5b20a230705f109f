"""`vllm bench serve`: sessions if --save-detailed gives every request, else single figures.

--save-result writes an object, --append-result JSON lines, `vllm bench sweep serve` a list that also holds what it
overrode (vllm/benchmarks/serve.py and sweep/serve.py of vLLM 0.32; benchmark_serving.py before 0.10).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ..errors import BadInput
from ..machine.provenance import COMPONENTS
from ..metric import Json
from .found import Fields, Found, SourceFile, instant
from .serving_result import (
    CLOCK,
    ServingResult,
    check_lists,
    check_median,
    check_sum,
    load_of,
    rate_of,
    tokens_of_a_request,
)

TOOL: Final = "vllm bench serve"

# (latency - TTFT) / (tokens - 1) everywhere; when the latency of openai-chat ends is another matter in each of these.
_CHAT_FORMULAS: Final[Mapping[str, str]] = {"0.20": "v1", "0.26": "v1", "0.32": "v2", "0.33": "v3"}
_CHAT = ("openai-chat", "openai-audio", "vllm-chat")
_DETAILS = ("ttfts", "itls", "output_lens")
_LISTS = (*_DETAILS, "input_lens", "errors", "generated_texts", "latencies", "start_times", "queue_times")

_DECISIVE: Final[Mapping[str, str]] = {
    "framework": "engine",
    "engine": "engine",
    **{
        name: name
        for name in (
            *("dataset", "dataset_name", "dataset_path", "ignore_eos", "temperature", "top_p", "top_k", "seed"),
            *("input_len", "output_len", "random_input_len", "random_output_len", "random_range_ratio"),
            *("random_prefix_len", "sharegpt_output_len", "sonnet_input_len", "sonnet_output_len"),
            *("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "goodput", "lora_name", "extra_body"),
        )
    },
}
"""What --metadata and a sweep say of the load -> the field of the contract."""

_KNOWN_TEXTS: Final = frozenset(
    {"date", "label", "backend", "endpoint_type", "model_id", "tokenizer_id", "request_rate", *_DECISIVE}
)
_FLAGS: Final = frozenset(
    {
        *("tp", "pp", "dp", "ep", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "num_gpus"),
        *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"),
    }
)
"""Numbers that other benchmarks put beside vLLM's result: settings of the server."""
_KNOWN_COUNTS: Final = frozenset(
    {"completed", "failed", "num_prompts", "max_concurrency", "max_concurrent_requests", "run_number", "num_warmups"}
)
_RESULT: Final = re.compile(
    r"total_.*|probe_.*|(mean|median|std|p[\d.]+)_.*_ms|.*throughput|.*goodput:?|spec_decode_.*"
)


def is_vllm_bench(fields: Fields) -> bool:
    """Whether a JSON object is of this tool."""
    return {"request_throughput", "output_throughput", "total_output_tokens", "duration"} <= fields.values.keys()


def read(source: SourceFile, fields: Fields, *, number: int = 1, client_version: str | None = None) -> Found:
    """TPOT, TTFT and output tokens per second; raises BadInput naming file, field and value.

    number: which result of the file it is. client_version: vLLM whose client it was, which the file does not say;
    needed where the formula depends on it.
    """
    _check_all_done(fields)
    detailed = any(fields.values.get(name) for name in _DETAILS)
    date = instant(str(fields.values.get("date")), "%Y%m%d-%H%M%S")
    result = ServingResult(
        load=load_of(fields.plain("max_concurrency"), rate_of(fields, "request_rate")),
        formula=_formula(fields, client_version),
        contract=_contract(fields),
        values=dict(_requests(fields)) if detailed else dict(_figures(fields)),
        recorded=date.isoformat(timespec="seconds") if date else "",
        detailed=detailed,
    )
    return Found(TOOL, tuple(result.sessions(source.element_id(number))), stack=dict(_stack(fields)))


def _check_all_done(fields: Fields) -> None:
    said = fields.values.get
    if said("failed"):
        raise fields.wrong("failed", "requests failed; a baseline needs all of them")
    if not said("completed", 1):
        raise fields.wrong("completed", "nothing was measured")

    # Older files do not say how many failed; newer ones may well hold fewer requests than prompts were asked for.
    known = {"completed", "failed"} & fields.values.keys()
    if known == {"completed"} and fields.number("completed") < fields.number("num_prompts"):
        raise fields.wrong("completed", f"{said('num_prompts')} prompts were sent; a baseline needs all of them")
    if isinstance(errors := said("errors"), list):
        for index, error in enumerate(errors):
            if error:
                raise fields.wrong_element("errors", index, "requests failed; a baseline needs all of them")


def _figures(fields: Fields) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The medians that the file states."""
    yield "tpot", (fields.number("median_tpot_ms") / 1e3,)
    yield "ttft", (fields.number("median_ttft_ms") / 1e3,)
    yield "output_throughput", (fields.number("output_throughput"),)


def _requests(fields: Fields) -> Iterator[tuple[str, tuple[float, ...]]]:
    """TPOT in seconds of each request with more than one token, and TTFT of each.

    By vLLM's own formula, without the microseconds up to the usage chunk, which chat clients of formula v1 add.
    """
    check_lists(fields, _LISTS, _completed(fields))
    ttfts, lengths, gaps = fields.numbers("ttfts"), fields.numbers("output_lens"), fields.values.get("itls")
    if not isinstance(gaps, list) or not len(gaps) == len(ttfts) == len(lengths):
        raise fields.wrong(
            "itls", f"one list for each of {len(ttfts)} requests is needed, as --save-detailed writes it"
        )

    check_sum(fields, "output_lens", "total_output_tokens")
    waits = [sum(Fields(fields.where, {f"itls[{n}]": gap}).numbers(f"itls[{n}]")) for n, gap in enumerate(gaps)]
    tpot_s = tuple(wait / (length - 1) for wait, length in zip(waits, lengths, strict=True) if length > 1 and wait > 0)
    if not tpot_s:
        raise fields.wrong("output_lens", "no request has two tokens, so there is no time per token")

    check_median(fields, "median_ttft_ms", ttfts)
    check_median(fields, "median_tpot_ms", tpot_s, slack=0.02)  # of a chat client of formula v1
    yield "tpot", tpot_s
    yield "ttft", tuple(ttft for ttft in ttfts if ttft > 0)
    yield "output_throughput", (fields.number("output_throughput"),)


def _completed(fields: Fields) -> int:
    return fields.count("completed" if "completed" in fields.values else "num_prompts")


def _contract(fields: Fields) -> dict[str, Json]:
    prompts, completed = fields.count("num_prompts"), _completed(fields)
    contract: dict[str, Json] = {
        "clock": CLOCK,
        "client": TOOL,
        "endpoint_type": _backend(fields),
        "model": fields.plain("model_id"),
        "concurrency": fields.plain("max_concurrency"),
        "request_rate": rate_of(fields, "request_rate"),
        "burstiness": fields.plain("burstiness"),
        "requests": prompts,
        "prompt_tokens": fields.count("total_input_tokens") / prompts,
        "output_tokens": tokens_of_a_request(fields.count("total_output_tokens"), completed),
    }
    said = {ours: fields.plain(name) for name, ours in _DECISIVE.items() if fields.values.get(name) is not None}
    return {**contract, **said}


def _stack(fields: Fields) -> Iterator[tuple[str, Json]]:
    """What else --metadata says, whose values are all texts, and what a sweep overrode, which is of any type.

    It may be a flag of the server or a remark: as a flag it confounds until somebody declares it.
    """
    swept = "run_number" in fields.values
    for name, value in fields.values.items():
        text = isinstance(value, str) and name not in _KNOWN_TEXTS
        count = isinstance(value, int) and swept and name not in _KNOWN_COUNTS and not _RESULT.fullmatch(name)
        if name in COMPONENTS and value is not None:
            yield name, str(value)
        elif text or (count and name not in _DECISIVE) or (name in _FLAGS and isinstance(value, int)):
            yield f"flag:{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}", value


def _backend(fields: Fields) -> str:
    return fields.text("backend" if "backend" in fields.values else "endpoint_type")


def _formula(fields: Fields, client_version: str | None) -> str:
    backend = _backend(fields)
    if backend not in _CHAT:
        return f"vllm_bench_{backend.replace('-', '_')}_v1"
    if client_version is None:
        raise BadInput(
            f"{fields.where}: field 'backend' is {backend!r}: its TPOT formula differs between versions of vLLM, and "
            "the file does not say which one it was; give --client-version, for example --client-version 0.33.0"
        )

    minor = ".".join(client_version.split(".")[:2])
    # A version that nobody has read is comparable with itself alone.
    return f"vllm_bench_chat_{_CHAT_FORMULAS.get(minor, minor)}"
