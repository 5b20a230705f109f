"""`python -m sglang.bench_serving --output-file`: JSON lines, one a run; median figures.

Formula of python/sglang/bench_serving.py, calculate_metrics: (latency - TTFT) / (output tokens - 1), where `latency`
ends as each backend's request function has it. A line says nothing of requests that failed unless --output-details.
"""

from __future__ import annotations

from typing import Final

from ..metric import Json
from .found import Fields, Found, SourceFile
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

TOOL: Final = "sglang.bench_serving"
_LISTS: Final = ("ttfts", "itls", "output_lens", "input_lens", "errors", "generated_texts")
_LOAD: Final = ("random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len")


def is_sglang_bench(fields: Fields) -> bool:
    """Whether a JSON object is of this tool."""
    return {"total_output_tokens_retokenized", "median_tpot_ms", "output_throughput"} <= fields.values.keys()


def read(source: SourceFile, fields: Fields, *, number: int = 1) -> Found:
    """TPOT, TTFT and output tokens per second; raises BadInput naming file, field and value."""
    _check_all_done(fields)
    result = ServingResult(
        load=load_of(fields.plain("max_concurrency"), rate_of(fields, "request_rate")),
        formula=f"sglang_bench_{fields.text('backend').replace('-', '_')}_v1",
        contract=_contract(fields),
        values={
            "tpot": (fields.number("median_tpot_ms") / 1e3,),
            "ttft": (fields.number("median_ttft_ms") / 1e3,),
            "output_throughput": (fields.number("output_throughput"),),
        },
    )
    server = fields.inner("server_info").values
    stack: dict[str, Json] = {"sglang": str(server["version"])} if server.get("version") else {}
    return Found(TOOL, tuple(result.sessions(source.element_id(number))), stack=stack)


def _check_all_done(fields: Fields) -> None:
    completed = fields.count("completed")
    if isinstance(errors := fields.values.get("errors"), list):
        for index, error in enumerate(errors):
            if error:
                raise fields.wrong_element("errors", index, "requests failed; a baseline needs all of them")

    check_lists(fields, _LISTS, completed)
    check_sum(fields, "output_lens", "total_output_tokens")
    if isinstance(fields.values.get("ttfts"), list):
        check_median(fields, "median_ttft_ms", fields.numbers("ttfts"))


def _contract(fields: Fields) -> dict[str, Json]:
    completed = fields.count("completed")
    server = fields.inner("server_info")
    contract: dict[str, Json] = {
        "clock": CLOCK,
        "client": TOOL,
        "endpoint_type": fields.text("backend"),
        "concurrency": fields.plain("max_concurrency"),
        "request_rate": rate_of(fields, "request_rate"),
        "requests": completed,
        "dataset": fields.plain("dataset_name"),
        "prompt_tokens": fields.count("total_input_tokens") / completed,
        "output_tokens": tokens_of_a_request(fields.count("total_output_tokens"), completed),
    }
    contract |= {name: fields.plain(name) for name in _LOAD if fields.values.get(name) is not None}
    return contract | ({"model": server.plain("model_path")} if "model_path" in server.values else {})
