"""A streaming client that stamps bytes as they are read, and leaves their meaning to `stream.read`."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Self

from ..cause import cause_of_text
from ..errors import ServerError, ServerHung
from . import http1, stream
from .connection import HttpAnswer, HttpConnection, LoopTurns, Piece
from .endpoint import Endpoint, served_models
from .http1 import Head
from .stream import Exchange, TokenClock

PAGE_SECONDS: Final = 10.0
"""Longest wait for a page, from the connection to its last byte: however slowly it drips."""

MOST_PAGE_BYTES: Final = 64 * 2**20
"""Of a page: the metrics of a router over many servers take some."""

MOST_ANSWER_BYTES: Final = 16 * 2**20
MOST_TOKEN_BYTES: Final = 64 * 2**10
"""Of a streamed answer, and more for each token asked for: what is longer is no answer to the question."""

_BODY_SHOWN = 500
_IDLE_SECONDS = 3.0  # shorter than the 5 s after which vLLM's front end closes an idle connection under our hands
_IDS = "return_token_ids"
_STREAM = "text/event-stream"
_COMPLETIONS = "/v1/completions"


class _UnknownField(ServerError):
    """The server refuses a field of vLLM's, as TensorRT-LLM does with all that it does not know."""


class HttpReply(NamedTuple):
    """A whole answer. location: where it redirects to, "" if it does not."""

    status: int
    text: str
    location: str = ""


