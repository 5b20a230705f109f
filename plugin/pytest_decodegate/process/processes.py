"""Questions to processes from outside (exit code, state, family, libraries), and kills: by /proc and pidfds."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .guard import KILL_SECONDS, PROC, stat_fields, states_below

_RANK_VARIABLES = re.compile(
    # torchrun's own for its ranks; PET_* are defaults of torchrun's options; PYTHON_EXEC replaces the ranks' Python.
    r"TORCHELASTIC_\w+|TORCHRUN_\w+|PET_\w+|PYTHON_EXEC"
    r"|(LOCAL_|GROUP_|ROLE_|CROSS_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    # This plugin's, and what pytest tells its own process.
    r"|DECODEGATE_\w+|PYTEST_(CURRENT_TEST|VERSION|XDIST_\w+)"
)

_PIDFD_SIGNAL_PROCESS_GROUP = 4

_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in an uninterruptible system call"}


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a child that is no rank: without torchrun's, this plugin's and pytest's own variables."""
    return {name: value for name, value in environ.items() if not _RANK_VARIABLES.fullmatch(name)}


def exit_code(pid: int) -> int | None:
    """Exit code of a zombie that its parent has not reaped yet (negative: a signal); None if it is no zombie."""
    fields = stat_fields(pid)
    if not fields or fields[0] != "Z":
        return None

    return os.waitstatus_to_exitcode(int(fields[49]))


def stop_reason(pid: int) -> str | None:
    """The reason why process `pid` cannot run its signal handlers, None if it can."""
    fields = stat_fields(pid)
    return _STATES.get(fields[0]) if fields else None


def family(root: int | None = None, proc: Path = PROC) -> frozenset[int]:
    """Pids of `root` (this process by default) and all below it, zombies included: their threads may still run.

    A guard keeps the orphans of its command below itself, so what was started under one is always found.
    """
    root = os.getpid() if root is None else root
    return frozenset({root, *states_below(root, proc)})


def program_name(pid: int, proc: Path = PROC) -> str:
    """The name of the program that `pid` runs, "unknown" if that process is gone."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def may_map(pid: int, library: str) -> bool:
    """Whether process `pid` exists and has mapped a file with `library` in its name, or this user may not look."""
    try:
        return library in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        return False


def describe_exit(code: int) -> str:
    """'SIGKILL' or 'exit code 7'."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name

    return f"signal {-code}"


def ended(pidfd: int) -> bool:
    """Whether the process behind `pidfd` has ended, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def send_signal(pidfd: int, signum: signal.Signals) -> None:
    """Send a signal to exactly this process, a reused pid excluded."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)


def kill_group(pidfd: int) -> None:
    """SIGKILL the process behind `pidfd` with its process group; before Linux 6.9 the process alone.

    Of a group there are no pidfds: its number may be another's by now, and is never used.
    """
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL, None, _PIDFD_SIGNAL_PROCESS_GROUP)
    except ProcessLookupError:
        return
    except OSError:
        send_signal(pidfd, signal.SIGKILL)


def tagged(name: str, value: str) -> list[int]:
    """Live processes that were started with NAME=VALUE in their environment."""
    entry = f"{name}={value}".encode()
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and entry in _environment(pid)]  # noqa: PTH208


def _environment(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return []


def open_tagged(pid: int, name: str, value: str) -> int | None:
    """A pidfd of process `pid` if it was started with NAME=VALUE in its environment, else None."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None

    # The environment is that of the process behind the pidfd if that has not ended after it was read.
    if f"{name}={value}".encode() in _environment(str(pid)) and not ended(pidfd):
        return pidfd

    os.close(pidfd)
    return None


def kill_tagged(name: str, value: str) -> None:
    """SIGKILL every process that was started with NAME=VALUE, until none is left; the last resort, bounded.

    A process shows no environment in the moment of its exec, so only a second look in a row without any is the end.
    """
    deadline = time.monotonic() + KILL_SECONDS
    empty_looks = 0
    while empty_looks < 2 and time.monotonic() < deadline:
        pids = tagged(name, value)
        empty_looks = 0 if pids else empty_looks + 1
        for pid in pids:
            if (pidfd := open_tagged(pid, name, value)) is not None:
                send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)

        time.sleep(0.01)


def oom_kills() -> int:
    """How often this machine's out-of-memory killer has struck since boot; 0 where the kernel does not tell."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])

    return 0
