"""The server under test: started on first use, and kept until something else needs the machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ..errors import BadInput, ServerError, ServerHung
from .hardware import ENVIRONMENT

if TYPE_CHECKING:
    from ..serving.server import Server
    from ..session.session import Suite
    from ..settings.stack import Stack

LOG_BYTES = 20_000
"""Of its log, what a report section of one phase shows at most: the end."""


class ServerUnderTest:
    """The server of one session: attached, the user's own command, or a rank-slice; of one stack and depth at a time.

    suite: knows which, has the GPUs, and gives the machine to one tenant at a time.
    """

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._server: Server | None = None
        self._stack = suite.settings.stack
        self._layers: int | None = None
        self._failures: dict[Stack, str] = {}
        self._log_told = 0
        self.hung: tuple[str, ...] = ()  # why nothing more is asked of a server in this session

    def running(self, layers: int | None = None) -> Server:
        """The server, started if it does not run; one that failed before raises ServerError and is not tried again.

        layers: depth of the suite's own rank-slice, unless it is to be as deep as the GPUs hold; another depth than the
        running server's takes its place.
        """
        if layers != self._layers:
            self._suite.tenancy.move_out(self)
            self._layers = layers

        self._suite.refuse_if_wedged()
        if failure := self._failures.get(self._stack):
            raise ServerError(f"the server failed before, and is not started again: {failure}")

        try:
            if self._server is None:
                self._start()
            elif self._server.process:
                self._server.process.check("between two tests")
        except ServerError as error:
            self._failures[self._stack] = str(error)
            raise

        assert self._server is not None
        return self._server

    def fresh(self, stack: Stack | None = None) -> Server:
        """A server that has just been started, as deep as the last; of another stack if one is given."""
        self._suite.tenancy.move_out(self)
        self._stack = stack or self._stack
        return self.running(self._layers)

    def attached(self, url: str) -> Server:
        """A server that runs already, and is left running; raises BadInput, or ServerError if nothing answers there."""
        from ..serving.server import attach
        from ..serving.slowed import refuse_attached

        settings = self._suite.settings
        if settings.pins:
            raise BadInput("--perf-pin: an attached server runs already; start it with the backends that you want")

        refuse_attached(url, self._stack.environment())
        key = os.environ.get(settings.server_key_env or "", "")
        return attach(url, model=settings.server_model, key=key)

    def note_hung(self, error: ServerHung) -> None:
        """Remember that a server was silent past its deadline: each further test would cost that deadline again."""
        self.hung = self.hung or (f"a server hung in this run, and is asked nothing more: {error}",)

    def output(self) -> str:
        """The end of what it wrote since last asked; "" if nothing."""
        if self._server is None:
            return ""

        start, self._log_told = self._log_told, self._server.log_size()
        return self._server.log(max(start, self._log_told - LOG_BYTES), self._log_told)

    def _start(self) -> None:
        if not self._suite.settings.server:
            _ = self._suite.provenance  # read in the ranks while they may still hold the machine

        self._suite.tenancy.move_in(self, self._stop)
        self._server = self._open()
        self._log_told = 0
        if told := self._server.started():
            self._suite.progress.say(told)

    def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.stop()

    def _open(self) -> Server:
        from ..serving import home

        settings = self._suite.settings
        if settings.server is not None:
            return self.attached(settings.server)

        start = home.Launch(
            self._suite.folder("server"),
            {**ENVIRONMENT, **self._stack.environment()},
            settings.server_seconds,
            self._suite.progress.tick,
            self._stack.python or sys.executable,
        )
        if settings.serve is not None:
            return home.launch_users(start, settings.serve, settings.pins)

        gpus = self._suite.fingerprint.gpus
        memory_gib = min((gpu.memory_gib for gpu in gpus), default=0)
        return home.launch_own(start, gpus=len(gpus), memory_gib=memory_gib, pins=settings.pins, layers=self._layers)