class Client:
    """Sends streaming completions to one endpoint; an async context manager.

    Run it on uvloop: a token read there takes a fifth less of the CPU, and its bytes are stamped that much sooner.

    stall_seconds: longest wait for the head of an answer, and from there on for each token; events without are none.
    A connection that breaks before the first byte of an answer is replaced once, as servers close idle ones at any
    time; after that byte nothing is ever asked again.
    """

    def __init__(self, endpoint: Endpoint, *, stall_seconds: float) -> None:
        self._endpoint = endpoint
        self._stall_seconds = stall_seconds
        self._origin = http1.origin(endpoint.url)
        self._turns = LoopTurns()
        self._gives_ids = True
        self._idle: list[HttpConnection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._idle:
            connection.close()

        await asyncio.sleep(0)  # the turn in which they close

    async def complete(self, prompt: Sequence[int], *, output_tokens: int) -> Exchange:
        """Stream one greedy answer of `output_tokens` tokens to a prompt of token ids; returns it as recorded bytes.

        Raises ServerError for a refused connection, an HTTP error or a broken connection, ServerHung for a stream that
        stands still.
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

    async def post(self, path: str, body: Mapping[str, object]) -> str:
        """The whole answer to a JSON `body` about the served model; raises ServerError as `complete` does."""
        full = _json({"model": self._endpoint.model, **body})
        reply = await self._whole("POST", path, full, self._stall_seconds)
        if reply.status != 200:
            refusal = await self._refusal(path, reply, f"HTTP {reply.status}")
            raise ServerError(refusal, cause=cause_of_text(refusal))

        return reply.text

    async def command(self, path: str, seconds: float) -> HttpReply:
        """The answer to a POST without a body, whatever its status; raises ServerError, also past `seconds`."""
        return await self._whole("POST", path, b"", seconds)

    async def get(self, path: str) -> HttpReply:
        """The page at `path`, whatever its status; raises ServerError if not all of it comes within PAGE_SECONDS."""
        return await self._whole("GET", path, b"", PAGE_SECONDS)

    async def page(self, path: str) -> str | None:
        """The text at `path`, or None where the server has no such page; raises ServerError."""
        reply = await self.get(path)
        return reply.text if reply.status == 200 else None

    async def _exchange(self, body: Mapping[str, object], output_tokens: int) -> Exchange:
        most_bytes = MOST_ANSWER_BYTES + MOST_TOKEN_BYTES * output_tokens
        pieces: list[Piece] = []
        try:
            with self._plain_errors("a completion", self._stall_seconds):
                sent_s = await self._stream(body, most_bytes, pieces)
        except ServerError as error:
            if not pieces:
                raise
            raise type(error)(f"{error}; {stream.progress(pieces, output_tokens)}") from error

        return Exchange(sent_s=sent_s, pieces=tuple(pieces), asked_tokens=output_tokens)

    async def _stream(self, body: Mapping[str, object], most_bytes: int, pieces: list[Piece]) -> float:
        """Ask, and record the answer in `pieces`; returns when it was asked."""
        async with (
            asyncio.timeout(self._stall_seconds) as deadline,
            self._asked("POST", _COMPLETIONS, _json(body), most_bytes) as (sent_s, answer, head),
        ):
            if head.status != 200 or head.content_type != _STREAM:
                reply = await _reply(answer, head)
                what = (
                    f"HTTP {head.status}" if head.status != 200 else f"no stream but {head.content_type or 'no type'}"
                )
                refusal = await self._refusal(_COMPLETIONS, reply, what)
                kind = _UnknownField if _IDS in body and _IDS in refusal else ServerError
                raise kind(refusal, cause=cause_of_text(refusal))

            deadline.reschedule(None)
            pieces += answer.pieces  # what came together with the head
            answer.pieces = pieces
            clock = TokenClock(time.monotonic())
            await answer.until_end(lambda: clock.read(pieces) + self._stall_seconds)
            return sent_s

    async def _whole(self, method: str, path: str, body: bytes, seconds: float) -> HttpReply:
        with self._plain_errors(path, seconds):
            async with asyncio.timeout(seconds), self._asked(method, path, body, MOST_PAGE_BYTES) as (_, answer, head):
                return await _reply(answer, head)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: bytes, most_bytes: int
    ) -> AsyncIterator[tuple[float, HttpAnswer, Head]]:
        """When it was asked, the answer, and its head, which has come; the connection is kept if it can be."""
        request = http1.request(method, self._origin, path, self._endpoint.headers, body)
        connection = self._from_idle() or await HttpConnection.open(self._origin)
        try:
            sent_s, answer = time.monotonic(), connection.ask(request, self._turns, most_bytes)
            try:
                head = await answer.until_head()
            except OSError:
                if answer.began:
                    raise

                connection.close()
                connection = await HttpConnection.open(self._origin)
                sent_s, answer = time.monotonic(), connection.ask(request, self._turns, most_bytes)
                head = await answer.until_head()

            yield sent_s, answer, head
            if answer.leaves_connection:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
        finally:
            if connection not in self._idle:
                connection.close()

    def _from_idle(self) -> HttpConnection | None:
        """A connection that was used a moment ago; older ones are closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and time.monotonic() - connection.idle_since < _IDLE_SECONDS:
                return connection

            connection.close()

        return None

    @contextmanager
    def _plain_errors(self, asked: str, seconds: float) -> Iterator[None]:
        """What sockets and asyncio raise, as a ServerError that names the server and what it was asked."""
        where = f"{self._endpoint.url}, asked for {asked}"
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise ServerError(
                f"{where}: its certificate is not trusted: {error.verify_message}; if it is the right server, put the "
                "certificate of its authority into a file and name that in the environment variable SSL_CERT_FILE"
            ) from error
        except TimeoutError as error:
            if error.errno is not None:  # the kernel's own, of a host that is not there
                raise ServerError(f"{where}: {error}") from error
            raise ServerHung(
                f"{where}: nothing new for {seconds:g} s; it hangs, or compiles, or is overloaded"
            ) from error
        except OSError as error:
            raise ServerError(f"{where}: {error or type(error).__name__}") from error

    async def _refusal(self, path: str, reply: HttpReply, what: str) -> str:
        url = self._endpoint.url
        if reply.location:
            return f"{url}{path} answers {what} and redirects to {reply.location!r}: give the URL that this leads to"

        asked = "a completion" if path == _COMPLETIONS else path
        message = f"{url} answered {asked} with {what}: {reply.text.strip()[:_BODY_SHOWN] or '(empty body)'}"
        if reply.status != 404:
            return message

        models = served_models(await self.page("/v1/models") or "")
        if self._endpoint.model in models:
            return f"{message}; it serves {self._endpoint.model!r}, but not at {path}, where decodegate asks"

        names = ", ".join(map(repr, models)) or "nothing"
        return f"{message}; asked for model {self._endpoint.model!r}, it serves {names}"


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body).encode()


async def _reply(answer: HttpAnswer, head: Head) -> HttpReply:
    await answer.until_end(lambda: math.inf)
    text = b"".join(data for _, data in answer.pieces).decode(errors="replace")
    return HttpReply(head.status, text, head.headers.get("location", "") if 300 <= head.status < 400 else "")
