from __future__ import annotations

import os
import pickle
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_decodegate.gang import connection, protocol
from pytest_decodegate.gang import listener as listener_module
from pytest_decodegate.gang.connection import Connection
from pytest_decodegate.gang.listener import Listener
from pytest_decodegate.gang.protocol import Hello
from pytest_decodegate.gang.rank import Rank
from pytest_decodegate.process import processes

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


def connected(listener: Listener, key: bytes) -> Connection:
    client = stranger(listener)
    try:
        return Connection(client, connection.answer(client, key, time.monotonic() + SECONDS), blocking=True)
    except BaseException:
        client.close()
        raise


def say_hello(listener: Listener) -> None:
    rank = connected(listener, listener.key_file.read_bytes())
    rank.send(protocol.dump(HELLO))
    admitted = listener.ranks.get(timeout=SECONDS)
    assert admitted.hello == HELLO
    admitted.connection.close()
    rank.close()


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
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!QQ", 0, 2**62) + bytes(32), b"\0\0\0\4abcd", b"x" * 64, b""],
)
def test_a_stranger_who_sends_garbage_is_refused(listener: Listener, garbage: bytes) -> None:
    with stranger(listener) as client:
        client.sendall(garbage)
        client.shutdown(socket.SHUT_WR)
        assert wait_until(lambda: listener.refused == 1)
        say_hello(listener)


def test_a_stranger_with_another_key_is_refused(listener: Listener) -> None:
    with pytest.raises((EOFError, OSError)):
        connected(listener, b"wrong")

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
        client.sendall(frame + bytes(64))
        assert wait_until(lambda: listener.refused == 1)

    assert not (tmp_path / "exploded").exists()


def test_a_stranger_who_stalls_in_the_handshake_is_dropped(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 1.0)
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


def test_a_stranger_who_sends_a_byte_now_and_then_is_dropped_all_the_same(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte is in time; all of them together are not."""
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 1.0)
    with stranger(listener) as client:
        client.settimeout(0.1)
        for _ in range(int(SECONDS / 0.1)):
            try:
                client.sendall(b"x")
                if not client.recv(1000):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the handshake was held open")

    assert wait_until(lambda: listener.refused == 1)


def test_so_many_strangers_at_once_leave_room_for_a_rank(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 600.0)
    monkeypatch.setattr(listener_module, "MOST_PENDING", 4)
    with ExitStack() as strangers:
        for _ in range(20):
            strangers.enter_context(stranger(listener))

        assert wait_until(lambda: listener.refused >= 16)
        assert len(listener._pending) <= 4
        say_hello(listener)


NO_DESCRIPTORS = """
import resource, socket, sys, time
from pytest_decodegate.gang import connection, protocol
from pytest_decodegate.gang.connection import Connection
from pytest_decodegate.gang.listener import Listener

listener = Listener("127.0.0.1")
key = listener.key_file.read_bytes()
host, _, port = listener.address.rpartition(":")
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
strangers = []
try:
    while True:
        strangers.append(socket.create_connection((host, int(port))))
except OSError:
    pass

time.sleep(0.3)  # accept() fails over and over now
for stranger in strangers:
    stranger.close()

client = socket.create_connection((host, int(port)), timeout=20)
rank = Connection(client, connection.answer(client, key, time.monotonic() + 20), blocking=True)
rank.send(protocol.dump(protocol.Hello(0, 0, 1, "here", "/logs", "python")))
print(listener.ranks.get(timeout=20).hello.rank)
"""


def test_a_listener_that_runs_out_of_descriptors_goes_on_once_there_are_some() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "0\n", done.stderr


def test_an_admitted_rank_has_the_pid_that_the_kernel_gives_it() -> None:
    listener = Listener()
    rank = connected(listener, listener.key_file.read_bytes())
    rank.send(protocol.dump(replace(HELLO, pid=1)))
    admitted = listener.ranks.get(timeout=SECONDS)
    assert admitted.pid == os.getpid()
    found = Rank(admitted, "any gang")
    assert found.hello.pid == os.getpid()
    found.close()
    rank.close()
    listener.close()


class Bystander:
    """A process that leads a group of its own, which nobody has any business with."""

    def __init__(self, tag: str = "") -> None:
        environment = {**os.environ, **({protocol.GANG_ID: tag} if tag else {})}
        self.process = subprocess.Popen(["/bin/sleep", "600"], env=environment, start_new_session=True)
        # Until then it has the environment of this process.
        assert wait_until(lambda: b"sleep" in Path(f"/proc/{self.process.pid}/cmdline").read_bytes())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize(
    ("tag", "system"),
    [
        ("", protocol.this_system()),
        ("another gang", protocol.this_system()),
        ("my gang", "another boot"),
        ("my gang", ""),
    ],
)
def test_a_process_that_a_rank_only_names_is_not_killed(tag: str, system: str) -> None:
    bystander = Bystander(tag)
    listener = Listener("127.0.0.1")
    try:
        rank = connected(listener, listener.key_file.read_bytes())
        rank.send(protocol.dump(replace(HELLO, pid=bystander.process.pid, host=socket.gethostname(), system=system)))
        found = Rank(listener.ranks.get(timeout=SECONDS), "my gang")
        found.kill()
        found.ask_for_stacks()
        assert not found.local
        assert bystander.process.poll() is None
        found.close()
        rank.close()
    finally:
        bystander.end()
        listener.close()


def test_a_process_of_this_system_that_carries_the_gangs_tag_is_killed() -> None:
    bystander = Bystander("my gang")
    listener = Listener("127.0.0.1")
    try:
        rank = connected(listener, listener.key_file.read_bytes())
        rank.send(protocol.dump(replace(HELLO, pid=bystander.process.pid, system=protocol.this_system())))
        found = Rank(listener.ranks.get(timeout=SECONDS), "my gang")
        found.kill()
        assert bystander.process.wait(SECONDS) == -signal.SIGKILL
        assert found.ended
        found.kill()
        found.close()
        rank.close()
    finally:
        bystander.end()
        listener.close()


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_a_number_that_is_no_pid_is_nobody(pid: int) -> None:
    assert processes.open_tagged(pid, protocol.GANG_ID, "my gang") is None


class Relay:
    """Passes a handshake on, and then puts a frame of its own into the stream."""

    def __init__(self, listener: Listener, inject: bytes) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._listener, self._inject = listener, inject
        self.address = self._server.getsockname()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        rank, _ = self._server.accept()
        with self._server, rank, stranger(self._listener) as controller:
            for source, target, count in ((controller, rank, 48), (rank, controller, 64), (controller, rank, 32)):
                target.sendall(source.recv(count, socket.MSG_WAITALL))

            controller.sendall(self._inject)
            controller.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                controller.recv(1)


def test_a_relay_that_passed_the_handshake_on_cannot_have_its_pickle_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    listener = Listener("127.0.0.1")
    bomb = pickle.dumps(Bomb())
    relay = Relay(listener, struct.pack("!QQ", 0, len(bomb)) + bytes(32) + bomb + bytes(32))
    with socket.create_connection(relay.address) as client:
        connection.answer(client, listener.key_file.read_bytes(), time.monotonic() + SECONDS)
        assert wait_until(lambda: listener.refused == 1)

    relay.thread.join(SECONDS)
    assert not (tmp_path / "exploded").exists()
    assert listener.ranks.empty()
    listener.close()
