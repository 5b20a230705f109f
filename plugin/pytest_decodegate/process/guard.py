"""Run one command so that neither it nor any descendant outlives its owner.

    python guard.py OWNER_PID GRACE_SECONDS COMMAND...

The promise rests on three facilities of the Linux kernel:

* a pidfd on the owner becomes readable however the owner ends, SIGKILL included (PR_SET_PDEATHSIG would fire when
  the owner's *thread* ends);
* PR_SET_CHILD_SUBREAPER makes every orphaned descendant our child, also one that called setsid() as torchrun's ranks
  and vLLM's engine processes do, so that killing a process group would miss it;
* PR_SET_PDEATHSIG on the command covers our own SIGKILL.

Standard library only, one thread, runs as a script by path: no wedged collective can wedge it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 2.0
KILL_SECONDS = 5.0
"""How long the guard tries SIGKILL; what survives it sits in the kernel and is named in the log."""

PROC = Path("/proc")

_libc = ctypes.CDLL(None, use_errno=True)


def guarded(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    stdout: int | IO[bytes] | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> subprocess.Popen[bytes]:
    """Start `command` under a guard owned by this process; stderr joins `stdout`.

    Terminate or wait for the returned guard: it ends after the last descendant, with the command's exit code
    (128 + signal number if a signal ended it, 127 if it could not be started).
    """
    guard = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), str(grace_seconds)]  # noqa: PTH100
    return subprocess.Popen(
        [*guard, *command],
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        start_new_session=True,  # Ctrl-C is for pytest, which then terminates the guard
    )


def prctl(option: int, value: int) -> None:
    """Set a process attribute of Linux; raises OSError."""
    if _libc.prctl(option, value, 0, 0, 0):
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}, {value}): {os.strerror(errno)}")


def descendants(root: int) -> list[int]:
    """Live processes below `root`, parents before children; zombies are left out, but not what is below them."""
    return [pid for pid, state in states_below(root).items() if state not in "ZX"]


def states_below(root: int, proc: Path = PROC) -> dict[int, str]:
    """State letter (proc_pid_stat(5)) of every process below `root`, zombies included, parents before children.

    A process whose threads are just ending is a zombie already and still the parent of its children.
    """
    states: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir(proc):  # noqa: PTH208 - names, not paths
        if entry.isdigit() and (fields := stat_fields(entry, proc)):
            states[int(entry)] = fields[0]
            children.setdefault(int(fields[1]), []).append(int(entry))

    below = [root]
    for pid in below:
        below.extend(children.get(pid, ()))

    return {pid: states[pid] for pid in below[1:]}


def stat_fields(pid: int | str, proc: Path = PROC) -> list[str]:
    """Fields of /proc/PID/stat from the third on (state, parent ...); [] if the process is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []

    # The name is in brackets and may hold anything, brackets included.
    return stat.rpartition(")")[2].split()


def kill_descendants() -> list[int]:
    """SIGKILL everything below this process, a subreaper, until nothing is left; return what would not die.

    A walk of /proc misses a process whose parent ends while it is forked, so an empty walk is no end: the kernel says
    that there is no child, and where orphans become ours that is also no descendant.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while _has_children() and time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            _send(pid, signal.SIGKILL)

        time.sleep(0.01)
        _reap()

    return descendants(os.getpid())


def _has_children() -> bool:
    """Whether this process has a child, running or not yet reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False

    return True


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _reap() -> dict[int, int]:
    """Collect ended children; return exit code by pid, negative for a signal."""
    codes = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass

    return codes


class _Guard:
    """The command, and the three events that end it: owner gone, a signal to us, its own exit."""

    def __init__(self, owner: int, grace_seconds: float, command: Sequence[str]) -> None:
        self._owner_fd = os.pidfd_open(owner)
        self._grace_seconds = grace_seconds
        self._command = command
        self._stop = False
        self._code: int | None = None
        self._wake_fd = self._wake_on_signals()

    def run(self) -> int:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Kept as long as we live: its finaliser would reap the command behind our back.
        self._child = subprocess.Popen(
            self._command,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        while self._code is None and not self._stop:
            self._wait(None)

        if self._code is None:
            _send(self._child.pid, signal.SIGTERM)
            self._wait_for_exit()
        if left := kill_descendants():
            _say(f"processes {left} survived SIGKILL (uninterruptible sleep?)")

        return self._exit_code()

    def _wake_on_signals(self) -> int:
        wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_stop)

        signal.signal(signal.SIGCHLD, lambda *_: None)
        return wake_fd

    def _on_stop(self, *_: object) -> None:
        self._stop = True

    def _wait(self, seconds: float | None) -> None:
        watched = [self._wake_fd] if self._stop else [self._wake_fd, self._owner_fd]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)

        self._stop = self._stop or self._owner_fd in ready
        # Orphans of the command are ours now: a server that runs for hours must not collect zombies.
        self._code = _reap().get(self._child.pid, self._code)

    def _wait_for_exit(self) -> None:
        deadline = time.monotonic() + self._grace_seconds
        while self._code is None and (seconds := deadline - time.monotonic()) > 0:
            self._wait(seconds)

    def _exit_code(self) -> int:
        if self._code is None:  # it fell to kill_descendants()
            return 128 + signal.SIGKILL
        if self._code >= 0:
            return self._code
        if not self._stop:
            name = signal.Signals(-self._code).name
            _say(f"{self._command[0]} (pid {self._child.pid}) was killed by {name}")

        return 128 - self._code


def _say(text: str) -> None:
    print(f"guard: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the command is our only voice


def main(arguments: Sequence[str]) -> int:
    """Guard the command in `arguments`; returns the exit code of this process."""
    owner, grace_seconds, *command = arguments
    try:
        return _Guard(int(owner), float(grace_seconds), command).run()
    except ProcessLookupError:
        _say(f"owner {owner} is gone already; nothing was started")
        return 1
    except OSError as error:
        _say(f"cannot start {command[0]!r}: {error.strerror}")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
