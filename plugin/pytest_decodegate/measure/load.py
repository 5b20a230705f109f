"""A closed loop of streams at a fixed concurrency, in windows that each stand for one replicate."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import uvloop

from ..client import counters, stream
from ..client.client import Client
from ..client.counters import Counters
from ..client.stream import Exchange
from ..errors import ServerError
from ..metric import Json
from ..serving.server import Server
from . import vocabulary, window
from .streams import Streams
from .window import Load, Recording, Window

OnWait = Callable[[str], None]

WARM_UP_SECONDS: Final = 900.0
"""Longest wait for a token while kernels are compiled, unless --perf-warmup-timeout says otherwise."""

_TICK_SECONDS = 1.0
_SETTLE_SECONDS = 2.0  # the server counts a request a moment after its last byte
_SETTLE_POLL_SECONDS = 0.05


class ClosedLoop:
    """Keeps `load.concurrency` streams open at a server; every prompt is new, so that no cache can know it."""

    def __init__(self, server: Server, load: Load) -> None:
        self._server = server
        self._load = load
        self._ids = server.token_ids
        self._random = random.Random()  # seeded by the system: a fixed seed would find its own prompts in the cache

    @property
    def _doing(self) -> str:
        return f"under load (concurrency {self._load.concurrency})"

    def warm_up(self, stall_seconds: float = WARM_UP_SECONDS, on_wait: OnWait | None = None) -> None:
        """Send one request per stream and time nothing; raises ServerError.

        stall_seconds: longest wait for a token, unless the load has its own. on_wait: told every second how long it
        has waited, and for how long at most. The ramp of the first window is a second round that is not measured. Where
        the server refuses the largest id that prompts may hold, they are made of what it takes from now on.
        """
        stall_seconds = self._load.warm_up_stall_seconds or stall_seconds
        try:
            self._warm_up(stall_seconds, on_wait)
        except ServerError as error:
            if not vocabulary.is_refusal(error):
                raise

            self._ids = vocabulary.accepted_ids(self._server.endpoint, self._ids, error)
            self._warm_up(stall_seconds, on_wait)

    @property
    def prompt_facts(self) -> dict[str, Json]:
        """From which to which id prompts are drawn, for the contract; nothing where it is the server's whole range."""
        return {} if self._ids == self._server.token_ids else {"prompt_token_ids": [self._ids[0], self._ids[-1]]}

    def window(self) -> Window:
        """Run and read one window; raises ServerError if any request of it failed."""
        with self._server.explained(self._doing), no_garbage_collection():
            return window.read(uvloop.run(self._record()), self._load)

    def _warm_up(self, stall_seconds: float, on_wait: OnWait | None) -> None:
        prompts = [self._prompt() for _ in range(self._load.concurrency)]
        prompts[0][-1] = self._ids[-1]  # refused here and now, and not by chance in the middle of a window
        with self._server.explained(self._doing):
            for exchange in uvloop.run(_ticking(self._ask_at_once(prompts, stall_seconds), stall_seconds, on_wait)):
                stream.read(exchange)

    def _prompt(self) -> list[int]:
        return self._random.choices(self._ids, k=self._load.prompt_tokens)

    async def _ask_at_once(self, prompts: Sequence[Sequence[int]], stall_seconds: float) -> list[Exchange]:
        async with Client(self._server.endpoint, stall_seconds=stall_seconds) as client:
            async with asyncio.TaskGroup() as streams:
                asked = [
                    streams.create_task(client.complete(prompt, output_tokens=self._load.output_tokens))
                    for prompt in prompts
                ]

            return [each.result() for each in asked]

    async def _record(self) -> Recording:
        async with Client(self._server.endpoint, stall_seconds=self._load.stall_seconds) as client:
            before = await _counters(client)
            streams = Streams(client, self._load, self._prompt, self._server.log_size)
            await streams.run()
            parts = (tuple(streams.ramp), tuple(streams.measured), tuple(streams.company))
            counted = await _counted(client, before, sum(map(len, parts))) if before else None

        return Recording(*parts, self._server.log(*streams.log_marks), counted)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Put it off: a collection of pytest's heap takes milliseconds, which is several tokens."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _ticking(
    running: Coroutine[None, None, list[Exchange]], stall_seconds: float, on_wait: OnWait | None
) -> list[Exchange]:
    """What `running` gives, while `on_wait` is told how long it takes."""

    async def tick(said_at: OnWait) -> None:
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            said_at(f"{time.monotonic() - began_s:.0f} s, at most {stall_seconds:g} s without a token")

    ticking = asyncio.create_task(tick(on_wait)) if on_wait else None
    try:
        return await running
    finally:
        if ticking:
            ticking.cancel()


async def _counters(client: Client) -> Counters | None:
    """What the /metrics page tells; a page that does not come is none. Whether the server lives, completions show."""
    try:
        return counters.parse(await client.page("/metrics"))
    except ServerError:
        return None


async def _counted(client: Client, before: Counters, requests: int) -> Counters:
    """Counters since `before`, once the server has counted `requests` more requests or has had the time for it."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _SETTLE_SECONDS
    while True:
        counted = (await _counters(client) or Counters({})).since(before)
        if counted.values.get("tpot_count", requests) >= requests or clock() > deadline:
            return counted

        await asyncio.sleep(_SETTLE_POLL_SECONDS)
