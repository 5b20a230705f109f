"""Two stacks as the reference of a run: the candidate is compared with the base, measured in the same minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from ..gate.text.quantity import format_value
from ..gate.verdict import geometric_mean
from ..measure.paired_source import SideName, StackFailed, blamed
from .protocol import GangWork, Judged, ServerWork
from .servers_in_turn import Budget, Servers, ServersInTurn
from .unreached import Measured, unreached

if TYPE_CHECKING:
    from ..cause import Finding
    from ..machine.provenance import Provenance
    from ..measure.source import Progress, Source
    from ..measure.window_source import WindowSource
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


class TwoStacks:
    """A Reference: ranks of both stacks in turn, or servers of both. attached: where both are servers that run already.

    leftovers: notes on who held memory before the run, for every verdict. metrics: how many are weighed together.
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
        self._measured: list[Measured] = []

    def measure(self, work: GangWork) -> Judged:
        """See Reference: where one stack fails, it is said what the base measured."""
        if self._attached is not None:
            self._attached.skip_ranks()

        with self._telling_the_base(work.metric):
            judged = self._ranks.measure(work)

        self._measured.append(Measured(work.metric.name, work.world_size))
        return self._noted(judged)

    def measure_tpot(self, work: ServerWork) -> Judged:
        """See Reference: on fresh servers in turn, or on attached ones; the work's is the first of the candidate."""
        settings = self._settings
        budget = Budget(settings.replicates, settings.max_replicates, settings.budget_seconds, self._metrics())
        in_turn = ServersInTurn(self._in_turn(work), work.metric, self._contrasts.any, budget)
        with self._telling_the_base(work.metric):
            judgement = in_turn.judgement(work.server)

        beside = tuple(self._noted(in_turn.beside(metric, quantity)) for metric, quantity in work.beside)
        self._measured += [Measured(metric.name, 0) for metric in (work.metric, *(metric for metric, _ in work.beside))]
        return self._noted(replace(in_turn.judged(judgement), beside=beside))

    def _in_turn(self, work: ServerWork) -> Servers:
        def window(server: Server) -> WindowSource:
            return self._sources.windows(work.metric.name, server, work.load)

        if self._attached is not None:
            notes = self._attached.notes(self._contrasts.any)
            return Servers(self._attached.server, window, self._sources.answers, level="window", notes=notes)

        base, candidate = self._contrasts.stacks

        def fresh(side: SideName) -> Server:
            return self._servers.fresh(base if side == "base" else candidate)

        return Servers(fresh, window, self._sources.answers, loaded=self._contrasts.loaded)

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
        """See Reference: a fresh server of the candidate. What both stacks load is read before.

        Or the candidate that is attached, after both have said what they are.
        """
        if self._attached is not None:
            self._hardware.lease.release()
            self._contrasts.of_servers(self._attached)
            return self._attached.server("candidate")

        self._contrasts.of_launched()
        with blamed("candidate"):
            return self._servers.fresh(self._contrasts.stacks[1])

    def slice_server(self, layers: int) -> NoReturn:
        """See Reference: skips."""
        _skip("servers are as deep as the GPUs hold, on both stacks")

    def close(self, world_size: int) -> None:
        """See Reference."""
        self._ranks.close(world_size)

    def output(self) -> list[tuple[str, str]]:
        """See Reference."""
        return self._ranks.output()

    def problem(self) -> str | None:
        """See Reference: which slowdown of a stack reached no metric."""
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
