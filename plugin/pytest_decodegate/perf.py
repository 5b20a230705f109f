"""The perf fixture: measure a metric, judge it, record it if asked, and fail the test with the gate's own words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from .errors import DecodegateError
from .gang.sampling import Plan
from .gang.source import GangSource
from .gate.explain import explain
from .gate.verdict import Judgement, Verdict, judge
from .metric import Json, Level, Measurement, Metric, Replicate
from .options import marker_tolerance
from .report.result import Result

if TYPE_CHECKING:
    from .machine.provenance import Provenance
    from .serving.server import Server
    from .serving.window import Load
    from .suite import Suite


SAMPLING_SHARE = 1 / 8
"""Part of the band that the sampling error of one replicate may take; what is left is for differences of processes."""


class Source(Protocol):
    """Where replicates come from: gangs of ranks, or windows on a server.

    level: what one replicate is.
    contract: how it is measured, part of the metric's identity. facts: what else was seen, not compared.
    wrong: how the numbers are wrong, or None. broken: rules of measurement that were broken.
    All of these are complete only after `take`.
    """

    level: Level
    wrong: str | None
    broken: list[str]

    @property
    def contract(self) -> dict[str, Json]: ...  # noqa: D102 - described above

    @property
    def facts(self) -> dict[str, Json]: ...  # noqa: D102 - described above

    def take(self, count: int) -> Sequence[Replicate]:
        """Measure `count` more replicates; none at all if the numbers turn out wrong."""


class Perf:
    """What a perf test calls. One metric per call; several calls per test are fine until one fails."""

    def __init__(self, suite: Suite, item: pytest.Item) -> None:
        self._suite = suite
        self._item = item

    @property
    def has_gpu(self) -> bool:
        """Whether this run sees a GPU; without one a test measures its stand-in, under another name."""
        return bool(self._suite.fingerprint.gpus)

    def needs_gpu(self, what: str) -> None:
        """Skip the test without a GPU; `what` says what it measures there."""
        if not self.has_gpu:
            pytest.skip(f"no GPU ({self._suite.fingerprint.no_gpu_reason}): {what}")

    def needs_no_gpu(self, why: str) -> None:
        """Skip the test where there is a GPU; `why` says what is measured instead."""
        if self.has_gpu:
            pytest.skip(why)

    def measure(
        self,
        metric: Metric,
        workload: Callable[..., Any],
        /,
        *,
        world_size: int = 1,
        plan: Plan | None = None,
        **params: Any,
    ) -> Result:
        """Measure `workload(**params)` on several fresh gangs of `world_size` ranks, and gate it.

        workload: a module-level function that runs on each rank and returns a workloads.timing.Workload; its numbers
        are checked before anything is timed. Fails the test unless the verdict passes or was recorded.
        """
        __tracebackhide__ = True
        self._skip_if_impossible(world_size)
        suite = self._suite
        metric = self._with_band(metric)
        with GangSource(
            metric.name,
            suite.bench(world_size),
            workload,
            params,
            plan=plan or Plan(precision=metric.tolerance * SAMPLING_SHARE),
            watch=suite.watch,
            progress=suite.progress,
            deadline=suite.deadline,
        ) as source:
            return self.gate(metric, source)

    def measure_tpot(self, metric: Metric, server: Server, load: Load) -> Result:
        """Measure the time per output token of `server` under `load`, a closed loop, and gate it."""
        from .serving.source import WindowSource

        __tracebackhide__ = True
        suite = self._suite
        watch = suite.watch_attached if server.attached else suite.watch
        source = WindowSource(metric.name, server, load, watch=watch, progress=suite.progress)
        return self.gate(metric, source, lambda: suite.provenance_of(server))

    def gate(self, metric: Metric, source: Source, provenance: Callable[[], Provenance] | None = None) -> Result:
        """Take replicates from `source` until the verdict is settled or the cap is reached; then report it.

        provenance: where the replicates come from, asked after the first of them; the ranks' unless given.
        """
        __tracebackhide__ = True
        suite = self._suite
        suite.claim(metric.name, self._item.nodeid)
        suite.recorder.check()
        where = provenance or (lambda: suite.provenance)
        judgement, measurement = self._settle(self._with_band(metric), source, where)
        try:
            recorded = suite.recorder.keep(judgement, measurement, where())
        except DecodegateError:
            suite.report(Result(self._item.nodeid, judgement, None), self._item)
            raise

        result = Result(self._item.nodeid, judgement, recorded)
        suite.report(result, self._item)
        if not result.passes:
            pytest.fail(explain(judgement), pytrace=False)

        return result

    def _settle(
        self, metric: Metric, source: Source, provenance: Callable[[], Provenance]
    ) -> tuple[Judgement, Measurement]:
        """One look after the first replicates, one at the cap. Recording needs no second look."""
        settings = self._suite.settings
        looks = sorted({settings.replicates, settings.max_replicates})
        if settings.record == "all":
            looks = looks[:1]

        replicates: list[Replicate] = []
        for count in looks:
            replicates.extend(source.take(count - len(replicates)))
            measured = replace(metric, contract={**metric.contract, **source.contract})
            measurement = Measurement(measured, tuple(replicates), source.level, source.facts)
            selection = self._suite.recorder.select(metric.name, provenance())
            judgement = judge(measurement, selection, invalid=source.broken, wrong=source.wrong, looks=len(looks))
            if judgement.verdict is not Verdict.INCONCLUSIVE:
                break

        return judgement, measurement

    def _with_band(self, metric: Metric) -> Metric:
        """The tolerance band: ini option over marker over the test's own."""
        marker = marker_tolerance(self._item)
        own = metric.tolerance if marker is None else marker
        return replace(metric, tolerance=self._suite.settings.tolerance(metric.name, own))

    def _skip_if_impossible(self, world_size: int) -> None:
        """Each rank needs a GPU of its own; without any, a core: otherwise the scheduler would be measured."""
        if reason := self._suite.too_few_gpus(world_size):
            pytest.skip(reason)

        cores = self._suite.fingerprint.host.cores
        if not self.has_gpu and world_size > cores:
            pytest.skip(f"no GPU, and {world_size} ranks on {cores} cores would time the scheduler")
