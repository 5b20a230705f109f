"""The controller's view of one rank."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from ..process import processes
from . import protocol
from .connection import Wire
from .listener import Admitted
from .protocol import Hello

HOST = socket.gethostname()


class Rank:
    """Connection and process of one rank; `note` is what it last said, with the time (monotonic)."""

    def __init__(self, admitted: Admitted) -> None:
        self.hello: Hello = admitted.hello
        self.wire = Wire(admitted.connection)
        self.note: tuple[str, float] | None = None
        self.local = self.hello.host == HOST
        # A process that a workload has forked may hold the socket open: the pidfd sees the rank's end all the same.
        self.pidfd = self._open_pidfd() if self.local else None

    def _open_pidfd(self) -> int | None:
        with suppress(ProcessLookupError):
            return os.pidfd_open(self.hello.pid)

        return None

    @property
    def ended(self) -> bool:
        """Whether the process is known to have ended."""
        return self.local and (self.pidfd is None or processes.ended(self.pidfd))

    def receive(self) -> Any:
        """The next frame, None if not all of it is here yet. Raises EOFError or OSError if the rank has hung up."""
        frame = self.wire.pull()
        return None if frame is None else protocol.load(frame)

    def hear(self, text: str) -> None:
        """Remember a note."""
        self.note = (text, time.monotonic())

    def last_heard(self) -> str:
        """'rank 1 last said "warmup 3/10", 41 s ago', or that it has said nothing."""
        if self.note is None:
            return f"rank {self.hello.rank} has sent no note"

        text, at = self.note
        return f"rank {self.hello.rank} last said {text!r}, {time.monotonic() - at:.0f} s ago"

    def exit_code(self) -> int | None:
        """How its process ended, as long as the kernel can tell; negative for a signal."""
        return processes.exit_code(self.hello.pid) if self.local else None

    def stop_reason(self) -> str | None:
        """The reason why its process cannot write its stack, as far as the kernel can tell; None if there is none."""
        return processes.stop_reason(self.hello.pid) if self.local else None

    def ask_for_stacks(self) -> None:
        """Make faulthandler write the stacks of all threads.

        A signal works with the GIL held; on another host, urgent data wakes the rank's watch, which needs the GIL.
        """
        if self.pidfd is not None:
            processes.send_signal(self.pidfd, signal.SIGUSR1)
        else:
            self.wire.wake()

    def kill(self) -> None:
        """SIGKILL the rank and its process group; torchrun would wait 30 s before that (pytorch#192815)."""
        if self.local:
            processes.kill_group(self.hello.pid)

    def await_end(self, seconds: float) -> None:
        """Wait until the process has ended, or has hung up if it is on another host."""
        wait([self.wire.fileno() if self.pidfd is None else self.pidfd], seconds)

    def close(self) -> None:
        """Hang up."""
        self.wire.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
