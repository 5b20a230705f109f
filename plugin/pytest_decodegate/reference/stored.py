"""Stored baselines as the reference of a run: replicates until the verdict is settled, then recorded if asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ..cause import Finding
from ..gate.bands import LOOKS, hides_in_wider_band
from ..gate.evidence.starts import Start, start_notes, start_of
from ..gate.stats.looks import planned_looks
from ..gate.verdict import Judgement, judge
from ..machine.cards import gpus_seen
from ..measure.beside_tpot import KeptWindows, SameWindows
from .gang_waves import GangWaves
from .protocol import GangWork, Judged, ServerWork
from .settling import Settling, SettlingRules, TimeBudget
from .unreached import Measured, unreached

if TYPE_CHECKING:
    from ..baseline.selection import Selection
    from ..machine.provenance import Provenance
    from ..measure.gang_source import GangSource
    from ..measure.source import Progress, Source, Taken
    from ..metric import Metric
    from ..resources.gangs import Gangs
    from ..resources.server import ServerUnderTest
    from ..resources.sources import Sources
    from ..serving.server import Server
    from ..settings.settings import Settings
    from .canary import Canary
    from .loaded import ProvenanceReader
    from .recorder import Recorder
    from .restarts import Restarts

NOT_STORED: Final = Finding(
    "not stored: worse by more than its own band, and as a baseline of these cards it would hide that for good; if it "
    "is the cards, --perf-record=all stores it"
)
"""Of a metric that --perf-record=gated gates in a wider band of other cards."""


@dataclass(frozen=True, slots=True)
class StoredReference:
    """The stored baselines of what each metric runs on.

    leftovers: notes on who held memory before the run, for every verdict. metrics: how many are weighed together.
    budget: of the run, for metrics that are still open. material: says what a judgement means for the decode step.
    restarts: of the server, where it is to be started again and again.
    """

    settings: Settings
    recorder: Recorder
    gangs: Gangs
    servers: ServerUnderTest
    sources: Sources
    canary: Canary
    provenances: ProvenanceReader
    leftovers: Callable[[], tuple[Finding, ...]]
    metrics: Callable[[], int]
    budget: TimeBudget
    progress: Progress
    material: Callable[[Judgement], Judgement]
    restarts: Restarts | None
    _measured: list[Measured] = field(default_factory=list)
    _answered: list[str] = field(default_factory=list)

    def measure(self, work: GangWork) -> Judged:
        """See Reference: on as many fresh gangs as the verdict needs, twice --perf-replicates alive at once."""

        def start() -> GangSource:
            bench = self.gangs.bench(work.world_size)
            return self.sources.gangs(work.metric.name, bench, work.workload, work.params, work.plan)

        with GangWaves(start, lambda: self.gangs.close(work.world_size), 2 * self.settings.replicates) as source:
            judged = self._judged(
                work.metric,
                source,
                lambda: self.provenances.of_ranks(work.metric.kind, work.world_size),
                work.world_size,
            )

        self._measured.append(Measured(work.metric.name, work.world_size))
        return judged

    def measure_tpot(self, work: ServerWork) -> Judged:
        """See Reference: windows on the server, or on a start for each with --perf-server-restarts."""
        windows = KeptWindows(self._windows(work))
        judged = self._judged(work.metric, windows, lambda: self.provenances.of(work.server))
        beside = (
            self._judged(metric, SameWindows(windows, quantity), lambda: self.provenances.of(work.server))
            for metric, quantity in work.beside
        )
        judged = replace(judged, beside=tuple(beside))
        self._measured.extend(Measured(each.judgement.metric.name, 0) for each in (judged, *judged.beside))
        return judged

    def _windows(self, work: ServerWork) -> Source:
        name, server, load = work.metric.name, work.server, work.load
        if self.restarts and not self.canary.problem(server):
            return self.restarts.source(name, server, load)

        return self.sources.windows(name, server, load, wrong=self._checked(work))

    def _checked(self, work: ServerWork) -> str | None:
        """How the answers of a server are wrong; None where they are not, and it has rehearsed."""
        wrong = self.canary.problem(work.server)
        if not wrong:
            self.sources.rehearse(work.metric.name, work.server, work.load)

        return wrong

    def measure_plateau(self, work: ServerWork, most: int) -> Judged:
        """See Reference."""
        wrong = self._checked(work)
        source = self.sources.sweep(work.metric.name, work.server, work.load, most=most, wrong=wrong)
        judged = self._judged(work.metric, source, lambda: self.provenances.of(work.server))
        self._measured.append(Measured(work.metric.name, 0))
        return judged

    def measure_quality(self, metric: Metric, server: Server) -> Judged:
        """See Reference: against the baseline's answers, which agree among themselves only so far."""
        judged = self._judged(metric, self.sources.answers(server), lambda: self.provenances.of(server))
        self.canary.keep(judged.judgement)
        self._answered.append(metric.name)
        return judged

    def quality_metric(self, server: Server) -> Metric:
        """See Reference."""
        return self.canary.metric(server)

    def measure_source(self, metric: Metric, source: Source, provenance: Callable[[], Provenance] | None) -> Judged:
        """See Reference."""
        return self._judged(metric, source, provenance or (lambda: self.provenances.of_ranks(metric.kind)))

    def server(self) -> Server:
        """See Reference."""
        return self.servers.running()

    def slice_server(self, layers: int) -> Server:
        """See Reference."""
        return self.servers.running(layers)

    def close(self, world_size: int) -> None:
        """See Reference."""
        self.gangs.close(world_size)

    def output(self) -> list[tuple[str, str]]:
        """See Reference."""
        return self.gangs.output()

    def problem(self) -> str | None:
        """See Reference: which slowdown of the stack under test reached no metric, or what servers alone are told."""
        return unreached([self.settings.stack], self._measured, asked=bool(self._answered))

    def ended(self) -> None:
        """See Reference: each verdict has named its baseline."""

    def _judged(
        self, metric: Metric, source: Source, provenance: Callable[[], Provenance], world_size: int = 0
    ) -> Judged:
        self.recorder.check()
        judgement, taken = self._settle(metric, source, provenance)
        if self.settings.record == "gated" and hides_in_wider_band(judgement):
            judgement = replace(judgement, notes=(*judgement.notes, NOT_STORED))

        ranks = taken.facts.get("ranks")
        return Judged(
            judgement,
            taken.replicates,
            tuple(ranks) if isinstance(ranks, list) else (),
            world_size,
            lambda: self.recorder.keep(judgement, taken.measurement(metric), provenance()),
            gpus=gpus_seen(taken.facts),
        )

    def _settle(self, metric: Metric, source: Source, provenance: Callable[[], Provenance]) -> tuple[Judgement, Taken]:
        """Settle the metric; `provenance` is asked after the first replicates."""
        rules = self._rules(source)

        def look(taken: Taken) -> Judgement:
            return self._look(metric, taken, provenance(), len(rules.looks))

        return Settling(source, look, rules, self.progress).settle()

    def _rules(self, source: Source) -> SettlingRules:
        """Recording needs one look, and servers are started as often as was asked."""
        settings = self.settings
        looks = planned_looks(settings.replicates, settings.max_replicates, LOOKS)
        fresh = settings.replicates
        if source.level == "server" and settings.server_restarts:
            looks, fresh = (settings.server_restarts,), settings.server_restarts
        if settings.record == "all":
            looks, fresh = looks[:1], 0

        return SettlingRules(looks, fresh, self.metrics(), self.budget)

    def _look(self, metric: Metric, taken: Taken, provenance: Provenance, looks: int) -> Judgement:
        selection = self.recorder.select(metric.name, provenance)
        starts = start_notes(start_of(taken.facts), _recorded_start(selection, metric.name))
        judgement = judge(
            taken.measurement(metric),
            selection,
            invalid=taken.broken,
            wrong=taken.wrong,
            looks=looks,
            notes=[*taken.notes, *starts, *self.leftovers()],
            fixed_band=self.settings.sets_band(metric.name),
        )
        return self.material(judgement)


def _recorded_start(selection: Selection, metric: str) -> Start | None:
    """The start behind the newest session of `metric`."""
    stored = selection.baseline.metrics.get(metric) if selection.baseline else None
    return start_of(stored.sessions[-1].telemetry) if stored else None
