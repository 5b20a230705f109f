"""Servers of two stacks, as often as a budget allows: in turn, A B B A, or beside each other; started, or attached.

One start serves all: every metric that is still open is measured in it, since a start takes minutes and a window
seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ..cause import Cause, Finding
from ..errors import ServerHung
from ..gate.confirming import is_open
from ..gate.evidence.starts import Start, start_of, starts_in_turn
from ..gate.evidence.turns import first_was_slower
from ..gate.pairs import Contrast, foreseen_half_width, judge_pairs
from ..gate.stats.looks import planned_looks
from ..gate.stats.recorded import NoiseClass
from ..gate.stats.rules import Settlement, surely_found
from ..gate.text.quantity import format_percent, format_value
from ..gate.verdict import Judgement, Numbers, Verdict
from ..machine.cards import gpus_seen
from ..measure.paired_source import SIDES, SideName, StackFailed, blamed
from ..measure.source import Taken, joined
from ..metric import DEFAULT_TOLERANCE
from .answers_of_both import AnswersOfBoth
from .loaded import as_loaded
from .protocol import Interrupted, Judged
from .ranks_in_turn import side_of

if TYPE_CHECKING:
    from ..errors import ServerError
    from ..measure.answers import AnswerSource
    from ..measure.beside_tpot import WindowQuantity
    from ..measure.source import Source
    from ..measure.window import Load
    from ..metric import Metric, Replicate
    from ..serving.server import Server
    from .loaded import Loaded

LEAST_PAIRS = 3
"""Before a GO: with two, t has one degree of freedom, and its quantile is 12.7."""

EARLY_PAIRS = 2
EARLY_LEVEL = 0.001
"""A slowdown that so few pairs of starts show at this level, of all metrics together, needs no more: a start may take
45 minutes. By the noise of other hosts that is one of 20 % and more.

