"""Replicates from a server: windows of a closed loop on one server start, watched like any other measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..metric import Json, Level, Replicate
from .load import ClosedLoop
from .stream import TPOT_FORMULA
from .window import Load, Window

if TYPE_CHECKING:
    from ..machine.watch import Watch
    from ..report.progress import Progress
    from .server import Server


class WindowSource:
    """A perf.Source of TPOT in seconds: one sample per request, one replicate per window.

    A window sees what a request sees; what a restart of the server would change it cannot see, and its level says so.
    """

    level: Level = "window"

    def __init__(
        self,
        name: str,
        server: Server,
        load: Load,
        *,
        watch: Callable[[], AbstractContextManager[Watch]],
        progress: Progress,
    ) -> None:
        self._name = name
        self._server = server
        self._load = load
        self._loop = ClosedLoop(server, load)
        self._watch = watch
        self._progress = progress
        self._windows: list[Window] = []
        self._telemetry: list[Json] = []
        self.wrong: str | None = None
        self.broken: list[str] = []

    @property
    def contract(self) -> dict[str, Json]:
        """What the client sends, how it counts, and what model it talks to."""
        return {
            "clock": "client, monotonic, at the socket",
            "formula": TPOT_FORMULA,
            "concurrency": self._load.concurrency,
            "prompt_tokens": self._load.prompt_tokens,
            "output_tokens": self._load.output_tokens,
            "requests": self._load.requests,
            **self._server.given_facts,
        }

    @property
    def facts(self) -> dict[str, Json]:
        """What the server says it runs, and what the watch saw."""
        return {"server": self._server.facts(), "telemetry": list(self._telemetry)}

    def take(self, count: int) -> list[Replicate]:
        """Run `count` more windows; a window that could time no request is a broken rule and no replicate."""
        if not self._windows:
            self._progress.tick(f"{self._name}: warming up")
            self._loop.warm_up()

        with self._watch() as watch:
            windows = [self._window() for _ in range(count)]

        telemetry = watch.report()
        self.broken.extend(telemetry.invalid)
        self._telemetry.append(dict(telemetry.facts))
        return [Replicate(window.tpot_s, _facts(window)) for window in windows if window.tpot_s]

    def _window(self) -> Window:
        number = len(self._windows) + 1
        self._progress.tick(f"{self._name}: window {number}")
        window = self._loop.window()
        self._windows.append(window)
        self.broken.extend(f"window {number}: {reason}" for reason in window.broken)
        return window


def _facts(window: Window) -> Mapping[str, Json]:
    return {**window.facts, "output_tok_s": window.output_tok_s}
