"""A loopback server that says what a test scripts, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from pytest_decodegate.client.endpoint import Endpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKENS = 4
STREAM = {"Content-Type": "text/event-stream"}


def event(body: dict[str, Any] | str) -> bytes:
    return f"data: {body if isinstance(body, str) else json.dumps(body)}\n\n".encode()


def token(number: int, asked: int = TOKENS) -> bytes:
    finish = "length" if number == asked else None
    return event({"choices": [{"text": "é", "token_ids": [number], "finish_reason": finish}]})


def answer(asked: int = TOKENS) -> list[bytes]:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": asked}}
    return [*(token(number, asked) for number in range(1, asked + 1)), event(usage), event("[DONE]")]


def as_asked(*, pause_s: float = 0.0) -> Handler:
    """Stream as many tokens as each request asks for."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await streaming(answer((await request.json())["max_tokens"]), pause_s=pause_s)(request)

    return handle


def streaming(
    pieces: Sequence[bytes], *, pause_s: float = 0.0, then_hang: bool = False, written: list[float] | None = None
) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        for piece in pieces:
            if written is not None:
                written.append(time.monotonic())
            await response.write(piece)
            await asyncio.sleep(pause_s)

        if then_hang:
            await asyncio.sleep(60)

        return response

    return handle


def greedy(tokens: Sequence[str], *, margin: float = 3.0) -> dict[str, Any]:
    """A whole answer with logprobs as vLLM gives them; each token is `margin` nats likelier than the next."""
    tops = [{token: -0.1, "other": -0.1 - margin, "third": -0.2 - margin} for token in tokens]
    logprobs = {"tokens": list(tokens), "token_logprobs": [-0.1] * len(tokens), "top_logprobs": tops}
    return {"choices": [{"text": "".join(tokens), "logprobs": logprobs}]}


def refusing(status: int, text: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return handle


_TURNS_TO_ACCEPT = 10


class ScriptedServer:
    """An OpenAI-compatible server whose completions do what `completion` says."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.completion: Handler = streaming(answer())
        self.metrics: Callable[[], str | None] = lambda: None
        self.prompts: list[list[int]] = []
        self.models = ["the-model"]
        self.version: str | None = None
        self.greedy: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: greedy(["a", "b", "c"])
        self.pages: dict[str, Any] = {}
        self.commands: dict[str, Handler] = {}
        self.owner: str | None = None
        self.key: str | None = None
        self.open = self.most_open = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._started.wait()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, "the-model")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[self._authorised])
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/version", self._show_version)
        app.router.add_get("/{page}", self._show_page)
        app.router.add_post("/{command}", self._obey)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        await self._stop.wait()
        # What a client that has left still asked for is accepted first: asyncio 3.11 forgets to close a connection that
        # it accepts while the server closes.
        for _ in range(_TURNS_TO_ACCEPT):
            await asyncio.sleep(0)

        await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return web.json_response(self.greedy(body))

        self.prompts.append(body["prompt"])
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            return await self.completion(request)
        finally:
            self.open -= 1

    async def _list_models(self, request: web.Request) -> web.Response:
        owner = {"owned_by": self.owner} if self.owner else {}
        return web.json_response({"data": [{"id": name, "max_model_len": 512, **owner} for name in self.models]})

    async def _obey(self, request: web.Request) -> web.StreamResponse:
        command = self.commands.get(request.match_info["command"])
        return await command(request) if command else web.Response(status=404)

    async def _show_page(self, request: web.Request) -> web.Response:
        page = self.pages.get(request.match_info["page"])
        return web.json_response(page) if page else web.Response(status=404)

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401, text="wrong key")

        return await handler(request)

    async def _show_version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version}) if self.version else web.Response(status=404)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        page = self.metrics()
        return web.Response(text=page) if page else web.Response(status=404)
