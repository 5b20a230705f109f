"""The state of one pytest session: settings, the machine, who holds it now, and the verdicts so far."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import BadInput, DecodegateError, GangError, ServerError, ServerHung
from ..resources import timeouts
from ..resources.hardware import ENVIRONMENT, Devices
from ..resources.lease import Tenancy
from ..resources.progress import Progress
from ..resources.server import ServerUnderTest
from .launches import Launches

if TYPE_CHECKING:
    from ..gang.controller import GangOptions
    from ..machine.fingerprint import Fingerprint
    from ..machine.provenance import Provenance
    from ..measure.bench import Bench
    from ..measure.gang_source import GangSource
    from ..measure.paired_source import PairBench
    from ..measure.sampling import Plan
    from ..measure.window import Load
    from ..measure.window_source import WindowSource
    from ..metric import Json
    from ..reference.canary import Answers
    from ..reference.ranks_in_turn import Against
    from ..reference.stored import Recorder
    from ..report.result import Result
    from ..serving.server import Server
    from ..settings.options import Settings
    from ..settings.stack import Stack

SUITE: pytest.StashKey[Suite] = pytest.StashKey()


class Suite:
    """One session: what it measures on, with, and against, and what came out so far."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.progress = Progress(config)
        self.session_id = time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + secrets.token_hex(2)
        self._item: pytest.Item | None = None
        self._item_started = 0.0
        self.debugging = False
        self.selected = 0
        self.results: list[Result] = []
        self.launches = Launches(self.write_event)
        self._benches: dict[int, Bench] = {}
        self._measured: dict[str, str] = {}
        self.problem: str | None = None

    def begin(self, item: pytest.Item | None) -> None:
        """The ranks and the server work for `item` from now on, or for none."""
        self._item, self._item_started = item, time.monotonic()

    def deadline(self) -> float:
        """Seconds for a call on the ranks, now: --perf-deadline, or less if another timeout would end the test."""
        return timeouts.deadline(self._item, self._item_started, self.settings.deadline_seconds)

    @property
    def measured_nothing(self) -> bool:
        """True if perf tests were selected and not one of them came to a verdict."""
        return self.selected > 0 and not self.results

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The machine, read once."""
        from ..machine.fingerprint import machine

        return machine()

    @cached_property
    def recorder(self) -> Recorder:
        """The stored baselines of this machine class."""
        from ..reference.stored import Recorder

        return Recorder(self.config, self.settings, self.machine_class, self.session_id, self.progress.say)

    @cached_property
    def answers(self) -> Answers:
        """What is known of the servers' answers, which are judged before their speed."""
        from ..reference.canary import Answers

        return Answers(self)

    @cached_property
    def provenance(self) -> Provenance:
        """Machine and stack as the ranks really loaded it; starts a gang of one rank if none is alive."""
        from ..machine.fingerprint import provenance
        from ..machine.stack import agree, probe

        probes = self._bench_alive().gangs(1)[0].run(probe, deadline_seconds=self.settings.start_seconds)
        return provenance(self.fingerprint, agree(probes), {**os.environ, **self.settings.stack.environment()})

    def _bench_alive(self) -> Bench:
        """Gangs of the stack under test, whatever their size: those that hold the machine, else small ones."""
        from ..measure.bench import Bench
        from ..measure.paired_source import PairBench

        match self.tenancy.tenant:
            case PairBench(candidate=bench) | (Bench() as bench):
                return bench
            case _:
                return self.bench(self._nodes)

    def too_few_gpus(self, world_size: int) -> str | None:
        """Why `world_size` ranks cannot have a GPU each, or None. Without any GPU the ranks run on the CPU."""
        nodes = self._nodes
        if world_size % nodes:
            return f"world size {world_size} does not divide over {nodes} nodes"

        count = nodes * len(self.fingerprint.gpus)
        if count == 0 or count >= world_size:
            return None

        return f"world size {world_size} needs {world_size} GPUs; this run sees {count}"

    @property
    def _nodes(self) -> int:
        return len(self.settings.nodes.start) if self.settings.nodes else 1

    @property
    def machine_class(self) -> str:
        """The folder of the baselines; several nodes are a class of their own."""
        nodes = self.settings.nodes
        return self.fingerprint.machine_class + (f"-{len(nodes.start)}nodes" if nodes else "")

    @cached_property
    def tenancy(self) -> Tenancy:
        """Who holds the machine."""
        return Tenancy(self.devices.labels, self.devices.sensor)

    def bench(self, world_size: int) -> Bench:
        """The gangs of one world size; whoever held the machine before is asked to leave."""
        if world_size not in self._benches:
            self._benches[world_size] = self.new_bench(world_size, self.settings.stack)

        bench = self._benches[world_size]
        self.move_in(bench)
        return bench

    def gang_source(
        self, name: str, bench: Bench, workload: Callable[..., Any], params: dict[str, Any], plan: Plan
    ) -> GangSource:
        """Replicates of the metric `name` from the gangs of `bench`, watched by this session."""
        from ..measure.gang_source import GangSource

        return GangSource(
            name,
            bench,
            workload,
            params,
            plan=plan,
            watch=self.devices.watch,
            progress=self.progress,
            deadline=self.deadline,
        )

    def window_source(
        self, name: str, server: Server, load: Load, restart: Callable[[], Server] | None = None
    ) -> WindowSource:
        """Replicates of the metric `name` from windows on `server`; with `restart` each on a start of its own."""
        from ..measure.window_source import WindowSource

        watch = self.devices.watch_attached if server.attached else self.devices.watch
        return WindowSource(
            name,
            server,
            load,
            watch=watch,
            progress=self.progress,
            restart=restart,
            warm_up_seconds=self.settings.warm_up_seconds,
        )

    def new_bench(self, world_size: int, stack: Stack, name: str = "") -> Bench:
        """Gangs of `stack`, none of them started yet; `name` tells them from those of another stack."""
        from ..measure.bench import Bench

        options, on_ready = stack.applied(self._gang_options()), partial(self.launches.ready, world_size)
        return Bench(world_size, options, progress=self.progress.tick, name=name, on_ready=on_ready)

    def move_in(self, bench: Bench | PairBench) -> None:
        """Give the machine to `bench`, if its GPUs still work; raises DecodegateError if they do not."""
        self.refuse_if_wedged()
        self.tenancy.move_in(bench, bench.close)

    @cached_property
    def against(self) -> Against | None:
        """The two stacks of this session, with --perf-against."""
        if self.settings.base is None:
            return None

        from ..reference.ranks_in_turn import Against

        return Against(self, self.settings.base, self.settings.stack)

    def close_bench(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""
        if bench := self._benches.get(world_size):
            self.tenancy.move_out(bench)
        if self.against is not None:
            self.against.close_bench(world_size)

    @cached_property
    def server(self) -> ServerUnderTest:
        """The server under test; none runs yet."""
        return ServerUnderTest(self)

    @cached_property
    def devices(self) -> Devices:
        """The GPUs of this run, if there are any."""
        return Devices(self.fingerprint, lambda: self.settings.stack.applied(self._gang_options()))

    def doubt(self, error: DecodegateError) -> None:
        """A test ended with `error`; if that may be the GPUs' fault they are asked before they are used again."""
        if isinstance(error, (GangError, ServerError)):
            self.devices.health.doubt(error)

        cause = getattr(error, "cause", error)  # of one of two stacks
        if isinstance(cause, ServerHung):
            self.server.note_hung(cause)

    def wedged(self) -> tuple[str, ...]:
        """Why the GPUs cannot be used any more, a sentence for each; asked of them only after a failure."""
        return self.devices.health.sick(lambda: self.tenancy.move_out())

    def refuse_if_wedged(self) -> None:
        """Raise GangError if an earlier failure has shown that the GPUs do not work any more."""
        if wedged := self.wedged():
            raise GangError("; ".join(wedged))

    @property
    def found(self) -> tuple[str, ...]:
        """Memory that somebody else held before this run; an attached server's is no surprise."""
        return () if self.settings.server or self.settings.stack.server else self.tenancy.found

    def rank_output(self) -> list[tuple[str, str]]:
        """What ranks and server wrote since last asked: (section title, text)."""
        sections = [section for bench in self._benches.values() for section in bench.output()]
        if self.against is not None:
            sections += self.against.output()
        if text := self.server.output():
            sections.append(("log of the server", text))

        return sections

    def close(self) -> None:
        """Stop whatever is alive; bounded. What goes wrong is kept in `problem`: no test is left to fail with it."""
        if "tenancy" not in self.__dict__:  # nothing was started; do not ask NVML just to say so
            return
        try:
            self.tenancy.move_out()
        except DecodegateError as error:
            self.add_problem(str(error))

    def add_problem(self, problem: str) -> None:
        """Keep what is wrong with the run as a whole: it must not end as if all were well."""
        self.problem = f"{self.problem}; {problem}" if self.problem else problem

    def provenance_of(self, server: Server) -> Provenance:
        """Machine and stack of a server: this Python's if it was launched, its own word if it was attached."""
        from ..machine.fingerprint import provenance

        return provenance(self.fingerprint, server.stack(), {}) if server.attached else self.provenance

    def claim(self, metric: str, nodeid: str) -> None:
        """Note that a test measures `metric`; raises BadInput if another one did, whose sessions it would replace."""
        first = self._measured.setdefault(metric, nodeid)
        if first != nodeid:
            raise BadInput(f"metric {metric!r} was measured by {first} in this run already; give each its own name")

    def has_result(self, item: pytest.Item) -> bool:
        """Whether a metric of this test came to a verdict."""
        return any(result.nodeid == item.nodeid for result in self.results)

    def passes(self, item: pytest.Item) -> bool:
        """Whether no metric of this test failed it so far."""
        return all(result.passes for result in self.results if result.nodeid == item.nodeid)

    def report(self, result: Result, item: pytest.Item) -> None:
        """Say and write a result as it comes, so that a crash later loses nothing."""
        from ..report import lines

        self.results.append(result)
        self.progress.say(lines.told(result))
        item.user_properties.extend(lines.properties(result))
        self._append(lines.json_line(result, self.session_id))
        if result.judgement.level == "gang" and (gangs := self.tenancy.tenant) is not None:
            self.launches.judged(getattr(gangs, "world_size", 0))  # what is not known was not launched

    def write_event(self, event: str, fields: Mapping[str, Json]) -> None:
        """Write what is no verdict to the report, for whoever must know all of a run on two stacks."""
        self._append(json.dumps({"session": self.session_id, "event": event, **fields}, allow_nan=False))

    def _append(self, line: str) -> None:
        if self.settings.report is not None:
            with self.settings.report.open("a") as report:
                report.write(line + "\n")

    def folder(self, name: str) -> Path:
        """A fresh folder under pytest's own temporary folder, kept for as many runs as pytest keeps."""
        factory = self.config._tmp_path_factory  # type: ignore[attr-defined]
        folder: Path = factory.mktemp(name)
        return folder

    def _gang_options(self) -> GangOptions:
        from ..gang.controller import GangOptions

        return GangOptions(
            log_root=self.folder("gangs"),
            env=ENVIRONMENT,
            start_seconds=self.settings.start_seconds,
            deadline_seconds=self.settings.deadline_seconds,
            deadlines_off=lambda: self.debugging,
            nodes=self.settings.nodes,
        )
