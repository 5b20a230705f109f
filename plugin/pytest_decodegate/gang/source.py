"""Replicates from gangs: a workload is opened on several gangs, checked, then sampled in turns under a watch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest

from ..errors import DecodegateError
from ..metric import Json, Level, Replicate
from ..workloads import rank
from .protocol import Function
from .sampling import Plan, interleave, warm_up

if TYPE_CHECKING:
    from ..machine.watch import Watch
    from ..report.progress import Progress
    from .bench import Bench
    from .controller import Gang, Pending

TICK_SECONDS = 1.0
"""Between two words on how far the set-up is."""

TURN_SECONDS = 0.1
"""How long one gang is listened to while others are set up, too; so late, at most, is the failure of another heard."""

VERDICTS = (pytest.fail.Exception, pytest.skip.Exception)
"""What pytest raises as outcome of a test: no Exception, but no reason to distrust the ranks either."""


class GangSampler:
    """One replicate: a gang that holds the opened workload. Keeps each rank's samples, to tell a straggler."""

    def __init__(self, gang: Gang, key: str, deadline: Callable[[], float]) -> None:
        self.gang = gang
        self._key = key
        self._deadline = deadline
        self._by_rank: list[list[float]] = [[] for _ in range(gang.world_size)]

    def sample(self, count: int) -> list[float]:
        """`count` samples in seconds per call: sample by sample, the slowest rank counts."""
        per_rank = self.gang.run(rank.take_samples, self._key, count, deadline_seconds=self._deadline())
        for kept, taken in zip(self._by_rank, per_rank, strict=True):
            kept.extend(taken)

        return [max(samples) for samples in zip(*per_rank, strict=True)]

    def forget(self) -> None:
        """Drop what was kept so far: warm-up samples are no facts."""
        for kept in self._by_rank:
            kept.clear()

    @property
    def broken_clock(self) -> str | None:
        """The first sample that is no duration, in words; None if all are. The slowest rank may hide it: NaN is less
        than nothing.
        """
        for index, kept in enumerate(self._by_rank):
            for sample in kept:
                if not (math.isfinite(sample) and sample > 0):
                    return (
                        f"rank {index} of {self.gang.name} took a sample of {sample!r} s; its clock stands still, runs "
                        "backwards or gives no number: check `clock` and `calls` of the workload"
                    )

        return None

    def replicate(self, samples: Sequence[float], warmups: int) -> Replicate:
        """The replicate that this gang gave, with the median of each rank in seconds."""
        medians: list[Json] = [statistics.median(kept) for kept in self._by_rank]
        return Replicate(tuple(samples), {"rank_medians": medians, "warmup_batches": warmups})


