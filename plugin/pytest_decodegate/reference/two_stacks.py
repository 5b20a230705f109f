"""Two stacks as the reference of a run: the candidate is compared with the base, measured in the same minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import pytest

from ..cause import Finding
from ..errors import ServerError
from ..gate.text.quantity import format_value
from ..gate.verdict import geometric_mean
from ..measure.paired_source import SIDES, SideName, StackFailed, blamed
from ..resources.beside import ServersBeside
from .protocol import GangWork, Interrupted, Judged, ServerWork
from .servers_in_turn import LEAST_PAIRS, Budget, Servers, ServersInTurn
from .unreached import Measured, unreached

if TYPE_CHECKING:
    from ..machine.provenance import Provenance
    from ..measure.source import Progress, Source
    from ..measure.window import Load
    from ..metric import Metric
    from ..resources.hardware import Hardware
    from ..resources.server import ServerUnderTest
    from ..resources.sources import Sources
    from ..serving.server import Server
    from ..settings.settings import Settings
    from .attached import AttachedServers
    from .contrasts import Contrasts
    from .ranks_in_turn import RanksInTurn


def _skip(what_is_done: str) -> NoReturn:
    pytest.skip(f"with --perf-base {what_is_done}")


def _ended(server: Server) -> ServerError | None:
    return server.ended()


class TwoStacks:
    """A Reference: ranks of both stacks in turn, or servers of both. attached: where both are servers that run already.

    leftovers: notes on who held memory before the run, for every verdict. metrics: how many are weighed together.
    loads: under which servers are going to be measured in this run, by metric.
    """

    def __init__(
        self,
        settings: Settings,
        hardware: Hardware,
        servers: ServerUnderTest,
        sources: Sources,
        progress: Progress,
        *,
        contrasts: Contrasts,
        ranks: RanksInTurn,
        attached: AttachedServers | None,
        leftovers: Callable[[], tuple[Finding, ...]],
        metrics: Callable[[], int],
        loads: Callable[[], Mapping[str, Load]],
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._servers = servers
        self._sources = sources
        self._progress = progress
        self._contrasts = contrasts
        self._ranks = ranks
        self._attached = attached
        self._leftovers = leftovers
        self._metrics = metrics
        self._loads = loads
        self._beside: ServersBeside | None = None
        self._measured: list[Measured] = []

    def measure(self, work: GangWork) -> Judged:
        """See Reference: where one stack fails, it is said what the base measured."""
        if self._attached is not None:
            self._attached.skip_ranks()

        self._contrasts.skip_ranks()
        with self._telling_the_base(work.metric):
            judged = self._ranks.measure(work)

        self._measured.append(Measured(work.metric.name, work.world_size))
        return self._noted(judged)

    def measure_tpot(self, work: ServerWork) -> Judged:
        """See Reference: on fresh servers of both stacks, or on attached ones, which serve all metrics of the run."""
        try:
            with self._telling_the_base(work.metric):
                judgement = self._in_turn.judgement(work.metric, work.load)
        except Interrupted as stopped:
            stopped.judged = self._with_beside(work, stopped.judged)
            raise

        return self._with_beside(work, self._in_turn.judged(judgement))

    def _with_beside(self, work: ServerWork, judged: Judged) -> Judged:
        """`judged` with what else its windows say."""
        in_turn, name = self._in_turn, work.metric.name
        beside = tuple(self._noted(in_turn.beside(name, metric, quantity)) for metric, quantity in work.beside)
        self._measured += [Measured(metric.name, 0) for metric in (work.metric, *(metric for metric, _ in work.beside))]
        return self._noted(replace(judged, beside=beside))

    @cached_property
    def _in_turn(self) -> ServersInTurn:
        """What all metrics of servers are measured by, once it is known how the stacks differ."""
        settings = self._settings
        first = settings.replicates if self._attached is not None else LEAST_PAIRS  # windows are cheap, starts are not
        budget = Budget(first, settings.max_replicates, settings.budget_seconds, self._metrics())
        servers = self._running_already(self._attached) if self._attached is not None else self._launched()
        return ServersInTurn(servers, self._contrasts.of_what_serves, budget, self._loads(), self._progress.say)

    def _running_already(self, attached: AttachedServers) -> Servers:
        notes = attached.notes(self._contrasts.of_what_serves)
        sources = self._sources
        return Servers(attached.server, sources.windows, sources.answers, _ended, level="window", notes=notes)

    def _launched(self) -> Servers:
        stacks = dict(zip(SIDES, self._contrasts.stacks, strict=True))

        def fresh(side: SideName) -> Server:
            return self._contrasts.read_back(side, self._servers.fresh(stacks[side]))

        both, notes = None, tuple[Finding, ...]()
        if room := self._servers.room(self._contrasts.stacks):
            self._beside = ServersBeside(self._servers, stacks, room, self._hardware, self._progress)
            both, notes = self._both(self._beside), self._beside.notes

        sources, loaded = self._sources, self._contrasts.loaded
        return Servers(fresh, sources.windows, sources.answers, _ended, both, loaded=loaded, notes=notes)

    def _both(self, beside: ServersBeside) -> Callable[[bool], Mapping[SideName, Server]]:
        def start(swapped: bool) -> Mapping[SideName, Server]:
            servers = beside.start(swapped)
            for side, server in servers.items():
                with blamed(side):
                    self._contrasts.read_back(side, server)

            return servers

        return start

    def measure_plateau(self, work: ServerWork, most: int) -> NoReturn:
        """See Reference: skips."""
        _skip("one server of each stack runs at a time, and none is swept")

    def measure_quality(self, metric: Metric, server: Server) -> NoReturn:
        """See Reference: skips."""
        _skip("the answers of both stacks are compared before their TPOT")

    def quality_metric(self, server: Server) -> NoReturn:
        """See Reference: skips."""
        _skip("the answers of both stacks are compared before their TPOT")

    def measure_source(
        self,
        metric: Metric,
        source: Source,
        provenance: Callable[[], Provenance] | None,
    ) -> NoReturn:
        """See Reference: skips."""
        _skip("only what `measure` and `measure_tpot` do is measured on both stacks")

    def server(self) -> Server:
        """See Reference: the newest of the candidate, which stands for all that are started.

        What both stacks load is read before; attached ones have said what they are.
        """
        if self._attached is not None:
            self._hardware.lease.release()
            self._contrasts.of_servers(self._attached)
        else:
            self._contrasts.of_launched()

        return self._in_turn.candidate()

    def slice_server(self, layers: int) -> NoReturn:
        """See Reference: skips."""
        _skip("servers are as deep as the GPUs hold, on both stacks")

    def close(self, world_size: int) -> None:
        """See Reference."""
        self._ranks.close(world_size)

    def output(self) -> list[tuple[str, str]]:
        """See Reference."""
        return [*self._ranks.output(), *(self._beside.output() if self._beside else ())]

    def problem(self) -> str | None:
        """See Reference: which slowdown of a stack reached no metric, or what servers alone are told."""
        return unreached(self._contrasts.stacks, self._measured)

    def ended(self) -> None:
        """See Reference: says which stacks the run had."""
        self._contrasts.announce_unknown()

    def _noted(self, judged: Judged) -> Judged:
        judgement = replace(judged.judgement, notes=(*judged.judgement.notes, *self._leftovers()))
        return replace(judged, judgement=judgement)

    @contextmanager
    def _telling_the_base(self, metric: Metric) -> Iterator[None]:
        """Where a stack fails, say what the base has measured so far."""
        try:
            yield
        except StackFailed as failure:
            self._say_what_the_base_gave(metric, failure)
            raise

    def _say_what_the_base_gave(self, metric: Metric, failure: StackFailed) -> None:
        base = geometric_mean([replicate.value for replicate in failure.base])
        if base is not None:
            what = f"the {failure.side} failed; the base measured {format_value(base, metric.unit)}"
            self._progress.say(f"{metric.name}: {what}")
