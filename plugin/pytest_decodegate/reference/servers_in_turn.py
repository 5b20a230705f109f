"""Servers of two stacks in turn, A B B A, as often as a budget allows: started afresh each time, or both attached."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ..cause import Finding
from ..gate.confirming import is_open
from ..gate.evidence import quality
from ..gate.evidence.starts import Start, start_of, starts_in_turn
from ..gate.pairs import Contrast, judge_pairs
from ..gate.stats.looks import planned_looks
from ..gate.stats.rules import surely_found
from ..gate.text.quantity import format_percent
from ..gate.verdict import Judgement
from ..machine.cards import gpus_seen
from ..measure.answers import NoLogprobs
from ..measure.paired_source import SideName, StackFailed, blamed
from ..measure.source import Taken, joined
from ..metric import DEFAULT_TOLERANCE, Replicate
from .loaded import as_loaded
from .protocol import Judged
from .ranks_in_turn import side_of

if TYPE_CHECKING:
    from ..measure.answers import AnswerSource
    from ..measure.beside_tpot import WindowQuantity
    from ..measure.source import Source
    from ..metric import Metric
    from ..serving.server import Server
    from .loaded import Loaded

LEAST_PAIRS = 2
"""Even beyond the budget: with one pair nothing is known of the noise."""

_PAIRED = {"server": "server starts", "window": "windows"}

ANSWER_PASSES = 2
"""Over the prompts, on the first server of each stack: with two it is known how far one server agrees with itself."""


@dataclass(frozen=True, slots=True)
class Servers:
    """How servers are had and asked.

    start: stops the one that runs and starts a fresh one of a side, or gives the one that is attached. window: a source
    of windows on a server. answers: a source of answers, which come before the clock. clock: in seconds.
    level: what a window stands for, a fresh server or the same again. notes: what a reader should know of the servers.
    loaded: what a process of each side's stack loads, where that was asked.
    """

    start: Callable[[SideName], Server]
    window: Callable[[Server], Source]
    answers: Callable[[Server], AnswerSource]
    clock: Callable[[], float] = time.monotonic
    level: Literal["server", "window"] = "server"
    notes: tuple[Finding, ...] = ()
    loaded: Mapping[SideName, Loaded] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be measured. first, most: pairs. seconds: for all pairs together, starts included.

    metrics: of the run, which are weighed together.
    """

    first: int
    most: int
    seconds: float
    metrics: int = 1


