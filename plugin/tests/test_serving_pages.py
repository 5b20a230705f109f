"""What servers of four makers say of themselves, and that nothing else of their pages is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import windows
from scripted import TOKENS, ScriptedServer, answer, streaming

from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.provenance import Provenance, differences
from pytest_decodegate.measure.window import Load
from pytest_decodegate.serving.pages import cache_facts, read_pages
from pytest_decodegate.serving.said import FLAGS, settings_said, settings_unsaid
from pytest_decodegate.serving.server import attach

SGLANG = {
    "model_path": "/secret/place",
    "api_key": "sk-hidden",
    "tp_size": 8,
    "context_length": None,
    "quantization": "fp8",
    "attention_backend": "trtllm_mla",
    "moe_runner_backend": "auto",
    "max_total_num_tokens": 123456,
    "disable_radix_cache": True,
    "internal_states": [{"load": 0.5}],
    "version": "0.5.6",
}
METRICS = (
    'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="False",num_gpu_blocks="7077",'
    'num_cpu_blocks="None",sliding_window="None"} 1.0\n'
)


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    server.completion = streaming(answer(), pause_s=0.005)
    yield server
    server.close()


def read(pages: Mapping[str, object]) -> dict[str, object]:
    bodies = {path: page if isinstance(page, str) else json.dumps(page) for path, page in pages.items()}
    return dict(read_pages(bodies.get, "m"))


def test_sglang() -> None:
    models = {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 4096}]}
    assert read({"/v1/models": models, "/get_server_info": SGLANG}) == {
        "engine": "sglang",
        "version": "0.5.6",
        "tensor_parallel": 8,
        "max_model_len": 4096,
        "quantization": "fp8",
        "attention_backend": "trtllm_mla",
        "moe_backend": "auto",
        "kv_cache_tokens": 123456,
        "radix_cache_off": True,
    }


def test_sglang_of_today_nests_its_arguments() -> None:
    assert read({"/server_info": {"server_args": SGLANG}})["tensor_parallel"] == 8


def test_what_sglang_leaves_unset_is_said_and_differs_from_what_is_set() -> None:
    nothing = {**SGLANG, "quantization": None, "speculative_algorithm": None}
    facts = read({"/get_server_info": nothing})
    assert (facts["quantization"], facts["speculative_method"]) == (None, None)
    assert "max_model_len" not in facts
    said, other = (
        settings_said(dict(read_pages({"/server_info": page}.get, "m"))) for page in map(json.dumps, (nothing, SGLANG))
    )
    found = differences(Provenance({}, said, {}), Provenance({}, other, {}))
    assert list(map(str, found)) == ["flag:quantization: none -> fp8"]
    nested = {"/server_info": {"server_args": nothing}}
    assert read(nested)["speculative_method"] is None


def test_llama_cpp() -> None:
    props = {"build_info": "b10173-e9fa078", "total_slots": 4, "default_generation_settings": {"n_ctx": 8192}}
    models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    expected = {"engine": "llamacpp", "version": "b10173-e9fa078", "slots": 4, "max_model_len": 8192}
    assert read({"/v1/models": models, "/props": props}) == expected


def test_vllm_with_its_developer_page_and_metrics() -> None:
    config = "model='/m', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2, quantization=fp8, x=1"
    pages = {"/version": {"version": "0.33.0"}, "/server_info": {"vllm_config": config}, "/metrics": METRICS}
    assert read(pages) == {
        "version": "0.33.0",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "tensor_parallel": 2,
        "quantization": "fp8",
        "kv_cache_blocks": 7077,
        "kv_block_tokens": 16,
        "kv_cache_dtype": "auto",
        "prefix_caching": False,
    }


def test_a_server_that_says_it_is_vllm_is_not_asked_for_the_pages_of_others() -> None:
    asked: list[str] = []
    models = {"data": [{"id": "m", "owned_by": "vllm"}]}

    def get(path: str) -> str | None:
        asked.append(path)
        return json.dumps(models) if path == "/v1/models" else None

    assert read_pages(get, "m") == {"engine": "vllm"}
    assert asked == ["/v1/models", "/version", "/server_info", "/server_info?config_format=json", "/metrics"]


def test_the_scheduler_is_told_by_the_developer_page_as_json() -> None:
    scheduler = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "policy": "fcfs"}
    text = "speculative_config=None, enable_chunked_prefill=True, x=1"
    config = {"scheduler_config": scheduler, "model_config": {"model": "/m"}}
    pages = {"/server_info": {"vllm_config": text}, "/server_info?config_format=json": {"vllm_config": config}}
    assert read(pages) == {
        "chunked_prefill": True,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "speculative_method": None,
    }


def test_what_is_said_is_a_value_and_silence_is_null() -> None:
    said = settings_said({"engine": "vllm", "quantization": None, "kv_cache_dtype": "fp8", "max_num_seqs": 64})
    assert said.pop("flag:quantization") == "none", "nothing is set, which the server says"
    assert (said.pop("flag:kv-cache-dtype"), said.pop("flag:max-num-seqs")) == ("fp8", 64)
    assert set(said.values()) == {None}
    assert len(said) == len(FLAGS) - 3


def test_a_flag_that_an_engine_does_not_have_is_not_missed() -> None:
    everything = {fact: 1 for fact in FLAGS if fact not in ("draft_tokens", "tensor_parallel")}
    assert settings_unsaid({**everything, "engine": "vllm"}) == ("tensor-parallel-size", "draft-tokens")
    assert settings_unsaid({**everything, "engine": "vllm", "speculative_method": None}) == ("tensor-parallel-size",)
    assert settings_unsaid({"engine": "llamacpp", "slots": 4}) == ("quantization", "kv-cache-dtype")
    assert settings_unsaid({"engine": "nobody knows"}) == ()


def test_tensorrt_llm_is_known_by_its_owner(scripted: ScriptedServer) -> None:
    scripted.owner, scripted.version = "tensorrt_llm", "1.2.0"
    assert attach(scripted.url).stack()["tensorrt"] == "1.2.0"


@given(st.dictionaries(st.sampled_from(["/version", "/props", "/server_info", "/v1/models", "/metrics"]), st.text()))
def test_any_page_is_read_without_error(pages: dict[str, str]) -> None:
    assert set(read_pages(pages.get, "m")) <= {"max_model_len"}


@settings(max_examples=30)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_json_is_read_without_error(page: object) -> None:
    read({"/server_info": {"server_args": page, "default_generation_settings": page}, "/props": {"x": page}})


def test_the_size_of_the_cache_is_told_since_vllm_says_it() -> None:
    line = 'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="524288",num_gpu_blocks="32768"} 1.0'
    assert cache_facts(line) == {"kv_block_tokens": 16, "kv_cache_tokens": 524288, "kv_cache_blocks": 32768}
    assert "kv_cache_tokens" not in cache_facts(line.replace('"524288"', '"None"'))


def test_no_metrics_no_cache_facts() -> None:
    assert cache_facts("vllm:other 1") == {}


def test_an_attached_server_is_described_by_its_pages(scripted: ScriptedServer) -> None:
    scripted.owner, scripted.pages["get_server_info"] = "sglang", SGLANG
    server = attach(scripted.url)
    assert {name: value for name, value in server.stack().items() if value is not None} == {
        "sglang": "0.5.6",
        "flag:tensor-parallel-size": 8,
        "flag:quantization": "fp8",
        "flag:disable-radix-cache": True,
    }
    assert settings_unsaid(server.facts())[:2] == ("pipeline-parallel-size", "data-parallel-size")
    assert server.facts()["sglang"] == "0.5.6"
    assert "sk-hidden" not in str(server.facts())
    assert "secret" not in str(server.facts())


def test_a_key_opens_every_page_and_is_never_shown(scripted: ScriptedServer) -> None:
    scripted.key, scripted.version = "sk-mine", "0.33.0"
    with pytest.raises(BadInput, match=r"HTTP 401: it wants an API key.*--perf-server-key-env"):
        attach(scripted.url)
    with pytest.raises(BadInput, match="does not take the API key") as refused:
        attach(scripted.url, key="sk-other")

    server = attach(scripted.url, key="sk-mine")
    assert server.stack()["vllm"] == "0.33.0"
    (window,) = windows(server, Load(1, 4, TOKENS, 2))
    assert len(window.tpot_s) == 2
    assert "sk-" not in f"{server!r} {server.facts()} {refused.value}"
