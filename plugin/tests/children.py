"""Child processes of a test: whatever fails in it, they are killed and not waited for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from pytest_decodegate.process.guard import descendants
from pytest_decodegate.serving.server import Server

KILLED_SECONDS = 60.0
"""For the end of what got SIGKILL."""


@contextmanager
def killed_after(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """`process` for the time of a block, and killed after it.

    `with subprocess.Popen(...)` waits at the end of its block, also of one that failed before it ended the process:
    then for ever.
    """
    try:
        yield process
    finally:
        process.kill()
        process.wait(KILLED_SECONDS)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def tree(server: Server) -> list[int]:
    assert server.process
    return [server.process.pid, *descendants(server.process.pid)]


def is_running(pid: int) -> bool:
    """Whether it is there, and not only waits for init to take note of its end."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
