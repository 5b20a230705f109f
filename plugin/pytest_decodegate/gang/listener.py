"""Where ranks connect: a private socket, a key that never leaves its file, and nobody else let in."""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import socket
import struct
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from . import protocol
from .protocol import Hello

STALL_SECONDS = 5.0
"""A peer that stops in the middle of the handshake or of a frame for so long is given up."""

LONGEST_FOLDER = 80
"""Bytes; the name of an AF_UNIX socket ends at 108."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A rank that has proved that it knows the key and has said who it is."""

    hello: Hello
    connection: Connection


class Listener:
    """Accepts ranks in the background; each is authenticated in a thread of its own, so that a stranger who stays
    silent, sends rubbish or does not know the key costs the run nothing.

    folder: private (0700), removed by close(). host: None for AF_UNIX, else the address to listen on by TCP.
    key_folder: where the key is written; a folder that all nodes see, if there are several.
    refused: how many connected without the key.
    """

    def __init__(self, host: str | None = None, key_folder: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dgate-", dir=_short_folder()))
        self._key = secrets.token_bytes(32)
        self.key_file = _write_key(key_folder or self.folder, self._key)
        self.ranks: queue.SimpleQueue[Admitted] = queue.SimpleQueue()
        self.refused = 0
        self._pending: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._socket = _listen_unix(self.folder) if host is None else socket.create_server((host, 0))
        threading.Thread(target=self._accept, daemon=True, name="decodegate accept").start()

    @property
    def address(self) -> str:
        """Path of the socket, or HOST:PORT."""
        name = self._socket.getsockname()
        return name if isinstance(name, str) else f"{name[0]}:{name[1]}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # close() shuts the socket down
                return

            with self._lock:
                if self._closed:
                    client.close()
                    return
                self._pending.add(client)

            threading.Thread(target=self._admit, args=[client], daemon=True, name="decodegate handshake").start()

    def _admit(self, client: socket.socket) -> None:
        try:
            _limit_stalls(client)
            connection = Connection(os.dup(client.fileno()))
        except OSError:
            self._drop(client)
            return

        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            hello = protocol.load(connection.recv_bytes())
            self.ranks.put(Admitted(hello, connection))
        except Exception:  # whatever a stranger can make the handshake raise
            connection.close()
            with self._lock:
                self.refused += 1
        finally:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        with self._lock:
            self._pending.discard(client)
            client.close()

    def close(self) -> None:
        """Stop listening, drop whoever is still in the handshake, remove the folder and the key. Idempotent."""
        with self._lock:
            self._closed = True
            for one in (self._socket, *self._pending):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # wakes the thread that sits in accept() or in the handshake

            self._socket.close()

        self.key_file.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        while not self.ranks.empty():
            self.ranks.get().connection.close()


def _short_folder() -> str:
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < LONGEST_FOLDER else "/tmp"  # noqa: S108 - mkdtemp makes it private


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


def _limit_stalls(client: socket.socket) -> None:
    # On the socket, not as a Python timeout: it must hold for the plain read() and write() of Connection.
    limit = struct.pack("ll", int(STALL_SECONDS), 0)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    if client.family == socket.AF_INET:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
