"""Replicates from gangs: a workload is opened on several gangs, checked, then sampled in turns under a watch."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest

from ..cause import Cause, Finding
from ..errors import DecodegateError
from ..gang.protocol import Function
from ..gate.evidence import bandwidth, coldness, floors, late_host, sample_clocks
from ..gate.evidence.links import Matrix, link_findings, sent
from ..gate.evidence.stragglers import Own, Place, placed, seat, seated, straggler_findings, table
from ..gate.evidence.swaps import kernel_changes
from ..machine.clocks import SAMPLED
from ..metric import Json, Level, Replicate
from ..workloads.runtime import rank
from .nccl_identity import answered_apart
from .sampler import GangSampler
from .sampling import Plan, Turns, in_turn
from .source import Taken

if TYPE_CHECKING:
    from ..gang.controller import Gang, Pending
    from ..machine.watch import Telemetry, Watch
    from .bench import Bench
    from .nccl_identity import Identity
    from .source import Progress

TICK_SECONDS = 1.0
"""Between two words on how far the set-up is."""

TURN_SECONDS = 0.1
"""How long one gang is listened to while others are set up, too; so late, at most, is the failure of another heard."""

TABLE_RANKS = 4
"""From here on the ranks are kept in a table; of two, the replicates' facts say the same."""

VERDICTS = (pytest.fail.Exception, pytest.skip.Exception)
"""What pytest raises as outcome of a test: no Exception, but no reason to distrust the ranks either."""


