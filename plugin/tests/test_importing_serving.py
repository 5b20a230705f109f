"""Results of load generators: each under its own formula, its load in the contract, its tool in every refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from foreign import DATA, DETAILED, PLAIN, PUBLIC, changed, imported, source
from foreign_serving import aiperf_json, guidellm_benchmark, guidellm_json, sglang_json

from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.verdict import identity_differences
from pytest_decodegate.importing.baseline import UserFacts, joined
from pytest_decodegate.metric import Metric

CONCURRENT = {"type_": "concurrent", "streams": 16}


def point(metrics: Any, name: str) -> float:
    value: float = metrics[name].sessions[0].point
    return value


def public(name: str) -> bytes:
    return (PUBLIC / name).read_bytes()


def confounds(one: bytes, other: bytes, name: str) -> list[str]:
    first, second = (imported(content)[name] for content in (one, other))
    return [difference.field for difference in identity_differences(first, second.metric, "published")]


@pytest.mark.parametrize(
    ("content", "formula"),
    [
        (sglang_json(), "sglang_bench_sglang_v1"),
        (aiperf_json(), "aiperf_inter_token_latency_v1"),
        (guidellm_json(guidellm_benchmark(CONCURRENT)), "guidellm_inter_token_latency_v1"),
    ],
    ids=["SGLang", "aiperf", "guidellm"],
)
def test_every_generator_has_its_own_formula(content: bytes, formula: str) -> None:
    metrics = imported(content)
    assert list(metrics) == ["tpot[c=16]", "ttft[c=16]", "output_throughput[c=16]"]
    assert point(metrics, "tpot[c=16]") == pytest.approx(9.0e-3)
    assert point(metrics, "ttft[c=16]") == pytest.approx(50.0e-3)
    assert point(metrics, "output_throughput[c=16]") == pytest.approx(819.2)
    contract = metrics["tpot[c=16]"].metric.contract
    assert (contract["formula"], contract["output_tokens"], contract["prompt_tokens"]) == (formula, 128, 1024)
    assert "formula" not in metrics["output_throughput[c=16]"].metric.contract


def test_no_two_tools_are_one_measurement() -> None:
    contents = (
        changed(PLAIN, max_concurrency=16),
        sglang_json(),
        aiperf_json(),
        guidellm_json(guidellm_benchmark(CONCURRENT)),
    )
    for one in contents:
        for other in contents:
            assert one is other or "contract.client" in confounds(one, other, "output_throughput[c=16]")


@pytest.mark.parametrize(
    ("content", "recorded"),
    [
        (sglang_json(), ""),
        (changed(PLAIN, date=...), ""),
        (changed(PLAIN, date="yesterday"), ""),
        (aiperf_json(), "2026-01-02T03:04:05"),
        (aiperf_json(start_time=None), ""),
        (guidellm_json(guidellm_benchmark(CONCURRENT)), "2026-01-02T03:04:05+00:00"),
        (
            guidellm_json(guidellm_benchmark(CONCURRENT, start_time=..., run_stats={"start_time": 1767323045.6})),
            "2026-01-02T03:04:05+00:00",
        ),
    ],
)
def test_the_date_is_that_of_the_file_or_none(content: bytes, recorded: str) -> None:
    for one in imported(content).values():
        found = one.sessions[0].recorded
        assert found.startswith(recorded) if recorded else found == ""


@pytest.mark.parametrize(
    ("strategy", "load"),
    [
        ({"type_": "synchronous"}, "c=1"),
        (CONCURRENT, "c=16"),
        ({"type_": "throughput", "max_concurrency": 512}, "c=512"),
        ({"type_": "throughput", "max_concurrency": None}, "rate=inf"),
        ({"type_": "constant", "rate": 2.5}, "rate=2.5"),
        ({"type_": "poisson", "rate": 2.5}, "rate=2.5"),
    ],
)
def test_strategies_of_guidellm(strategy: dict[str, Any], load: str) -> None:
    assert f"tpot[{load}]" in imported(guidellm_json(guidellm_benchmark(strategy)))


def test_a_guidellm_report_of_several_benchmarks_and_of_0_3() -> None:
    old = guidellm_benchmark({"type_": "constant", "rate": 2.5})
    config = old.pop("config")
    old["args"] = {"strategy": config["strategy"]}
    old["worker"] = {"backend_type": "openai_http", "backend_model": "m", "backend_target": "http://key@host"}
    metrics = imported(json.dumps({"benchmarks": [guidellm_benchmark(CONCURRENT), old]}).encode())
    assert metrics["tpot[rate=2.5]"].metric.contract["model"] == "m"
    assert "tpot[c=16]" in metrics
    assert not [one for one in metrics.values() if "key@host" in str(one)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (guidellm_json(), r"0\.json: field 'benchmarks' is \[\]"),
        (
            guidellm_json(guidellm_benchmark(CONCURRENT, errored=3)),
            "request_totals: field 'errored' is 3: requests failed",
        ),
        (guidellm_json(guidellm_benchmark({"type_": "trace"})), "field 'type_' is 'trace': known are synchronous"),
        (aiperf_json(was_cancelled=True), "field 'was_cancelled' is True"),
        (aiperf_json(error_summary=[{"count": 2}]), "field 'error_summary' is .*requests failed"),
        (aiperf_json(error_request_count={"unit": "requests", "avg": 2}), "field 'avg' is 2: requests failed"),
        (
            aiperf_json(inter_token_latency=...),
            "field 'inter_token_latency' is missing: aiperf measures it with --stream",
        ),
        (aiperf_json(inter_token_latency={"unit": "fortnights", "p50": 1}), "field 'unit' is 'fortnights'"),
        (aiperf_json(input_config={"perf_analyzer": {}}), "is of GenAI-Perf, which is not read"),
        (aiperf_json(start_time="soon"), "field 'start_time' is 'soon'"),
        (sglang_json(ttfts=[0.05] * 63), "field 'ttfts' has 63 elements: 64 requests were completed"),
        (sglang_json(errors=["", "reset"] + [""] * 62), r"field 'errors\[1\]' is 'reset': requests failed"),
        (
            sglang_json(ttfts=[0.06] * 64),
            "field 'median_ttft_ms' is 50.0: the requests in this file have a median of 60",
        ),
        (sglang_json(output_lens=[100] * 64), "field 'total_output_tokens' is 8192: the 64 values .* add up to 6400"),
        (json.dumps({"avg_latency": 1, "latencies": [], "percentiles": {}}).encode(), "is of `vllm bench latency`"),
        (
            json.dumps({"elapsed_time": 1, "num_requests": 2, "tokens_per_second": 3}).encode(),
            "`vllm bench throughput`",
        ),
        (
            json.dumps([{"build_commit": "a", "n_prompt": 1, "n_gen": 1, "avg_ts": 2}]).encode(),
            r"json\[0\]: is of llama",
        ),
        (json.dumps({"metadata": {}, "metrics": {}, "error": None}).encode(), "aiperf's records of requests"),
        (PLAIN[:-40], "begins as JSON, but at line 1, column .* was it cut short"),
        (PLAIN.strip() + b"\n" + PLAIN[:-40], "begins as JSON, but at line 2, column"),
        (PLAIN.strip() + b"\n[3]", r"0\.json, line 2: of no known tool: \[0\] is 3, which is no object"),
    ],
)
def test_refusals_name_the_tool_and_the_place(content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        imported(content)


def test_what_decides_the_number_is_part_of_the_contract() -> None:
    assert confounds(public("out2048.json"), public("out128.json"), "tpot[c=128]") == ["contract.output_tokens"]
    assert confounds(public("out2048.json"), public("out128.json"), "output_throughput[c=128]") == [
        "contract.output_tokens"
    ]
    assert confounds(public("engine_vllm.json"), public("engine_sgl.json"), "tpot[rate=10.0]") == ["contract.engine"]


@pytest.mark.parametrize(
    "changes",
    [
        {"ignore_eos": True},
        {"dataset": "sharegpt"},
        {"dataset_name": "random"},
        {"random_output_len": "128"},
        {"framework": "sgl"},
        {"total_output_tokens": 480},
        {"total_input_tokens": 9600},
        {"request_rate": 4.0},
        {"burstiness": 0.5},
        {"num_prompts": 60, "completed": 60, "failed": 0},
        {"backend": "vllm"},
        {"ramp_up_strategy": "linear"},
    ],
)
def test_another_load_is_another_measurement(changes: dict[str, Any]) -> None:
    assert confounds(PLAIN, changed(PLAIN, **changes), "tpot[c=2]")


def test_answers_of_any_length_vary_from_run_to_run() -> None:
    one, other = (changed(PLAIN, total_output_tokens=tokens) for tokens in (2045, 2048))
    assert confounds(one, other, "tpot[c=2]") == []
    assert imported(one)["tpot[c=2]"].metric.contract["output_tokens"] == 340


def test_metadata_names_the_stack_or_a_flag_of_it() -> None:
    content = changed(PLAIN, vllm="0.32.0", num_speculative_tokens="3", max_concurrent_requests=7, tp=8)
    stack = joined([source(content)], UserFacts()).provenance.stack
    said = {"vllm": "0.32.0", "flag:num_speculative_tokens": "3", "flag:tp": 8}
    assert stack == {"nccl": "unknown", "driver": "unknown", **said}


def test_a_sweep_is_a_list_and_its_overrides_are_flags() -> None:
    first = {**json.loads(PLAIN), "run_number": 0, "max_num_seqs": 64}
    second = {**first, "run_number": 1, "median_tpot_ms": 9.0, "date": "20261130-000000"}
    third = {**first, "max_concurrency": 4}
    found = joined([source(json.dumps([first, second, third]).encode())], UserFacts())
    assert [len(one.sessions) for one in found.metrics.values()] == [2, 2, 2, 1, 1, 1]
    assert found.provenance.stack["flag:max_num_seqs"] == 64
    with pytest.raises(BadInput, match="field 'flag:max_num_seqs' is 32, in another file 64"):
        joined([source(json.dumps([first, {**third, "max_num_seqs": 32}]).encode())], UserFacts())


def test_loads_of_one_name_are_told_apart_by_what_differs() -> None:
    one = json.loads(PLAIN)
    longer = {**one, "total_output_tokens": 480, "framework": "vllm"}
    metrics = imported(json.dumps([{**one, "framework": "vllm"}, longer]).encode())
    assert list(metrics)[::3] == ["tpot[c=2,output_tokens=8]", "tpot[c=2,output_tokens=80]"]


def test_json_lines_are_a_result_each() -> None:
    lines = public("append_result.json").splitlines()
    # In two of them the server took 1015 of 2000 requests; the file does not say what became of the others.
    with pytest.raises(
        BadInput, match=r"0\.json, line 6: field 'completed' is 1015: 2000 prompts were sent.*the other 11 can"
    ):
        imported(b"\n".join(lines))

    metrics = imported(b"\n".join(line for line in lines if b'"completed": 1015' not in line))
    assert len(metrics) == 2 * 5 * 3
    # Read by hand: line 2 and line 8 of the file.
    assert point(metrics, "tpot[rate=10.0,engine=vllm]") == pytest.approx(11.723842146110279e-3)
    assert point(metrics, "tpot[rate=10.0,engine=sgl]") == pytest.approx(11.092677378481385e-3)
    assert metrics["tpot[rate=10.0,engine=sgl]"].sessions[0].recorded.startswith("2025-04-14T17:09:27")


PUBLIC_RIGHT = {
    "out2048.json": ("c=128", 10.74494812354744e-3, 227.45685300014884e-3, 8706.430638022452),
    "out128.json": ("c=128", 9.9e-3, 227.45685300014884e-3, 1634.1425499762065),
    "engine_vllm.json": ("rate=10.0", 11.723842146110279e-3, 51.3536068610847e-3, 959.6860197935362),
    "engine_sgl.json": ("rate=10.0", 11.092677378481385e-3, 59.40325988922268e-3, 960.581896497068),
    "request_rate_infinity.json": ("rate=inf", 11.20450286665194e-3, 55.68139649994919e-3, 82.89297074037474),
}
"""Public file -> load, TPOT and TTFT in seconds, tokens a second, read by hand."""


@pytest.mark.parametrize("name", PUBLIC_RIGHT)
def test_public_files_are_imported(name: str) -> None:
    load, *right = PUBLIC_RIGHT[name]
    metrics = imported(public(name))
    found = [point(metrics, f"{metric}[{load}]") for metric in ("tpot", "ttft", "output_throughput")]
    assert found == pytest.approx(right)


def test_lists_that_were_cut_are_refused() -> None:
    document = json.loads(DETAILED)
    cut = {name: document[name][:4] for name in ("ttfts", "itls", "output_lens", "input_lens") if name in document}
    with pytest.raises(BadInput, match=r"0\.json: field 'ttfts' has 4 elements: 6 requests were completed"):
        imported(changed(DETAILED, **cut))
    with pytest.raises(BadInput, match=r"field 'median_ttft_ms' is 9.*: the requests in this file have a median of"):
        imported(changed(DETAILED, median_ttft_ms=9e3))
    with pytest.raises(BadInput, match=r"field 'median_tpot_ms' is 9.*: the requests in this file have a median of"):
        imported(changed(DETAILED, median_tpot_ms=9e3))


def test_an_infinite_field_is_blamed_on_the_input() -> None:
    with pytest.raises(BadInput, match=r"0\.json: field 'burstiness' is inf"):
        imported(changed(PLAIN, burstiness=float("inf")))


def test_metrics_of_serving_results_are_valid_names() -> None:
    for path in DATA.glob("vllm_bench*.json"):
        assert all(Metric.of(name, "serving") for name in imported(path.read_bytes()))
