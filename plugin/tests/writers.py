"""Processes that write to one store at the same moment."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def at_once(writers: Sequence[subprocess.Popen[str]]) -> None:
    """Let all go once each has said that it is ready, and wait for their ends."""
    for one in writers:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("x")
        one.stdin.flush()

    for one in writers:
        one.communicate(timeout=120)
