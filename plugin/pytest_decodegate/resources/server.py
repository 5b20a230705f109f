"""The server under test: started on first use, and kept until something else needs the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..cause import Cause, Finding
from ..errors import BadInput, ServerError, ServerHung
from ..printable import printable_lines
from ..process.import_path import VARIABLE, path_for
from ..redaction import redact_text
from ..serving.command import read_command
from .hardware import ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

    from ..machine.gpus import Gpu
    from ..measure.source import Progress
    from ..serving.home import ServerLaunch
    from ..serving.server import Server, Starting
    from ..settings.settings import Settings
    from ..settings.stack import Stack
    from .hardware import Hardware

VISIBLE = "CUDA_VISIBLE_DEVICES"

Room: TypeAlias = Literal["apart", "shared"]
"""How two servers run beside each other: each on GPUs of its own, or both on the same, each in a part of their memory.
"""

_LEAST_SHARED_LAYERS = 16
"""Of each server that shares its GPUs: with fewer the host sets the pace, and not what is compared."""

_CORES_OF_RANK = 3
"""What a rank keeps busy, idle or not, with what drives it; servers that share GPUs must not share cores."""

LOG_BYTES = 20_000
"""Of its log, what a report section of one phase shows at most: the end."""


def log_section(title: str, server: Server, start: int) -> list[tuple[str, str]]:
    """The end of what `server` wrote from `start`, a mark in its log, as a report section; none if that is nothing."""
    end = server.log_size()
    text = server.log(max(start, end - LOG_BYTES), end)
    return [(title, printable_lines(redact_text(text)))] if text else []


class ServerUnderTest:
    """The server of one session: attached, the user's own command, or a rank-slice; of one stack and depth at a time.

    before_start: called before a server of ours starts, while ranks may still hold the machine. folder: makes one for
    the files of a server.
    """

    def __init__(
        self,
        settings: Settings,
        hardware: Hardware,
        progress: Progress,
        *,
        before_start: Callable[[], object],
        folder: Callable[[str], Path],
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._progress = progress
        self._before_start = before_start
        self._folder = folder
        self._server: Server | None = None
        self._stack = settings.stack
        self._layers: int | None = None
        self._traces: Path | None = None
        self._failures: dict[tuple[Stack, bool], ServerError] = {}  # by stack, and whether with a profiler
        self._log_shown = 0
        self.hung: tuple[Finding, ...] = ()  # why nothing more is asked of a server in this session

    def running(self, layers: int | None = None) -> Server:
        """The server, started if it does not run; one that failed before raises ServerError and is not tried again.

        layers: depth of the suite's own rank-slice, unless it is to be as deep as the GPUs hold. It takes the place of
        one of another depth, and of one with a profiler: none that is timed has that.
        """
        if layers != self._layers or self._traces is not None:
            self._hardware.lease.release(self)
            self._layers, self._traces = layers, None

        return self._running()

    def _running(self) -> Server:
        self._hardware.refuse_if_wedged()
        if failure := self._failures.get((self._stack, self._traces is not None)):
            raise ServerError(f"the server failed before, and is not started again: {failure}", repeats=failure)

        try:
            if self._server is None:
                self._start()
            elif self._server.process:
                self._server.process.check("between two tests")
        except ServerError as error:
            self._failures[self._stack, self._traces is not None] = error
            raise

        assert self._server is not None
        return self._server

    def fresh(self, stack: Stack | None = None) -> Server:
        """A server that has just been started, as deep as the last; of another stack if one is given."""
        self._hardware.lease.release(self)
        self._stack = stack or self._stack
        return self.running(self._layers)

    def profiled(self) -> tuple[Server, Path]:
        """A server of ours with a profiler, as deep as the last, and the folder that it writes to.

        It takes the place of the running one without, and serves all profiles until that is wanted again.
        """
        if self._traces is None:
            self._hardware.lease.release(self)
            self._traces = self._folder("traces")

        return self._running(), self._traces

    @property
    def layers(self) -> int | None:
        """Layers of the suite's own rank-slice; None where the user's model is served."""
        from ..serving.models import slice_layers

        if self._settings.server or self._settings.launched(self._stack):
            return None

        return self._layers or slice_layers(self._memory_gib)

    @property
    def _memory_gib(self) -> int:
        """Of the smallest GPU; 0 without one."""
        return min((gpu.memory_gib for gpu in self._hardware.fingerprint.gpus), default=0)

    def attached(self, url: str) -> Server:
        """A server that runs already, and is left running; raises BadInput, or ServerError if nothing answers there."""
        from ..serving.server import attach
        from ..serving.slowed import refuse_attached

        settings = self._settings
        if settings.pins:
            raise BadInput("--perf-pin: an attached server runs already; start it with the backends that you want")

        refuse_attached(url, self._stack.environment())
        key = os.environ.get(settings.server_key_env or "", "")
        return attach(url, model=settings.server_model, key=key)

    def note_hung(self, error: ServerHung) -> None:
        """Remember that a server was silent past its deadline: each further test would cost that deadline again."""
        text = f"a server hung in this run, and is asked nothing more: {error}"
        self.hung = self.hung or (Finding(text, Cause.HANG, "server"),)

    def output(self) -> list[tuple[str, str]]:
        """The end of what it wrote since last asked, as a report section; none if that is nothing."""
        if self._server is None:
            return []

        start, self._log_shown = self._log_shown, self._server.log_size()
        return log_section("log of the server", self._server, start)

    def cards(self, stack: Stack) -> int:
        """How many GPUs a server of `stack` runs on, where it is launched."""
        return self._settings.gpus_of_server(stack, len(self._hardware.fingerprint.gpus))

    def room(self, stacks: Sequence[Stack]) -> Room | None:
        """How servers of all `stacks` run beside each other; None where there are no cards, cores or ports for that.

        GPUs are shared by models of ours alone: how deep others are is not for us to say. An instance of a GPU has no
        number of its own, by which a server could be put on it.
        """
        gpus = self._hardware.fingerprint.gpus
        users = [words for stack in stacks if (words := self._settings.launched(stack)) is not None]
        if any(read_command(words).port for words in users) or not gpus or any(gpu.is_instance for gpu in gpus):
            return None
        if sum(map(self.cards, stacks)) <= len(gpus):
            return "apart"

        return None if users or not self._may_share(stacks) else "shared"

    def _may_share(self, stacks: Sequence[Stack]) -> bool:
        """Whether models of ours for all `stacks` fit on the same GPUs, deep enough to say something."""
        from ..serving.models import PART_OF_MEMORY, slice_layers

        if any(name in PART_OF_MEMORY for stack in stacks for name, _ in stack.flags):
            return False

        layers = slice_layers(self._memory_gib, len(stacks))
        cores = self._hardware.fingerprint.host.cores
        return layers >= _LEAST_SHARED_LAYERS and _CORES_OF_RANK * sum(map(self.cards, stacks)) <= cores

    def make_room(self) -> None:
        """Have what is not needed by a server leave the machine."""
        self._before_start()

    def _start(self) -> None:
        if not self._settings.server:
            self.make_room()

        self._hardware.take(self, self._stop)
        self._server = self._open()
        self._log_shown = 0
        if said := self._server.started():
            self._progress.say(said)

    def _stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.stop()

    def _open(self) -> Server:
        if self._settings.server is not None:
            return self.attached(self._settings.server)

        return self.begin(self._stack).wait(self._progress.tick)

    def begin(self, stack: Stack, cards: Sequence[Gpu] | None = None, *, servers: int = 1) -> Starting:
        """Start the process of a server of `stack`, as deep as the last, on all GPUs or on `cards` alone.

        servers: how many are going to share these.
        """
        from ..serving import home

        settings = self._settings
        # Not by UUID, which vLLM does not read everywhere: these are numbers in PCI order, see ENVIRONMENT.
        visible = {} if cards is None else {VISIBLE: ",".join(str(gpu.index) for gpu in cards)}
        python = stack.python or sys.executable
        own = {**ENVIRONMENT, **visible, **stack.environment(), VARIABLE: path_for(python, settings.import_path)}
        flags = dict(stack.flags)
        start = home.ServerLaunch(
            self._folder("server"), own, settings.server_seconds, python, self._traces, flags, stack.vllm
        )
        if (words := settings.launched(stack)) is not None:
            return home.launch_users(start, words, settings.pins)

        return self._begin_own(start, self.cards(stack), servers)

    def _begin_own(self, start: ServerLaunch, gpus: int, servers: int) -> Starting:
        """The suite's own model, which is made for so many GPUs: how many ranks it has is a flag of its own."""
        from ..serving import home
        from ..serving.flags import TENSOR_PARALLEL
        from ..serving.read_back import read_back

        others = {name: value for name, value in start.flags.items() if name != TENSOR_PARALLEL}
        made_for = {name: value for name, value in start.flags.items() if name == TENSOR_PARALLEL}
        start, pins = replace(start, flags=others), self._settings.pins
        memory, depth = self._memory_gib, self._layers
        starting = home.launch_own(start, gpus=gpus, memory_gib=memory, pins=pins, layers=depth, servers=servers)
        return starting.then(lambda server: read_back(server, made_for))
