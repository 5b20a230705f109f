"""Child processes of a test: whatever fails in it, they are killed and not waited for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

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
