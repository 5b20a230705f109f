"""A server that is started again and again: each start serves all metrics that are open, one window of each.

A start takes minutes and a window seconds, so N starts are N for all metrics of a run, not for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import ServerError, ServerHung
from ..gate.text.quantity import format_value
from ..measure.source import Taken, joined

if TYPE_CHECKING:
    from ..measure.source import Source
    from ..measure.window import Load
    from ..metric import Level
    from ..serving.server import Server


@dataclass(slots=True)
class _Windows:
    """What starts gave for one metric, a part each. newest: the server of the last. failure: of a server, on one."""

    load: Load
    parts: list[Taken] = field(default_factory=list)
    newest: Server | None = None
    failure: ServerError | None = None

    @property
    def goes_on(self) -> bool:
        """Whether it is worth measuring: no rule was broken so far, and nothing failed."""
        return self.failure is None and all(part.sound for part in self.parts)

    def of_first(self, starts: int) -> Taken:
        """What the first `starts` of them gave, as replicates of servers."""
        parts = self.parts[:starts]
        taken = joined([Taken("server"), *parts])
        return replace(taken, facts={**taken.facts, "server_starts": len(parts)})


class Restarts:
    """Starts of one server, shared by the metrics of a run.

    fresh: stops the server that runs and starts another. rehearse: has a server serve a window that does not count,
    unless it has before. windows: a source of windows on a server, for a metric by its name. loads: under which servers
    are measured in this run, by metric; one that is not among these is measured alone. say: shows a line.
    """

    def __init__(
        self,
        fresh: Callable[[], Server],
        rehearse: Callable[[str, Server, Load], None],
        windows: Callable[[str, Server, Load], Source],
        loads: Callable[[], Mapping[str, Load]],
        say: Callable[[str], None],
    ) -> None:
        self._fresh = fresh
        self._rehearse = rehearse
        self._windows = windows
        self._loads = loads
        self._say = say
        self._server: Server | None = None
        self._of: dict[str, _Windows] = {}
        self._over: list[str] = []
        self._starts = 0

    def source(self, name: str, server: Server, load: Load) -> Source:
        """Replicates of the metric `name`, a start each: those that served earlier metrics, then `server`, then others.

        Metrics that were asked for before it are over: no start measures them again. One that was itself asked for
        before, by a test that runs again, is measured anew.
        """
        self._server = server
        if name not in self._of or name in self._over:
            self._of[name] = _Windows(load, newest=server if name in self._of else None)

        return _OnStarts(self, name)

    def taken(self, name: str, starts: int) -> Taken:
        """What the first so many starts gave for a metric; raises ServerError if a server failed at it."""
        windows = self._of[name]
        while len(windows.parts) < starts and windows.goes_on:
            self._start(name)

        self._over.append(name)
        if windows.failure:
            raise windows.failure

        return windows.of_first(starts)

    def _start(self, asked: str) -> None:
        """A window of each open metric on one start: on the server that runs, if it has not served `asked` before.

        A server that a metric has ended is asked nothing more: the others are measured on the next one.
        """
        server = self._next(asked)
        self._starts += 1
        given: list[str] = []
        for name in self._open(asked):
            given += self._window(name, server)
            if self._of[name].failure and server.ended():
                break

        self._say(f"start {self._starts} of the server: {', '.join(given) or 'no window'}")

    def _next(self, asked: str) -> Server:
        if self._server is None or self._of[asked].newest is self._server or self._server.ended():
            self._server = self._fresh()

        return self._server

    def _open(self, asked: str) -> Sequence[str]:
        """Metrics that the next start is to measure."""
        loads = self._loads()
        if asked not in loads:
            return [asked]

        for name, load in loads.items():
            self._of.setdefault(name, _Windows(load))

        return [name for name in loads if name == asked or (name not in self._over and self._of[name].goes_on)]

    def _window(self, name: str, server: Server) -> Iterator[str]:
        """A window for one metric, and what it gave in words; its failure is its own, unless the server hangs."""
        windows = self._of[name]
        windows.newest = server
        try:
            self._rehearse(name, server, windows.load)
            taken = self._windows(name, server, windows.load).take(1)
        except ServerHung:
            raise
        except ServerError as error:
            windows.failure = error
            return

        windows.parts.append(taken)
        if taken.replicates:
            yield f"{name} {format_value(taken.replicates[-1].value, 's')}"


class _OnStarts:
    """A Source of one metric: one replicate a start."""

    level: Level = "server"

    def __init__(self, restarts: Restarts, name: str) -> None:
        self._restarts = restarts
        self._name = name
        self._used = 0

    def take(self, count: int) -> Taken:
        """See Source."""
        self._used += count
        return self._restarts.taken(self._name, self._used)
