"""The perf fixture: measure a metric, judge it, record it if asked, and fail the test with the gate's own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from ..errors import DecodegateError, ServerError
from ..gate.evidence.depth import Depth, Extrapolation, extrapolate
from ..gate.text.explain import explain
from ..gate.verdict import Judgement, Verdict, judge
from ..measure.sampling import Plan
from ..metric import Json, Level, Measurement, Metric, Replicate
from ..report.rates import rates
from ..report.result import Result
from ..settings.options import marker_advisory, marker_tolerance

if TYPE_CHECKING:
    from pathlib import Path

    from ..machine.provenance import Provenance
    from ..measure.window import Load
    from ..serving.server import Server
    from .session import Suite


T = TypeVar("T")

SAMPLING_SHARE = 1 / 8
"""Part of the band that the sampling error of one replicate may take; what is left is for differences of processes."""


class Source(Protocol):
    """Where replicates come from: gangs of ranks, or windows on a server.

    level: what one replicate is.
    contract: how it is measured, part of the metric's identity. facts: what else was seen, not compared.
    wrong: how the numbers are wrong, or None. broken: rules of measurement that were broken. notes: what a reader
    should know whatever the verdict.
    All of these are complete only after `take`.
    """

    level: Level
    wrong: str | None
    broken: list[str]
    notes: list[str]

    @property
    def contract(self) -> dict[str, Json]: ...  # noqa: D102 - described above

    @property
    def facts(self) -> dict[str, Json]: ...  # noqa: D102 - described above

    def take(self, count: int) -> Sequence[Replicate]:
        """Measure `count` more replicates; none at all if the numbers turn out wrong."""


def _or_error(ask: Callable[[], T]) -> T | ServerError:
    """What `ask` gives, or the server's error: pytest would show the traceback of one that is being handled."""
    try:
        return ask()
    except ServerError as error:
        return error


