"""A streaming client that stamps bytes as they are read, and leaves their meaning to `stream.read`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import aiohttp

from ..cause import cause_of_text
from ..errors import ServerError
from .endpoint import Endpoint, served_models
from .stream import Exchange
from .tap import Piece, Tap, Turns

_BODY_SHOWN = 500
_IDLE_SECONDS = 3.0  # shorter than the 5 s after which vLLM's front end closes an idle connection under our hands
_IDS = "return_token_ids"


class _UnknownField(ServerError):
    """The server refuses a field of vLLM's, as TensorRT-LLM does with all that it does not know."""


class Client:
    """Sends streaming completions to one endpoint; an async context manager.

    Run it on uvloop: a token read there takes a fifth less of the CPU, and its bytes are stamped that much sooner.

    stall_seconds: longest wait for the head of an answer, and from there on for each event; a comment is none.
    """

    def __init__(self, endpoint: Endpoint, *, stall_seconds: float) -> None:
        self._endpoint = endpoint
        self._stall_seconds = stall_seconds
        self._turns = Turns()
        self._gives_ids = True

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # As many connections as streams; no total time, since a stream may be long but may not stand still.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None),
            # Compression would hold tokens back until a block is full.
            headers={"Accept-Encoding": "identity", **self._endpoint.headers},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def complete(self, prompt: Sequence[int], *, output_tokens: int) -> Exchange:
        """Stream one greedy answer of `output_tokens` tokens to a prompt of token ids; returns it as recorded bytes.

        Raises ServerError for a refused connection, an HTTP error, a broken connection, or a stream that stands still.
        """
        body = {
            "model": self._endpoint.model,
            "prompt": list(prompt),
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self._gives_ids:
            try:
                return await self._exchange({**body, _IDS: True}, output_tokens)
            except _UnknownField:
                self._gives_ids = False  # it counts by usage then

        return await self._exchange(body, output_tokens)

    async def _exchange(self, body: Mapping[str, object], output_tokens: int) -> Exchange:
        sent_s = time.monotonic()
        async with self._plain_errors("a completion"):
            pieces = await self._record(body)

        return Exchange(sent_s=sent_s, pieces=pieces, asked_tokens=output_tokens)

    async def post(self, path: str, body: Mapping[str, object]) -> str:
        """The whole answer to a JSON `body` about the served model; raises ServerError as `complete` does."""
        url = self._endpoint.url + path
        full = {"model": self._endpoint.model, **body}
        deadline = asyncio.timeout(self._stall_seconds)
        async with self._plain_errors(path), deadline, self._session.post(url, json=full) as response:
            if response.status != 200:
                refusal = await self._refusal(response)
                raise ServerError(refusal, cause=cause_of_text(refusal))

            return await response.text(errors="replace")

    async def page(self, path: str) -> str | None:
        """The text at `path`, or None where the server has no such page; raises ServerError."""
        url = self._endpoint.url + path
        async with self._plain_errors(path), asyncio.timeout(self._stall_seconds), self._session.get(url) as response:
            return await response.text(errors="replace") if response.status == 200 else None

    async def _record(self, body: Mapping[str, object]) -> tuple[Piece, ...]:
        url = f"{self._endpoint.url}/v1/completions"
        async with (
            asyncio.timeout(self._stall_seconds) as deadline,
            self._session.post(url, json=body) as response,
        ):
            if response.status != 200 or response.content_type != "text/event-stream":
                refusal = await self._refusal(response)
                kind = _UnknownField if _IDS in body and _IDS in refusal else ServerError
                raise kind(refusal, cause=cause_of_text(refusal))

            deadline.reschedule(None)
            tap = Tap(response, self._turns)
            await tap.ended(stall_seconds=self._stall_seconds)
            return tuple(tap.pieces)

    @asynccontextmanager
    async def _plain_errors(self, asked: str) -> AsyncIterator[None]:
        """What aiohttp and asyncio raise, as a ServerError that names the server and what it was asked."""
        where = f"{self._endpoint.url}, asked for {asked}"
        try:
            yield
        except TimeoutError as error:
            raise ServerError(
                f"{where}: nothing new for {self._stall_seconds:g} s; it hangs, or compiles, or is overloaded"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerError(f"{where}: {error or type(error).__name__}") from error

    async def _refusal(self, response: aiohttp.ClientResponse) -> str:
        body = (await response.text(errors="replace")).strip()[:_BODY_SHOWN]
        what = f"HTTP {response.status}" if response.status != 200 else f"no stream but {response.content_type}"
        message = f"{self._endpoint.url} answered a completion with {what}: {body or '(empty body)'}"
        if response.status != 404:
            return message

        names = ", ".join(map(repr, served_models(await self.page("/v1/models") or ""))) or "nothing"
        return f"{message}; asked for model {self._endpoint.model!r}, it serves {names}"
