"""A server process under guard, and its log."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..cause import cause_of_text, first_error, root_exception
from ..errors import ServerError
from ..process.guard import KILL_SECONDS, guarded
from .log_facts import lines

_TAIL_LINES = 15
_TAIL_BYTES = 16_384
_ERROR_BYTES = 1 << 20
"""How far back the first error is looked for: a start that fails writes less."""


class ServerProcess:
    """Runs `command` so that it and all its children end with this process at the latest.

    log_path receives its output. grace_seconds: time to end by itself once stopped.
    """

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log_path: Path, grace_seconds: float
    ) -> None:
        self.log_path = log_path
        self._grace_seconds = grace_seconds
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("wb") as log:
            # `python -m` looks for modules in its folder first: not in the user's, whose tests may be called vllm.
            self._guard = guarded(
                command, env=environment, cwd=log_path.parent, stdout=log, grace_seconds=grace_seconds
            )

        self._grown_s = time.monotonic()
        self._seen_bytes = 0

    @property
    def pid(self) -> int:
        """The guard's pid; the server and its workers are its descendants."""
        return self._guard.pid

    def ended_within(self, seconds: float) -> bool:
        """Wait up to `seconds` for the process to end; True if it has."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False

        return True

    def check(self, doing: str) -> None:
        """Raise ServerError with the end of the log if the process has ended; `doing` completes "it ended ..."."""
        code = self._guard.poll()
        if code is not None:
            raise self.failure(f"the server ended {doing} ({_exit(code)})")

    def failure(self, what: str) -> ServerError:
        """The error of a server of which `what` is true, with the end of its log, and the cause that this tells of."""
        said = lines(self.recent_log(_ERROR_BYTES))
        end = "\n".join(said[-_TAIL_LINES:])
        why = root_exception("\n".join(said))
        return ServerError(f"{what}; {self.tail()}", cause=cause_of_text(f"{why}\n{end}"), about=why or what, why=why)

    def silent_seconds(self) -> float:
        """Seconds since the log last grew, as far as calls of this method saw."""
        size = self.log_size()
        if size != self._seen_bytes:
            self._seen_bytes, self._grown_s = size, time.monotonic()

        return time.monotonic() - self._grown_s

    def log_size(self) -> int:
        """Bytes of log so far: a mark for `log`."""
        return self.log_path.stat().st_size

    def log(self, start: int = 0, end: int | None = None) -> str:
        """The log between two marks."""
        with self.log_path.open("rb") as log:
            log.seek(start)
            return log.read(-1 if end is None else end - start).decode(errors="replace")

    def recent_log(self, most_bytes: int = _TAIL_BYTES) -> str:
        """The end of the log, enough for some lines."""
        return self.log(max(0, self.log_size() - most_bytes))

    def tail(self) -> str:
        """The log's last lines, introduced by where the whole of it is, after the first error if that stands before."""
        said = lines(self.recent_log(_ERROR_BYTES))
        last = said[-_TAIL_LINES:]
        quoted = "\n".join(f"    {line}" for line in last) or "    (nothing)"
        first = first_error("\n".join(said))
        before = f"its first error: {first}\n" if first and not any(first in line for line in last) else ""
        return f"{before}the last lines of {self.log_path}:\n{quoted}"

    def stop(self) -> None:
        """End the server and everything it started; bounded, and harmless if called twice."""
        self._guard.terminate()
        if not self.ended_within(self._grace_seconds + KILL_SECONDS + 1):
            self._guard.kill()
            self._guard.wait()


def _exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"its guard was ended by signal {-code}"
