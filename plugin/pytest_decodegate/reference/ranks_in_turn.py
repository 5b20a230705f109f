"""Metrics of ranks on two stacks: gangs of both live side by side and are sampled in turn, pair after pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..gate.confirming import is_open
from ..gate.pairs import Contrast, Side, judge_pairs
from ..gate.stats.looks import planned_looks
from ..machine.cards import gpus_seen
from ..measure.paired_source import SIDES, PairBench, PairSource, StackFailed
from ..measure.source import Taken, joined
from .loaded import as_declared
from .protocol import GangWork, Judged

if TYPE_CHECKING:
    from ..gate.verdict import Judgement
    from ..measure.bench import Bench
    from ..measure.gang_source import GangSource
    from ..measure.source import Progress
    from ..metric import Metric
    from ..resources.gangs import Gangs
    from ..resources.hardware import Hardware
    from ..resources.sources import Sources
    from ..settings.settings import Settings
    from .contrasts import Contrasts


def side_of(taken: Taken, metric: Metric) -> Side:
    """What one stack gave, as the gate wants it."""
    return Side(taken.measurement(metric), taken.wrong, taken.broken, taken.notes)


@dataclass(frozen=True, slots=True)
class _Wave:
    """What base and candidate gave so far, over all waves of fresh gangs."""

    base: Taken
    candidate: Taken

    @property
    def sound(self) -> bool:
        return self.base.sound and self.candidate.sound

    def and_then(self, base: Taken, candidate: Taken) -> _Wave:
        return _Wave(joined([self.base, base]), joined([self.candidate, candidate]))


class RanksInTurn:
    """Gangs of two stacks, by world size, and the metrics that are measured on both.

    metrics: how many of the run are weighed together. material: says what a judgement means for the decode step.
    """

    def __init__(
        self,
        settings: Settings,
        hardware: Hardware,
        gangs: Gangs,
        sources: Sources,
        progress: Progress,
        contrasts: Contrasts,
        metrics: Callable[[], int],
        material: Callable[[Judgement], Judgement],
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._gangs = gangs
        self._sources = sources
        self._progress = progress
        self._contrasts = contrasts
        self._metrics = metrics
        self._material = material
        self._benches: dict[int, PairBench] = {}

    def bench(self, world_size: int) -> PairBench:
        """The gangs of both stacks for one world size; whoever held the machine before is asked to leave."""
        if world_size not in self._benches:
            base, candidate = self._contrasts.stacks
            self._benches[world_size] = PairBench(
                self._gangs.new_bench(world_size, base, "base-"),
                self._gangs.new_bench(world_size, candidate, "candidate-"),
            )

        bench = self._benches[world_size]
        self._hardware.take(bench, bench.close)
        return bench

    def close(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""
        if bench := self._benches.get(world_size):
            self._hardware.lease.release(bench)

    def output(self) -> list[tuple[str, str]]:
        """What the ranks of all gangs wrote since last asked: (section title, text)."""
        return [section for bench in self._benches.values() for section in bench.output()]

    def measure(self, work: GangWork) -> Judged:
        """Pairs until the verdict is settled or the cap is reached, looked at as often as was planned.

        A stack that cannot do the work raises StackFailed.
        """
        looks = planned_looks(self._settings.replicates, self._settings.max_replicates)
        wave = self._first(work)
        judgement = self._look(work, wave, len(looks))
        for look in looks[1:]:
            if not is_open(judgement, self._metrics()):
                break

            wave = self._more(work, wave, look)
            judgement = self._look(work, wave, len(looks))

        return Judged(
            judgement,
            wave.candidate.replicates,
            world_size=work.world_size,
            base=wave.base.replicates,
            gpus=gpus_seen(wave.candidate.facts),
        )

    def _look(self, work: GangWork, wave: _Wave, looks: int) -> Judgement:
        sides = side_of(wave.base, work.metric), side_of(wave.candidate, work.metric)
        return self._material(judge_pairs(*sides, self._contrasts.known[work.world_size], looks))

    def _first(self, work: GangWork) -> _Wave:
        bench = self.bench(work.world_size)
        return _Wave(*self._pairs(work, bench, self._settings.replicates))

    def _more(self, work: GangWork, wave: _Wave, look: int) -> _Wave:
        """Waves of fresh gangs up to `look` pairs, while numbers are right and the stacks are the ones asked for."""
        contrast: Contrast = self._contrasts.known[work.world_size]
        while (missing := look - len(wave.candidate.replicates)) > 0 and wave.sound and not contrast.unused:
            # More of the same processes would say nothing new, and as many again would need twice the memory.
            bench = self.bench(work.world_size)
            self._hardware.lease.release(bench)
            self._hardware.take(bench, bench.close)
            try:
                wave = wave.and_then(*self._pairs(work, bench, min(missing, self._settings.replicates)))
            except StackFailed as failure:
                failure.base = (*wave.base.replicates, *failure.base)
                raise

        return wave

    def _pairs(self, work: GangWork, bench: PairBench, count: int) -> tuple[Taken, Taken]:
        """`count` pairs, on gangs that have not measured this metric."""
        with self._source(work, bench) as source:
            taken = source.take(count)
            self._contrasts.of_ranks(work.world_size, bench)

        base, candidate = map(as_declared, SIDES, self._contrasts.stacks, taken)
        return base, candidate

    def _source(self, work: GangWork, bench: PairBench) -> PairSource:
        def side(bench: Bench) -> GangSource:
            return self._sources.gangs(work.metric.name, bench, work.workload, work.params, work.plan)

        def on_turn(taken: int, most: int) -> None:
            self._progress.tick(f"{work.metric.name}: {taken} of at most {most} samples from each gang of both stacks")

        return PairSource(
            side(bench.base), side(bench.candidate), plan=work.plan, watch=self._hardware.watch, on_turn=on_turn
        )
