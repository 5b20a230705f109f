from __future__ import annotations

import os
import pickle
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from pytest_decodegate.gang import listener as listener_module
from pytest_decodegate.gang import protocol
from pytest_decodegate.gang.listener import Listener
from pytest_decodegate.gang.protocol import Hello

HELLO = Hello(rank=1, local_rank=1, pid=os.getpid(), host="here", log_dir="/logs", python="python")
SECONDS = 10.0


@pytest.fixture(params=[None, "127.0.0.1"], ids=["unix", "tcp"])
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    one = Listener(request.param)
    yield one
    one.close()


def address_of(listener: Listener) -> str | tuple[str, int]:
    host, _, port = listener.address.rpartition(":")
    return (host, int(port)) if host else listener.address


def stranger(listener: Listener) -> socket.socket:
    address = address_of(listener)
    client = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    client.connect(address)
    return client


def say_hello(listener: Listener) -> None:
    with Client(address_of(listener), authkey=listener.key_file.read_bytes()) as connection:
        connection.send_bytes(protocol.dump(HELLO))
        assert listener.ranks.get(timeout=SECONDS).hello == HELLO


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        os.sched_yield()

    return condition()


def test_a_rank_that_knows_the_key_is_admitted(listener: Listener) -> None:
    say_hello(listener)


def test_socket_and_key_are_private() -> None:
    listener = Listener()
    assert stat.S_IMODE(listener.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(listener.key_file.stat().st_mode) == 0o600
    assert listener.key_file.parent == listener.folder
    assert len(os.fsencode(listener.address)) < 108
    listener.close()
    assert not listener.folder.exists()


def test_the_socket_has_a_short_name_under_a_long_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    listener = Listener()
    assert len(os.fsencode(listener.address)) < 108
    listener.close()


def test_a_silent_stranger_holds_up_nobody(listener: Listener) -> None:
    with stranger(listener):
        say_hello(listener)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!i", 2**31 - 1), struct.pack("!i", -1), b"\0\0\0\4abcd", b""],
)
def test_a_stranger_who_sends_garbage_is_refused(listener: Listener, garbage: bytes) -> None:
    with stranger(listener) as client:
        client.sendall(garbage)
        client.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: listener.refused == 1)
        say_hello(listener)


def test_a_stranger_with_another_key_is_refused(listener: Listener) -> None:
    with pytest.raises(AuthenticationError):
        Client(address_of(listener), authkey=b"wrong")

    assert wait_until(lambda: listener.refused == 1)
    say_hello(listener)


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (os.environ["BOMB"],)


def test_nothing_is_unpickled_before_authentication(
    listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    frame = pickle.dumps(Bomb())
    with stranger(listener) as client:
        client.sendall(struct.pack("!i", len(frame)) + frame)
        assert wait_until(lambda: listener.refused == 1)

    assert not (tmp_path / "exploded").exists()


def test_a_stranger_who_stalls_in_the_handshake_is_dropped(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "STALL_SECONDS", 1.0)
    with stranger(listener) as client:
        client.settimeout(SECONDS)
        while client.recv(1000):  # the challenge, then the hang-up
            pass

    assert wait_until(lambda: listener.refused == 1)


def test_close_drops_a_stranger_at_once(listener: Listener) -> None:
    with stranger(listener) as client:
        client.settimeout(SECONDS)
        assert client.recv(4)
        listener.close()
        while client.recv(1000):
            pass

    with pytest.raises(OSError, match=r"."):
        stranger(listener).close()
