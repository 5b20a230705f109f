"""A call under way: sent to all ranks, and its answers collected until all are in or a rank cannot give one."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Mapping

from ..cause import Finding
from .connection import Untrusted
from .options import GangOptions
from .protocol import Failure, Note, Reply
from .rank import Rank

OnNote = Callable[[int, str], None]

LONGEST_WAIT_SECONDS = 3600.0
"""How long one wait lasts at most, also while deadlines are off."""


class Collection:
    """The answers to the call `task` so far: `replies` by rank, `silent` ranks, and those that are `gone`.

    distrusted: why what came from a rank that is gone was not taken, by rank. given_up: why nobody waits for the
    answers, None while somebody does.
    """

    def __init__(self, task: int, what: str, ranks: Mapping[int, Rank], options: GangOptions, seconds: float) -> None:
        self.task = task
        self.what = what
        self.seconds = seconds
        self.replies: dict[int, Reply] = {}
        self.gone: list[int] = []
        self.distrusted: dict[int, str] = {}
        self.given_up: Finding | None = None
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
        """The exceptions that ranks raised, by rank."""
        return {rank: reply.failure for rank, reply in self.replies.items() if reply.failure}

    def deliver(self, frame: bytes) -> None:
        """Send the call to every rank, until all have it, one is gone, or the deadline has passed."""
        for name, rank in self._ranks.items():
            try:
                rank.connection.send(frame)
            except OSError:
                self._lose(name)

        # Whoever waits for several gangs in turn must not keep the last ones from starting.
        while self._unsent and not self.gone and (left := self._seconds_left()) > 0:
            self._turn(left, None)

    def collect(self, on_note: OnNote | None, seconds: float = math.inf) -> bool:
        """Read until every rank has answered, one is gone, or the deadline has passed; then True.

        False if that takes longer than `seconds`. Raises nothing of its own.
        """
        until = time.monotonic() + seconds
        while self._waiting and not self.gone and (left := self._seconds_left()) > 0:
            patience = until - time.monotonic()
            if patience <= 0:
                return False

            self._turn(min(left, patience), on_note)

        return True

    def give_up(self, why: Finding) -> None:
        """Nobody waits for the answers any more: there is no more time than the grace."""
        self.given_up = why
        self._hurry()

    def _hurry(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._options.grace_seconds)

    @property
    def _unsent(self) -> bool:
        return any(rank.connection.unsent for rank in self._waiting.values())

    def _seconds_left(self) -> float:
        left = self._deadline - time.monotonic()
        return LONGEST_WAIT_SECONDS if left <= 0 and self._options.deadlines_off() else left

    def _turn(self, seconds: float, on_note: OnNote | None) -> None:
        """Wait until a rank speaks, listens or ends, at most `seconds`, and deal with it."""
        ready = self._wait(seconds)
        for name in [name for name in self._waiting if self._ranks[name].connection.fileno() in ready]:
            self._serve(name, on_note)

        # What a rank wrote before its end is read first; its end is noticed once nothing is left to read.
        for name in self.silent:
            rank = self._ranks[name]
            if rank.pidfd in ready and not rank.connection.readable:
                self._lose(name)

    def _wait(self, seconds: float) -> set[int]:
        poll = select.poll()
        for rank in self._waiting.values():
            poll.register(rank.connection, select.POLLIN | (select.POLLOUT if rank.connection.unsent else 0))
            if rank.pidfd is not None:
                poll.register(rank.pidfd, select.POLLIN)

        return {fd for fd, _ in poll.poll(math.ceil(min(seconds, LONGEST_WAIT_SECONDS) * 1e3))}

    def _serve(self, name: int, on_note: OnNote | None) -> None:
        rank = self._ranks[name]
        try:
            rank.connection.push()
            frame = rank.receive()
        except Untrusted as error:
            self.distrusted[name] = str(error)
            self._lose(name)
            return
        except (EOFError, OSError):
            self._lose(name)
            return

        if frame is None or frame.task != self.task:
            return  # not all of it, or a late word about a call that was given up
        if isinstance(frame, Note):
            rank.hear(frame.text)
            if on_note is not None:
                on_note(name, frame.text)
            return

        del self._waiting[name]
        self.replies[name] = frame
        if frame.failure:  # its peers may wait for it in a collective
            self._hurry()

    def _lose(self, name: int) -> None:
        """Rank `name` can not be reached any more."""
        self.gone.append(name)
