"""The controller's end of a rank's connection; a rank that stops reading or writing does not block it."""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress
from multiprocessing.connection import Connection

LONGEST_SHORT = 0x7FFFFFFF
"""Bytes of a frame whose length is told in four bytes; a longer one has -1 there and eight bytes more."""

LARGEST_READ = 1 << 20


class Wire:
    """Frames as multiprocessing.connection sends them; takes over the connection of a rank that has been admitted.

    What cannot be sent or read at once waits for the next push() or pull(), so that only the caller's deadline counts.
    """

    def __init__(self, connection: Connection) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setblocking(False)
        connection.close()
        self._unsent: list[memoryview] = []
        self._start_frame()

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether a part of what was sent is still here."""
        return bool(self._unsent)

    @property
    def readable(self) -> bool:
        """Whether a frame, a part of one or the end of the connection can be read now."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, frame: bytes) -> None:
        """Send `frame`, or as much of it as the rank takes now. Raises OSError if the rank has hung up."""
        length = len(frame)
        header = struct.pack("!i", length) if length <= LONGEST_SHORT else struct.pack("!iQ", -1, length)
        self._unsent += [memoryview(header), memoryview(frame)]
        self.push()

    def push(self) -> None:
        """Send on. Raises OSError if the rank has hung up."""
        while self._unsent:
            try:
                sent = self._socket.sendmsg(self._unsent)
            except BlockingIOError:
                return

            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

    def pull(self) -> bytes | None:
        """The next frame, None if not all of it is here yet. Raises EOFError or OSError if the rank has hung up."""
        while self._fill():
            if self._in_body:
                frame = bytes(self._read)
                self._start_frame()
                return frame

            self._take_header()

        return None

    def _fill(self) -> bool:
        """Read what is wanted next and nothing beyond it: select() must see the rest. Whether all of it is here."""
        while (missing := self._wanted - len(self._read)) > 0:
            try:
                part = self._socket.recv(min(missing, LARGEST_READ))
            except BlockingIOError:
                return False
            if not part:
                raise EOFError

            self._read += part

        return True

    def _start_frame(self) -> None:
        self._read = bytearray()
        self._wanted = 4
        self._in_body = False

    def _take_header(self) -> None:
        if len(self._read) == 4 and struct.unpack("!i", self._read) == (-1,):
            self._wanted = 12
            return

        self._wanted = struct.unpack("!i" if len(self._read) == 4 else "!4xQ", self._read)[0]
        self._read = bytearray()
        self._in_body = True

    def wake(self) -> None:
        """Send a byte of urgent data past whatever waits (TCP only)."""
        with suppress(OSError):
            self._socket.send(b"!", socket.MSG_OOB)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
