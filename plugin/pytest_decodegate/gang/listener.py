"""Where ranks connect: a private socket, a key that never leaves its file, and nobody else let in."""

from __future__ import annotations

import errno
import os
import queue
import secrets
import socket
import struct
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..process import private_folders
from . import connection, protocol
from .connection import Connection
from .protocol import Hello

HANDSHAKE_SECONDS = 5.0
"""A peer that has not proved that it knows the key and said who it is within so long is dropped, whatever it sends."""

MOST_PENDING = 64
"""Handshakes at once. One more makes the oldest go: a rank's takes milliseconds, so the oldest is no rank's."""

PAUSE_SECONDS = 0.05
"""Between two attempts to accept after one that failed, for instance because no descriptor was free."""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

LONGEST_FOLDER = 80
"""Bytes; the name of an AF_UNIX socket ends at 108."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A rank that has proved that it knows the key and has said who it is.

    pid: of the process that connected, by the kernel's word; None over TCP, where the kernel does not know it.
    """

    hello: Hello
    connection: Connection
    pid: int | None = None


class Listener:
    """Accepts ranks in the background; each is authenticated in a thread of its own, so that a stranger who stays
    silent, sends rubbish or does not know the key costs the run nothing.

    folder: private (0700), removed by close(). host: None for AF_UNIX, else the address to listen on by TCP.
    key_folder: where the key is written; a folder that all nodes see, if there are several.
    refused: how many connected without the key.
    """

    def __init__(self, host: str | None = None, key_folder: Path | None = None) -> None:
        self.folder = private_folders.make("dgate-", _short_folder())
        self._key = secrets.token_bytes(32)
        self.key_file = _write_key(key_folder or self.folder, self._key)
        self.ranks: queue.SimpleQueue[Admitted] = queue.SimpleQueue()
        self.refused = 0
        self._pending: dict[socket.socket, None] = {}  # in the order of their arrival
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._socket = _listen_unix(self.folder) if host is None else socket.create_server((host, 0), backlog=128)
        threading.Thread(target=self._accept, daemon=True, name="decodegate accept").start()

    @property
    def address(self) -> str:
        """Path of the socket, or HOST:PORT."""
        name = self._socket.getsockname()
        return name if isinstance(name, str) else f"{name[0]}:{name[1]}"

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._socket.accept()
            except OSError as error:  # close() shuts the socket down; anything else passes, and ranks are still to come
                if error.errno in _NO_ROOM:
                    self._make_room(len(self._pending) // 2)
                self._closed.wait(PAUSE_SECONDS)
                continue

            self._make_room(MOST_PENDING - 1)
            self._start(client)

    def _make_room(self, most: int) -> None:
        """Hang up on the oldest handshakes until at most `most` are left; their threads end by that."""
        with self._lock:
            while len(self._pending) > most:
                oldest = next(iter(self._pending))
                del self._pending[oldest]
                _shut(oldest)

    def _start(self, client: socket.socket) -> None:
        with self._lock:
            if self._closed.is_set():
                client.close()
                return
            self._pending[client] = None

        try:
            threading.Thread(target=self._admit, args=[client], daemon=True, name="decodegate handshake").start()
        except RuntimeError:  # the system gives no thread now
            self._refuse(client)

    def _admit(self, client: socket.socket) -> None:
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        try:
            keys = connection.challenge(client, self._key, deadline)
            rank = Connection(client, keys, blocking=False)
            hello = protocol.load(rank.pull_before(deadline))
            assert isinstance(hello, Hello)
            admitted = Admitted(hello, rank, _peer_pid(client))
        except Exception:  # whatever a stranger can make the handshake raise
            self._refuse(client)
            return

        with self._lock:
            stays = client in self._pending and not self._closed.is_set()
            self._pending.pop(client, None)
            if stays:
                self.ranks.put(admitted)
            else:
                client.close()

    def _refuse(self, client: socket.socket) -> None:
        with self._lock:
            self._pending.pop(client, None)
            client.close()
            self.refused += 1

    def close(self) -> None:
        """Stop listening, drop whoever is still in the handshake, remove the folder and the key. Idempotent."""
        self._closed.set()
        with self._lock:
            for peer in (self._socket, *self._pending):
                _shut(peer)  # wakes the thread that sits in accept() or in the handshake

            self._pending.clear()
            self._socket.close()

        self.key_file.unlink(missing_ok=True)
        private_folders.remove(self.folder)
        while not self.ranks.empty():
            self.ranks.get().connection.close()


def _shut(peer: socket.socket) -> None:
    with suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)


def _peer_pid(client: socket.socket) -> int | None:
    """The process that connected by AF_UNIX, as this pid namespace numbers it; None if it has no number here."""
    if client.family != socket.AF_UNIX:
        return None

    pid: int = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid or None


def _short_folder() -> str:
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < LONGEST_FOLDER else "/tmp"  # noqa: S108 - a private folder is made there


def _write_key(folder: Path, key: bytes) -> Path:
    path = folder / f"key-{secrets.token_hex(4)}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)

    return path


def _listen_unix(folder: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(128)
    return listening
