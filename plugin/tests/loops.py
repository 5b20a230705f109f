"""A closed loop as a source runs it: warm up once, then window after window."""

from __future__ import annotations

from pytest_decodegate.serving.load import ClosedLoop
from pytest_decodegate.serving.server import Server
from pytest_decodegate.serving.window import Load, Window


def windows(server: Server, load: Load, count: int = 1) -> list[Window]:
    loop = ClosedLoop(server, load)
    loop.warm_up()
    return [loop.window() for _ in range(count)]
