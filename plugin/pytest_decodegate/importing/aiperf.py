"""NVIDIA AIPerf's profile_export_aiperf.json: median figures.

Formula of aiperf/metrics/types/inter_token_latency_metric.py: (request latency - TTFT) / (output tokens - 1), to the
last response. Shape: aiperf/common/models/export_models.py, made like that of GenAI-Perf, which is not read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ..errors import BadInput
from ..metric import Json
from .found import Fields, Found, SourceFile
from .serving_result import CLOCK, ServingResult, load_of, rate_of, seconds_of, tokens_of_a_request

TOOL: Final = "aiperf"
_INPUTS: Final = ("public_dataset", "custom_dataset_type", "file", "random_seed")


def is_aiperf(fields: Fields) -> bool:
    """Whether a JSON object is of this tool, or of GenAI-Perf, which `read` refuses."""
    return {"input_config", "request_latency"} <= fields.values.keys()


def read(source: SourceFile, fields: Fields, *, number: int = 1) -> Found:
    """TPOT (its inter_token_latency), TTFT and output tokens per second; raises BadInput naming file and field."""
    config = fields.object("input_config")
    if "perf_analyzer" in config.values:
        raise BadInput(f"{fields.where}: is of GenAI-Perf, which is not read; measure with its successor aiperf")

    _check_all_done(fields)
    if fields.values.get("inter_token_latency") is None:
        raise fields.wrong("inter_token_latency", "aiperf measures it with --streaming only")

    generator = config.inner("loadgen")
    result = ServingResult(
        load=load_of(generator.plain("concurrency"), rate_of(generator, "request_rate")),
        formula="aiperf_inter_token_latency_v1",
        contract=_contract(fields, config),
        values={
            "tpot": (seconds_of(fields.object("inter_token_latency"), "p50"),),
            "ttft": (seconds_of(fields.object("time_to_first_token"), "p50"),),
            "output_throughput": (_tokens_a_second(fields.object("output_token_throughput")),),
        },
        recorded=_recorded(fields),
    )
    return Found(TOOL, tuple(result.sessions(source.element_id(number))))


def _check_all_done(fields: Fields) -> None:
    if fields.values.get("was_cancelled"):
        raise fields.wrong("was_cancelled", "the run was cancelled")
    if fields.values.get("error_summary"):
        raise fields.wrong("error_summary", "requests failed; a baseline needs all of them")

    failed = fields.inner("error_request_count")
    if failed.values.get("avg"):
        raise failed.wrong("avg", "requests failed; a baseline needs all of them")


def _tokens_a_second(statistic: Fields) -> float:
    if statistic.text("unit") != "tokens/sec":
        raise statistic.wrong("unit", "'tokens/sec' is needed")

    return statistic.number("avg")


def _contract(fields: Fields, config: Fields) -> dict[str, Json]:
    generator, endpoint, sent = config.inner("loadgen"), config.inner("endpoint"), config.inner("input")
    requests = fields.object("request_count").count("avg")
    lengths = {name: fields.object(f"{name}_sequence_length").number("avg") for name in ("input", "output")}
    contract: dict[str, Json] = {
        "clock": CLOCK,
        "client": TOOL,
        "endpoint_type": endpoint.plain("type"),
        "model": ", ".join(map(str, endpoint.values.get("model_names") or ())),
        "concurrency": generator.plain("concurrency"),
        "request_rate": rate_of(generator, "request_rate"),
        "request_rate_mode": generator.plain("request_rate_mode"),
        "requests": requests,
        "prompt_tokens": tokens_of_a_request(lengths["input"], 1),
        "output_tokens": tokens_of_a_request(lengths["output"], 1),
    }
    contract |= {name: sent.plain(name) for name in _INPUTS if sent.values.get(name) is not None}
    return contract | {str(name): value for name, value in _extra(sent)}


def _extra(sent: Fields) -> list[tuple[str, Json]]:
    """--extra-inputs, among them ignore_eos: a list of pairs, or an object."""
    said = sent.values.get("extra") or []
    pairs = list(said.items()) if isinstance(said, dict) else said
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise sent.wrong("extra", "a list of names and values is needed")

    return [(f"extra_{name}", value if isinstance(value, str | int | float) else str(value)) for name, value in pairs]


def _recorded(fields: Fields) -> str:
    """start_time is local and has no offset (json_exporter.py, datetime.fromtimestamp)."""
    if fields.values.get("start_time") is None:
        return ""
    try:
        return datetime.fromisoformat(fields.text("start_time")).astimezone().isoformat(timespec="seconds")
    except ValueError:
        raise fields.wrong("start_time", "an ISO 8601 time is needed") from None