class ServersInTurn:
    """One metric on servers of two stacks; each pair is a window of each, on servers that `servers` start for it."""

    def __init__(self, servers: Servers, metric: Metric, contrast: Contrast, budget: Budget) -> None:
        self._servers = servers
        self._metric = metric
        self._contrast = contrast
        self._budget = budget
        self._taken: dict[SideName, Taken] = {"base": Taken(servers.level), "candidate": Taken(servers.level)}
        self._answers: dict[SideName, Taken] = {}
        self._without: dict[SideName, NoLogprobs] = {}
        self._running: Server | None = None
        self._starts: dict[SideName, list[Start]] = {"base": [], "candidate": []}
        self._looks = 1

    def judgement(self, candidate: Server) -> Judgement:
        """Pairs until the verdict is settled, the cap is reached or the budget is spent; `candidate` runs already.

        Raises StackFailed, with what the base has measured, if a server of one stack does not start or dies.
        """
        self._running = candidate
        try:
            return self._settle()
        except StackFailed as failure:
            failure.base = self._taken["base"].replicates
            raise

    def judged(self, judgement: Judgement) -> Judged:
        """`judgement` with what both stacks have measured for it."""
        base, candidate = self._taken["base"], self._taken["candidate"]
        return Judged(judgement, candidate.replicates, base=base.replicates, gpus=gpus_seen(candidate.facts))

    @property
    def replicates(self) -> tuple[Replicate, ...]:
        """The candidate's so far."""
        return self._taken["candidate"].replicates

    def beside(self, metric: Metric, quantity: WindowQuantity) -> Judged:
        """Another quantity of the windows that were measured; no pair is added for it."""
        base, candidate = (quantity.taken(self._taken[side]) for side in ("base", "candidate"))
        sides = side_of(base, metric), side_of(candidate, metric)
        judgement = judge_pairs(*sides, self._contrast, self._looks)
        return Judged(judgement, candidate.replicates, base=base.replicates)

    def _settle(self) -> Judgement:
        clock = self._servers.clock
        started = clock()
        looks = self._first_pairs()
        self._looks = len(looks)
        for look in looks:
            while (taken := len(self.replicates)) < look and self._sound:
                self._pair(taken)

            judgement = self._judged(self._looks)
            if not is_open(judgement, self._budget.metrics):
                break

        pairs, minutes = judgement.basis.replicates, (clock() - started) / 60
        note = f"{pairs} pairs of {_PAIRED[self._servers.level]} in {minutes:.0f} min"
        return replace(
            judgement,
            notes=(
                Finding(f"{note}{_resolved(judgement)}"),
                *self._servers.notes,
                *starts_in_turn(self._starts),
                *judgement.notes,
            ),
        )

    def _first_pairs(self) -> tuple[int, ...]:
        """Two pairs, and the looks that the rest of the budget allows: how long a start takes says nothing of speed.

        The second pair shows what one costs: of the first, one server ran already.
        """
        started = last = self._servers.clock()
        for number in range(LEAST_PAIRS):
            if self._sound:
                last = self._servers.clock()
                self._pair(number)

        now = self._servers.clock()
        affordable = LEAST_PAIRS + int((self._budget.seconds - (now - started)) / max(now - last, 1e-9))
        most = max(LEAST_PAIRS, min(self._budget.most, affordable))
        return planned_looks(min(self._budget.first, most), most)

    @property
    def _sound(self) -> bool:
        return not self._contrast.unused and all(taken.sound for taken in self._taken.values())

    def _judged(self, looks: int) -> Judgement:
        base, candidate = (side_of(taken, self._metric) for taken in self._taken.values())
        return judge_pairs(base, candidate, self._contrast, looks)

    def _pair(self, number: int) -> None:
        order: tuple[SideName, SideName] = ("candidate", "base")
        for side in order if number % 2 == 0 else order[::-1]:
            with blamed(side):
                self._replicate(side)

        if number == 0:
            self._compare_answers()

    def _replicate(self, side: SideName) -> None:
        """One server: its answers, if they are not known of its stack, then a window."""
        server, self._running = self._running or self._servers.start(side), None
        if side not in self._answers:
            self._answers[side] = answers = self._ask(side, server)
            self._say_wrong(side, answers.wrong)
        if not self._taken[side].wrong:
            window = self._servers.window(server).take(1)
            if side in self._servers.loaded:
                window = as_loaded(side, self._servers.loaded[side].facts, window)

            self._taken[side] = joined([self._taken[side], window])
            if start := start_of(window.facts):
                self._starts[side].append(start)

    def _ask(self, side: SideName, server: Server) -> Taken:
        """The answers of a server; none of one that gives no logprobs, which is kept in mind."""
        try:
            return self._servers.answers(server).take(ANSWER_PASSES)
        except NoLogprobs as error:
            self._without[side] = error
            return Taken("window")

    def _say_wrong(self, side: SideName, wrong: str | None) -> None:
        self._taken[side] = replace(self._taken[side], wrong=wrong)

    def _compare_answers(self) -> None:
        """The candidate is wrong if it answers otherwise than the base, by more than the base differs from itself."""
        if any(taken.wrong for taken in self._taken.values()):
            return
        if self._without:
            self._note_not_compared()
            return

        base, candidate = self._answers["base"], self._answers["candidate"]
        exact = candidate.contract.get("batch_invariant") is True
        passes = quality.passes(base.replicates), quality.passes(candidate.replicates)
        found = quality.compare(*passes, tolerance=DEFAULT_TOLERANCE["quality"], exact=exact)
        self._say_wrong("candidate", found.wrong)

    def _note_not_compared(self) -> None:
        """What the base cannot do either is no fault of the candidate; what it alone cannot do any more is."""
        if "base" not in self._without:
            with blamed("candidate"):
                raise self._without["candidate"]

        lacking = " and ".join(f"the {side}" for side in self._taken if side in self._without)
        note = Finding(f"the answers were not compared: {lacking} answers without logprobs")
        self._taken = {side: replace(taken, notes=(*taken.notes, note)) for side, taken in self._taken.items()}


def _resolved(judgement: Judgement) -> str:
    """What change could have been seen with so many pairs."""
    lo, hi = judgement.numbers.lo, judgement.numbers.hi
    if lo is None or hi is None or not judgement.verdict.judged:
        return ""

    seen = surely_found(judgement.metric.tolerance, lo, hi)
    return f"; a slowdown of {format_percent(seen, signed=False)} would have been found"
