"""Both ends of the connection between the controller and a rank; needs the standard library only.

The promise: whoever does not know the gang's key can read a connection and end it, but no byte of his is ever taken for
a frame. Nothing is promised about secrecy: frames are authenticated, not encrypted.

* Handshake: the controller sends MAGIC and a nonce; the rank answers with a nonce of its own and proves that it knows
  the key; the controller proves the same. Each direction then has a key of its own, made from the gang's key and both
  nonces, so that a frame can neither be sent back nor be repeated on another connection.
* Frame: sequence number and length; a MAC of the two if the body is large, so that no length is waited for that nobody
  proved; the body; a MAC of all of it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import select
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

MAGIC = b"decodegate gang\x01"
NONCE_BYTES = 32
MAC_BYTES = 32
LARGEST_READ = 1 << 20
SMALL_BODY = 1 << 16
"""Bytes of a body whose length needs no proof of its own: waiting for so many costs nothing."""

_HEADER = struct.Struct("!QQ")


class Untrusted(ConnectionError):
    """What arrived was not made by the other end of this connection, or is not the frame that comes next."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The key of each direction of one connection, as this end uses them."""

    sending: bytes
    receiving: bytes


def challenge(peer: socket.socket, key: bytes, deadline: float) -> Keys:
    """The keys of a connection that a rank has opened, once each end has proved that it knows `key`.

    deadline: of the whole handshake (monotonic). Raises OSError or EOFError for a peer that does not.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    _send(peer, MAGIC + nonce, deadline)
    answer = _receive(peer, NONCE_BYTES + MAC_BYTES, deadline)
    nonces = nonce + answer[:NONCE_BYTES]
    _check(answer[NONCE_BYTES:], _mac(key, b"rank", nonces), "the peer does not know the key of this gang")
    _send(peer, _mac(key, b"controller", nonces), deadline)
    return Keys(_mac(key, b"controller to rank", nonces), _mac(key, b"rank to controller", nonces))


def answer(peer: socket.socket, key: bytes, deadline: float) -> Keys:
    """The same for a connection to the controller, as `challenge` asks for it."""
    question = _receive(peer, len(MAGIC) + NONCE_BYTES, deadline)
    _check(question[: len(MAGIC)], MAGIC, "the peer is no controller of this version of decodegate")
    nonce = secrets.token_bytes(NONCE_BYTES)
    nonces = question[len(MAGIC) :] + nonce
    _send(peer, nonce + _mac(key, b"rank", nonces), deadline)
    proof = _receive(peer, MAC_BYTES, deadline)
    _check(proof, _mac(key, b"controller", nonces), "the controller does not know the key of this gang")
    return Keys(_mac(key, b"rank to controller", nonces), _mac(key, b"controller to rank", nonces))


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"\0".join(parts), "sha256")


class Mac:
    """HMAC-SHA256 under one key of at most 64 bytes, ready to be used many times.

    By hand (RFC 2104): OpenSSL 3 looks the algorithm up for each hmac.digest(), which takes five times as long as the
    MAC of a small frame.
    """

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def __call__(self, *parts: bytes | memoryview) -> bytes:
        """The MAC of `parts` behind each other."""
        inner = self._inner.copy()
        for part in parts:
            inner.update(part)

        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


def _check(found: bytes | bytearray | memoryview, wanted: bytes, why_not: str) -> None:
    if not hmac.compare_digest(found, wanted):
        raise Untrusted(why_not)


def _send(peer: socket.socket, text: bytes, deadline: float) -> None:
    peer.settimeout(_left(deadline))
    peer.sendall(text)


def _receive(peer: socket.socket, count: int, deadline: float) -> bytes:
    read = b""
    while len(read) < count:
        peer.settimeout(_left(deadline))
        part = peer.recv(count - len(read))
        if not part:
            raise EOFError("the peer hung up in the handshake")

        read += part

    return read


def _left(deadline: float) -> float:
    """Seconds until `deadline`; raises TimeoutError when there are none: a timeout of 0 would mean not to wait."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the handshake was not over in time")

    return left


class Connection:
    """Frames over `peer`, a socket whose ends have shaken hands; takes it over.

    With blocking=False what cannot be sent or read at once waits for the next push() or pull(), so that a rank that
    stops reading or writing does not block the controller, and only the caller's deadline counts.
    """

    def __init__(self, peer: socket.socket, keys: Keys, *, blocking: bool) -> None:
        self._socket = peer
        self._socket.setblocking(blocking)
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        self._sealing = Mac(keys.sending)
        self._proving = Mac(keys.receiving)
        self._sent = 0
        self._received = 0
        self._unsent: list[memoryview] = []
        self._start_head()

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
        return self._wait(0.0)

    def _wait(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1e3))

    def send(self, frame: bytes) -> None:
        """Send `frame`, or as much of it as the peer takes now. Raises OSError if the peer has hung up."""
        header = _HEADER.pack(self._sent, len(frame))
        self._sent += 1
        head = header if len(frame) <= SMALL_BODY else header + self._sealing(header)
        parts = (head, frame, self._sealing(header, frame))
        self._unsent += [memoryview(part) for part in parts if part]
        self.push()

    def push(self) -> None:
        """Send on. Raises OSError if the peer has hung up."""
        while self._unsent:
            try:
                sent = self._socket.sendmsg(self._unsent)
            except BlockingIOError:
                return

            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]

    def pull(self) -> memoryview | None:
        """The next frame, None if not all of it is here yet.

        Raises EOFError or OSError if the peer has hung up, Untrusted if what came is not its next frame.
        """
        while self._fill():
            if self._in_body:
                return self._take_body()

            self._take_head()

        return None

    def pull_before(self, deadline: float) -> memoryview:
        """The next frame; raises as pull() does, and TimeoutError if it is not whole by `deadline` (monotonic)."""
        while (frame := self.pull()) is None:
            self._wait(_left(deadline))

        return frame

    def _fill(self) -> bool:
        """Read what is wanted next and nothing beyond it: select() must see the rest. Whether all of it is here."""
        while self._filled < len(self._read):
            rest = memoryview(self._read)[self._filled :]
            try:
                count = self._socket.recv_into(rest[:LARGEST_READ])
            except BlockingIOError:
                return False
            if not count:
                raise EOFError("the peer hung up")

            self._filled += count

        return True

    def _start_head(self) -> None:
        self._in_body = False
        self._want(_HEADER.size)

    def _want(self, count: int) -> None:
        self._read = bytearray(count)
        self._filled = 0

    def _take_head(self) -> None:
        if len(self._read) == _HEADER.size:
            self._header = bytes(self._read)
            sequence, self._length = _HEADER.unpack(self._header)
            if sequence != self._received:
                raise Untrusted(f"frame {sequence} came in the place of frame {self._received}: repeated or left out")
            if self._length > SMALL_BODY:
                self._want(MAC_BYTES)
                return
        else:
            _check(self._read, self._proving(self._header), "a frame's length is not the peer's: changed on the way")

        self._received += 1
        self._in_body = True
        self._want(self._length + MAC_BYTES)

    def _take_body(self) -> memoryview:
        read = memoryview(self._read)
        body, found = read[:-MAC_BYTES], read[-MAC_BYTES:]
        _check(found, self._proving(self._header, body), "a frame is not the peer's: it was changed on the way")
        self._start_head()
        return body

    def wake(self) -> None:
        """Send a byte of urgent data past whatever waits (TCP only)."""
        with suppress(OSError):
            self._socket.send(b"!", socket.MSG_OOB)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
