"""Two stacks in one session: the gangs of both, what these really loaded, and metrics measured on both in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DecodegateError
from ..gate.pairs import Contrast, judge_pairs, planned_looks
from ..gate.result import Stacks
from ..gate.text.quantity import format_value
from ..gate.verdict import Judgement, Verdict, geometric_mean
from ..machine.provenance import differences, undeclared
from ..machine.stack import agree, probe, variables
from ..measure.gang_source import GangSource
from ..measure.paired_source import PairBench, PairSource, SideName, StackFailed, blamed
from ..metric import Metric, Replicate
from ..settings.stack import Loaded, Stack, declared, describe, variable_differences, without_effect
from . import outcomes
from .attached import AttachedServers
from .side import Half
from .unreached import Measured, unreached

if TYPE_CHECKING:
    import pytest

    from ..machine.provenance import Provenance
    from ..measure.bench import Bench
    from ..measure.sampling import Plan
    from ..measure.window import Load
    from ..measure.window_source import WindowSource
    from ..serving.server import Server
    from ..session.session import Suite
    from .servers_in_turn import Servers


@dataclass(frozen=True, slots=True)
class Asked:
    """What a perf test asks to be measured."""

    metric: Metric
    workload: Callable[..., Any]
    params: dict[str, Any]
    world_size: int
    plan: Plan


class Against:
    """The base and the candidate of a session. failures: by test, the metric that could not be measured, and why."""

    def __init__(self, suite: Suite, base: Stack, candidate: Stack) -> None:
        self.stacks = (base, candidate)
        self.failures: dict[str, tuple[Metric | None, DecodegateError]] = {}
        self._suite = suite
        self._benches: dict[int, PairBench] = {}
        self._contrasts: dict[int, Contrast] = {}
        self._begun: set[str] = set()
        self._measured: list[Measured] = []
        self._started = time.monotonic()
        self._attached: AttachedServers | None = None
        if base.server and candidate.server:
            self._attached = AttachedServers(suite, base.server, candidate.server)

    def __str__(self) -> str:
        return describe(self.stacks)

    def bench(self, world_size: int) -> PairBench:
        """The gangs of both stacks for one world size; whoever held the machine before is asked to leave."""
        if world_size not in self._benches:
            base, candidate = self.stacks
            self._benches[world_size] = PairBench(
                self._suite.new_bench(world_size, base, "base-"),
                self._suite.new_bench(world_size, candidate, "candidate-"),
            )

        bench = self._benches[world_size]
        self._suite.move_in(bench)
        return bench

    def close_bench(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""
        if bench := self._benches.get(world_size):
            self._suite.tenancy.move_out(bench)

    def output(self) -> list[tuple[str, str]]:
        """What the ranks of all gangs wrote since last asked: (section title, text)."""
        return [section for bench in self._benches.values() for section in bench.output()]

    def note(self, report: pytest.TestReport, *, passing: bool, advisory: bool) -> None:
        """Write down a perf test that says more than its verdicts: skipped, or failed although all verdicts pass."""
        self._begun.add(report.nodeid)
        if report.skipped:
            self._suite.announce(outcomes.skipped(report))
        elif report.failed and passing:
            failure = self.failures.pop(report.nodeid, None)
            self._suite.announce(outcomes.failed(report, failure, advisory=advisory))

    def end(self, exit_status: int) -> None:
        """Write down that the run came to its end."""
        if not self._contrasts:
            self._write_stacks(Contrast())

        left_out = self._suite.selected - len(self._begun)
        seconds = time.monotonic() - self._started
        self._suite.announce(outcomes.ended(exit_status, self._suite.problem, left_out, seconds))

    def unreached(self) -> str | None:
        """Which slowdown of a stack reached none of the metrics; None too if some tests were never begun."""
        all_begun = len(self._begun) >= self._suite.selected
        return unreached(self.stacks, self._measured) if all_begun else None

    def measure(self, asked: Asked, nodeid: str) -> tuple[Judgement, tuple[Replicate, ...]]:
        """The judgement and the candidate's replicates; a stack that cannot do the work raises StackFailed.

        That failure is kept in `failures`, with what the base measured. Skips where both stacks are attached servers.
        """
        if self._attached is not None:
            self._attached.skip_ranks()

        with self._keeping_failures(asked.metric, nodeid):
            judged = self._settle(asked)

        self._measured.append(Measured(asked.metric.name, asked.world_size))
        return judged

    def server(self, nodeid: str) -> Server:
        """A fresh server of the candidate. What both stacks load is read before, while ranks may hold the machine.

        Or the candidate that is attached, after both have said what they are.
        """
        with self._keeping_failures(None, nodeid):
            if self._attached is not None:
                return self._attached_candidate(self._attached)
            if not self._contrasts:
                self._contrasts[1] = self._contrast(self.bench(1))
            with blamed("candidate"):
                return self._suite.server.fresh(self.stacks[1])

    def _attached_candidate(self, servers: AttachedServers) -> Server:
        self._suite.tenancy.move_out()
        if not self._contrasts:
            allowed = declared(*self.stacks) | self._suite.settings.change
            self._contrasts[1] = servers.contrast(allowed)
            self._announce(self._contrasts[1])

        return servers.server("candidate")

    def measure_tpot(
        self, metric: Metric, candidate: Server, load: Load, nodeid: str
    ) -> tuple[Judgement, tuple[Replicate, ...]]:
        """As `measure`, on fresh servers in turn, or on those that are attached; `candidate` is the first of them."""
        from .servers_in_turn import Budget, Sandwich

        settings = self._suite.settings
        budget = Budget(settings.replicates, settings.max_replicates, settings.budget_seconds)
        (contrast, *_) = self._contrasts.values()
        sandwich = Sandwich(self._servers(metric, load, contrast), metric, contrast, budget)
        with self._keeping_failures(metric, nodeid):
            judgement = sandwich.judgement(candidate)

        self._measured.append(Measured(metric.name, 0))
        return judgement, sandwich.replicates

    def _servers(self, metric: Metric, load: Load, contrast: Contrast) -> Servers:
        from .servers_in_turn import Servers

        suite = self._suite

        def window(server: Server) -> WindowSource:
            return suite.window_source(metric.name, server, load)

        def fresh(side: SideName) -> Server:
            return suite.server.fresh(self.stacks[0] if side == "base" else self.stacks[1])

        if self._attached is None:
            return Servers(fresh, window, suite.answers.source)

        notes = self._attached.notes(contrast)
        return Servers(self._attached.server, window, suite.answers.source, level="window", notes=notes)

    @contextmanager
    def _keeping_failures(self, metric: Metric | None, nodeid: str) -> Iterator[None]:
        """Note what failed, and say what the base has measured so far."""
        try:
            yield
        except DecodegateError as failure:
            self.failures[nodeid] = (metric, failure)
            if metric is not None and isinstance(failure, StackFailed):
                self._say_what_the_base_gave(metric, failure)
            raise

    def _say_what_the_base_gave(self, metric: Metric, failure: StackFailed) -> None:
        base = geometric_mean([replicate.value for replicate in failure.base])
        if base is not None:
            what = f"the {failure.side} failed; the base measured {format_value(base, metric.unit)}"
            self._suite.progress.say(f"{metric.name}: {what}")

    def _settle(self, asked: Asked) -> tuple[Judgement, tuple[Replicate, ...]]:
        """Pairs until the verdict is settled or the cap is reached; looked at as often as was planned."""
        settings = self._suite.settings
        looks = planned_looks(settings.replicates, settings.max_replicates)
        base, candidate = Half(GangSource.level), Half(GangSource.level)
        for look in looks:
            while (missing := look - len(candidate.replicates)) > 0 and self._sound(asked.world_size, base, candidate):
                self._add_pairs(asked, min(missing, settings.replicates), base, candidate)

            contrast = self._contrasts[asked.world_size]
            sides = base.side(asked.metric), candidate.side(asked.metric)
            judgement = judge_pairs(*sides, contrast, len(looks))
            if judgement.verdict is not Verdict.INCONCLUSIVE:
                break

        return judgement, sides[1].measurement.replicates

    def _sound(self, world_size: int, base: Half, candidate: Half) -> bool:
        """Whether to measure on: numbers are right, rules are kept, and the stacks are the ones asked for."""
        contrast = self._contrasts.get(world_size, Contrast())
        return base.sound and candidate.sound and not contrast.unused

    def _add_pairs(self, asked: Asked, count: int, base: Half, candidate: Half) -> None:
        """Measure `count` more pairs, on gangs that have not measured this metric."""
        bench = self.bench(asked.world_size)
        if base.replicates:
            # More of the same processes would say nothing new, and as many again would need twice the memory.
            self._suite.tenancy.move_out(bench)
            self._suite.move_in(bench)

        with self._source(asked, bench) as source:
            try:
                pairs = source.take(count)
            except StackFailed as failure:
                failure.base = (*base.replicates, *failure.base)
                raise

            base.add(source.base, pairs[0])
            candidate.add(source.candidate, pairs[1])
            if asked.world_size not in self._contrasts:
                self._contrasts[asked.world_size] = self._contrast(bench)

    def _source(self, asked: Asked, bench: PairBench) -> PairSource:
        suite = self._suite

        def half(one: Bench) -> GangSource:
            return suite.gang_source(asked.metric.name, one, asked.workload, asked.params, asked.plan)

        def on_turn(taken: int, most: int) -> None:
            suite.progress.tick(f"{asked.metric.name}: {taken} of at most {most} samples from each gang of both stacks")

        return PairSource(
            half(bench.base),
            half(bench.candidate),
            plan=asked.plan,
            watch=suite.devices.watch,
            on_turn=on_turn,
        )

    def _contrast(self, bench: PairBench) -> Contrast:
        """What the ranks of both sides really loaded, and how that fits what was asked for; said once a session."""
        names = sorted({name for one in self.stacks for name, _ in one.env})
        with blamed("base"):
            old = self._loaded(bench.base, names)
        with blamed("candidate"):
            new = self._loaded(bench.candidate, names)

        sides = [self._provenance(*one) for one in zip(self.stacks, (old, new), strict=True)]
        known = differences(*sides)
        fields = {one.field for one in known}
        found = (*known, *(one for one in variable_differences(old, new) if one.field not in fields))
        contrast = Contrast(
            found,
            undeclared(found, declared(*self.stacks) | self._suite.settings.change),
            without_effect(self.stacks, (old, new)),
        )
        if not self._contrasts:
            self._announce(contrast)

        return contrast

    def _announce(self, contrast: Contrast) -> None:
        found = "; ".join(map(str, contrast.differences)) or "nothing differs"
        self._suite.progress.say(f"two stacks: {self}; {found}")
        self._write_stacks(contrast)

    def _write_stacks(self, contrast: Contrast) -> None:
        base, candidate = map(str, self.stacks)
        self._suite.announce(Stacks(base, candidate, self._suite.machine_class, contrast))

    def _loaded(self, bench: Bench, names: list[str]) -> Loaded:
        gang = bench.gangs(1)[0]
        seconds = self._suite.settings.start_seconds
        facts = agree(gang.run(probe, deadline_seconds=seconds))
        return Loaded(facts, gang.run(variables, names, deadline_seconds=seconds)[0])

    def _provenance(self, stack: Stack, loaded: Loaded) -> Provenance:
        from ..machine.fingerprint import provenance

        return provenance(self._suite.fingerprint, loaded.facts, {**os.environ, **stack.environment()})
