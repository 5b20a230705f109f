"""What the client itself does to a time per token on this host: reported beside every TPOT, subtracted from none."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from functools import cache

import uvloop

from ..errors import ServerError
from . import stream
from .client import Client
from .endpoint import Endpoint
from .paced import paced

STEP_SECONDS = 0.01
_TOKENS = 60
_PROMPT = (1,) * 16
_STALL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Floor:
    """tpot_error: of the median TPOT against what the server sent, a fraction. cpu_seconds: of the client per token."""

    concurrency: int
    tpot_error: float
    cpu_seconds: float

    def __str__(self) -> str:
        rate = self.concurrency / STEP_SECONDS
        return (
            f"the client at {self.concurrency} streams and {rate:.0f} tok/s reads a known TPOT "
            f"{self.tpot_error:+.2%} off and takes {self.cpu_seconds * 1e6:.0f} us of CPU a token"
        )


@cache
def client_floor(concurrency: int) -> Floor:
    """Measure it against a loopback server of known pace, once per session; raises ServerError if that does not run."""
    with paced(STEP_SECONDS) as server:
        before_s = time.process_time()
        exchanges = uvloop.run(_ask(server.endpoint, concurrency))
        times = [tpot_s for exchange in exchanges if (tpot_s := stream.read(exchange).tpot_s)]
        cpu_s = time.process_time() - before_s
        sent = statistics.median(server.sent_tpot_s())

    if not (times and sent):
        raise ServerError("every answer of the loopback server came in one piece: this host is too busy to time one")

    return Floor(concurrency, statistics.median(times) / sent - 1, cpu_s / (_TOKENS * concurrency))


async def _ask(endpoint: Endpoint, concurrency: int) -> list[stream.Exchange]:
    async with Client(endpoint, stall_seconds=_STALL_SECONDS) as client:
        asked = (client.complete(_PROMPT, output_tokens=_TOKENS) for _ in range(concurrency))
        return await asyncio.gather(*asked)