So strict a look beside the planned ones leaves their levels as they are (Haybittle, Br. J. Radiol. 44, 1971; Peto et
al., Br. J. Cancer 34, 1976).
"""

_PAIRED = {"server": "server starts", "window": "windows"}

_AFTER_COMPILING = 0.5
"""Of the time of a start that had to compile, what the next is taken to need: on an H200 98 s after 267."""


@dataclass(frozen=True, slots=True)
class Servers:
    """How servers are had and asked.

    start: stops the one that runs and starts a fresh one of a side, or gives the one that is attached. both: starts
    one of each side beside each other, on each other's cards where `swapped`; None where there is no room for two.
    gone: why one that was started is not there any more, None while it is. window: a source of windows on a server, for
    a metric by its name. answers: a source of answers, which come before the clock. clock: in seconds.
    level: what a window stands for, a fresh server or the same again. notes: what a reader should know of the servers.
    loaded: what a process of each side's stack loads, where that was asked.
    """

    start: Callable[[SideName], Server]
    window: Callable[[str, Server, Load], Source]
    answers: Callable[[Server], AnswerSource]
    gone: Callable[[Server], ServerError | None]
    both: Callable[[bool], Mapping[SideName, Server]] | None = None
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


@dataclass(slots=True)
class _Measured:
    """What was taken for one metric, of both sides. closed: it came to its judgement. failure: what ended it.

    current: of the pair that is being measured. first: the side that began each whole one. alone: what the base gave in
    a pair that the candidate did not end.
    """

    load: Load
    level: Literal["server", "window"]
    taken: dict[SideName, Taken] = field(init=False)
    current: dict[SideName, Taken] = field(default_factory=dict)
    first: list[SideName] = field(default_factory=list)
    alone: tuple[Replicate, ...] = ()
    closed: bool = False
    failure: StackFailed | None = None

    def __post_init__(self) -> None:
        self.taken = {side: Taken(self.level) for side in SIDES}

    @property
    def pairs(self) -> int:
        """That are whole."""
        return min(len(taken.replicates) for taken in self.taken.values())

    def fail(self, failure: StackFailed) -> None:
        """Remember what ended it: where the base fails as well, the candidate is not to blame."""
        if self.failure is None or failure.side == "base":
            self.failure = failure

    def end_pair(self) -> str:
        """Keep the pair if it is whole, and give it in words; "": one side of it has nothing to be compared with."""
        said = ""
        if len(self.current) == len(SIDES):
            self.taken = {side: joined([self.taken[side], self.current[side]]) for side in SIDES}
            self.first.append(next(iter(self.current)))
            said = _in_words(self.current["base"], self.current["candidate"])
        elif base := self.current.get("base"):
            self.alone = base.replicates

        self.current.clear()
        return said

    @property
    def of_base(self) -> tuple[Replicate, ...]:
        """All that the base gave."""
        return (*self.taken["base"].replicates, *self.alone)

    @property
    def goes_on(self) -> bool:
        """Whether it is worth measuring: no rule was broken so far, and nothing failed."""
        return self.failure is None and all(taken.sound for taken in self.taken.values())


class ServersInTurn:
    """Metrics on servers of two stacks; in each pair one server of each, on which all open metrics are measured.

    loads: what is measured on each server, by metric; others are added when they are asked for. say: shows a line.
    """

    def __init__(
        self,
        servers: Servers,
        contrast: Contrast,
        budget: Budget,
        loads: Mapping[str, Load],
        say: Callable[[str], None],
    ) -> None:
        self._servers = servers
        self._contrast = contrast
        self._budget = budget
        self._say = say
        self._of = {name: _Measured(load, servers.level) for name, load in loads.items()}
        self._answers = AnswersOfBoth(servers.answers)
        self._first: dict[SideName, Server] = {}  # started, and not yet measured
        self._candidate: Server | None = None
        self._failure: StackFailed | None = None  # of a start: none is tried again
        self._failed: set[SideName] = set()  # sides on which a metric failed in this pair
        self._starts: dict[SideName, list[Start]] = {"base": [], "candidate": []}
        self._pairs = 0
        self._spent_s = 0.0
        self._last_s = 0.0
        self._compiled_s = 0.0  # of starts in the newest pair that had to compile
        self._looks: tuple[int, ...] = ()

    def candidate(self) -> Server:
        """The candidate of the newest pair; of the first, which is started for it, if there is none yet."""
        if self._candidate is None:
            with self._spending():
                self._first = {**self._both()} if self._servers.both else {"candidate": self._start("candidate")}

            candidate = self._first["candidate"]
            self._say(self._plan(candidate))
            if model := candidate.given_facts.get("model"):
                self._say(f"served: {model}")

        assert self._candidate is not None
        return self._candidate

    def judgement(self, metric: Metric, load: Load) -> Judgement:
        """Pairs until the verdict is settled, the cap is reached or the budget is spent.

        Raises StackFailed, with what the base has measured, if a server of one stack does not start or dies.
        """
        measured = self._of.setdefault(metric.name, _Measured(load, self._servers.level))
        try:
            return self._settle(metric, measured)
        except StackFailed as failure:
            failure.base = measured.of_base
            raise
        except KeyboardInterrupt as interrupt:
            if not measured.pairs:
                raise
            raise Interrupted(self.judged(self._cut_short(metric)), interrupt) from interrupt
        finally:
            measured.closed = True

    def judged(self, judgement: Judgement) -> Judged:
        """`judgement` with what both stacks have measured for it."""
        base, candidate = (self._taken(judgement.name, side) for side in SIDES)
        return Judged(judgement, candidate.replicates, base=base.replicates, gpus=gpus_seen(candidate.facts))

    def beside(self, name: str, metric: Metric, quantity: WindowQuantity) -> Judged:
        """Another quantity of the windows that were measured for the metric `name`; no pair is added for it."""
        base, candidate = (quantity.taken(self._taken(name, side)) for side in SIDES)
        sides = side_of(base, metric), side_of(candidate, metric)
        judgement = _proven(judge_pairs(*sides, self._contrast, len(self._looks)))
        return Judged(judgement, candidate.replicates, base=base.replicates)

    def _settle(self, metric: Metric, measured: _Measured) -> Judgement:
        spent_s = self._spent_s
        self._look_ahead(measured)
        for look in self._looks:
            while measured.pairs < look and not self._is_gross(metric) and self._may_go_on(measured):
                self._pair()
            if measured.failure:
                raise measured.failure

            judgement = self._judged(metric)
            if measured.pairs < look or not is_open(judgement, self._budget.metrics):
                break

        notes = self._account(judgement, self._spent_s - spent_s)
        return self._priced(replace(judgement, notes=(*notes, *judgement.notes)))

    def _is_gross(self, metric: Metric) -> bool:
        """Whether the first pairs show a slowdown beyond doubt."""
        if self._servers.level == "window" or self._of[metric.name].pairs != EARLY_PAIRS:
            return False

        judgement = self._judged(metric)
        p_worse = judgement.numbers.p_worse
        is_shown = p_worse is not None and p_worse * self._budget.metrics <= EARLY_LEVEL
        return judgement.verdict is Verdict.REGRESSED and is_shown

    def _cut_short(self, metric: Metric) -> Judgement:
        """What whole pairs say where a run ended between two looks: shown, and proof of nothing."""
        judgement = self._judged(metric)
        pairs = judgement.basis.replicates
        stopped = Finding(f"the run was stopped after {_counted(pairs)}", Cause.TOO_FEW)
        notes = (*self._account(judgement, self._spent_s), *judgement.notes)
        judgement = replace(judgement, reasons=(stopped, *judgement.reasons), notes=notes, settlement=None)
        return replace(judgement, verdict=Verdict.INCONCLUSIVE) if judgement.verdict.judged else judgement

    def _account(self, judgement: Judgement, seconds: float) -> Iterator[Finding]:
        """What the pairs cost, and what a reader should know of the servers."""
        pairs = f"{_counted(judgement.basis.replicates)} of {_PAIRED[self._servers.level]}"
        cost = f"in {seconds / 60:.0f} min" if seconds else "that earlier metrics were measured on"
        yield Finding(f"{pairs} {cost}{_resolved(judgement)}")
        if model := self._taken(judgement.name, "candidate").contract.get("model"):
            yield Finding(f"served: {model}")

        yield from self._servers.notes
        yield from starts_in_turn(self._starts)
        if judgement.verdict is Verdict.INCONCLUSIVE:
            yield from _of_turns(self._of[judgement.name], judgement.metric.tolerance)

    def _priced(self, judgement: Judgement) -> Judgement:
        """With how long it takes to settle it, where the budget has no time for the next pair."""
        known = judgement.settlement
        if known is None or known.replicates is None or self._has_time:
            return judgement

        seconds = self._spent_s + (known.replicates - judgement.basis.replicates) * self._next_s
        return replace(judgement, settlement=replace(known, seconds=seconds))

    def _look_ahead(self, measured: _Measured) -> None:
        """The first pair, which shows what one costs, and the looks that the rest of the budget then allows.

        How long a start takes says nothing of speed. A budget that is spent before LEAST_PAIRS ends them there.
        """
        if not measured.pairs and self._may_go_on(measured):
            self._pair()
        if not self._looks:
            affordable = self._pairs + int((self._budget.seconds - self._spent_s) / max(self._next_s, 1e-9))
            most = max(LEAST_PAIRS, min(self._budget.most, affordable))
            self._looks = planned_looks(max(LEAST_PAIRS, min(self._budget.first, most)), most)

    def _may_go_on(self, measured: _Measured) -> bool:
        """Whether another pair says more, and there is time for it; for the first of a run there always is."""
        says_more = measured.goes_on and not (self._contrast.unused or self._answers.are_wrong)
        return says_more and (self._pairs == 0 or self._has_time)

    def _judged(self, metric: Metric) -> Judgement:
        base, candidate = (side_of(self._taken(metric.name, side), metric) for side in SIDES)
        return _proven(judge_pairs(base, candidate, self._contrast, len(self._looks)))

    def _taken(self, name: str, side: SideName) -> Taken:
        """What a side gave for a metric, with what is known of its answers."""
        taken = self._of[name].taken[side]
        return replace(
            taken, wrong=taken.wrong or self._answers.wrong(side), notes=(*taken.notes, *self._answers.notes)
        )

    def _pair(self) -> None:
        """One server of each stack, and a window of each for every metric that is still open.

        Every other pair begins with the other side, and where two run beside each other, has them on each other's
        cards: neither who came first nor a card looks like a stack.
        """
        order = SIDES[::-1] if self._pairs % 2 == 0 else SIDES
        names = [name for name, measured in self._of.items() if measured.goes_on and not measured.closed]
        self._failed.clear()
        self._compiled_s = self._compiled_s if self._pairs == 0 else 0.0  # one of the first has started before
        try:
            with self._spending(is_pair=True):
                if self._servers.both:
                    self._beside_each_other(order, names)
                else:
                    for side in order:
                        self._visit(side, self._take_first(side) or self._start(side), names)
        finally:
            self._end_pair()

        self._pairs += 1

    def _end_pair(self) -> None:
        """Keep what is whole of a pair, and say it at once: a run that is stopped has then measured something."""
        if said := [f"{name} {pair}" for name, measured in self._of.items() if (pair := measured.end_pair())]:
            self._say(f"pair {self._pairs + 1}, base and candidate: {', '.join(said)}")

    def _beside_each_other(self, order: Sequence[SideName], names: Sequence[str]) -> None:
        """All answers, a rehearsal on both, then window after window, begun by each side in turn."""
        servers = {side: server for side in SIDES if (server := self._take_first(side))}
        if len(servers) < len(SIDES):
            servers = {**self._both()}

        for side in order:
            self._answers.ask(side, servers[side])
        for side in order:
            self._rehearse(side, servers[side], names)

        for turn, name in enumerate(names):
            for side in order if turn % 2 == 0 else order[::-1]:
                self._window(side, servers[side], name)

    def _take_first(self, side: SideName) -> Server | None:
        """The one that was started before its pair, unless something else has taken the machine since."""
        first = self._first.pop(side, None)
        return first if first is not None and self._servers.gone(first) is None else None

    def _start(self, side: SideName) -> Server:
        began = self._servers.clock()
        with self._remembering_failure(), blamed(side):
            server = self._servers.start(side)

        self._note_compiled(began, server)
        if side == "candidate":
            self._candidate = server

        return server

    def _both(self) -> Mapping[SideName, Server]:
        assert self._servers.both
        began = self._servers.clock()
        with self._remembering_failure():
            servers = self._servers.both(self._pairs % 2 == 1)

        self._note_compiled(began, *servers.values())
        self._candidate = servers["candidate"]
        return servers

    def _note_compiled(self, began: float, *servers: Server) -> None:
        """Remember how long a start took that had to compile. began: of the clock."""
        if any(server.compiled for server in servers):
            self._compiled_s += self._servers.clock() - began

    @contextmanager
    def _remembering_failure(self) -> Iterator[None]:
        """Start no server once one did not start: each try costs minutes."""
        if self._failure:
            raise StackFailed(self._failure.side, self._failure.error)
        try:
            yield
        except StackFailed as failure:
            self._failure = failure
            raise

    def _visit(self, side: SideName, server: Server, names: Sequence[str]) -> None:
        """All that is asked of one server in its life."""
        self._answers.ask(side, server)
        self._rehearse(side, server, names)
        for name in names:
            self._window(side, server, name)

    def _rehearse(self, side: SideName, server: Server, names: Sequence[str]) -> None:
        """A window on a server that was started, which does not count: its first seconds are not what it serves at.

        On an H200 each step of the first window took 0.31 ms more, of 4.4 as of 7.4, where the server had come up ten
        seconds and more after its neighbour; none did on a server that had answered before, or later in its life. Why
        is not known.
        """
        if self._servers.level == "window":
            return

        for name in names[:1]:
            self._window(side, server, name)
            window = self._of[name].current.pop(side, None)
            if window and window.replicates:
                value = format_value(window.replicates[-1].value, "s")
                self._say(f"{side}: {name} {value} in a first window, which does not count")

    def _window(self, side: SideName, server: Server, name: str) -> None:
        """A window for one metric; its failure is that metric's alone, unless the server hangs.

        A server that it ended is asked nothing more: others are measured on the next one. One that ended when no metric
        failed on it is the failure of the metric whose turn it is.
        """
        measured = self._of[name]
        if self._answers.are_wrong:
            return
        if gone := self._servers.gone(server):
            if side not in self._failed:
                self._fail(side, measured, StackFailed(side, gone))
            return
        try:
            with blamed(side):
                self._keep(side, measured, self._servers.window(name, server, measured.load).take(1))
        except StackFailed as failure:
            if isinstance(failure.error.origin, ServerHung):
                raise
            self._fail(side, measured, failure)

    def _fail(self, side: SideName, measured: _Measured, failure: StackFailed) -> None:
        self._failed.add(side)
        measured.fail(failure)

    def _keep(self, side: SideName, measured: _Measured, window: Taken) -> None:
        if side in self._servers.loaded:
            window = as_loaded(side, self._servers.loaded[side].facts, window)

        measured.current[side] = window
        if (start := start_of(window.facts)) and len(self._starts[side]) <= self._pairs:
            self._starts[side].append(start)

    def _plan(self, candidate: Server) -> str:
        """What is going to be done, as far as it is known once one server has started."""
        pairs, level = LEAST_PAIRS, self._servers.level
        tolerance = DEFAULT_TOLERANCE["serving"]
        half = foreseen_half_width(NoiseClass("serving", "host", level), pairs)
        found = format_percent(surely_found(tolerance, -half, half))
        shows = f"by the noise of other hosts these show {found}"
        if candidate.start_seconds is None:
            return f"at least {pairs} pairs of windows; {shows}"

        starts = pairs if self._servers.both else 2 * pairs
        two = " of two servers beside each other" if self._servers.both else ""
        first, budget = candidate.start_seconds / 60, self._budget.seconds / 60
        later = first * (_AFTER_COMPILING if candidate.compiled else 1)
        compiling = 1 if self._servers.both else 2  # the first of each stack
        compiled = ", twice as long for the first, which compiles" if candidate.compiled else ""
        return (
            f"at least {pairs} pairs = {starts} starts{two} of about {later:.1f} min{compiled}: "
            f"{compiling * first + (starts - compiling) * later:.0f} min and their windows, of {budget:.3g} "
            f"(--perf-budget); {shows}"
        )

    @contextmanager
    def _spending(self, *, is_pair: bool = False) -> Iterator[None]:
        """Count the time of the block, of a pair's as what the next may cost."""
        began = self._servers.clock()
        try:
            yield
        finally:
            seconds = self._servers.clock() - began
            self._spent_s += seconds
            self._last_s = seconds if is_pair and self._pairs else self._last_s + seconds

    @property
    def _has_time(self) -> bool:
        """Whether the budget suffices for another pair."""
        return self._spent_s + self._next_s <= self._budget.seconds

    @property
    def _next_s(self) -> float:
        """What another pair is taken to need: as long as the last, but for starts in it that had to compile."""
        return self._last_s - (1 - _AFTER_COMPILING) * self._compiled_s