class GangSource:
    """A Source: fresh gangs of one world size, each holding `workload(**params)`; leaving it closes them all.

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
        self._kernels: dict[str, Json] = {}
        self._nccl: Identity | None = None
        self._own: list[tuple[Own, Sequence[Place]]] = []
        self._links: list[Matrix] = []
        self._stragglers: list[Finding] = []
        self._ranks: list[Json] = []
        self._telemetry: list[Json] = []
        self._replicates: list[Replicate] = []
        self.wrong: str | None = None
        self._broken: list[Finding] = []
        self._notes: list[Finding] = []

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
    def taken(self) -> Taken:
        """Everything so far."""
        return Taken(
            self.level,
            tuple(self._replicates),
            self._contract(),
            self._facts(),
            self.wrong,
            (*self._broken, *self._answered_apart()),
            tuple(self._notes),
        )

    def _answered_apart(self) -> Iterator[Finding]:
        logged = self._nccl.facts.get("versions") if self._nccl else None
        return answered_apart(
            [opened.facts for opened in self._opened], list(map(str, logged)) if isinstance(logged, list) else []
        )

    def _contract(self) -> dict[str, Json]:
        """The timing contract that the workload declared, and which kernels ran; every rank runs the same factory."""
        kernels: dict[str, Json] = {"kernels": self._kernels} if self._kernels else {}
        nccl = self._nccl.contract if self._nccl else {}
        return {**self._opened[0].contract, **kernels, **nccl} if self._opened else {}

    def _facts(self) -> dict[str, Json]:
        """What the workload and the watch saw."""
        workload = dict(self._opened[0].facts) if self._opened else {}
        nccl: dict[str, Json] = {"nccl": self._nccl.facts} if self._nccl else {}
        apart: dict[str, Json] = {"stragglers": [*self._stragglers]} if self._stragglers else {}
        ranks: dict[str, Json] = {"ranks": [*self._ranks]} if self._ranks else {}
        # The first gang of a bench is the first to find the caches cold.
        caches = self._gangs[0].compile_caches if self._gangs else {}
        seen: dict[str, Json] = {"compile_caches": {name: {**cache} for name, cache in caches.items()}}
        return {**workload, **nccl, **apart, **ranks, **seen, "telemetry": list(self._telemetry)}

    def take(self, count: int) -> Taken:
        """Open and check the workload on `count` more gangs, then sample them, unless numbers are wrong."""
        gangs = self.set_up(count)
        if not self.wrong:
            samplers = self.samplers(gangs)
            with self._watch() as watch:
                turns = in_turn(samplers, self._plan, self._on_turn)

            self.keep(samplers, turns, watch.report())

        return self.taken

    def set_up(self, count: int) -> list[Gang]:
        """Open and check the workload on `count` more gangs; they are not to be sampled if `wrong` says so."""
        gangs = self._bench.gangs(len(self._gangs) + count)[len(self._gangs) :]
        self._open(gangs)
        if not self.wrong:
            self._ask_nccl()

        return gangs

    def samplers(self, gangs: Sequence[Gang]) -> list[GangSampler]:
        """One for each gang that was set up."""
        return [GangSampler(gang, self._key, self._deadline) for gang in gangs]

    def keep(self, samplers: Sequence[GangSampler], turns: Sequence[Turns], telemetry: Telemetry) -> None:
        """Keep what the samplers gave under a watch, and what the ranks and the watch can say of it."""
        self._broken.extend((*telemetry.invalid, *telemetry.grown))  # all that ranks need they have set up before
        self._telemetry.append({**telemetry.facts, **_sampled_clocks(samplers)})
        self._notes.extend(note for note in telemetry.notes if note not in self._notes)
        self._replicates.extend(self._sound_replicates(samplers, turns))
        self._identify([sampler.gang for sampler in samplers])
        self._note_stragglers()

    def _open(self, gangs: Sequence[Gang]) -> None:
        """Set up on all gangs at once: preparing weights takes long and disturbs nobody before sampling."""
        self._progress.tick(f"{self._key}: setting up and checking numbers on {len(gangs)} replicates")
        first = len(self._gangs) + 1
        self._gangs.extend(gangs)
        pending = [
            gang.submit(rank.open_workload, self._key, self._function, self._params, deadline_seconds=self._deadline())
            for gang in gangs
        ]
        for number, answer in enumerate(self._answers(pending, "set up and checked"), start=first):
            self._opened.extend(answer)
            wrong = [f"rank {index}: {opened.wrong}" for index, opened in enumerate(answer) if opened.wrong]
            if wrong and self.wrong is None:
                self.wrong = f"replicate {number}, {'; '.join(wrong)}"

    def _ask_nccl(self) -> None:
        """How NCCL does a workload that says it uses NCCL; before sampling, while nothing is timed."""
        if self._nccl is not None or self._opened[0].contract.get("library") != "nccl":
            return

        self._progress.tick(f"{self._key}: asking NCCL how it does this")
        self._nccl = self._bench.nccl_probe.identity(self._key, self._function, self._params, self._deadline())

    def _answers(self, pending: Sequence[Pending], what: str) -> list[list[Any]]:
        """What every gang answers, in order; the first failure is raised when it comes, whatever the others do."""
        started = said_at = time.monotonic()
        answers: dict[Pending, list[Any]] = {}
        while waiting := [call for call in pending if call not in answers]:
            for call in waiting:
                if call.wait(TURN_SECONDS, self._on_note):
                    answers[call] = call.result()

            if (now := time.monotonic()) - said_at >= TICK_SECONDS:
                said_at = now
                ready = len(self._gangs) - len(pending) + len(answers)
                self._progress.tick(
                    f"{self._key}: {ready} of {len(self._gangs)} replicates {what}, {now - started:.0f} s"
                )

        return [answers[call] for call in pending]

    def _on_note(self, index: int, text: str) -> None:
        self._progress.tick(f"{self._key}: rank {index}: {text}")

    def _identify(self, gangs: Sequence[Gang]) -> None:
        """Read which kernels ran. After the samples: the profiler must not have touched what is timed.

        On GPUs every gang is asked, since libraries choose kernels process by process; on a CPU the operators are those
        that the workload itself calls, and one gang knows them.
        """
        first = len(self._gangs) - len(gangs) + 1
        if self._opened[0].contract.get("clock") != "cuda_event":
            gangs = gangs[: 0 if self._kernels else 1]

        pending = [gang.submit(rank.kernels, self._key, deadline_seconds=self._deadline()) for gang in gangs]
        for number, answer in enumerate(self._answers(pending, "profiled"), start=first):
            for index, kernels in enumerate(answer):
                self._kernels = self._kernels or kernels
                if changes := list(kernel_changes(self._kernels, kernels)):
                    whose = f"replicate {number}, rank {index} ran other kernels than the first"
                    self._broken.append(Finding(f"{whose}: {changes[0]}", Cause.UNSTEADY, changes[0].about))

    def _sound_replicates(self, samplers: Sequence[GangSampler], turns: Sequence[Turns]) -> Iterator[Replicate]:
        """The replicates whose clock ran; the others break a rule."""
        first = len(self._gangs) - len(samplers) + 1
        for number, (sampler, taken) in enumerate(zip(samplers, turns, strict=True), start=first):
            if problem := sampler.broken_clock:
                self._broken.append(problem.of(f"replicate {number}"))
                continue

            replicate = sampler.replicate(taken.samples, taken.warmups)
            for note in (sample_clocks.marked(replicate), late_host.noted(replicate)):
                if note:
                    self._notes.append(note.of(f"replicate {number}"))

            yield self._examined(number, sampler.gang, replicate)

    def _examined(self, number: int, gang: Gang, taken: Replicate) -> Replicate:
        """The replicate beside what the machine can do; one gang at a time, or they would share its memory."""
        self._progress.tick(f"{self._key}: replicate {number} beside the machine's ceiling")
        ranks = gang.run(rank.examine, self._key, deadline_seconds=self._deadline())
        traffic, facts = self._opened[0].traffic, dict(taken.facts)
        if traffic is not None:
            ceilings = [examined.memory_bytes_s for examined in ranks if examined.memory_bytes_s]
            work = floors.Work(traffic.bytes, traffic.flops, min(ceilings, default=None))
            facts.update(floors.rates(taken.value, work))
            if problem := floors.too_fast(taken.value, work, self._opened[0].contract):
                self._broken.append(problem.of(f"replicate {number}"))

        if hot := [examined.hot_s for examined in ranks if examined.hot_s]:
            facts["hot_over_cold"] = max(hot) / taken.value
        if traffic is not None and self._opened[0].contract.get("cache") == "cold":
            facts.update(self._coldness(number, traffic.bytes, ranks, facts))

        if slept := [examined.align_cycles for examined in ranks if examined.align_cycles]:
            facts["align_cycles"] = max(slept)

        facts.update(bandwidth.rates(self._opened[0].contract, taken.value))
        own = [examined.own_s for examined in ranks if examined.own_s]
        if own and len(own) == len(ranks):  # or their place in the list would not be their rank
            self._own.append((own, [examined.location or {} for examined in ranks]))
            facts["own_medians"] = [statistics.median(rounds) for rounds in own]

        received = [examined.links_s for examined in ranks if examined.links_s]
        if received and len(received) == len(ranks):
            self._links.append(sent(received))

        return replace(taken, facts=facts)

    def _coldness(
        self, number: int, read_bytes: float, ranks: Sequence[rank.Examined], facts: Mapping[str, Json]
    ) -> dict[str, Json]:
        """Whether a cold call is shown to be one; if it is shown to be none, that breaks a rule."""
        l2_bytes = max(examined.l2_bytes for examined in ranks)
        hot, share = (float(str(facts[name])) if name in facts else None for name in ("hot_over_cold", "memory_share"))
        found = coldness.Coldness(read_bytes, l2_bytes, hot, share)
        if problem := found.broken():
            self._broken.append(problem.of(f"replicate {number}"))

        return {coldness.SHOWN: found.shown}

    def _note_stragglers(self) -> None:
        """Ranks that are apart in all gangs so far, instead of what was said of fewer gangs."""
        if not self._own:
            return

        seen, host = self._telemetry[-1], socket.gethostname()
        places = placed(self._own[0][1], seen.get("gpus") if isinstance(seen, dict) else None, host)
        gangs = seated(self._own)
        self._notes = [note for note in self._notes if note not in self._stragglers]
        self._stragglers = [*straggler_findings(gangs, places, host), *self._slow_links(places, host)]
        self._notes.extend(self._stragglers)
        self._ranks = table(gangs, places) if len(places) >= TABLE_RANKS or self._stragglers else []

    def _slow_links(self, places: Sequence[Place], host: str) -> list[Finding]:
        """Slow links between ranks that sit alike in every gang, as those of one node do."""
        seats = [list(map(seat, own)) for _, own in self._own]
        return link_findings(self._links, places, host) if all(each == seats[0] for each in seats) else []

    def _on_turn(self, taken: int, most: int) -> None:
        self._progress.tick(
            f"{self._key}: {taken} of at most {most} samples from each of {len(self._gangs)} replicates"
        )


def _sampled_clocks(samplers: Sequence[GangSampler]) -> dict[str, Json]:
    """For telemetry: the clock of each rank's GPU, the median over the gangs that took turns on it; {} if unknown."""
    ranks = zip(*(sampler.clocks_mhz for sampler in samplers), strict=True)
    known = [[mhz for mhz in each if mhz is not None] for each in ranks]
    clocks: list[Json] = [round(statistics.median(each), 1) if each else None for each in known]
    return {SAMPLED: clocks} if any(known) else {}
