"""Pairs of gangs: the same workload on fresh gangs of two stacks, checked on both, sampled in turn A B B A."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import pytest

from ..errors import DecodegateError, GangError
from ..metric import Replicate
from .gang_source import GangSource
from .sampler import GangSampler
from .sampling import Plan, Turns, in_turn
from .source import Taken

if TYPE_CHECKING:
    from ..gang.controller import Gang
    from ..machine.watch import Telemetry, Watch
    from .bench import Bench

SideName = Literal["base", "candidate"]
SIDES: tuple[SideName, SideName] = ("base", "candidate")
Turn: TypeAlias = tuple[SideName, int]
"""A gang in a round: its side, and the number of its pair from 0."""


class StackFailed(GangError):
    """One of two stacks could not do what it was asked: `error`. base: what the base gave so far, if anything."""

    def __init__(self, side: SideName, error: DecodegateError) -> None:
        super().__init__(f"the {side} failed: {error.finding}", repeats=error)
        self.side = side
        self.error = error
        self.base: tuple[Replicate, ...] = ()


@dataclass(frozen=True, slots=True)
class PairBench:
    """Gangs of two stacks for one world size; they hold the machine together."""

    base: Bench
    candidate: Bench

    @property
    def world_size(self) -> int:
        """Ranks of each gang, on either side."""
        return self.base.world_size

    def output(self) -> list[tuple[str, str]]:
        """What the ranks of both wrote since last asked."""
        return [*self.base.output(), *self.candidate.output()]

    def close(self) -> None:
        """End all gangs of both."""
        self.base.dismiss()
        self.candidate.dismiss()
        self.base.close()
        self.candidate.close()


@contextmanager
def blamed(side: SideName) -> Iterator[None]:
    """Say which stack it was that failed."""
    try:
        yield
    except StackFailed:
        raise
    except DecodegateError as error:
        raise StackFailed(side, error) from error


class _Sampler:
    """A sampler whose failure names its side."""

    def __init__(self, side: SideName, sampler: GangSampler) -> None:
        self._side: SideName = side
        self._sampler = sampler

    def sample(self, count: int) -> list[float]:
        with blamed(self._side):
            return self._sampler.sample(count)

    def forget(self) -> None:
        self._sampler.forget()


class PairSource:
    """The workload of two sources, on as many gangs of each; leaving it closes it on all.

    Numbers are checked on both sides before anything is timed. What fails raises StackFailed, which keeps what the
    base has measured: alone, if the candidate did not come as far as that. What the base skips is skipped.
    """

    def __init__(
        self,
        base: GangSource,
        candidate: GangSource,
        *,
        plan: Plan,
        watch: Callable[[], AbstractContextManager[Watch]],
        on_turn: Callable[[int, int], None],
    ) -> None:
        self.base = base
        self.candidate = candidate
        self._plan = plan
        self._watch = watch
        self._on_turn = on_turn
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        self._exits.enter_context(self.base)
        self._exits.enter_context(self.candidate)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exits.__exit__(kind, error, tb)

    def take(self, count: int) -> tuple[Taken, Taken]:
        """What the base and the candidate gave of `count` pairs; no replicates at all if numbers are wrong."""
        with blamed("base"):
            old = self.base.set_up(count)
        if self.base.wrong:
            return self.base.taken, self.candidate.taken
        try:
            with blamed("candidate"):
                new = self._candidates(count)
        except StackFailed as failure:
            failure.base = tuple(self._base_alone(old))
            raise

        if not self.candidate.wrong:
            self._sample(old, new)

        return self.base.taken, self.candidate.taken

    def _candidates(self, count: int) -> list[Gang]:
        """The candidate's gangs, set up. Skipping what the base can do is a loss, not a reason to skip the test."""
        try:
            return self.candidate.set_up(count)
        except pytest.skip.Exception as skipped:
            raise GangError(f"it skips what the base can do: {skipped}") from skipped

    def _base_alone(self, gangs: Sequence[Gang]) -> list[Replicate]:
        """What the base measures when there is no candidate beside it."""
        samplers = self.base.samplers(gangs)
        with blamed("base"):
            in_turn(samplers, self._plan, self._on_turn)

        return _so_far(samplers)

    def _sample(self, old: Sequence[Gang], new: Sequence[Gang]) -> None:
        sides = {"base": self.base.samplers(old), "candidate": self.candidate.samplers(new)}
        order = abba(len(old))
        try:
            with self._watch() as watch:
                samplers = [_Sampler(side, sides[side][number]) for side, number in order]
                turns = dict(zip(order, in_turn(samplers, self._plan, self._on_turn), strict=True))
        except StackFailed as failure:
            failure.base = tuple(_so_far(sides["base"]))
            raise

        telemetry = watch.report()
        self._keep("base", sides["base"], turns, telemetry)
        self._keep("candidate", sides["candidate"], turns, telemetry)

    def _keep(
        self, side: SideName, samplers: Sequence[GangSampler], turns: Mapping[Turn, Turns], telemetry: Telemetry
    ) -> None:
        source = self.base if side == "base" else self.candidate
        with blamed(side):
            source.keep(samplers, [turns[side, number] for number in range(len(samplers))], telemetry)


def abba(pairs: int) -> list[Turn]:
    """The order of one round: base 0, candidate 0, candidate 1, base 1, base 2, ...

    Every other round is reversed, so that each pair runs A B B A and no side is always first.
    """
    return [(side, number) for number in range(pairs) for side in (SIDES if number % 2 == 0 else reversed(SIDES))]


def _so_far(samplers: Sequence[GangSampler]) -> list[Replicate]:
    """Replicates of the samples taken so far; those of a clock that stands still are none."""
    return [sampler.replicate(sampler.taken, 0) for sampler in samplers if sampler.taken and not sampler.broken_clock]
