"""A server of known pace on the loopback: what a client makes of it is the client's own doing.

`python -m pytest_decodegate.client.paced STEP_SECONDS TOKENS` writes its port to stdout and serves until stdin is
closed. All streams get so many tokens at every step, as from an engine's batch, in the frames that vLLM would send.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http.client import HTTPConnection
from typing import Any

from ..errors import ServerError
from .endpoint import Endpoint
from .stream import Arrival, first_burst

MODEL = "paced"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_PAGE = "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
_PAGE_SECONDS = 5.0
_CHUNK_HEAD = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1_700_000_000, "model": MODEL}
_STEPS_KEPT = 256  # streams that came one after the other are some steps apart


@dataclass(frozen=True, slots=True)
class Paced:
    """A running paced server. step_seconds: between two steps, which bring each stream its next tokens."""

    endpoint: Endpoint
    step_seconds: float
    tokens_per_step: int

    def sent_tpot_s(self) -> list[float]:
        """Seconds per token as the server's own writes were spaced, of each answer since last asked."""
        with closing(HTTPConnection(self.endpoint.url.removeprefix("http://"), timeout=_PAGE_SECONDS)) as connection:
            connection.request("GET", "/tpot")
            found: list[float] = json.loads(connection.getresponse().read())
            return found


@contextmanager
def paced(step_seconds: float, tokens_per_step: int = 1) -> Iterator[Paced]:
    """Run such a server in a process of its own; raises ServerError if it does not come up."""
    # -P: the user's folder, where pytest runs, may have modules of any name.
    command = [sys.executable, "-P", "-m", __spec__.name, str(step_seconds), str(tokens_per_step)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise ServerError(
                    f"the loopback server of known pace ended with exit code {process.wait()}; what it wrote to "
                    f"stderr, or `{' '.join(command)}`, says why"
                )

            yield Paced(Endpoint(f"http://127.0.0.1:{port}", MODEL), step_seconds, tokens_per_step)
        finally:
            process.kill()


@lru_cache(maxsize=_STEPS_KEPT)
def frames(start: int, stop: int, tokens: int, *, ids: bool, usage: bool) -> bytes:
    """The chunks of an HTTP body for the tokens from `start` to before `stop` of `tokens`, one chunk each.

    Made for the first stream that needs them: to make all of them when a request comes would delay the first steps.
    """
    return b"".join(_frame(number, tokens, ids=ids, usage=usage) for number in range(start + 1, stop + 1))


def _frame(number: int, tokens: int, *, ids: bool, usage: bool) -> bytes:
    choice = {"index": 0, "text": " the", "logprobs": None, "finish_reason": None, "stop_reason": None}
    choice |= {"finish_reason": "length"} if number == tokens else {}
    choice |= {"token_ids": [1000 + number % 1000], "prompt_token_ids": None} if ids else {}
    return _chunk(json.dumps({**_CHUNK_HEAD, "choices": [choice], **({"usage": _usage(number)} if usage else {})}))


def ending(tokens: int) -> bytes:
    """What follows the chunk of the last of `tokens` tokens."""
    last = (json.dumps({**_CHUNK_HEAD, "choices": [], "usage": _usage(tokens)}), "[DONE]")
    return b"".join(map(_chunk, last)) + b"0\r\n\r\n"


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 16, "total_tokens": 16 + tokens, "completion_tokens": tokens}


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


@dataclass(slots=True)
class _Batch:
    """The streams that get a token at the next step."""

    step_seconds: float
    tokens_per_step: int
    streams: set[_Connection] = field(default_factory=set)
    tpot_s: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Step at fixed times: a step that comes late does not delay those after it."""
        at_s = time.monotonic()
        while True:
            at_s += self.step_seconds
            await asyncio.sleep(at_s - time.monotonic())
            for stream in tuple(self.streams):
                stream.step()


class _Connection(asyncio.Protocol):
    """One connection, which may ask again and again."""

    def __init__(self, batch: _Batch) -> None:
        self._batch = batch
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._batch.streams.discard(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, end, body = self._unread.partition(b"\r\n\r\n")
        if not end or len(body) < _content_length(head):
            return

        self._unread = b""
        if head.startswith(b"POST"):
            self._begin(json.loads(body))
        else:
            self._answer_page(head.split()[1].decode())

    def _begin(self, asked: Mapping[str, Any]) -> None:
        usage = bool(asked["stream_options"].get("continuous_usage_stats"))
        self._frames = partial(frames, ids=bool(asked.get("return_token_ids")), usage=usage)
        self._next, self._tokens = 0, asked["max_tokens"]
        self._sent: list[Arrival] = []
        self._transport.write(_HEAD)
        self._batch.streams.add(self)

    def _answer_page(self, path: str) -> None:
        status, body = "404 Not Found", ""
        if path == "/tpot":
            status, body = "200 OK", json.dumps(self._batch.tpot_s)
            self._batch.tpot_s.clear()

        self._transport.write(_PAGE.format(status=status, length=len(body), body=body).encode())

    def step(self) -> None:
        """Write the tokens of one step, and the end of the answer after the last one."""
        now = time.monotonic()
        start, tokens = self._next, self._tokens
        self._next = min(start + self._batch.tokens_per_step, tokens)
        self._sent.append((now, self._next - start))
        self._transport.write(self._frames(start, self._next, tokens))
        if self._next == tokens:
            self._batch.streams.discard(self)
            self._transport.write(ending(tokens))
            # By the client's own formula: steps that this host was late with are one burst to both.
            at_s, burst = first_burst(self._sent)
            self._batch.tpot_s.append((now - at_s) / max(tokens - burst, 1))


def _content_length(head: bytes) -> int:
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in fields if name == b"content-length"), 0)


async def _serve(step_seconds: float, tokens_per_step: int) -> None:
    loop = asyncio.get_running_loop()
    batch = _Batch(step_seconds, tokens_per_step)
    server = await loop.create_server(lambda: _Connection(batch), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - this is how it tells its port
    steps = loop.create_task(batch.run())
    await loop.run_in_executor(None, sys.stdin.read)
    steps.cancel()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]), int(sys.argv[2])))