class GangSource:
    """A perf.Source: fresh gangs of one world size, each holding `workload(**params)`; leaving it closes them all.

    name: of the metric, for progress and as the key on the ranks. deadline: seconds for the next call on the ranks.
    watch: makes a watcher of the machine for the time of sampling.
    """

    level: Level = "gang"

    def __init__(
        self,
        name: str,
        bench: Bench,
        workload: Callable[..., Any],
        params: dict[str, Any],
        *,
        plan: Plan,
        watch: Callable[[], AbstractContextManager[Watch]],
        progress: Progress,
        deadline: Callable[[], float],
    ) -> None:
        self._bench = bench
        self._function = Function.of(workload)
        self._params = params
        self._plan = plan
        self._watch = watch
        self._progress = progress
        self._deadline = deadline
        self._key = name
        self._gangs: list[Gang] = []
        self._opened: list[rank.Opened] = []
        self._telemetry: list[Json] = []
        self.wrong: str | None = None
        self.broken: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and not isinstance(error, (Exception, *VERDICTS)):
            self._kill(error)
            return
        if error is not None:
            for gang in self._gangs:  # all at once, so that one grace passes and not one for each
                gang.give_up(error)

        problems = [problem for gang in self._gangs if (problem := self._close_on(gang, error))]
        if problems and error is None:
            raise problems[0]

    def _kill(self, error: BaseException) -> None:
        """Ctrl-C: nobody wants to wait for what the ranks are at."""
        for gang in self._gangs:
            gang.kill(error)
        for gang in self._gangs:
            gang.close()

    def _close_on(self, gang: Gang, error: BaseException | None) -> DecodegateError | None:
        """Close the workload on a gang that can still do it; what went wrong with that."""
        seconds = self._deadline()
        if error is not None:
            seconds = min(seconds, gang.options.teardown_seconds)
        try:
            if gang.alive:
                gang.run(rank.close_workload, self._key, deadline_seconds=seconds)
        except DecodegateError as problem:
            return problem

        return None

    @property
    def contract(self) -> dict[str, Json]:
        """The timing contract that the workload declared; every rank runs the same factory."""
        return dict(self._opened[0].contract) if self._opened else {}

    @property
    def facts(self) -> dict[str, Json]:
        """What the workload and the watch saw."""
        workload = dict(self._opened[0].facts) if self._opened else {}
        return {**workload, "telemetry": list(self._telemetry)}

    def take(self, count: int) -> list[Replicate]:
        """Open and check the workload on `count` more gangs, then sample them, unless numbers are wrong."""
        gangs = self._bench.gangs(len(self._gangs) + count)[len(self._gangs) :]
        self._open(gangs)
        return [] if self.wrong else self._sample(gangs)

    def _open(self, gangs: Sequence[Gang]) -> None:
        """Set up on all gangs at once: preparing weights takes long and disturbs nobody before sampling."""
        self._progress.tick(f"{self._key}: setting up and checking numbers on {len(gangs)} replicates")
        first = len(self._gangs) + 1
        self._gangs.extend(gangs)
        pending = [
            gang.submit(rank.open_workload, self._key, self._function, self._params, deadline_seconds=self._deadline())
            for gang in gangs
        ]
        for number, answer in enumerate(self._answers(pending), start=first):
            for index, opened in enumerate(answer):
                self._opened.append(opened)
                if opened.wrong and self.wrong is None:
                    self.wrong = f"replicate {number}, rank {index}: {opened.wrong}"

    def _answers(self, pending: Sequence[Pending]) -> list[list[rank.Opened]]:
        """What every gang answers, in order; the first failure is raised when it comes, whatever the others do."""
        started = told = time.monotonic()
        answers: dict[Pending, list[rank.Opened]] = {}
        while waiting := [one for one in pending if one not in answers]:
            for one in waiting:
                if one.wait(TURN_SECONDS, self._on_note):
                    answers[one] = one.result()

            if (now := time.monotonic()) - told >= TICK_SECONDS:
                told = now
                ready = len(self._gangs) - len(pending) + len(answers)
                self._progress.tick(
                    f"{self._key}: {ready} of {len(self._gangs)} replicates set up and checked, {now - started:.0f} s"
                )

        return [answers[one] for one in pending]

    def _on_note(self, index: int, text: str) -> None:
        self._progress.tick(f"{self._key}: rank {index}: {text}")

    def _sample(self, gangs: Sequence[Gang]) -> list[Replicate]:
        samplers = [GangSampler(gang, self._key, self._deadline) for gang in gangs]
        with self._watch() as watch:
            warmups = [warm_up(sampler, self._plan) for sampler in samplers]
            for sampler in samplers:
                sampler.forget()

            samples = interleave(samplers, self._plan, self._on_turn)

        telemetry = watch.report()
        self.broken.extend(telemetry.invalid)
        self._telemetry.append(dict(telemetry.facts))
        return self._replicates(samplers, samples, warmups)

    def _replicates(
        self, samplers: Sequence[GangSampler], samples: Sequence[Sequence[float]], warmups: Sequence[int]
    ) -> list[Replicate]:
        """The replicates whose clock ran; the others break a rule."""
        replicates = []
        first = len(self._gangs) - len(samplers) + 1
        for number, sampler in enumerate(samplers, start=first):
            if problem := sampler.broken_clock:
                self.broken.append(f"replicate {number}: {problem}")
                continue

            replicates.append(sampler.replicate(samples[number - first], warmups[number - first]))

        return replicates

    def _on_turn(self, taken: int, most: int) -> None:
        self._progress.tick(
            f"{self._key}: {taken} of at most {most} samples from each of {len(self._gangs)} replicates"
        )
