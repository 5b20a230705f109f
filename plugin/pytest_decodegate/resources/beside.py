"""Launched servers of two stacks beside each other: on cards of their own, which change sides, or on the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ..cause import Finding
from ..measure.paired_source import SIDES, SideName, blamed
from ..serving.server import POLL_SECONDS
from .server import log_section

if TYPE_CHECKING:
    from ..machine.gpus import Gpu
    from ..measure.source import Progress
    from ..serving.server import Server, Starting
    from ..settings.stack import Stack
    from .hardware import Hardware
    from .server import Room, ServerUnderTest


class ServersBeside:
    """The two servers that run at a time; they start together, so that a pair costs one start's time.

    servers: knows how one is launched. stacks: by side. room: on which cards they run.
    """

    def __init__(
        self,
        servers: ServerUnderTest,
        stacks: Mapping[SideName, Stack],
        room: Room,
        hardware: Hardware,
        progress: Progress,
    ) -> None:
        self._servers = servers
        self._stacks = stacks
        self._room = room
        self._hardware = hardware
        self._progress = progress
        self._starting: dict[SideName, Starting] = {}
        self._running: dict[SideName, Server] = {}

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What a reader should know of how they run."""
        if self._room == "apart":
            return (Finding("two servers ran at a time, on cards that they exchanged from pair to pair"),)

        return (Finding("two servers shared the same cards, each with half of the memory; one was idle at a time"),)

    def start(self, swapped: bool) -> Mapping[SideName, Server]:
        """Fresh servers of both stacks; swapped: begun in the other order, and each on the other end of the cards.

        Raises StackFailed if one does not start: both are then stopped.
        """
        self._hardware.lease.release(self)
        self._servers.make_room()
        self._hardware.take(self, self.stop)
        try:
            self._begin(swapped)
            self._wait()
        except BaseException:
            self._hardware.lease.release(self)
            raise

        return dict(self._running)

    def _begin(self, swapped: bool) -> None:
        sharing = len(SIDES) if self._room == "shared" else 1
        for side, cards in self._cards(swapped):
            with blamed(side):
                self._starting[side] = self._servers.begin(self._stacks[side], cards, servers=sharing)

    def _cards(self, swapped: bool) -> Iterator[tuple[SideName, Sequence[Gpu]]]:
        """In the order in which they begin: one has the first GPUs, the other the last, or both the first."""
        gpus = self._hardware.fingerprint.gpus
        for place, side in enumerate(SIDES[::-1] if swapped else SIDES):
            count = self._servers.cards(self._stacks[side])
            is_last = place > 0 and self._room == "apart"
            yield side, gpus[-count:] if is_last else gpus[:count]

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
