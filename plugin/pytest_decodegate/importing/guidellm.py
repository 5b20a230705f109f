"""GuideLLM's benchmarks.json: median figures of each benchmark in it.

Formula of guidellm/schemas/request_stats.py (0.4 to 0.7; benchmark/benchmark.py before), inter_token_latency_ms:
(last token - first token) / (output tokens - 1). Its median weighs each request by its tokens, unlike everybody else's.
Its time_per_output_token_ms has the first token in it and is not TPOT as the others have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from ..metric import Json
from .found import Fields, Found, SourceFile
from .serving_result import CLOCK, ServingResult, load_of, tokens_of_a_request

TOOL: Final = "guidellm"


def is_guidellm(fields: Fields) -> bool:
    """Whether a JSON object is of this tool."""
    benchmarks = fields.values.get("benchmarks")
    if not isinstance(benchmarks, list) or "machine_info" in fields.values:
        return False

    metadata = fields.values.get("metadata")
    named = isinstance(metadata, dict) and "guidellm_version" in metadata
    return named or any(
        isinstance(benchmark, dict) and benchmark.get("type_") == "generative_benchmark" for benchmark in benchmarks
    )


def read(source: SourceFile, fields: Fields, *, number: int = 1) -> Found:
    """TPOT (its inter_token_latency), TTFT and output tokens per second; raises BadInput naming file and field."""
    benchmarks = fields.objects("benchmarks")
    if not benchmarks:
        raise fields.wrong("benchmarks", "nothing was measured")

    results = (_result(fields, benchmark) for benchmark in benchmarks)
    first = (number - 1) * len(benchmarks) + 1
    sessions = (result.sessions(source.element_id(first + index)) for index, result in enumerate(results))
    return Found(TOOL, tuple(pair for each in sessions for pair in each))


def _result(report: Fields, benchmark: Fields) -> ServingResult:
    metrics, strategy = benchmark.object("metrics"), _strategy(benchmark)
    _check_all_done(metrics)
    concurrency, rate = _load(strategy)
    contract: dict[str, Json] = {
        "clock": CLOCK,
        "client": TOOL,
        "strategy": strategy.text("type_"),
        "concurrency": concurrency,
        "request_rate": rate,
        "prompt_tokens": _tokens(metrics, "prompt_token_count"),
        "output_tokens": _tokens(metrics, "output_token_count"),
        **dict(_said(report, benchmark)),
    }
    return ServingResult(
        load=load_of(concurrency, rate),
        formula="guidellm_inter_token_latency_v1",
        contract=contract,
        values={
            "tpot": (_successful(metrics, "inter_token_latency_ms").number("median") / 1e3,),
            "ttft": (_successful(metrics, "time_to_first_token_ms").number("median") / 1e3,),
            "output_throughput": (_successful(metrics, "output_tokens_per_second").number("mean"),),
        },
        recorded=_recorded(benchmark),
    )


def _strategy(benchmark: Fields) -> Fields:
    """Where it stands since 0.4, and where it stood before."""
    return benchmark.object("config" if "config" in benchmark.values else "args").object("strategy")


def _load(strategy: Fields) -> tuple[Json, Json]:
    """(concurrency, requests a second) of guidellm/scheduler/strategies.py."""
    kind = strategy.text("type_")
    if kind == "synchronous":
        return 1, None
    if kind == "concurrent":
        return strategy.count("streams"), None
    if kind == "throughput":
        return strategy.plain("max_concurrency"), "inf"
    if kind in ("constant", "poisson"):
        return None, strategy.number("rate")

    raise strategy.wrong("type_", "known are synchronous, concurrent, throughput, constant and poisson")


def _check_all_done(metrics: Fields) -> None:
    """Requests that were still under way when the time was over are no failures."""
    totals = metrics.inner("request_totals")
    if totals.values.get("errored"):
        raise totals.wrong("errored", "requests failed; a baseline needs all of them")


def _successful(metrics: Fields, name: str) -> Fields:
    return metrics.object(name).object("successful")


def _tokens(metrics: Fields, name: str) -> float:
    return tokens_of_a_request(_successful(metrics, name).number("mean"), 1)


def _said(report: Fields, benchmark: Fields) -> Iterator[tuple[str, Json]]:
    """Backend, model and data, as far as the version writes them down."""
    config, worker = benchmark.inner("config"), benchmark.inner("worker")
    given = report.inner("args")
    places = (
        ("backend", worker, "backend_type"),  # 0.3 and before
        ("model", worker, "backend_model"),
        ("data", benchmark.inner("request_loader"), "data"),
        ("backend", given, "backend"),  # 0.4 to 0.6
        ("model", given, "model"),
        ("data", given, "data"),
        ("backend", config.inner("backend"), "type_"),
        ("model", config.inner("backend"), "model"),
    )
    for name, where, field in places:
        if (value := where.values.get(field)) is not None:
            yield name, value if isinstance(value, str | int | float) else str(value)


def _recorded(benchmark: Fields) -> str:
    """Seconds since the epoch, so the offset is no guess."""
    name = "start_time"
    place = benchmark if name in benchmark.values else benchmark.inner("run_stats")
    if name not in place.values:
        return ""

    return datetime.fromtimestamp(place.number(name), UTC).isoformat(timespec="seconds")
