"""The perf fixture: measure a metric, have it judged and recorded, and fail the test with the gate's own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from ..cause import Cause, Finding
from ..errors import BadInput, DecodegateError, ServerError
from ..gate.decision import with_one_cause
from ..gate.evidence.depth import Depth, Extrapolation, extrapolate
from ..gate.result import Result, spreads
from ..gate.text.explain import explain, explain_briefly
from ..gate.verdict import Basis, Judgement, Verdict
from ..measure.beside_tpot import QUANTITIES
from ..measure.sampling import Plan
from ..metric import Level, Metric
from ..reference.protocol import GangWork, Interrupted, Judged, ServerWork
from ..report.rates import rates
from ..settings.markers import declared_load, declared_metrics, marker_advisory, marker_tolerance

if TYPE_CHECKING:
    from ..machine.provenance import Provenance
    from ..measure.source import Progress, Source
    from ..measure.window import Load
    from ..profile.step_profile import StepProfile
    from ..reference.protocol import Reference
    from ..resources.gangs import Gangs
    from ..resources.hardware import Hardware
    from ..resources.server import ServerUnderTest
    from ..serving.server import Server
    from ..settings.settings import Settings
    from .results import Results


SAMPLING_SHARE = 1 / 8
"""Part of the band that the sampling error of one replicate may take; what is left is for differences of processes."""


def _invalid(metric: Metric, level: Level, reasons: tuple[Finding, ...]) -> Judged:
    return Judged(Judgement(metric, Verdict.INVALID, Basis(level), reasons=reasons))


@dataclass(eq=False)
class Perf:
    """What a perf test calls. One metric per call; several calls per test are fine until one fails."""

    _item: pytest.Item
    _settings: Settings
    _hardware: Hardware
    _gangs: Gangs
    _reference: Reference
    _results: Results
    _progress: Progress
    _servers: ServerUnderTest
    _doubt: Callable[[DecodegateError], None]

    @property
    def has_gpu(self) -> bool:
        """Whether this run sees a GPU; without one a test measures its stand-in, under another name."""
        return self._hardware.has_gpu

    def pin(self, name: str) -> str | None:
        """The backend that the user pins by --perf-pin for `name`, of settings.values.PINS; None leaves the choice."""
        return self._settings.pins.get(name)

    def needs_gpu(self, what: str) -> None:
        """Skip the test without a GPU; `what` says what it measures there."""
        if not self.has_gpu:
            pytest.skip(f"no GPU ({self._hardware.fingerprint.no_gpu_reason}): {what}")

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

        workload: a module-level function that runs on each rank and returns a workloads.runtime.timing.Workload; its
        numbers are checked before anything is timed. Fails the test unless the verdict passes or was recorded.
        """
        __tracebackhide__ = True
        self._skip_if_impossible(world_size)

        def judged(metric: Metric) -> Judged:
            precision = plan or Plan(precision=metric.tolerance * SAMPLING_SHARE)
            return self._reference.measure(GangWork(metric, workload, params, world_size, precision))

        return self._conclude(metric, "gang", judged)

    def measure_tpot(self, metric: Metric, server: Server, load: Load) -> Result:
        """Measure the time per output token of `server` under `load`, a closed loop, and gate it.

        Where the baseline holds answers, those of `server` are judged first; it is not timed if they are wrong. With
        --perf-server-restarts the suite's server is started again and again: `server` is then another one afterwards.
        What else the windows give (TTFT, times between tokens, tokens per second) is gated, too, where perf_tolerance
        has a line that begins with its name, such as "ttft[c=8] = 5%".
        """
        __tracebackhide__ = True
        self._refuse_another_load(load)
        bands = (
            (quantity, self._settings.own_band(quantity.name(metric.name), quantity.stem)) for quantity in QUANTITIES
        )
        beside = [(quantity.metric(metric, band), quantity) for quantity, band in bands if band is not None]

        def judged(metric: Metric) -> Judged:
            return self._reference.measure_tpot(ServerWork(metric, server, load, beside))

        return self._conclude(metric, "window", judged, [metric for metric, _ in beside])

    def measure_plateau(self, metric: Metric, server: Server, load: Load, *, most: int) -> Result:
        """Sweep the concurrency of `server` over 1, 2, 4 ... `most` streams, and gate the throughput of its plateau.

        `load` is for one stream: its concurrency and the number of its requests grow with the sweep.
        """
        __tracebackhide__ = True

        def judged(metric: Metric) -> Judged:
            return self._reference.measure_plateau(ServerWork(metric, server, load), most)

        return self._conclude(metric, "window", judged)

    def measure_quality(self, server: Server) -> Result:
        """Compare the greedy answers of `server` with the baseline's, which agree among themselves only so far."""
        __tracebackhide__ = True

        def judged(metric: Metric) -> Judged:
            return self._reference.measure_quality(metric, server)

        return self._conclude(self._reference.quality_metric(server), "window", judged)

    def gate(self, metric: Metric, source: Source, provenance: Callable[[], Provenance] | None = None) -> Result:
        """Take replicates from `source` until the verdict is settled or the cap is reached; then report it.

        provenance: where the replicates come from, asked after the first of them; the ranks' unless given.
        """
        __tracebackhide__ = True

        def judged(metric: Metric) -> Judged:
            return self._reference.measure_source(metric, source, provenance)

        return self._conclude(metric, source.level, judged)

    def slice_server(self, layers: int) -> Server:
        """The suite's own server as a rank-slice of `layers` layers; skips where another one is served."""
        self.needs_gpu("a rank-slice of chosen depth")
        if self._settings.server or self._settings.launched(self._settings.stack):
            pytest.skip("only the suite's own rank-slice has a depth to choose")

        if self._unusable("window"):
            from ..serving.unreachable import unreachable_server

            return unreachable_server()

        return self._reference.slice_server(layers)

    @property
    def slice_depths(self) -> tuple[int, int]:
        """Layers of the two rank-slices from which the whole model is extrapolated here; skips without a GPU."""
        self.needs_gpu("a rank-slice of chosen depth")
        from ..serving.models import slice_depths

        return slice_depths(min(gpu.memory_gib for gpu in self._hardware.fingerprint.gpus))

    def extrapolate(self, name: str, measured: Mapping[int, Result], layers: int) -> Extrapolation:
        """Report the time of `layers` layers from results at two depths: said as such, never gated nor recorded.

        The test fails if the two say nothing of more layers.
        """
        __tracebackhide__ = True
        shallow, deep = (Depth(depth, result.values) for depth, result in measured.items())
        found = extrapolate(shallow, deep, layers)
        if found.doubt:
            pytest.fail(f"{name}: {found.doubt}", pytrace=False)

        self._progress.say(f"{name}: {found}")
        for field in ("value", "lo", "hi"):
            self._item.user_properties.append((f"perf.{name}.{field}", getattr(found, field)))

        return found

    def profile(self, streams: int) -> StepProfile:
        """Profile the decode step of `streams` streams on a server of ours with a profiler, which is started for it.

        It serves all profiles that follow each other.
        The table becomes a section of the test's report, and a file holds it as JSON. Fails the test unless a step
        launches what the model needs. Skips without a GPU, and where a server runs already or two stacks take turns.
        """
        __tracebackhide__ = True
        self.needs_gpu("a profile of a decode step is one of a GPU's kernels")
        if self._settings.server or self._settings.base is not None:
            pytest.skip("a server is started for a profile; of one that runs: decodegate profile --server URL")
        if unusable := self._unusable("window"):
            pytest.fail(unusable[0], pytrace=False)

        from .profiling import profile_server

        found = profile_server(self._servers, streams, self._progress)
        self._item.add_report_section("call", "profile", "\n".join(found.lines))
        if found.problems:
            pytest.fail("\n".join([*found.problems, *found.lines]), pytrace=False)

        self._results.note_profile(self._item, found.profile)
        return found.profile

    def _conclude(
        self, metric: Metric, level: Level, measure: Callable[[Metric], Judged], beside: Sequence[Metric] = ()
    ) -> Result:
        """Measure under the band that holds here, report what came out, and fail the test unless it passes.

        beside: metrics that `measure` judges beside this one; where it came to nothing they are reported with it.
        """
        __tracebackhide__ = True
        metric = self._with_band(metric)
        if unusable := self._unusable(level):  # each try would cost its deadline
            judged = _invalid(metric, level, unusable)
        else:
            self._refuse_undeclared(metric)
            for each in (metric, *beside):
                self._results.claim(each.name, self._item.nodeid)
            with self._results.naming_failures(metric, self._item.nodeid):
                judged = self._measured(metric, level, measure)

        others = judged.beside or [_invalid(each, level, judged.judgement.reasons) for each in beside]
        results = [(each, self._result(each)) for each in (judged, *others)]
        if failed := [self._explained(result) for _, result in results if not result.passes]:
            pytest.fail("\n\n".join(failed), pytrace=False)

        return results[0][1]

    def _explained(self, result: Result) -> str:
        """The gate's words for the first metric of a cause, and where these are for the others."""
        same = with_one_cause(self._results.run.results, result)
        return explain_briefly(result.judgement, same.name) if same else explain(result.judgement)

    def _unusable(self, level: Level) -> tuple[Finding, ...]:
        """Why GPUs, or the server that `level` is of, are not to be asked again in this session."""
        sick = tuple(Finding(reason, Cause.SICK_GPU, reason) for reason in self._hardware.wedged())
        return sick or (self._servers.hung if level in ("window", "server") else ())

    def _measured(self, metric: Metric, level: Level, measure: Callable[[Metric], Judged]) -> Judged:
        """What `measure` gives; a server that failed is a row of the table, too: INVALID, with what it said.

        So is what a run that was stopped has measured of the metric.
        """
        try:
            return measure(metric)
        except Interrupted as interrupt:
            self._result(interrupt.judged)
            raise interrupt.by from None
        except ServerError as error:
            failure = error

        # Outside of the except block: pytest would show the traceback of an error that is being handled.
        self._doubt(failure)
        return _invalid(metric, level, (failure.finding,))

    def _result(self, judged: Judged) -> Result:
        """Record what is to be recorded, and report it; what cannot be recorded is reported all the same."""
        try:
            recorded = judged.record()
        except DecodegateError:
            self._results.add(Result(self._item.nodeid, judged.judgement, None), self._item, judged.world_size)
            raise

        values = tuple(replicate.value for replicate in judged.replicates)
        advisory = marker_advisory(self._item) or judged.judgement.basis.elsewhere
        achieved = rates(judged.replicates)
        path, band, gated = recorded or (None, None, False)
        result = Result(
            self._item.nodeid,
            judged.judgement,
            path,
            values,
            advisory,
            achieved,
            judged.ranks,
            band=band,
            gated=gated,
            processes=(*spreads(judged.base, is_base=True), *spreads(judged.replicates)),
            gpus=judged.gpus,
        )
        self._results.add(result, self._item, judged.world_size)
        return result

    def _with_band(self, metric: Metric) -> Metric:
        """The tolerance band: ini option over marker over the test's own."""
        marker = marker_tolerance(self._item)
        own = metric.tolerance if marker is None else marker
        return replace(metric, tolerance=self._settings.tolerance(metric.name, own))

    def _refuse_undeclared(self, metric: Metric) -> None:
        """What a test declares is what users choose and foresee by, so it must be what it measures."""
        declared = declared_metrics(self._item).names
        if declared and metric.name not in declared:
            raise BadInput(
                f"{self._item.nodeid} declares {' or '.join(map(repr, declared))} in its perf marker and measures "
                f"{metric.name!r}; make them the same, for --perf-only and the forecast go by what is declared"
            )

    def _refuse_another_load(self, load: Load) -> None:
        """What a test declares is measured on each server that is started, so it must be what it measures under."""
        declared = declared_load(self._item)
        if declared is not None and declared != load:
            raise BadInput(
                f"{self._item.nodeid} declares load={declared!r} in its perf marker and measures under {load!r}; make "
                "them the same"
            )

    def _skip_if_impossible(self, world_size: int) -> None:
        """Each rank needs a GPU of its own; without any, a core: otherwise the scheduler would be measured."""
        if reason := self._gangs.too_few_gpus(world_size):
            pytest.skip(reason)

        cores = self._hardware.fingerprint.host.cores
        if not self.has_gpu and world_size > cores:
            pytest.skip(f"no GPU, and {world_size} ranks on {cores} cores would time the scheduler")
