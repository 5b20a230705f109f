"""Health of the GPUs after ranks hung or died: a fresh process on each makes a context, allocates and copies.

A wedged GPU takes the next ranks down the same way, one deadline after the other; so it is asked once, with a time
limit, before anything else is tried on it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..cause import Cause
from ..errors import DecodegateError, RankDied, RankHung
from ..process import processes
from ..process.guard import KILL_SECONDS, guarded
from ..process.import_path import import_variables
from . import exit_reasons, logs
from .agent import GUARD_GRACE_SECONDS
from .options import GangOptions

PROBE: Final = """
import torch

ones = torch.ones(1 << 20, device="cuda")
twos = (ones + ones).cpu().cuda()
torch.cuda.synchronize()
assert bool((twos == 2).all()), "1 + 1 is not 2 on this GPU"
"""
"""What a probe runs, under the ranks' Python; it sees one GPU."""

PROBE_SECONDS = 60.0
"""Importing torch and making a context take a few seconds; a wedged driver never returns."""

DOUBTFUL: Final = frozenset({Cause.DEVICE, Cause.HANG, Cause.CRASH})
"""Causes for which the device, and not the program, may be at fault; running out of memory is none of them."""


@dataclass(frozen=True, slots=True)
class ProbedGpu:
    """A GPU that is probed: its UUID, and the name that sentences use."""

    uuid: str
    label: str


def is_doubtful(error: BaseException) -> bool:
    """Whether `error` of some ranks may come from a GPU that no longer works."""
    if not isinstance(error, DecodegateError):
        return False

    return error.cause in DOUBTFUL or isinstance(error.origin, (RankHung, RankDied))


class Health:
    """The health of `gpus` in one session: asked after doubt, and once sick, sick until the session ends.

    options: of ranks; their Python runs the probes, and their log_root takes what these write. holders: who uses a GPU,
    by UUID, in words.
    """

    def __init__(
        self, gpus: Sequence[ProbedGpu], options: Callable[[], GangOptions], holders: Callable[[str], str]
    ) -> None:
        self._gpus = tuple(gpus)
        self._options = options
        self._holders = holders
        self._doubt: str | None = None
        self._sick: tuple[str, ...] = ()

    def doubt(self, error: BaseException) -> None:
        """Remember that `error` makes the GPUs doubtful, if it does; nothing is probed yet."""
        if self._gpus and is_doubtful(error):
            self._doubt = exit_reasons.in_brief(error)

    def sick(self, make_room: Callable[[], object]) -> tuple[str, ...]:
        """A sentence for each GPU that does not work; () without doubt. make_room: ends what still runs on them.

        Probes all GPUs at once, for at most PROBE_SECONDS.
        """
        if self._doubt is not None and not self._sick:
            doubt, self._doubt = self._doubt, None
            self._sick = tuple(f"{problem}; asked because {doubt}" for problem in self._problems(make_room))

        return self._sick

    def _problems(self, make_room: Callable[[], object]) -> list[str]:
        try:
            make_room()
        except DecodegateError as error:
            return [f"the GPUs cannot be used: {error}"]

        options, deadline = self._options(), time.monotonic() + PROBE_SECONDS
        probes = [(gpu, _Probe(gpu, options)) for gpu in self._gpus]
        problems = [(gpu, probe.problem(deadline)) for gpu, probe in probes]
        for _, probe in probes:  # after all were told to end: what sits in the driver takes its seconds
            probe.end()

        return [self._sentence(gpu, problem) for gpu, problem in problems if problem is not None]

    def _sentence(self, gpu: ProbedGpu, problem: str) -> str:
        return (
            f"{gpu.label} does not work any more: {problem}; it is held by {self._holders(gpu.uuid)}: end that, or "
            f"reset the GPU (`nvidia-smi --gpu-reset -i {gpu.uuid}`), or reboot, before anything is measured on it"
        )


class _Probe:
    """One fresh process on one GPU, under a guard of its own."""

    def __init__(self, gpu: ProbedGpu, options: GangOptions) -> None:
        options.log_root.mkdir(parents=True, exist_ok=True)
        self._log = options.log_root / f"probe-{gpu.uuid.replace('/', '-')}.log"
        with self._log.open("wb") as log:
            self._process = guarded(
                [options.python, "-c", PROBE],
                env={
                    **processes.scrubbed(os.environ),
                    **options.env,
                    **import_variables(options.python, options.import_path),
                    "CUDA_VISIBLE_DEVICES": gpu.uuid,
                },
                stdout=log,
                grace_seconds=GUARD_GRACE_SECONDS,
            )

    def problem(self, deadline: float) -> str | None:
        """The problem of this GPU, or None; waits until `deadline` (monotonic), then tells the process to end."""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.terminate()
            return f"a fresh process did not get through a context, an allocation and a copy in {PROBE_SECONDS:g} s"
        if code:
            lines = logs.tail(self._log).strip().splitlines()
            return f"a fresh process on it failed ({lines[-1] if lines else f'exit code {code}'})"

        return None

    def end(self) -> None:
        """Wait for the guard to end the process; bounded. What sits in the driver survives it, and its log says so."""
        try:
            self._process.wait(GUARD_GRACE_SECONDS + KILL_SECONDS + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
