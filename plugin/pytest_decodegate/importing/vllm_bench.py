"""`vllm bench serve --save-result`: sessions if --save-detailed gives every request, else single figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..baseline.schema import Session
from ..errors import BadInput
from ..metric import Json, Metric, Replicate
from .found import Fields, Found, Source, instant

TOOL: Final = "vllm bench serve"

# (latency - TTFT) / (tokens - 1) everywhere; when the latency of openai-chat ends is another matter in each of these.
_CHAT_FORMULAS: Final[Mapping[str, str]] = {"0.20": "v1", "0.26": "v1", "0.32": "v2", "0.33": "v3"}
_CHAT = ("openai-chat", "openai-audio", "vllm-chat")
_DETAILS = ("ttfts", "itls", "output_lens")


def is_vllm_bench(fields: Fields) -> bool:
    """Whether a JSON file is of this tool."""
    return {"request_throughput", "output_throughput", "total_output_tokens", "duration"} <= fields.values.keys()


def read(source: Source, fields: Fields, *, client_version: str | None = None) -> Found:
    """TPOT, TTFT and output tokens per second; raises BadInput naming file, field and value.

    client_version: vLLM whose client it was, which the file does not say; needed where the formula depends on it.
    """
    _check_all_done(fields)
    return Found(TOOL, tuple(_sessions(source, fields, client_version)))


def _check_all_done(fields: Fields) -> None:
    said = fields.values.get
    if said("failed"):
        raise fields.wrong("failed", "requests failed; a baseline needs all of them")
    if not said("completed", 1):
        raise fields.wrong("completed", "nothing was measured")

    # Older files do not say how many failed; newer ones may well hold fewer requests than prompts were asked for.
    told = {"completed", "failed"} & fields.values.keys()
    if told == {"completed"} and fields.number("completed") < fields.number("num_prompts"):
        raise fields.wrong("completed", f"{said('num_prompts')} prompts were sent; a baseline needs all of them")
    if isinstance(errors := said("errors"), list) and any(errors):
        raise fields.wrong("errors", "requests failed; a baseline needs all of them")


def _sessions(source: Source, fields: Fields, client_version: str | None) -> Iterator[tuple[Metric, Session]]:
    date = instant(str(fields.values.get("date")), "%Y%m%d-%H%M%S") or source.recorded
    load = _load(fields)
    contract, formula = _contract(fields), {"formula": _formula(fields, client_version)}
    detailed = any(fields.values.get(name) for name in _DETAILS)
    for name, unit, values in _values(fields, detailed=detailed):
        metric = Metric.of(f"{name}[{load}]", "serving", unit=unit)
        metric = replace(metric, contract=contract if unit == "tok/s" else {**contract, **formula})
        recorded = date.isoformat(timespec="seconds")
        if detailed:
            facts: Mapping[str, Json] = {"requests": len(values)}
            session = Session(source.session_id, recorded, "window", (Replicate(values, facts),))
        else:
            session = Session(source.session_id, recorded, "published", (), point=values[0])

        yield metric, session


def _values(fields: Fields, *, detailed: bool) -> Iterator[tuple[str, str, tuple[float, ...]]]:
    """(name, unit, values): of each request, or one figure, the median."""
    if detailed:
        tpot_s, ttft_s = _requests(fields)
        yield "tpot", "s", tpot_s
        yield "ttft", "s", ttft_s
    else:
        yield "tpot", "s", (fields.number("median_tpot_ms") / 1e3,)
        yield "ttft", "s", (fields.number("median_ttft_ms") / 1e3,)

    yield "output_throughput", "tok/s", (fields.number("output_throughput"),)


def _requests(fields: Fields) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """TPOT in seconds of each request with more than one token, and TTFT of each.

    By vLLM's own formula, without the microseconds up to the usage chunk, which chat clients of formula v1 add.
    """
    ttfts, lengths = fields.numbers("ttfts"), fields.numbers("output_lens")
    gaps = fields.values.get("itls")
    if not isinstance(gaps, list) or not len(gaps) == len(ttfts) == len(lengths):
        raise fields.wrong(
            "itls", f"one list for each of {len(ttfts)} requests is needed, as --save-detailed writes it"
        )

    waits = [sum(Fields(f"{fields.where}, itls", {str(n): gap}).numbers(str(n))) for n, gap in enumerate(gaps)]
    tpot_s = tuple(wait / (length - 1) for wait, length in zip(waits, lengths, strict=True) if length > 1 and wait > 0)
    if not tpot_s:
        raise fields.wrong("output_lens", "no request has two tokens, so there is no time per token")

    return tpot_s, tuple(ttft for ttft in ttfts if ttft > 0)


def _load(fields: Fields) -> str:
    """The part of a metric's name that says what was sent: a concurrency, or a rate."""
    streams = fields.values.get("max_concurrency")
    return f"rate={fields.values.get('request_rate')}" if streams is None else f"c={streams}"


def _contract(fields: Fields) -> dict[str, Json]:
    said = fields.values.get
    prompts = fields.number("num_prompts")
    return {
        "clock": "client, at the chunk",
        "client": TOOL,
        "endpoint_type": _backend(fields),
        "model": said("model_id"),
        "concurrency": said("max_concurrency"),
        "request_rate": said("request_rate"),
        "burstiness": said("burstiness"),
        "requests": round(prompts),
        "prompt_tokens": fields.number("total_input_tokens") / prompts,
    }


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
