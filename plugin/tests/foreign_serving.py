"""Results of load generators other than vLLM's, in the shapes that their sources write."""

from __future__ import annotations

import json
from typing import Any


def sglang_json(**changes: Any) -> bytes:
    """python/sglang/bench_serving.py, `result` of benchmark()."""
    document = {
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": float("inf"),
        "max_concurrency": 16,
        "sharegpt_output_len": None,
        "random_input_len": 1024,
        "random_output_len": 128,
        "random_range_ratio": 1.0,
        "duration": 10.0,
        "completed": 64,
        "total_input_tokens": 65536,
        "total_output_tokens": 8192,
        "total_output_tokens_retokenized": 8190,
        "request_throughput": 6.4,
        "input_throughput": 6553.6,
        "output_throughput": 819.2,
        "mean_ttft_ms": 51.0,
        "median_ttft_ms": 50.0,
        "mean_tpot_ms": 9.1,
        "median_tpot_ms": 9.0,
        "median_itl_ms": 8.0,
        "concurrency": 15.5,
        "accept_length": None,
        **changes,
    }
    return json.dumps({name: value for name, value in document.items() if value is not ...}).encode()


def statistic(unit: str, **values: float) -> dict[str, Any]:
    return {"unit": unit, **values}


def aiperf_json(**changes: Any) -> bytes:
    """aiperf/common/models/export_models.py, JsonExportData."""
    document = {
        "request_throughput": statistic("requests/sec", avg=6.4),
        "request_latency": statistic("ms", avg=1200.0, p50=1190.0),
        "request_count": statistic("requests", avg=64.0),
        "time_to_first_token": statistic("ms", avg=51.0, p50=50.0),
        "inter_token_latency": statistic("ms", avg=9.1, p50=9.0),
        "output_token_throughput": statistic("tokens/sec", avg=819.2),
        "output_sequence_length": statistic("tokens", avg=128.0),
        "input_sequence_length": statistic("tokens", avg=1024.0),
        "input_config": {
            "endpoint": {"model_names": ["Qwen/Qwen3-0.6B"], "type": "chat", "streaming": True},
            "input": {"extra": [["ignore_eos", True]], "random_seed": 7},
            "loadgen": {"concurrency": 16, "request_rate": None, "request_rate_mode": "concurrency_burst"},
        },
        "was_cancelled": False,
        "error_summary": [],
        "start_time": "2026-01-02T03:04:05.678901",
        "end_time": "2026-01-02T03:05:05.678901",
        **changes,
    }
    return json.dumps({name: value for name, value in document.items() if value is not ...}).encode()


def guidellm_benchmark(strategy: dict[str, Any], *, errored: int = 0, **changes: Any) -> dict[str, Any]:
    """src/guidellm/benchmark/schemas/benchmark.py, GenerativeBenchmark, of 0.7."""

    def distribution(median: float, mean: float) -> dict[str, Any]:
        summary = {"mean": mean, "median": median, "count": 60}
        return {"successful": summary, "incomplete": {**summary, "median": 99.0, "mean": 99.0}, "total": summary}

    document = {
        "type_": "generative_benchmark",
        "config": {
            "strategy": strategy,
            "backend": {"type_": "openai_http", "model": "Qwen/Qwen3-0.6B"},
            "requests": {"data": ["prompt_tokens=1024,output_tokens=128"]},
        },
        "metrics": {
            "request_totals": {"successful": 60, "incomplete": 2, "errored": errored, "total": 62 + errored},
            "prompt_token_count": distribution(1024.0, 1024.0),
            "output_token_count": distribution(128.0, 128.0),
            "time_to_first_token_ms": distribution(50.0, 51.0),
            "inter_token_latency_ms": distribution(9.0, 9.1),
            "time_per_output_token_ms": distribution(9.4, 9.5),
            "output_tokens_per_second": distribution(800.0, 819.2),
        },
        "start_time": 1767323045.678,
        **changes,
    }
    return {name: value for name, value in document.items() if value is not ...}


def guidellm_json(*benchmarks: dict[str, Any]) -> bytes:
    metadata = {"version": 2, "guidellm_version": "0.7.3", "python_version": "3.12.1", "platform": "Linux"}
    return json.dumps({"metadata": metadata, "config": {}, "benchmarks": list(benchmarks)}).encode()
