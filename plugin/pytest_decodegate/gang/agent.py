"""The torchrun of one node, under its guard: started, read and stopped."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import BadInput
from ..process import processes
from ..process.guard import KILL_SECONDS, guarded
from . import logs, protocol
from .options import GangOptions, on_node

GUARD_GRACE_SECONDS = 1.0

_EXIT = re.compile(
    r"^[ \t]*rank[ \t]*: (\d{1,9}) \(local_rank: \d{1,9}\)\n[ \t]*exitcode[ \t]*: (-?\d{1,9})\b", re.MULTILINE
)
_NO_TORCH = re.compile(r"No module named '?torch\b")


class Agent:
    """The torchrun of node number `node`, with `rank_count` ranks; `folder` holds its log and those of its ranks.

    own: environment that the ranks need for the gang, on whatever host they run.
    """

    def __init__(self, node: int, rank_count: int, options: GangOptions, folder: Path, own: Mapping[str, str]) -> None:
        self._python = options.python
        self._tag = own[protocol.GANG_ID]
        self._folder = folder / f"node{node}"
        self._folder.mkdir()
        self._log = self._folder / "torchrun.log"
        own = {**options.env, **own}
        command = self._command(rank_count, options)
        self._script = self._folder / "start.sh"
        if options.nodes is None or not options.nodes.start[node]:
            _check_python(options.python)
        else:
            _write_script(self._script, own, command)
            command = on_node(options.nodes.start[node], ["sh", str(self._script)])

        with self._log.open("wb") as log:
            self._process = guarded(
                command,
                env={"OMP_NUM_THREADS": "1", **processes.scrubbed(os.environ), **own},
                stdout=log,
                grace_seconds=GUARD_GRACE_SECONDS,
            )

    def _command(self, rank_count: int, options: GangOptions) -> list[str]:
        return [
            self._python,
            *("-m", "torch.distributed.run"),
            *self._rendezvous(options),
            f"--nproc-per-node={rank_count}",
            "--max-restarts=0",  # a second attempt under one agent fails on stale keys (pytorch#135712)
            "--monitor-interval=0.5",  # seldom: it disturbs the measurement, and we notice a death ourselves
            "--redirects=3",
            f"--log-dir={self._folder / 'ranks'}",
            *("--module", "pytest_decodegate.gang.worker"),
        ]

    def _rendezvous(self, options: GangOptions) -> list[str]:
        if options.nodes is None:
            return ["--standalone"]

        return [
            f"--nnodes={len(options.nodes.start)}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={options.nodes.rdzv_endpoint}",
            f"--rdzv-id={self._tag}",
        ]

    @property
    def running(self) -> bool:
        """Whether the guard, and so perhaps torchrun, still runs."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> bool:
        """Wait for torchrun and everything below it to end; whether it did."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False

        return True

    def terminate(self) -> None:
        """Ask the guard to end torchrun and every descendant."""
        if self.running:
            self._process.terminate()

    def stop(self) -> None:
        """End torchrun and every descendant; bounded. Safe to call again."""
        self._script.unlink(missing_ok=True)
        self.terminate()
        if not self.wait(GUARD_GRACE_SECONDS + KILL_SECONDS + 1):
            self._process.kill()
            self.wait(1)
        if self._guard_was_killed:  # so nobody has swept behind it
            processes.kill_tagged(protocol.GANG_ID, self._tag)

    @property
    def _guard_was_killed(self) -> bool:
        return self._process.poll() is not None and self._process.returncode < 0

    def summary(self) -> str:
        """The failure as torchrun itself reports it, without its Python traceback; else the end of its log."""
        text = logs.tail(self._log, logs.LIMIT_BYTES)
        _, found, report = text.rpartition("ChildFailedError:")
        if found:
            return report.strip()
        if self._guard_was_killed:
            name = processes.describe_exit(self._process.returncode)
            return f"the guard of torchrun (pid {self._process.pid}) was killed by {name}"

        return text[-2_000:].strip()

    def exit_codes(self) -> Mapping[int, int]:
        """Exit code by rank as torchrun reports it; negative for a signal."""
        return {int(rank): int(code) for rank, code in _EXIT.findall(self.summary())}

    def explain_start(self) -> str:
        """Reasons why no rank came up: a hint, the end of torchrun's log and of each rank's stderr."""
        lines = [f"torchrun reports:\n{self.summary() or '(nothing)'}"]
        lines += [f"end of stderr of local rank {name}:\n{text}" for name, text in self._tails().items() if text]
        return "\n".join(filter(None, [self.hint(), *lines]))

    def hint(self) -> str:
        """What is known to be missing for a start, and what to do about it; "" if nothing is."""
        if not _NO_TORCH.search(self.summary()):
            return ""

        return f"{self._python} has no torch: install it there (`{self._python} -m pip install torch`)"

    def start_log(self) -> str:
        """What torchrun and the ranks wrote of a start that failed."""
        return "\n".join([self.summary(), *self._tails().values()])

    def _tails(self) -> dict[str, str]:
        """The end of stderr by local rank."""
        paths = self._folder.glob("ranks/*/attempt_0/*/stderr.log")
        return dict(sorted((path.parent.name, logs.tail(path)) for path in paths))


def _write_script(path: Path, environment: Mapping[str, str], command: Sequence[str]) -> None:
    """A script that sets `environment` and becomes `command`; it removes itself first.

    A file, mode 0600, because variables may be secrets, and every user of a host sees the arguments of its processes.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    text = "\n".join(['rm -f -- "$0"', *lines, f"exec {shlex.join(command)}", ""])
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.fsencode(text))


def _check_python(python: str) -> None:
    if shutil.which(python) is None:
        raise BadInput(f"the Python for the ranks, {python!r}, does not exist or cannot be executed")
