"""Flags of servers: how they are written, what a log says came of them, and that one without effect is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.serving import home
from pytest_decodegate.serving.flags import (
    FlagValue,
    clashes,
    flag_words,
    given_flags,
    given_otherwise,
    logged_arguments,
    not_taken,
    parse_flag,
    shown_flag,
    stored_flags,
)
from pytest_decodegate.serving.models import write_rank_slice
from pytest_decodegate.serving.read_back import read_back, runs
from pytest_decodegate.serving.server import Server

LOG = (
    "(APIServer pid=3) INFO 11-30 14:42:03 [api_utils.py:286] non-default args: {'host': '127.0.0.1', "
    "'model': '/m, {x', 'max_num_seqs': 7, 'enforce_eager': True, 'hf_token': 'hf-mine', "
    "'served_model_name': ['a, b'], "
    "'compilation_config': {'mode': <CompilationMode.NONE: 0>, 'ops': ['all', 'x'], 'backend': 'it\\'s'}, 'seed': 3}\n"
    "(APIServer pid=3) INFO 11-30 14:42:04 [model.py:733] Resolved architecture: Qwen3ForCausalLM\n"
)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("--max-num-seqs=64", ("max-num-seqs", "64")),
        ("--max_num_seqs=64", ("max-num-seqs", "64")),
        ("--enforce-eager", ("enforce-eager", True)),
        ("--no-async-scheduling", ("async-scheduling", False)),
        ("-tp=2", ("tensor-parallel-size", "2")),
        ("-O3", ("optimization-level", "3")),
        ("-O=3", ("optimization-level", "3")),
        ("-cc.cudagraph_mode=NONE", ("compilation-config.cudagraph_mode", "NONE")),
        (
            '--speculative-config={"method": "ngram", "x": [1,2]}',
            ("speculative-config", '{"method": "ngram", "x": [1,2]}'),
        ),
    ],
)
def test_flags_have_one_name_however_they_are_written(text: str, flag: tuple[str, FlagValue]) -> None:
    assert parse_flag(text) == flag
    assert parse_flag(flag_words(dict([flag]))[0]) == flag


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seqs=64", "is no flag of vLLM; write for example --max-num-seqs=64"),
        ("--max num", "is no flag of vLLM"),
        ("", "is no flag of vLLM"),
        ("--max-num-seqs=", "names no value"),
        ("--no-enforce-eager=1", "has a value and says no"),
        ("--host=0.0.0.0", "--host cannot be part of a stack: decodegate chooses it"),
        ("--port=1", "--port cannot be part of a stack"),
        ("--model=x", "write model=PATH_OR_NAME"),
        ("--no-enable-prefix-caching", "every server of ours runs without"),
        ("--api_key=sk-mine", "be part of a stack: the server gets one of its own"),
    ],
)
def test_what_is_no_flag_of_a_stack_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        parse_flag(text)

    assert "sk-mine" not in str(raised.value)


names = st.from_regex(r"[a-z]{2,8}(-[a-z]{2,8}){0,2}", fullmatch=True).filter(lambda name: not name.startswith("no-"))
values = st.booleans() | st.from_regex(r"[A-Za-z0-9_.{}\":]{1,12}", fullmatch=True)


@given(st.dictionaries(names, values, max_size=5))
def test_what_is_given_is_found_in_the_words(flags: Mapping[str, FlagValue]) -> None:
    assert given_flags(flag_words(flags)) == flags
    assert clashes(flags, flag_words(flags)) == tuple(flags)
    assert clashes(flags, []) == ()


def test_a_command_line_is_read_as_vllm_reads_it() -> None:
    words = [
        "kimi",
        "-tp",
        "8",
        "-O3",
        "--enforce-eager",
        "--seed=-1",
        "--offset",
        "-1",
        "--sizes",
        "1",
        "2",
        "--seed=3",
    ]
    assert given_flags(words) == {
        "tensor-parallel-size": "8",
        "optimization-level": "3",
        "enforce-eager": True,
        "seed": "3",
        "offset": "-1",
        "sizes": "1 2",
    }
    assert clashes({"compilation-config.mode": "0", "seed": "1"}, ["m", "-cc", "{}"]) == ("compilation-config.mode",)


def test_stored_flags_hold_no_secret_and_no_accident_of_writing() -> None:
    one = ["--model", "kimi", "--port", "80", "--hf-token", "hf-mine", "-cc", '{"b":1, "a": [2]}', "--enforce_eager"]
    other = ["kimi", "--enforce-eager", '--compilation-config={"a":[2],"b":1}', "--hf-token=hf-other"]
    assert (
        stored_flags(one)
        == stored_flags(other)
        == {
            "flag:compilation-config": '{"a": [2], "b": 1}',
            "flag:enforce-eager": True,
            "flag:hf-token": "redacted",
        }
    )
    assert shown_flag("hf-token", "hf-mine") == "--hf-token=redacted"


def test_settings_that_only_sound_like_secrets_are_stored_as_they_are() -> None:
    words = ['-cc.pass_config={"fuse_norm_quant":false}', "--speculative-token-tree", "[(0,), (0, 0)]"]
    assert stored_flags(words) == {
        "flag:compilation-config.pass_config": '{"fuse_norm_quant": false}',
        "flag:speculative-token-tree": "[(0,), (0, 0)]",
    }


def test_secrets_are_compared_as_they_are() -> None:
    one = ["kimi", "--hf-token", "hf-mine", "-cc", '{"b":1, "a": [2]}', "--port=1"]
    other = ["kimi", "--hf-token", "hf-other", '--compilation-config={"a":[2],"b":1}', "--seed=3"]
    assert given_otherwise(one, other) == ("flag:hf-token", "flag:seed")
    assert given_otherwise(one, one) == ()


def test_what_the_parser_made_of_its_arguments_is_read_from_the_log() -> None:
    found = logged_arguments(LOG)
    assert found is not None
    config = found.pop("compilation_config")
    assert config == "{'mode': <CompilationMode.NONE: 0>, 'ops': ['all', 'x'], 'backend': 'it\\'s'}"
    assert found == {
        "host": "127.0.0.1",
        "model": "/m, {x",
        "max_num_seqs": 7,
        "enforce_eager": True,
        "hf_token": "hf-mine",
        "served_model_name": ["a, b"],
        "seed": 3,
    }
    assert logged_arguments("INFO vLLM") is None


@given(st.text("{}[]<>'\",:\\ ab1", max_size=40))
def test_any_line_of_arguments_is_read_without_error(text: str) -> None:
    assert isinstance(logged_arguments(f"non-default args: {{{text}}}"), dict)


@pytest.mark.parametrize(
    ("name", "asked", "facts", "why"),
    [
        ("max-num-seqs", "7", {}, ""),
        ("max-num-seqs", "64", {}, "the server runs '7'"),
        ("enforce-eager", True, {}, ""),
        ("enforce-eager", True, {"enforce_eager": False}, "the server runs 'False'"),
        ("enforce-eager", False, {}, "the server runs 'True'"),
        ("enable-chunked-prefill", True, {"chunked_prefill": False}, "the server runs 'False'"),
        ("max-model-len", "1k", {"max_model_len": 1000}, ""),
        ("max-model-len", "1K", {"max_model_len": 1024}, ""),
        ("max-model-len", "1k", {"max_model_len": 1024}, "the server runs '1024'"),
        ("max-model-len", "auto", {"max_model_len": 1024}, ""),
        ("dtype", "half", {"dtype": "float16"}, ""),
        ("gpu-memory-utilization", "0.92", {}, ""),
        ("compilation-config.mode", "0", {}, ""),
        ("hf-token", "1", {}, ""),
    ],
)
def test_a_flag_that_the_server_does_not_run_is_named(
    name: str, asked: FlagValue, facts: dict[str, Any], why: str
) -> None:
    assert not_taken(name, asked, facts, logged_arguments(LOG)) == why


def test_a_log_that_says_nothing_is_no_proof() -> None:
    assert not_taken("seed", "3", {}, None).startswith("its log has no line 'non-default args' that says so")
    assert not_taken("max-model-len", "8", {"max_model_len": 8}, None) == ""
    silent = cast("Server", Launched({}, "INFO vLLM"))
    with pytest.raises(ServerError, match="--seed cannot be seen: its log has no line 'non-default args'"):
        runs(silent, "seed")


def test_what_vllm_is_told_to_choose_is_what_it_chose() -> None:
    chosen = {"max_model_len": 40960}
    assert not_taken("max-model-len", "-1", chosen, {"max_model_len": -1}) == ""
    assert not_taken("max-model-len", "-1", chosen, {"max_model_len": 8}) == "the server runs '8'"
    assert not_taken("max-model-len", "-1", chosen, None).startswith("its log has no line")


class Launched:
    """A launched server that says what it is given."""

    def __init__(self, facts: dict[str, Any], log: str = LOG) -> None:
        self._facts = facts
        self.process = SimpleNamespace(log=lambda: log, tail=lambda: "the end of its log")
        self.stopped = False

    def facts(self) -> dict[str, Any]:
        return self._facts

    def stop(self) -> None:
        self.stopped = True


def test_a_server_that_does_not_run_as_asked_is_stopped() -> None:
    both = Launched({"vllm": "0.26.0+cu129"}), Launched({"vllm": "0.25.1"})
    right, wrong = (cast("Server", server) for server in both)
    assert read_back(right, {"max-num-seqs": "7"}, "0.26.0") is right
    assert (runs(right, "max-num-seqs"), runs(right, "seed"), runs(right, "block-size")) == (7, 3, None)
    with pytest.raises(ServerError, match=r"vllm=0.26.0 was asked for, and it says 0.25.1; --max-num-seqs=64 did not"):
        read_back(wrong, {"max-num-seqs": "64", "seed": "3"}, "0.26.0")

    assert [server.stopped for server in both] == [False, True]


def test_the_suites_own_model_has_flags_that_are_part_of_its_metric(tmp_path: Path) -> None:
    start = home.ServerLaunch(tmp_path, {}, 60.0, flags={"max-model-len": "64"})
    with pytest.raises(BadInput, match="--max-model-len: the model is served with max-model-len of its own"):
        start(write_rank_slice(tmp_path / "model", world_size=1, layers=2))

    assert json.loads((tmp_path / "model" / "config.json").read_text())["num_hidden_layers"] == 2
