"""Frames that nobody else can make: both ends over a socket pair, and a relay between them that is not honest."""

from __future__ import annotations

import hmac
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gang import connection as connection_module
from pytest_decodegate.gang.connection import Connection, Keys, Untrusted, answer, challenge

KEY = b"k" * 32
SECONDS = 10.0
KEYS = Keys(b"controller to rank", b"rank to controller")


def pair(*, blocking: bool = True) -> tuple[Connection, Connection]:
    """A controller's and a rank's end that have shaken hands."""
    left, right = socket.socketpair()
    ends = (
        Connection(left, KEYS, blocking=blocking),
        Connection(right, Keys(KEYS.receiving, KEYS.sending), blocking=True),
    )
    right.settimeout(SECONDS)
    return ends


class Recorder:
    """A socket that keeps what is sent."""

    family = socket.AF_UNIX

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def setblocking(self, blocking: bool) -> None:
        pass

    def sendmsg(self, parts: list[memoryview]) -> int:
        self.sent.append(b"".join(parts))
        return len(self.sent[-1])


def recorded(*bodies: bytes) -> list[bytes]:
    """The frames as a controller with KEYS puts them on the wire, one for each of `bodies`."""
    recorder = Recorder()
    controller = Connection(recorder, KEYS, blocking=True)  # type: ignore[arg-type]
    for body in bodies:
        controller.send(body)

    return recorder.sent


def received(data: bytes) -> list[bytes]:
    """The frames that a rank with KEYS takes from `data`, until one raises."""
    left, right = socket.socketpair()
    rank = Connection(right, Keys(KEYS.receiving, KEYS.sending), blocking=True)
    with left, right:
        left.sendall(data)
        left.shutdown(socket.SHUT_WR)
        frames = []
        while (frame := rank.pull()) is not None:
            frames.append(bytes(frame))
        raise AssertionError(frames)


@given(st.lists(st.binary(max_size=2_000), max_size=4))
def test_frames_come_as_they_were_sent(bodies: list[bytes]) -> None:
    controller, rank = pair()
    for body in bodies:
        controller.send(body)
        found = rank.pull()
        assert found is not None
        assert bytes(found) == body

    controller.close()
    with pytest.raises(EOFError):
        rank.pull()
    rank.close()


@given(st.data())
def test_a_byte_that_was_changed_on_the_way_is_never_taken(data: st.DataObject) -> None:
    body = data.draw(st.binary(min_size=1, max_size=200) | st.just(bytes(connection_module.SMALL_BODY + 1)))
    (frame,) = recorded(body)
    at, flip = data.draw(st.integers(0, len(frame) - 1)), data.draw(st.integers(1, 255))
    # Another length makes the reader wait for bytes that do not come.
    with pytest.raises((Untrusted, EOFError), match=r"changed on the way|repeated or left out|hung up"):
        received(frame[:at] + bytes([frame[at] ^ flip]) + frame[at + 1 :])


def test_a_frame_that_is_repeated_left_out_or_out_of_order_is_refused() -> None:
    first, second = recorded(b"first", b"second")
    for frames in (second, first + first, second + first):
        with pytest.raises(Untrusted, match="repeated or left out"):
            received(frames)


def test_a_frame_that_is_sent_back_is_refused() -> None:
    left, right = socket.socketpair()
    controller = Connection(left, KEYS, blocking=True)
    controller.send(b"do this")
    right.sendall(right.recv(1000))
    with pytest.raises(Untrusted):
        controller.pull()
    controller.close()
    right.close()


@given(st.binary(min_size=1, max_size=64), st.lists(st.binary(max_size=300), max_size=3))
def test_a_mac_is_hmac_sha256(key: bytes, parts: list[bytes]) -> None:
    assert connection_module.Mac(key)(*parts) == hmac.digest(key, b"".join(parts), "sha256")


def test_a_length_that_nobody_proved_is_not_waited_for() -> None:
    with pytest.raises(Untrusted):
        received(struct.pack("!QQ", 0, 2**62) + b"\0" * 32)


class Recorded:
    """A socket that gives what was recorded in small pieces."""

    family = socket.AF_UNIX

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def setblocking(self, blocking: bool) -> None:
        pass

    def recv_into(self, buffer: memoryview) -> int:
        part = self._left[: min(len(buffer), 4096)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)


def test_a_large_frame_is_read_in_linear_time() -> None:
    def seconds(megabytes: int) -> float:
        body = bytes(megabytes << 20)
        rank = Connection(Recorded(recorded(body)[0]), Keys(KEYS.receiving, KEYS.sending), blocking=True)  # type: ignore[arg-type]
        started = time.process_time()
        frame = rank.pull()
        spent = time.process_time() - started
        assert frame is not None
        assert frame.obj[: len(body)] == body  # type: ignore[index]
        return spent

    # Eight times the bytes: eight times the work, and not the sixty-four of a buffer that is copied for each piece.
    assert min(seconds(32) for _ in range(3)) < 24 * min(seconds(4) for _ in range(3))


def handshake(left: Callable[[socket.socket], object], right: Callable[[socket.socket], object]) -> list[object]:
    """What two peers return or raise, each with one end of a socket pair."""

    def outcome(end: Callable[[socket.socket], object], peer: socket.socket) -> object:
        with peer:
            try:
                return end(peer)
            except (EOFError, OSError) as error:
                return error

    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(outcome, end, peer) for end, peer in zip((left, right), socket.socketpair(), strict=True)
        ]
        return [future.result(SECONDS) for future in futures]


def soon() -> float:
    return time.monotonic() + SECONDS


def test_both_ends_of_a_handshake_have_the_same_keys_and_each_connection_its_own() -> None:
    def shaken() -> tuple[Keys, Keys]:
        ours, its = handshake(lambda peer: challenge(peer, KEY, soon()), lambda peer: answer(peer, KEY, soon()))
        assert isinstance(ours, Keys)
        assert isinstance(its, Keys)
        return ours, its

    ours, its = shaken()
    assert (ours.sending, ours.receiving) == (its.receiving, its.sending)
    assert ours.sending != ours.receiving
    assert shaken()[0].sending != ours.sending


@pytest.mark.parametrize(("controllers", "ranks"), [(b"another", KEY), (KEY, b"another")])
def test_a_peer_with_another_key_is_no_peer(controllers: bytes, ranks: bytes) -> None:
    ours, its = handshake(lambda peer: challenge(peer, controllers, soon()), lambda peer: answer(peer, ranks, soon()))
    assert isinstance(ours, Untrusted)
    assert isinstance(its, EOFError | OSError)


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    """A stranger who answers the controller with what a controller says."""

    def mirror(peer: socket.socket) -> None:
        question = peer.recv(1000)
        peer.sendall(question[-32:] + question[-32:])
        peer.recv(1000)

    ours, _ = handshake(lambda peer: challenge(peer, KEY, soon()), mirror)
    assert isinstance(ours, Untrusted)


def test_a_whole_handshake_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no handshake open: the clock is advanced by a second for each read."""
    ticks: Iterator[int] = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    ours, its = socket.socketpair()
    with ours, its:
        its.sendall(b"x" * 64)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with pytest.raises(TimeoutError, match="was not over in time"):
            connection_module._receive(OneByte(ours), 64, deadline=5.0)  # type: ignore[arg-type]


class OneByte:
    """A socket that gives one byte a read."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self.settimeout = peer.settimeout

    def recv(self, count: int) -> bytes:
        return self._peer.recv(min(1, count))
