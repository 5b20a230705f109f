"""One pytest session: its parts, built from the settings when they are first wanted, and wired to each other."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.pathlib import bestrelpath

from ..errors import BadInput, DecodegateError, ServerHung
from ..gate.decision import named
from ..gate.materiality import LIMIT, weighed
from ..machine.cpu_load import CpuLoad
from ..process.import_path import withheld
from ..process.processes import family
from ..resources import timeouts
from ..resources.hardware import Hardware
from ..resources.progress import TerminalProgress
from ..resources.server import ServerUnderTest
from ..resources.sources import Sources
from ..settings.settings import Settings, read_settings
from .results import Results
from .standing import Standing

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from ..cause import Finding
    from ..gang.controller import GangOptions
    from ..gang.options import StartLimit
    from ..gate.materiality import StepWeight
    from ..gate.verdict import Judgement
    from ..machine.fingerprint import Fingerprint
    from ..machine.provenance import Provenance
    from ..measure.window import Load
    from ..reference.loaded import ProvenanceReader
    from ..reference.protocol import Reference
    from ..reference.recorder import Recorder
    from ..reference.restarts import Restarts
    from ..report.content import RunFacts
    from ..report.terminal import Summary
    from ..resources.gangs import Gangs
    from .perf import Perf

KEY: pytest.StashKey[PerfSession] = pytest.StashKey()


def session_of(config: pytest.Config) -> PerfSession:
    """The session of this run, made at the first call; raises BadInput for options that cannot be used."""
    if KEY not in config.stash:
        config.stash[KEY] = PerfSession(config, read_settings(config))

    return config.stash[KEY]


class PerfSession:
    """One session: what it measures on and with, what that is compared with, and what came out so far.

    Only plugin hooks and fixtures know it; everybody else is given the parts that they need.
    debugging: a person looks at a breakpoint, and deadlines of the ranks wait. host_faults: what is wrong with the host
    and gone on with, a line each. items: the tests of this run, once they are collected.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.progress = TerminalProgress(config, lambda text: self._standing.around(text))
        self.id = time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + secrets.token_hex(2)
        self.results = Results(self.announce, self.progress)
        self._standing = Standing(self.results.run, lambda: self.results.selected)
        self.debugging = False
        self.host_faults: list[str] = []
        self.items: Sequence[pytest.Item] = ()
        self._cores = CpuLoad(family)
        self._cores.start()
        self.hardware = Hardware(self._machine, lambda: settings.stack.applied(self._gang_options()))
        self.sources = Sources(self.hardware, self.progress, self.deadline, settings)
        self._item: pytest.Item | None = None
        self._item_started = 0.0

    def announce(self, outcome: object) -> None:
        """Keep an outcome, and hand it to whoever takes it: the JSON report, a command that started this run."""
        self.results.run.add(outcome)
        self.config.hook.pytest_decodegate_outcome(outcome=outcome)

    def begin(self, item: pytest.Item | None) -> None:
        """The ranks and the server work for `item` from now on, or for none."""
        self._item, self._item_started = item, time.monotonic()

    def deadline(self) -> float:
        """Seconds for a call on the ranks, now: --perf-deadline, or less if another timeout would end the test."""
        return timeouts.deadline(self._item, self._item_started, self.settings.deadline_seconds)

    def _start_limit(self, wanted_seconds: float) -> StartLimit:
        return timeouts.start_limit(self._item, self._item_started, wanted_seconds)

    @cached_property
    def gangs(self) -> Gangs:
        """The gangs of ranks; none runs yet."""
        from ..resources.gangs import Gangs

        ready = self.results.launches.ready
        return Gangs(self.settings, self.hardware, self._gang_options, self.progress, ready)

    @cached_property
    def servers(self) -> ServerUnderTest:
        """The server under test; none runs yet."""
        return ServerUnderTest(
            self.settings,
            self.hardware,
            self.progress,
            before_start=lambda: self.provenances.expected(),
            folder=self._folder,
        )

    @cached_property
    def reference(self) -> Reference:
        """What the metrics of this session are compared with."""
        return self._two_stacks() if self.settings.base is not None else self._stored()

    def perf(self, item: pytest.Item) -> Perf:
        """What the perf test `item` calls."""
        from .perf import Perf

        return Perf(
            item,
            self.settings,
            self.hardware,
            self.gangs,
            self.reference,
            self.results,
            self.progress,
            self.servers,
            self.doubt,
        )

    def doubt(self, error: DecodegateError) -> None:
        """Remember what `error`, with which a test or a measurement ended, says of the GPUs and the server."""
        self.hardware.doubt(error)
        if isinstance(error.origin, ServerHung):
            self.servers.note_hung(error.origin)

    @property
    def has_usable_server(self) -> bool:
        """Whether a server may be asked: no earlier test has shown wedged GPUs or a server that hangs."""
        return not (self.hardware.wedged() or self.servers.hung)

    @property
    def answers(self) -> bool:
        """Whether this run ends with an answer on pytest's terminal: a command that started it says it itself."""
        collects = bool(self.config.option.collectonly)
        return self.results.answers and not (collects or self.settings.started_by_command)

    def summary(self, reporter: TerminalReporter) -> Summary:
        """What the terminal shows at the end."""
        from ..report.screen import About
        from ..report.terminal import Summary

        verbose = self.config.get_verbosity() > 0
        about = About(self._command, self._reports(), reporter._tw.fullwidth, verbose)
        return Summary(self.results.run, self._machine_class, about, self.results.launches.lines())

    def run_facts(self) -> RunFacts:
        """What a report of this run says beside its outcomes, as far as it is known."""
        from ..report.content import RunFacts

        return RunFacts(self._command, self._machine_class, history=self._history())

    @cached_property
    def _command(self) -> tuple[str, ...]:
        """The words that started this run."""
        typed: Sequence[str] | None = self.config.hook.pytest_decodegate_typed(config=self.config)
        return tuple(typed or ("pytest", *map(str, self.config.invocation_params.args)))

    @property
    def _machine_class(self) -> str:
        """Of this host, once something was measured: of one whose GPUs are broken no class is known."""
        return self.hardware.fingerprint.machine_class if self.results.run.results else ""

    def _history(self) -> dict[str, list[float]]:
        """The stored levels of what did not pass, and the one of this run behind them."""
        if self.settings.base is not None:
            return {}

        open_ones = [result.judgement for result in self.results.run.results if not result.passes]
        known = [(each.metric, each.numbers.measured) for each in open_ones if each.numbers.measured is not None]
        stored = self.recorder.levels([metric for metric, _ in known])
        return {metric.name: [*levels, now] for (metric, now), levels in zip(known, stored, strict=True)}

    def _reports(self) -> tuple[str, ...]:
        """Files that this run has written."""
        recorded = dict.fromkeys(result.recorded for result in self.results.run.results if result.recorded)
        report = self.settings.report / "report.html" if self.settings.report else None
        files = [*(("recorded", path) for path in recorded), ("report", report)]
        return tuple(f"{what}: {bestrelpath(Path.cwd(), path)}" for what, path in files if path)

    def look_at_host(self) -> None:
        """Read the GPUs and the host before anything is started; raises DecodegateError for what ends the run."""
        from .fitness import check_host

        self.host_faults = check_host(self.settings, self.hardware)
        for stack in filter(None, (self.settings.base, self.settings.stack)):
            if not (self.settings.server or stack.server):
                self.settings.gpus_of_server(stack, len(self.hardware.fingerprint.gpus))

    def close_gangs(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""
        for holder in ("gangs", "reference"):
            if holder in self.__dict__:
                self.__dict__[holder].close(world_size)

    def output(self) -> list[tuple[str, str]]:
        """What ranks and server wrote since last asked: (section title, text). Nothing is started to say so."""
        parts = [part for name in ("gangs", "reference", "servers") if (part := self.__dict__.get(name)) is not None]
        return [section for part in parts for section in part.output()]

    def close(self) -> None:
        """Stop whatever is alive; bounded. What goes wrong is kept as a problem: no test is left to fail with it."""
        try:
            self.hardware.release()
        except DecodegateError as error:
            self.results.add_problem(str(error))

    @cached_property
    def recorder(self) -> Recorder:
        """The stored baselines of whatever a metric may run on here."""
        from ..reference.recorder import Recorder

        return Recorder(self.config, self.settings, self.hardware.fingerprint, self.id, self.progress.say)

    def sort_cheap_first(self, items: list[pytest.Item]) -> None:
        """Put perf tests in the order of what they cost when they were recorded here."""
        from ..baseline.durations import seconds_by_metric
        from .order import cheap_first

        if self.settings.base is None:
            cheap_first(items, seconds_by_metric(self.recorder.stored()))

    def forecast(self, items: Sequence[pytest.Item]) -> list[str]:
        """What the perf tests among `items` will do, in lines of text, before any of them runs."""
        from .forecast import forecast, in_the_way, planned
        from .lost_gpus import lost_gpus

        settings = self.settings
        plan = planned(items, stand_in=self._has_stand_in, most_ranks=self.gangs.most_ranks)
        lost = lost_gpus(self.recorder.store, self.hardware.fingerprint)
        missing = [*([str(lost)] if lost else []), *self._withheld()]
        if settings.base is not None:
            pairs = f"{plan}, each on both stacks in {settings.replicates} pairs and more while a verdict is open"
            return [*missing, pairs, *self._on_servers(items)]

        cores = self._cores.since_start() if not self.hardware.has_gpu else None
        expected = [*forecast(plan, self.recorder, self._expected), *self._time_for_open_metrics()]
        slower = [f"slowed down on purpose: {slowdown}" for slowdown in settings.stack.slowdowns]
        return [*missing, *slower, *expected, *self._on_servers(items), *in_the_way(self._leftovers(), cores)]

    def _on_servers(self, items: Sequence[pytest.Item]) -> list[str]:
        """That one start serves several metrics of `items`, where servers are to be started."""
        settings = self.settings
        loads = [] if settings.attached else list(self._loads_of(items))
        if len(loads) < 2:
            return []
        if settings.base is None:
            restarts = settings.server_restarts
            return [f"{named(loads)}: on the same {restarts} starts of the server"] if restarts else []

        minutes = settings.budget_seconds / 60
        return [f"{named(loads)}: on the same servers, for at most {minutes:.3g} min (--perf-budget)"]

    @property
    def _has_stand_in(self) -> bool:
        """Whether the server is the one that stands in where there is neither a GPU nor a server of the user's."""
        settings = self.settings
        return not (self.hardware.has_gpu or settings.attached or settings.launched(settings.stack))

    def _loads(self) -> dict[str, Load]:
        """Under which load this run will measure servers, by metric."""
        return self._loads_of(self.items)

    def _loads_of(self, items: Sequence[pytest.Item]) -> dict[str, Load]:
        from .forecast import loads_of

        return loads_of(items, stand_in=self._has_stand_in)

    def _time_for_open_metrics(self) -> list[str]:
        """How much longer a run may take than its first looks, unless nothing is judged."""
        if self.settings.record == "all":
            return []

        minutes, first = self.settings.budget_seconds / 60, self.settings.replicates
        more = f"may take {minutes:.3g} min more in all (--perf-budget), the cheap ones first"
        return [f"metrics that are open after {first} replicates {more}; a change is confirmed on fresh replicates"]

    def _withheld(self) -> list[str]:
        """What ranks under another Python do not get of this one."""
        settings = self.settings
        pythons = {stack.python for stack in (settings.base, settings.stack) if stack and stack.python}
        found = (withheld(python, settings.import_path) for python in sorted(pythons))
        return [sentence for sentence in found if sentence]

    def _expected(self, world_size: int | None) -> Provenance:
        if self.settings.server:
            raise BadInput("the server under test has not been asked yet what it runs")

        return self.provenances.expected(world_size)

    def _stored(self) -> Reference:
        from ..reference.canary import Canary
        from ..reference.settling import TimeBudget
        from ..reference.stored import StoredReference

        canary = Canary(self.settings, self.recorder, self.sources, self.provenances, self.progress)
        return StoredReference(
            self.settings,
            self.recorder,
            self.gangs,
            self.servers,
            self.sources,
            canary,
            self.provenances,
            self._leftovers,
            metrics=self._metrics,
            budget=TimeBudget(self.settings.budget_seconds),
            progress=self.progress,
            material=self._material,
            restarts=self._restarts(),
        )

    def _restarts(self) -> Restarts | None:
        if not self.settings.server_restarts:
            return None

        from ..reference.restarts import Restarts

        return Restarts(self.servers.fresh, self.sources.rehearse, self.sources.windows, self._loads, self.progress.say)

    def _material(self, judgement: Judgement) -> Judgement:
        """What a judgement means for the decode step, as far as the stored baselines tell of that."""
        return weighed(judgement, self._step_weights, self.settings.not_material or LIMIT)

    @cached_property
    def _step_weights(self) -> Mapping[str, StepWeight]:
        from ..profile.measured import stored_times
        from ..profile.step_weights import step_weights

        try:
            return step_weights(stored_times(self.recorder.stored()), max(1, len(self.hardware.fingerprint.gpus)))
        except BadInput:  # of files that a comparison of two stacks does not need; stored ones are refused before
            return {}

    def _metrics(self) -> int:
        """How many metrics of this run are weighed together: one a perf test, as far as is known."""
        return max(1, self.results.selected)

    def _two_stacks(self) -> Reference:
        from ..reference.attached import AttachedServers
        from ..reference.contrasts import Contrasts
        from ..reference.ranks_in_turn import RanksInTurn
        from ..reference.two_stacks import TwoStacks

        base, candidate = self.settings.base, self.settings.stack
        assert base is not None
        contrasts = Contrasts((base, candidate), self.settings, self.hardware, self.progress, self.announce)
        ranks = RanksInTurn(
            self.settings,
            self.hardware,
            self.gangs,
            self.sources,
            self.progress,
            contrasts,
            self._metrics,
            self._material,
        )
        attached = None
        if base.server and candidate.server:
            attached = AttachedServers(self.servers.attached, base.server, candidate.server)

        return TwoStacks(
            self.settings,
            self.hardware,
            self.servers,
            self.sources,
            self.progress,
            contrasts=contrasts,
            ranks=ranks,
            attached=attached,
            leftovers=self._leftovers,
            metrics=self._metrics,
            loads=self._loads,
        )

    @cached_property
    def provenances(self) -> ProvenanceReader:
        """Machine and stack of what is measured; nothing is read yet."""
        from ..reference.loaded import ProvenanceReader

        return ProvenanceReader(self.settings, self.hardware, self.gangs)

    def _leftovers(self) -> tuple[Finding, ...]:
        """Memory that somebody else held before this run; an attached server's is no surprise."""
        return () if self.settings.attached else self.hardware.lease.leftovers

    def _machine(self) -> Fingerprint:
        from ..machine.fingerprint import machine

        nodes = self.settings.nodes
        return replace(machine(), nodes=len(nodes.start) if nodes else 1)

    def _folder(self, name: str) -> Path:
        """A fresh folder under pytest's own temporary folder, kept for as many runs as pytest keeps."""
        factory = self.config._tmp_path_factory  # type: ignore[attr-defined]
        folder: Path = factory.mktemp(name)
        return folder

    def _gang_options(self) -> GangOptions:
        from ..resources.gangs import gang_options

        return gang_options(self.settings, self._folder("gangs"), lambda: self.debugging, self._start_limit)
