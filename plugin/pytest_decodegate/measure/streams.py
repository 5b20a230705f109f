"""The streams of one window: each sends its next request when its last one ends, until what is measured has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from ..client.client import Client
from ..client.stream import Exchange
from .window import Load


class Streams:
    """Runs a window at a load, and sorts what came into ramp, measured and company, as a Recording has them.

    The window begins when the ramp ends: from then on streams begin their answers evenly spread over the time of one,
    as they go on to do, since all answers are as long. What began before that is company, and so are answers that begin
    when enough are being measured; these are as long as the last measured one still takes. In all, a window takes the
    time of two answers more than those that are measured, and of an eighth; with one stream, of one answer more.

    prompt: makes a new one. log_size: of the server's log so far; `log_marks` are where it begins and ends.
    """

    def __init__(
        self, client: Client, load: Load, prompt: Callable[[], Sequence[int]], log_size: Callable[[], int]
    ) -> None:
        self._client = client
        self._load = load
        self._prompt = prompt
        self._log_size = log_size
        self.ramp: list[Exchange] = []
        self.measured: list[Exchange] = []
        self.company: list[Exchange] = []
        self.log_marks: list[int] = []
        self._being_measured = 0
        self._last_began_s = 0.0
        self._token_s = 0.0  # of the answer that ended last, its wait for the first one included

    async def run(self) -> None:
        """Raises ServerError, in a group, for a request that failed."""
        async with asyncio.TaskGroup() as streams:
            for tokens in self._load.ramp:
                streams.create_task(self._stream(tokens))

    async def _stream(self, first: int) -> None:
        self.ramp.append(await self._ask(first))
        if self._is_ramped:
            self.log_marks.append(self._log_size())

        while len(self.measured) < self._load.requests:
            await self._next()

        if len(self.log_marks) == 1:
            self.log_marks.append(self._log_size())

    async def _next(self) -> None:
        if self._is_ramped and self._being_measured < self._load.requests:
            self._being_measured += 1
            self._last_began_s = time.monotonic()
            self.measured.append(await self._ask(self._load.output_tokens))
        else:
            self.company.append(await self._ask(self._company() if self._is_ramped else self._load.output_tokens))

    async def _ask(self, tokens: int) -> Exchange:
        exchange = await self._client.complete(self._prompt(), output_tokens=tokens)
        self._token_s = (time.monotonic() - exchange.sent_s) / tokens
        return exchange

    def _company(self) -> int:
        gone = (time.monotonic() - self._last_began_s) / (self._token_s * self._load.output_tokens)
        return self._load.company(1 - gone)

    @property
    def _is_ramped(self) -> bool:
        return len(self.ramp) == self._load.concurrency
