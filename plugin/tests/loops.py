"""Requests as a client sends them: one alone, or a closed loop as a source runs it."""

from __future__ import annotations

import uvloop
from scripted import TOKENS, ScriptedServer

from pytest_decodegate.client.client import Client
from pytest_decodegate.client.stream import RequestTiming, read
from pytest_decodegate.measure.load import ClosedLoop
from pytest_decodegate.measure.window import Load, Window
from pytest_decodegate.serving.server import Server


def complete(server: ScriptedServer, *, stall_seconds: float = 10.0) -> RequestTiming:
    """Send one request, and read what came."""

    async def ask() -> RequestTiming:
        async with Client(server.endpoint, stall_seconds=stall_seconds) as client:
            return read(await client.complete([1, 2, 3], output_tokens=TOKENS))

    return uvloop.run(ask())


def windows(server: Server, load: Load, count: int = 1) -> list[Window]:
    """Warm up once, then window after window."""
    loop = ClosedLoop(server, load)
    loop.warm_up()
    return [loop.window() for _ in range(count)]