def _in_words(base: Taken, candidate: Taken) -> str:
    """What both sides gave in a pair: a window that broke a rule gives nothing."""
    if not (base.replicates and candidate.replicates):
        return "none, for a window broke a rule"

    before, after = (taken.replicates[-1].value for taken in (base, candidate))
    return f"{format_value(before, 's')} and {format_value(after, 's')} ({format_percent(after / before - 1)})"


def _of_turns(measured: _Measured, tolerance: float) -> Iterator[Finding]:
    """That scatter is a matter of who was measured first, where it is one that counts beside the band."""
    base, candidate = (measured.taken[side].replicates for side in SIDES)
    if len(base) != len(measured.first) or len(candidate) != len(measured.first):
        return  # a window gave nothing

    differences = [math.log(new.value / old.value) for old, new in zip(base, candidate, strict=True)]
    slower = first_was_slower(differences, [side == "candidate" for side in measured.first])
    if slower is not None and abs(slower) > tolerance / 2:
        yield Finding(
            f"whichever side was measured first in a pair was {format_percent(abs(slower), signed=False)} "
            f"{'slower' if slower > 0 else 'faster'}: that part of the scatter is no matter of the stacks"
        )


def _proven(judgement: Judgement) -> Judgement:
    """A pass of too few pairs proves nothing, and one pair alone is open: it breaks no rule, and tells no noise."""
    pairs = judgement.basis.replicates
    alone = pairs == 1 and all(reason.cause is Cause.TOO_FEW for reason in judgement.reasons)
    is_too_few = alone or judgement.verdict in (Verdict.PASS, Verdict.IMPROVED)
    if pairs >= LEAST_PAIRS or not is_too_few:
        return judgement

    few = f"{_counted(pairs)} measured, {LEAST_PAIRS} are the least that prove anything"
    return replace(
        judgement,
        verdict=Verdict.INCONCLUSIVE,
        reasons=(Finding(few, Cause.TOO_FEW),),
        numbers=_with_change(judgement),
        settlement=Settlement(LEAST_PAIRS, None, _worst(judgement)),
    )


def _counted(pairs: int) -> str:
    return f"{pairs} pair{'' if pairs == 1 else 's'}"


def _with_change(judgement: Judgement) -> Numbers:
    """Its numbers, with the change that one pair shows, of which no interval is known."""
    numbers = judgement.numbers
    if numbers.change is not None or not (numbers.base and numbers.measured):
        return numbers

    return replace(numbers, change=numbers.measured / numbers.base - 1)


def _worst(judgement: Judgement) -> float | None:
    """The worse end of its interval, as a band would have to be wide; None where it has none."""
    lo, hi = judgement.numbers.lo, judgement.numbers.hi
    if lo is None or hi is None:
        return None

    return hi if judgement.metric.better == "lower" else 1 / (1 + lo) - 1


def _resolved(judgement: Judgement) -> str:
    """What change could have been seen with so many pairs."""
    lo, hi = judgement.numbers.lo, judgement.numbers.hi
    if lo is None or hi is None or not judgement.verdict.judged:
        return ""

    seen = surely_found(judgement.metric.tolerance, lo, hi)
    return f"; a slowdown of {format_percent(seen, signed=False)} would have been found"