class Perf:
    """What a perf test calls. One metric per call; several calls per test are fine until one fails."""

    def __init__(self, suite: Suite, item: pytest.Item) -> None:
        self._suite = suite
        self._item = item

    @property
    def has_gpu(self) -> bool:
        """Whether this run sees a GPU; without one a test measures its stand-in, under another name."""
        return bool(self._suite.fingerprint.gpus)

    def pin(self, name: str) -> str | None:
        """The backend that the user pins by --perf-pin for `name`, of option_values.PINS; None leaves the choice."""
        return self._suite.settings.pins.get(name)

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
        if (wedged := self._invalid_if_wedged(metric, "gang")) is not None:
            return wedged

        suite = self._suite
        metric = self._with_band(metric)
        plan = plan or Plan(precision=metric.tolerance * SAMPLING_SHARE)
        if suite.against is not None:
            from ..reference.ranks_in_turn import Asked

            suite.claim(metric.name, self._item.nodeid)
            asked = Asked(metric, workload, params, world_size, plan)
            return self._conclude_against(*suite.against.measure(asked, self._item.nodeid))

        with suite.gang_source(metric.name, suite.bench(world_size), workload, params, plan) as source:
            return self.gate(metric, source)

    def measure_tpot(self, metric: Metric, server: Server, load: Load) -> Result:
        """Measure the time per output token of `server` under `load`, a closed loop, and gate it.

        Where the baseline holds answers, those of `server` are judged first; it is not timed if they are wrong. With
        --perf-server-restarts the suite's server is started again and again: `server` is then another one afterwards.
        """
        __tracebackhide__ = True
        if (wedged := self._invalid_if_wedged(metric, "window")) is not None:
            return wedged

        suite = self._suite
        if suite.against is not None:
            suite.claim(metric.name, self._item.nodeid)
            judged = suite.against.measure_tpot(self._with_band(metric), server, load, self._item.nodeid)
            return self._conclude_against(*judged)

        restart = suite.server.fresh if suite.settings.server_restarts else None
        source = suite.window_source(metric.name, server, load, restart)
        wrong = _or_error(lambda: suite.answers.problem(server))
        if isinstance(wrong, ServerError):
            return self._conclude_error(metric, source.level, wrong)

        source.wrong = wrong
        return self.gate(metric, source, lambda: suite.provenance_of(server))

    def measure_plateau(self, metric: Metric, server: Server, load: Load, *, most: int) -> Result:
        """Sweep the concurrency of `server` over 1, 2, 4 ... `most` streams, and gate the throughput of its plateau.

        `load` is for one stream: its concurrency and the number of its requests grow with the sweep.
        """
        from ..measure.sweep import SweepSource

        __tracebackhide__ = True
        suite = self._suite
        if suite.against is not None:
            pytest.skip("with --perf-against one server of each stack runs at a time, and none is swept")
        if (wedged := self._invalid_if_wedged(metric, "window")) is not None:
            return wedged

        at = partial(suite.window_source, metric.name, server)
        source = SweepSource(
            metric.name,
            server,
            load,
            most=most,
            at=at,
            progress=suite.progress,
            warm_up_seconds=suite.settings.warm_up_seconds,
        )
        wrong = _or_error(lambda: suite.answers.problem(server))
        if isinstance(wrong, ServerError):
            return self._conclude_error(metric, source.level, wrong)

        source.wrong = wrong
        return self.gate(metric, source, lambda: suite.provenance_of(server))

    def measure_quality(self, server: Server) -> Result:
        """Compare the greedy answers of `server` with the baseline's, which agree among themselves only so far."""
        __tracebackhide__ = True
        if self._suite.against is not None:
            pytest.skip("with --perf-against the answers of both stacks are compared before their TPOT")

        answers = self._suite.answers
        if (wedged := self._invalid_if_wedged(answers.metric(server), "window")) is not None:
            return wedged

        source = answers.source(server)
        return self.gate(answers.metric(server), source, lambda: self._suite.provenance_of(server))

    def slice_server(self, layers: int) -> Server:
        """The suite's own server as a rank-slice of `layers` layers; skips where another one is served."""
        self.needs_gpu("a rank-slice of chosen depth")
        if self._suite.settings.server or self._suite.settings.serve:
            pytest.skip("only the suite's own rank-slice has a depth to choose")

        if self._suite.against is not None:
            pytest.skip("with --perf-against servers are as deep as the GPUs hold, on both stacks")

        if self._suite.wedged() or self._suite.server.hung:
            from ..serving.unavailable import nowhere

            return nowhere()

        return self._suite.server.running(layers)

    @property
    def slice_depths(self) -> tuple[int, int]:
        """Layers of the two rank-slices from which the whole model is extrapolated here; skips without a GPU."""
        self.needs_gpu("a rank-slice of chosen depth")
        from ..serving.models import slice_depths

        return slice_depths(min(gpu.memory_gib for gpu in self._suite.fingerprint.gpus))

    def extrapolate(self, name: str, measured: Mapping[int, Result], layers: int) -> Extrapolation:
        """Report the time of `layers` layers from results at two depths: said as such, never gated nor recorded.

        The test fails if the two say nothing of more layers.
        """
        __tracebackhide__ = True
        one, other = (Depth(depth, result.values) for depth, result in measured.items())
        found = extrapolate(one, other, layers)
        if found.doubt:
            pytest.fail(f"{name}: {found.doubt}", pytrace=False)

        self._suite.progress.say(f"{name}: {found}")
        for field in ("value", "lo", "hi"):
            self._item.user_properties.append((f"perf.{name}.{field}", getattr(found, field)))

        return found

    def gate(self, metric: Metric, source: Source, provenance: Callable[[], Provenance] | None = None) -> Result:
        """Take replicates from `source` until the verdict is settled or the cap is reached; then report it.

        provenance: where the replicates come from, asked after the first of them; the ranks' unless given.
        """
        __tracebackhide__ = True
        suite = self._suite
        if suite.against is not None:
            pytest.skip("with --perf-against only what `measure` and `measure_tpot` do is measured on both stacks")

        suite.claim(metric.name, self._item.nodeid)
        suite.recorder.check()
        where = provenance or (lambda: suite.provenance)
        settled = _or_error(lambda: self._settle(self._with_band(metric), source, where))
        if isinstance(settled, ServerError):
            return self._conclude_error(metric, source.level, settled)

        judgement, measurement = settled
        try:
            recorded = suite.recorder.keep(judgement, measurement, where())
        except DecodegateError:
            suite.report(Result(self._item.nodeid, judgement, None), self._item)
            raise

        ranks = measurement.facts.get("ranks")
        return self._conclude(
            judgement, recorded, measurement.replicates, tuple(ranks) if isinstance(ranks, list) else ()
        )

    def _conclude_error(self, metric: Metric, level: Level, error: ServerError) -> Result:
        """A server that failed is a row of the table, too: INVALID, with what it said."""
        __tracebackhide__ = True
        self._suite.doubt(error)
        reasons = (f"{type(error).__name__}: {error}",)
        judgement = Judgement(self._with_band(metric), Verdict.INVALID, level, 0, None, reasons=reasons)
        return self._conclude(judgement, None, ())

    def _conclude_against(self, judgement: Judgement, replicates: Sequence[Replicate]) -> Result:
        """As `_conclude`, of a metric that was measured on two stacks: nothing is recorded."""
        __tracebackhide__ = True
        return self._conclude(replace(judgement, notes=(*judgement.notes, *self._suite.found)), None, replicates)

    def _conclude(
        self,
        judgement: Judgement,
        recorded: Path | None,
        replicates: Sequence[Replicate],
        ranks: Sequence[Json] = (),
    ) -> Result:
        """Report it, and fail the test unless it passes."""
        __tracebackhide__ = True
        values = tuple(one.value for one in replicates)
        advisory = marker_advisory(self._item)
        result = Result(self._item.nodeid, judgement, recorded, values, advisory, rates(replicates), ranks)
        self._suite.report(result, self._item)
        if not result.passes:
            pytest.fail(explain(judgement), pytrace=False)

        return result

    def _settle(
        self, metric: Metric, source: Source, provenance: Callable[[], Provenance]
    ) -> tuple[Judgement, Measurement]:
        """One look after the first replicates, one at the cap. Recording needs no second look."""
        settings = self._suite.settings
        looks = sorted({settings.replicates, settings.max_replicates})
        if source.level == "server" and settings.server_restarts:
            looks = [settings.server_restarts]
        if settings.record == "all":
            looks = looks[:1]

        replicates: list[Replicate] = []
        for count in looks:
            replicates.extend(source.take(count - len(replicates)))
            measured = replace(metric, contract={**metric.contract, **source.contract})
            measurement = Measurement(measured, tuple(replicates), source.level, source.facts)
            selection = self._suite.recorder.select(metric.name, provenance())
            judgement = judge(
                measurement,
                selection,
                invalid=source.broken,
                wrong=source.wrong,
                looks=len(looks),
                notes=[*source.notes, *self._suite.found],
            )
            if judgement.verdict is not Verdict.INCONCLUSIVE:
                break

        return judgement, measurement

    def _with_band(self, metric: Metric) -> Metric:
        """The tolerance band: ini option over marker over the test's own."""
        marker = marker_tolerance(self._item)
        own = metric.tolerance if marker is None else marker
        return replace(metric, tolerance=self._suite.settings.tolerance(metric.name, own))

    def _invalid_if_wedged(self, metric: Metric, level: Level) -> Result | None:
        """INVALID, at once, on GPUs or a server that an earlier test left wedged; None where all is well.

        Each try would cost its deadline.
        """
        __tracebackhide__ = True
        hung = self._suite.server.hung if level in ("window", "server") else ()
        if not (reasons := self._suite.wedged() or hung):
            return None

        judgement = Judgement(self._with_band(metric), Verdict.INVALID, level, 0, None, reasons=reasons)
        return self._conclude(judgement, None, ())

    def _skip_if_impossible(self, world_size: int) -> None:
        """Each rank needs a GPU of its own; without any, a core: otherwise the scheduler would be measured."""
        if reason := self._suite.too_few_gpus(world_size):
            pytest.skip(reason)

        cores = self._suite.fingerprint.host.cores
        if not self.has_gpu and world_size > cores:
            pytest.skip(f"no GPU, and {world_size} ranks on {cores} cores would time the scheduler")
