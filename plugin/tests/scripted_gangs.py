"""Gangs, benches and watches without processes, and a source of replicates over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import gang_tasks

from pytest_decodegate.errors import DecodegateError
from pytest_decodegate.gang.controller import GangOptions
from pytest_decodegate.machine.watch import Telemetry
from pytest_decodegate.measure.bench import Bench
from pytest_decodegate.measure.gang_source import GangSource
from pytest_decodegate.measure.nccl_identity import Identity
from pytest_decodegate.measure.sampling import Plan
from pytest_decodegate.workloads.runtime import rank
from pytest_decodegate.workloads.runtime.rank import Examined, Opened

PLAN = Plan(batch=5, min_samples=5, max_samples=5, max_warmups=1)


class Watched:
    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def report(self) -> Telemetry:
        return Telemetry((), {})


@dataclass
class Said:
    """A Progress that keeps what it is told, and does `then` with it."""

    lines: list[str] = field(default_factory=list)
    then: Callable[[str], None] = lambda _: None

    def tick(self, text: str) -> None:
        self.lines.append(text)
        self.then(text)


class ScriptedPending:
    def __init__(self, turns: int, answer: list[Any] | Exception) -> None:
        self._turns, self._answer = turns, answer

    def wait(self, seconds: float, on_note: Callable[[int, str], None]) -> bool:
        self._turns -= 1
        if self._turns == 0:
            on_note(0, "weights done")

        return self._turns < 0

    def result(self) -> list[Any]:
        if isinstance(self._answer, Exception):
            raise self._answer

        return self._answer


@dataclass(eq=False)
class ScriptedGang:
    """Two ranks without processes. turns: how often its set-up is waited for in vain. log: what it is asked for.

    late: whether the host of the second rank was late, sample by sample. opened: what each rank says of its workload.
    kernels: what each launches. found: what each finds beside the samples; own: seconds of each rank's own part.
    """

    name: str
    log: list[str]
    turns: int = 0
    samples: tuple[float, float] = (1.0, 1.0)
    mhz: tuple[float | None, float | None] = (None, None)
    late: Iterator[bool] = field(default_factory=lambda: repeat(False))
    opening: Exception | None = None
    opened: Opened = field(default_factory=lambda: Opened(None))
    kernels: tuple[dict[str, int], dict[str, int]] = ({"gemm": 1}, {"gemm": 1})
    found: Examined = field(default_factory=lambda: Examined(None, None, None))
    own: tuple[list[float], ...] | None = None
    closing: DecodegateError | None = None
    world_size: int = 2
    alive: bool = True
    options: GangOptions = field(default_factory=lambda: GangOptions(log_root=Path()))
    compile_caches: dict[str, Any] = field(default_factory=dict)

    def submit(self, function: object, *_: object, deadline_seconds: float) -> ScriptedPending:
        if function is rank.kernels:
            return ScriptedPending(0, list(self.kernels))

        return ScriptedPending(self.turns, self.opening or [self.opened, self.opened])

    def run(self, function: object, key: str, count: int = 0, *, deadline_seconds: float) -> list[Any]:
        if function is rank.take_samples:
            late = [False] * count, [next(self.late) for _ in range(count)]
            return [
                rank.Samples([value] * count, [mhz] * count, here)
                for value, mhz, here in zip(self.samples, self.mhz, late, strict=True)
            ]
        if function is rank.examine:
            return [replace(self.found, own_s=own) for own in self.own or (None, None)]

        self.log.append(f"close {self.name}")
        if self.closing:
            raise self.closing

        return [None, None]

    def give_up(self, error: BaseException) -> None:
        self.log.append(f"give up {self.name}")

    def kill(self, error: BaseException) -> None:
        self.log.append(f"kill {self.name}")

    def close(self) -> None:
        self.log.append(f"end {self.name}")


class ScriptedBench:
    def __init__(self, *gangs: ScriptedGang) -> None:
        self._gangs = gangs

        self.asked: list[str] = []

    def gangs(self, count: int) -> list[ScriptedGang]:
        return list(self._gangs[:count])

    @property
    def nccl_probe(self) -> ScriptedBench:
        return self

    def identity(self, key: str, workload: object, params: object, deadline_seconds: float) -> Identity:
        self.asked.append(key)
        return Identity({"nccl_algorithm": "RING"}, {"transports": ["P2P/CUMEM"]})


def source(
    bench: object, said: Said | None = None, workload: Callable[..., Any] = gang_tasks.nothing, **params: Any
) -> GangSource:
    watch: Any = Watched
    gangs: Any = bench
    progress: Any = said or Said()
    return GangSource("nap", gangs, workload, params, plan=PLAN, watch=watch, progress=progress, deadline=lambda: 60.0)


def refused(bench: Bench, workload: Callable[..., Any], **params: Any) -> str:
    """Why the gate would say WRONG_RESULT."""
    with source(bench, workload=workload, **params) as measured:
        assert measured.take(1).replicates == ()

    return measured.taken.wrong or ""
