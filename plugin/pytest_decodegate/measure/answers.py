"""The quality canary: a server's greedy answers with their logprobs, pass after pass over the same prompts.

The first pass asks one prompt at a time; the later ones ask all at once, each in an order of its own. So a server that
rounds differently in other batches shows how far it agrees with itself, and is judged by that (gate.quality).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import uvloop

from ..client.client import Client
from ..errors import ServerError
from ..gate.evidence.quality import GreedyAnswer, Pass, compared, to_json
from ..metric import Json, Level, Replicate
from ..serving.server import Server
from ..workloads.versions import workload_fields
from .source import Taken

Prompt: TypeAlias = "str | list[int]"

ANSWER_TOKENS: Final = 24
TOP: Final = 5
"""Logprobs asked for in the first pass; vLLM and OpenAI give no more than five unless told to."""

_STALL_SECONDS = 300.0
_INVENTED_PROMPTS = 16
_INVENTED_TOKENS = 32

TEXTS: Final = (
    "The capital of France is",
    "Water boils at sea level at a temperature of",
    "The first ten prime numbers are",
    "def fibonacci(n):\n    ",
    "SELECT name, COUNT(*) FROM orders",
    "The opposite of 'increase' is",
    "Translate to German: 'Good morning, how are you?' ->",
    "Once upon a time, in a small village by the sea,",
    "12 * 13 =",
    "The chemical symbol of gold is",
    '{"name": "Ada", "born": 1815, "profession":',
    "In a right triangle with legs 3 and 4, the hypotenuse is",
    "Die Hauptstadt von Japan ist",
    "git commit -m",
    "The three laws of thermodynamics say that",
    "Roses are red, violets are",
)
"""What a served model is asked unless --perf-quality-prompts says otherwise: facts, sums, code, other languages."""


class NoLogprobs(ServerError):
    """The server answers, but without what its answers could be judged by."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is asked. extra: fields of the request that only our own server with invented weights is sure to know."""

    given: tuple[Prompt, ...]
    extra: Mapping[str, Json]

    @property
    def digest(self) -> str:
        """Which prompts these are, in twelve characters: answers to other prompts are another measurement."""
        return hashlib.sha256(json.dumps(self.given).encode()).hexdigest()[:12]


def prompts_for(server: Server, own: Sequence[str] | None) -> Prompts:
    """The user's `own` prompts, else texts for a real model, else token ids for one whose weights mean nothing."""
    if own:
        return Prompts(tuple(own), {})
    if not server.invented:
        return Prompts(TEXTS, {})

    draw = random.Random(0)  # the same prompts every time
    given = tuple(draw.choices(server.token_ids, k=_INVENTED_TOKENS) for _ in range(_INVENTED_PROMPTS))
    return Prompts(given, {"ignore_eos": True, "return_tokens_as_token_ids": True})


class AnswerSource:
    """A Source of agreement in percent: one sample per prompt, one replicate per pass over all prompts.

    A sample is the share of an answer that agrees with the first pass, the prompt's last token counted as agreed.
    """

    level: Level = "window"

    def __init__(self, server: Server, prompts: Prompts) -> None:
        self._server = server
        self._prompts = prompts
        self._passes: list[Pass] = []
        self._replicates: list[Replicate] = []
        self._wrong: str | None = None

    @property
    def contract(self) -> dict[str, Json]:
        """What is asked, and of which model."""
        return {
            **workload_fields("answers"),
            "prompts": self._prompts.digest,
            "prompt_count": len(self._prompts.given),
            "answer_tokens": ANSWER_TOKENS,
            "batch_invariant": self._server.batch_invariant,
            **self._server.given_facts,
        }

    def take(self, count: int) -> Taken:
        """Ask all prompts `count` more times; raises ServerError for a server without logprobs."""
        self._replicates.extend(self._replicate(self._next_pass()) for _ in range(count))
        return self.taken

    @property
    def taken(self) -> Taken:
        """Everything so far."""
        facts: dict[str, Json] = {"server": self._server.facts()}
        return Taken(self.level, tuple(self._replicates), self.contract, facts, self._wrong)

    def _next_pass(self) -> Pass:
        with self._server.explained("while it was asked for greedy answers"):
            answers = uvloop.run(_ask(self._server, self._prompts, len(self._passes)))

        self._passes.append(answers)
        self._wrong = self._wrong or next(_not_numbers(answers), None)
        return answers

    def _replicate(self, answers: Pass) -> Replicate:
        pairs = zip(self._passes[0], answers, strict=True)
        samples = tuple(100 * _share(first, answer) for first, answer in pairs)
        return Replicate(samples, {"answers": to_json(answers)})


def _share(first: GreedyAnswer, answer: GreedyAnswer) -> float:
    length = max(len(first), len(answer))
    return (compared(first, answer).agreement * length + 1) / (length + 1)


def _not_numbers(answers: Pass) -> Iterator[str]:
    for number, answer in enumerate(answers, start=1):
        for index, position in enumerate(answer, start=1):
            if not all(map(math.isfinite, position.values())):
                yield f"prompt {number}, token {index}: a logprob is no finite number: {dict(position)}"


async def _ask(server: Server, prompts: Prompts, number: int) -> Pass:
    """Pass `number`: the first asks one prompt after the other, with more logprobs, the others all at once."""
    order = list(range(len(prompts.given)))
    random.Random(number).shuffle(order)
    at_once = asyncio.Semaphore(len(order) if number else 1)
    answers: dict[int, GreedyAnswer] = {}

    async def ask(index: int) -> None:
        async with at_once:
            body = _body(prompts, index, top=1 if number else TOP)
            answers[index] = _answer(await client.post("/v1/completions", body))

    async with Client(server.endpoint, stall_seconds=_STALL_SECONDS) as client, asyncio.TaskGroup() as asking:
        for index in order:
            asking.create_task(ask(index))

    return [answers[index] for index in range(len(order))]


def _body(prompts: Prompts, index: int, top: int) -> dict[str, Any]:
    return {
        "prompt": prompts.given[index],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "logprobs": top,
        **prompts.extra,
    }


def _answer(body: str) -> GreedyAnswer:
    """The positions of an answer, in OpenAI's completion format or, as llama.cpp has it, in that of its chats."""
    try:
        logprobs = json.loads(body)["choices"][0]["logprobs"]
        entries = logprobs["content"] if "content" in logprobs else list(_entries(logprobs))
        return [_position(entry["token"], entry["logprob"], entry["top_logprobs"]) for entry in entries]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoLogprobs(
            f"the server answers without logprobs, so its answers cannot be judged: {body[:200]!r}; leave the quality "
            "test out, or let the server give logprobs"
        ) from error


def _entries(logprobs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
    for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True):
        others = [{"token": other, "logprob": value} for other, value in (top or {}).items()]
        yield {"token": token, "logprob": logprob, "top_logprobs": others}


def _position(token: str, logprob: float, top: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    # Rounded to what the rule can tell apart, and what a file should hold.
    others = {str(other["token"]): round(float(other["logprob"]), 4) for other in top}
    return {token: round(float(logprob), 4)} | {name: value for name, value in others.items() if name != token}
