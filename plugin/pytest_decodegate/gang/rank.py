"""The controller's view of one rank."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..printable import printable, printable_lines
from ..process import processes
from ..redaction import redact_text
from . import protocol
from .listener import Admitted
from .protocol import Hello, Note, Reply

SYSTEM = protocol.this_system()


class Rank:
    """Connection and process of one rank; `note` is what it last said, with the time (monotonic).

    Its process is looked at and killed only where it is beyond doubt: the kernel says which process connected, or, over
    TCP, the pid that the rank gives is of this system and belongs to a process that was started with `gang_id`.
    """

    def __init__(self, admitted: Admitted, gang_id: str) -> None:
        self.hello: Hello = admitted.hello
        self.connection = admitted.connection
        self.note: tuple[str, float] | None = None
        # A process that a workload has forked may hold the socket open: the pidfd sees the rank's end all the same.
        self.pidfd: int | None = None
        if admitted.pid is not None:
            self.hello = replace(admitted.hello, pid=admitted.pid)
            with suppress(ProcessLookupError):
                self.pidfd = os.pidfd_open(admitted.pid)
        elif SYSTEM and self.hello.system == SYSTEM:
            self.pidfd = processes.open_tagged(self.hello.pid, protocol.GANG_ID, gang_id)

        self.local = self.pidfd is not None or admitted.pid is not None

    @property
    def ended(self) -> bool:
        """Whether the process is known to have ended."""
        return self.local and (self.pidfd is None or processes.ended(self.pidfd))

    def receive(self) -> Any:
        """The next frame, None if not all of it is here yet. Raises EOFError or OSError if the rank has hung up."""
        frame = self.connection.pull()
        message = None if frame is None else protocol.load(frame)
        if isinstance(message, Note):
            return replace(message, text=printable(redact_text(message.text)))
        if isinstance(message, Reply) and message.skip is not None:  # of a failure an error of ours is made
            return replace(message, skip=printable_lines(redact_text(message.skip)))

        return message

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
            self.connection.wake()

    def kill(self) -> None:
        """SIGKILL the rank and its process group; torchrun would wait 30 s before that (pytorch#192815)."""
        if self.pidfd is not None:
            processes.kill_group(self.pidfd)

    def await_end(self, seconds: float) -> None:
        """Wait until the process has ended, or has hung up if it is on another host."""
        poll = select.poll()
        poll.register(self.connection if self.pidfd is None else self.pidfd, select.POLLIN)
        poll.poll(seconds * 1e3)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
