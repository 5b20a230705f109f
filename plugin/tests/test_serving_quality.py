"""Asking for greedy answers: what is sent, what comes back in two formats, and what a server may not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedServer, greedy

from pytest_decodegate.errors import BadInput, ServerError
from pytest_decodegate.gate.evidence.quality import passes
from pytest_decodegate.measure.answers import TEXTS, AnswerSource, prompts_for
from pytest_decodegate.serving.server import Server, attach
from pytest_decodegate.settings.prompts import read_prompts


@pytest.fixture
def source(scripted: ScriptedServer) -> AnswerSource:
    server = attach(scripted.url)
    return AnswerSource(server, prompts_for(server, ["one", "two"]))


def test_a_pass_asks_each_prompt_greedily_and_the_first_for_more_logprobs(
    scripted: ScriptedServer, source: AnswerSource
) -> None:
    asked: list[dict[str, Any]] = []
    scripted.greedy = lambda body: asked.append(body) or greedy(list(body["prompt"]))  # type: ignore[func-returns-value]
    first, second = source.take(2).replicates
    assert sorted(body["prompt"] for body in asked) == ["one", "one", "two", "two"]
    assert [body["logprobs"] for body in asked] == [5, 5, 1, 1]
    assert {body["temperature"] for body in asked} == {0}
    assert first.samples == second.samples == (100.0, 100.0)
    assert [list(position) for position in passes([first])[0][0]] == [[token, "other", "third"] for token in "one"]


def test_samples_say_how_far_a_pass_agrees_with_the_first(scripted: ScriptedServer, source: AnswerSource) -> None:
    scripted.greedy = lambda body: greedy("abc" if body["logprobs"] == 5 else "axc")
    first, second = source.take(2).replicates
    assert first.value == 100
    assert second.samples == (50.0, 50.0)  # the last token of the prompt and the first of three
    assert source.taken.wrong is None


def test_the_answers_of_a_later_call_are_laid_beside_the_first(scripted: ScriptedServer, source: AnswerSource) -> None:
    source.take(1)
    scripted.greedy = lambda body: greedy("xyz")
    _, later = source.take(1).replicates
    assert later.samples == (25.0, 25.0)


def test_llama_cpp_gives_the_logprobs_of_its_chats(scripted: ScriptedServer, source: AnswerSource) -> None:
    top = [{"id": 1, "token": "a", "logprob": -0.5}, {"id": 2, "token": "b", "logprob": -1.0}]
    content = [{"id": 1, "token": "a", "logprob": -0.5, "top_logprobs": top}]
    scripted.greedy = lambda body: {"choices": [{"text": "a", "logprobs": {"content": content}}]}
    assert passes(source.take(1).replicates)[0][0] == [{"a": -0.5, "b": -1.0}]


@pytest.mark.parametrize("answer", [{}, {"choices": [{"text": "a", "logprobs": None}]}, {"choices": [{"text": "a"}]}])
def test_a_server_without_logprobs_is_refused(
    scripted: ScriptedServer, source: AnswerSource, answer: dict[str, Any]
) -> None:
    scripted.greedy = lambda body: answer
    with pytest.raises(ServerError, match="answers without logprobs, so its answers cannot be judged"):
        source.take(1)


def test_a_logprob_that_is_no_number_is_wrong(scripted: ScriptedServer, source: AnswerSource) -> None:
    scripted.greedy = lambda body: greedy("a", margin=float("nan"))
    source.take(1)
    assert source.taken.wrong
    assert source.taken.wrong.startswith("prompt 1, token 1: a logprob is no finite number")


def test_texts_for_a_real_model_and_ids_for_an_invented_one(scripted: ScriptedServer) -> None:
    attached, local = attach(scripted.url), Server(scripted.endpoint, range(50), invented=True)
    assert prompts_for(attached, None).given == TEXTS
    assert prompts_for(attached, ["mine"]).given == ("mine",)
    invented = prompts_for(local, None)
    assert invented == prompts_for(local, None)
    assert invented.extra["ignore_eos"]
    assert all(0 <= token < 50 for prompt in invented.given for token in prompt if isinstance(token, int))
    assert len({prompts_for(attached, None).digest, prompts_for(attached, ["mine"]).digest, invented.digest}) == 3


def test_own_prompts_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "Wie spät?", "id": 3}) + "\n\n" + json.dumps({"prompt": "x"}) + "\n")
    assert read_prompts(path) == ("Wie spät?", "x")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\nhello\n', r"line 2: 'hello' is not of the form"),
        ('{"prompt": 3}', r"line 1: .* is not of the form"),
        ('["a"]', r"line 1: .* is not of the form"),
    ],
)
def test_unusable_prompts_are_named_with_their_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(BadInput, match=f"--perf-quality-prompts: .*{said}"):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no-such-file.* cannot be read"):
        read_prompts(tmp_path / "no-such-file")
