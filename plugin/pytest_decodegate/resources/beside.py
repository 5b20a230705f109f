"""Launched servers of two stacks beside each other, each on cards of its own, which change sides from pair to pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ..errors import ServerError
from ..measure.paired_source import SIDES, SideName, StackFailed, blamed
from ..serving.server import POLL_SECONDS
from .server import log_section

if TYPE_CHECKING:
    from ..machine.gpus import Gpu
    from ..measure.source import Progress
    from ..serving.server import Server, Starting
    from ..settings.stack import Stack
    from .hardware import Hardware
    from .server import ServerUnderTest


class ServersBeside:
    """The two servers that run at a time; they start together, so that a pair costs one start's time.

    servers: knows how one is launched. stacks: by side.
    """

    def __init__(
        self, servers: ServerUnderTest, stacks: Mapping[SideName, Stack], hardware: Hardware, progress: Progress
    ) -> None:
        self._servers = servers
        self._stacks = stacks
        self._hardware = hardware
        self._progress = progress
        self._starting: dict[SideName, Starting] = {}
        self._running: dict[SideName, Server] = {}
        self._failure: StackFailed | None = None

    def start(self, swapped: bool) -> Mapping[SideName, Server]:
        """Fresh servers of both stacks; swapped: each on the other end of the cards.

        Raises StackFailed if one does not start: both are then stopped, and none is started again in this session.
        """
        if self._failure:
            side, error = self._failure.side, self._failure.error
            again = f"the server failed before, and is not started again: {error}"
            raise StackFailed(side, ServerError(again, repeats=error))

        self._hardware.lease.release(self)
        self._servers.make_room()
        self._hardware.take(self, self.stop)
        try:
            for side, cards in self._cards(swapped).items():
                with blamed(side):
                    self._starting[side] = self._servers.begin(self._stacks[side], cards)

            self._wait()
        except StackFailed as error:
            self._failure = error
            raise
        finally:
            if self._starting or self._failure:
                self._hardware.lease.release(self)

        return dict(self._running)

    def _cards(self, swapped: bool) -> dict[SideName, Sequence[Gpu]]:
        """One side has the first GPUs, the other the last."""
        gpus = self._hardware.fingerprint.gpus
        base, candidate = (self._servers.cards(self._stacks[side]) for side in SIDES)
        if swapped:
            return {"base": gpus[-base:], "candidate": gpus[:candidate]}

        return {"base": gpus[:base], "candidate": gpus[-candidate:]}

    def _wait(self) -> None:
        """Until both serve; each is asked in turn, so that how long one took does not depend on the other."""
        while self._starting:
            for side, starting in tuple(self._starting.items()):
                with blamed(side):
                    if starting.is_healthy(partial(self._tick, side)):
                        self._running[side] = starting.healthy()
                        del self._starting[side]
                        self._say(side)

            if self._starting:
                next(iter(self._starting.values())).process.ended_within(POLL_SECONDS)

    def _tick(self, side: SideName, said: str) -> None:
        self._progress.tick(f"{side}: {said}")

    def _say(self, side: SideName) -> None:
        if said := self._running[side].started():
            self._progress.say(f"{side}: {said}")

    def stop(self) -> None:
        """Stop both, whether they serve already or not."""
        with ExitStack() as stopping:  # the second even if the first does not let itself be stopped
            for begun in self._starting.values():
                stopping.callback(begun.process.stop)
            for server in self._running.values():
                stopping.callback(server.stop)

            self._starting, self._running = {}, {}

    def output(self) -> list[tuple[str, str]]:
        """The end of the log of each that runs, as report sections."""
        logs = (log_section(f"log of the server of the {side}", server, 0) for side, server in self._running.items())
        return [section for sections in logs for section in sections]
