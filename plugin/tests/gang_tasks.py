"""What ranks run in the tests of the gang: honest work, and every way to fail."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pytest_decodegate.gang import worker
from pytest_decodegate.gang.worker import note, state


def nothing() -> None:
    pass


def my_rank() -> int:
    return int(os.environ["RANK"])


def environment() -> dict[str, str]:
    return dict(os.environ)


def add(left: int, *, right: int) -> int:
    return left + right


def allreduce_of_ranks() -> float:
    import torch
    import torch.distributed as dist

    ones = torch.ones(16) * (dist.get_rank() + 1)
    dist.all_reduce(ones)
    return float(ones[0])


def barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def speak(text: str) -> None:
    print(f"out {text}")
    print(f"err {text}", file=sys.stderr)


def shout(megabytes: int) -> None:
    line = "x" * 1023 + "\n"
    print("first line")
    for _ in range(megabytes * 1024):
        sys.stdout.write(line)

    print("last line")


def three_notes() -> None:
    for step in range(3):
        note(f"step {step}")


def bytes_of(size: int) -> bytes:
    return b"x" * size


def length_of(value: bytes) -> int:
    return len(value)


def stop_while_answering(who: int) -> None:
    if my_rank() == who:
        assert worker._channel is not None
        connection = worker._channel._connection
        # Sequence number and length of the next frame, but not all of it.
        os.write(connection.fileno(), struct.pack("!QQ", connection._sent, 10_000) + b"the beginning")
        os.kill(os.getpid(), signal.SIGSTOP)


def wait_for_file(path: str) -> None:
    while not Path(path).exists():
        os.sched_yield()


def keep(value: int) -> None:
    state["kept"] = value


def kept() -> object:
    return state.get("kept")


class _LeavesWithOthers:
    """Dropped, it says so in a file of its own and waits until `count` of its kind have said so."""

    def __init__(self, folder: str, name: str, count: int) -> None:
        self._folder, self._name, self._count = Path(folder), name, count

    def __del__(self) -> None:
        (self._folder / f"{self._name}.leaving").touch()
        while len(list(self._folder.glob("*.leaving"))) < self._count:
            time.sleep(0.01)

        (self._folder / f"{self._name}.met").touch()


def leave_with_others(folder: str, name: str, count: int) -> None:
    state["leaving"] = _LeavesWithOthers(folder, name, count)


def die(who: int, signum: int) -> None:
    if my_rank() == who:
        os.kill(os.getpid(), signum)

    barrier()


def die_with_forked_child(who: int) -> None:
    """The child holds a copy of the control socket: its rank's end is no EOF."""
    if my_rank() == who:
        if os.fork() == 0:
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGKILL)

    barrier()


def exit_now(code: int) -> NoReturn:
    os._exit(code)


def control_sockets() -> list[int]:
    found = []
    for fd in range(3, 64):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
            if copy.family == socket.AF_UNIX and copy.getpeername():
                found.append(fd)

    return found


def close_own_socket(who: int) -> None:
    if my_rank() == who:
        for fd in control_sockets():
            os.close(fd)


def raise_one(who: int) -> None:
    if my_rank() == who:
        raise ValueError("bad shape on one rank")

    barrier()


def raise_all() -> NoReturn:
    raise ValueError("bad shape on all ranks")


def raise_after_lone_collective() -> NoReturn:
    """Rank 0 has one collective under way when all raise: the ranks are out of step from here on."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        state["work"] = dist.all_reduce(torch.ones(1), async_op=True)

    raise ValueError("out of step")


class NeedsTwoError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("needs two")


class NoTextError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raise_exception_that_cannot_be_unpickled() -> NoReturn:
    raise NeedsTwoError(1, 2)


def raise_exception_without_text() -> NoReturn:
    raise NoTextError


def leave_interpreter() -> NoReturn:
    sys.exit(3)


def return_lambda() -> Callable[[], int]:
    return lambda: 0


class LoadsNowhere:
    """Pickles here, fails to unpickle anywhere."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return int, ("no number",)


def return_rubbish() -> LoadsNowhere:
    return LoadsNowhere()


def skip_on(ranks: list[int]) -> int:
    if my_rank() in ranks:
        raise unittest.SkipTest("no such device")

    return 1


def sleep_on(who: int) -> None:
    note("before the nap")
    if my_rank() == who:
        time.sleep(3600)

    barrier()


def hold_gil() -> None:
    """PyDLL keeps the GIL: the worst case for a watchdog that is written in Python."""
    ctypes.PyDLL(None).sleep(3600)


def deaf_and_stuck() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hold_gil()


def leave_grandchild() -> int:
    """A child in its own session, as vLLM's engine processes are."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True).pid


def wait_with_grandchild() -> None:
    leave_grandchild()
    note("waiting")
    time.sleep(3600)


def refuse() -> None:
    from pytest_decodegate.errors import BadInput

    raise BadInput("the moon is not a GPU; take another one")


def fail_on_one_gang(folder: str) -> NoReturn:
    """As a workload's factory: the first gang fails, once the others are in the middle of something long."""
    try:
        Path(folder, "first").mkdir()
    except FileExistsError:
        Path(folder, "busy").mkdir()
        time.sleep(3600)

    wait_for_file(f"{folder}/busy")
    raise ValueError("the real cause")


def never_ready() -> NoReturn:
    note("weights 1/9")
    time.sleep(3600)
    raise AssertionError
