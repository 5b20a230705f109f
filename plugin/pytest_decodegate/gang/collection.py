"""Collecting the replies to one call: watches every rank at once, until all have answered or one cannot any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait

from .options import GangOptions
from .protocol import Failure, Note, Reply
from .rank import Rank

OnNote = Callable[[int, str], None]

SUSPENDED_SECONDS = 3600.0
"""How long one wait lasts while deadlines are off."""


class Collection:
    """What is known of task `task`: `replies` by rank, `silent` ranks, and those that are `gone`."""

    def __init__(self, task: int, what: str, ranks: Mapping[int, Rank], options: GangOptions, seconds: float) -> None:
        self.task = task
        self.what = what
        self.seconds = seconds
        self.replies: dict[int, Reply] = {}
        self.gone: list[int] = []
        self._ranks = ranks
        self._waiting = dict(ranks)
        self._options = options
        self._deadline = time.monotonic() + seconds

    @property
    def silent(self) -> list[int]:
        """Ranks that neither answered nor ended."""
        return sorted(rank for rank in self._waiting if rank not in self.gone)

    @property
    def failures(self) -> dict[int, Failure]:
        """What was raised, by rank."""
        return {rank: reply.failure for rank, reply in self.replies.items() if reply.failure}

    def collect(self, on_note: OnNote | None) -> None:
        """Read until every rank has answered, one is gone, or the deadline has passed; raises nothing of its own."""
        while self._waiting and not self.gone:
            left = self._deadline - time.monotonic()
            if self._options.deadlines_off():
                left = SUSPENDED_SECONDS
            if left <= 0:
                return

            self._read(left, on_note)

    def lose(self, rank: int) -> None:
        """Rank `rank` can not be reached any more."""
        self.gone.append(rank)

    def _read(self, seconds: float, on_note: OnNote | None) -> None:
        connections: dict[Connection | int, int] = {rank.connection: name for name, rank in self._waiting.items()}
        pidfds = {rank.pidfd: name for name, rank in self._waiting.items() if rank.pidfd is not None}
        ready = wait([*connections, *pidfds], seconds)
        for name in [connections[item] for item in ready if item in connections]:
            self._read_one(name, on_note)

        # What a rank wrote before its end is read first; its end is noticed once nothing is left to read.
        for name in [pidfds[item] for item in ready if isinstance(item, int)]:
            if name in self._waiting and name not in self.gone and not self._ranks[name].connection.poll():
                self.lose(name)

    def _read_one(self, name: int, on_note: OnNote | None) -> None:
        rank = self._ranks[name]
        try:
            frame = rank.receive()
        except (EOFError, OSError):
            self.lose(name)
            return

        if frame.task != self.task:
            return  # a late word about a call that was given up
        if isinstance(frame, Note):
            rank.hear(frame.text)
            if on_note is not None:
                on_note(name, frame.text)
            return

        del self._waiting[name]
        self.replies[name] = frame
        if frame.failure:  # its peers may wait for it in a collective
            self._deadline = min(self._deadline, time.monotonic() + self._options.grace_seconds)
