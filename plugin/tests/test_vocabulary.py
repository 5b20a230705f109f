"""Prompts for a server whose model has fewer token ids than most: drawn below, and said in the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import ScriptedServer, as_asked, greedy, refusing

from pytest_decodegate.errors import ServerError
from pytest_decodegate.machine.watch import Telemetry
from pytest_decodegate.measure.load import ClosedLoop
from pytest_decodegate.measure.vocabulary import accepted_ids, is_refusal
from pytest_decodegate.measure.window import Load
from pytest_decodegate.measure.window_source import WindowSource
from pytest_decodegate.serving.server import ATTACHED_TOKEN_IDS, attach

LOAD = Load(2, 8, 4, 2)
REFUSED = ServerError("Token id 29999 is out of vocabulary")


class SmallModel:
    """A scripted server that refuses token ids from `vocabulary` on, in vLLM's words, streamed or not."""

    def __init__(self, server: ScriptedServer, vocabulary: int) -> None:
        self.server = server
        self.vocabulary = vocabulary
        self.asked = 0
        self.most_taken = -1
        self._stream = as_asked(pause_s=0.01)
        server.completion = self._complete
        server.greedy = self._greedy

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self._check((await request.json())["prompt"])
        return await self._stream(request)

    def _greedy(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        self._check(body["prompt"])
        return greedy(["a"])

    def _check(self, prompt: list[int]) -> None:
        if max(prompt) >= self.vocabulary:
            raise web.HTTPBadRequest(text=f"Token id {max(prompt)} is out of vocabulary")

        self.most_taken = max(self.most_taken, *prompt)


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.mark.parametrize(
    ("vocabulary", "first", "last"),
    [(258, 0, 234), (1999, 0, 1874), (3000, 0, 1874), (4000, 1000, 3749), (29_999, 1000, 14_999)],
)
def test_windows_on_a_small_model_are_drawn_from_what_it_takes(
    scripted: ScriptedServer, vocabulary: int, first: int, last: int
) -> None:
    SmallModel(scripted, vocabulary)
    loop = ClosedLoop(attach(scripted.url), LOAD)
    loop.warm_up()
    scripted.prompts.clear()
    assert loop.window().broken == ()
    drawn = [token for prompt in scripted.prompts for token in prompt]
    assert len(scripted.prompts) >= 2 * LOAD.concurrency + LOAD.requests
    assert first <= min(drawn) <= max(drawn) <= last < vocabulary
    assert loop.prompt_facts == {"prompt_token_ids": [first, last]}


def test_where_the_vocabulary_is_large_enough_nothing_is_asked_and_the_contract_is_as_before(
    scripted: ScriptedServer,
) -> None:
    model = SmallModel(scripted, ATTACHED_TOKEN_IDS.stop)
    scripted.prompts.clear()
    loop = ClosedLoop(attach(scripted.url), LOAD)
    loop.warm_up()
    assert max(token for prompt in scripted.prompts for token in prompt) == 29_999, "or it could be refused by chance"
    assert model.asked == 0
    assert loop.prompt_facts == {}


def test_the_contract_says_from_which_ids_prompts_are_drawn(scripted: ScriptedServer) -> None:
    SmallModel(scripted, 258)

    def watch() -> AbstractContextManager[Any]:
        return nullcontext(SimpleNamespace(report=lambda: Telemetry((), {})))

    progress: Any = SimpleNamespace(tick=lambda text: None)
    source = WindowSource("tpot", attach(scripted.url), LOAD, watch=watch, progress=progress)
    assert "prompt_token_ids" not in source.taken.contract
    assert len(source.take(1).replicates) == 1
    assert source.taken.contract["prompt_token_ids"] == [0, 234]


def test_another_refusal_is_raised_as_it_is(scripted: ScriptedServer) -> None:
    scripted.completion = refusing(400, "max_tokens is too large")
    with pytest.raises(ServerError, match="max_tokens is too large"):
        ClosedLoop(attach(scripted.url), LOAD).warm_up()


def test_a_server_that_takes_no_id_at_all_is_quoted(scripted: ScriptedServer) -> None:
    SmallModel(scripted, 0)
    with pytest.raises(ServerError, match="is out of vocabulary"):
        ClosedLoop(attach(scripted.url), LOAD).warm_up()


@given(vocabulary=st.integers(1, ATTACHED_TOKEN_IDS.stop - 1))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_more_than_half_of_the_vocabulary_is_found_and_its_edge_not_touched(
    scripted: ScriptedServer, vocabulary: int
) -> None:
    model = SmallModel(scripted, vocabulary)
    found = accepted_ids(attach(scripted.url).endpoint, ATTACHED_TOKEN_IDS, REFUSED)
    assert vocabulary / 2 - 1 <= found[-1] < vocabulary
    assert found.start == (1000 if len(range(found.stop)) >= 2000 else 0)
    assert model.asked <= 15
    assert model.most_taken == found[-1], "nothing was decoded nearer to the edge"


def test_what_a_refusal_of_an_id_looks_like() -> None:
    assert is_refusal(REFUSED)
    assert not is_refusal(ServerError("HTTP 500: CUDA error"))
