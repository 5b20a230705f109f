"""What the documents of a report say, the same for Markdown and HTML: made of a run, or of two stored baselines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..compare.pairs import BaselinePair, Compared
from ..gate.decision import BY_WEIGHT, Answer, Ground, Resolution, counted_as, decide_all
from ..gate.result import Failed, Result, spreads
from ..gate.run import Run
from ..gate.text.advice import advice
from ..gate.text.explain import explain, not_covered, wider_bands
from ..gate.verdict import Judgement, geometric_mean
from ..machine.cards import gpus_seen
from ..machine.provenance import ABSENT, Difference
from ..profile.step_profile import StepProfile
from ..redaction import redact_arguments
from . import comparison
from .next_step import next_command
from .screen import counts, in_words, seen, skips
from .serving import served
from .terminal import chosen, noted, untouched

Tone: TypeAlias = Literal["good", "bad", "open"]
Outcome: TypeAlias = Result | Failed

MOST_ADVICE = 4
"""Sentences about what to do next, for the metrics of one cause."""


@dataclass(frozen=True, slots=True)
class StackChange:
    """A row of the stack difference: a field, both sides as text, and how it stands to what the user declared."""

    field: str
    base: str
    new: str
    standing: str


@dataclass(frozen=True, slots=True)
class Card:
    """What does not pass for one cause: the cause, its metrics, the first of them at length, and what to do next."""

    tone: Tone
    text: str
    outcomes: tuple[Outcome, ...]
    explanation: str = ""
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """What was measured on one machine class: a run, or a pair of stored baselines.

    history: by metric the levels of the stored sessions in the metric's unit, oldest first.
    """

    title: str
    outcomes: tuple[Outcome, ...] = ()
    changes: tuple[StackChange, ...] = ()
    notes: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """A report. answer: the banner's word. said: the line beneath.

    stopped: where a run stands or stopped; "" if it ended. facts: pairs of name and value.
    repeat, next_command: words for a shell; "" for none.
    profiles: decode steps that were profiled, by name.
    """

    title: str
    answer: str
    tone: Tone
    said: str
    groups: tuple[Group, ...]
    stopped: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    repeat: str = ""
    next_command: str = ""
    profiles: Mapping[str, StepProfile] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all groups."""
        return [outcome for group in self.groups for outcome in group.outcomes]


@dataclass(frozen=True, slots=True)
class Begun:
    """How far a run has come: perf test `number` of `selected` was begun last, at `when`; number 0: none was."""

    number: int
    selected: int
    test: str
    when: str

    def __str__(self) -> str:
        if not self.number:
            return f"none of {self.selected} selected perf tests was begun"

        return f"test {self.number} of {self.selected} was begun last, at {self.when}: {self.test}"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a report of a run says beside its outcomes. command: the words that started it. started: when, as text."""

    command: Sequence[str]
    machine_class: str = ""
    started: str = ""
    begun: Begun | None = None
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    profiles: Mapping[str, StepProfile] = field(default_factory=dict)


TONES: Mapping[str, Tone] = {
    Answer.GO: "good",
    Answer.RECORDED: "good",
    Answer.NO_GO: "bad",
    Answer.NOT_PROVEN: "open",
}


def of_run(run: Run, about: RunFacts) -> Content:
    """The report of a run, as far as it has come."""
    decision = run.decision
    running = run.seconds is None
    words = next_command(run, decision, about.command) if not running else []
    return Content(
        title="decodegate",
        answer=str(decision.answer),
        tone=TONES[decision.answer],
        said=f"{in_words(decision)}; {counts(run, decision).removeprefix('counts: ')}",
        groups=(_of_run(run, about, decision.grounds),),
        stopped=_stopped(run, about.begun) if run.unfinished else "",
        facts=tuple(_facts(run, about, decision.resolutions)),
        repeat=shlex.join(redact_arguments(about.command)),
        next_command=" ".join(words),
        profiles=about.profiles,
    )


def _stopped(run: Run, begun: Begun | None) -> str:
    where = f"; {begun}" if begun else ""
    if run.seconds is not None:
        return f"stopped early: {run.unfinished}{where}"

    return f"not at its end{where}. Everything measured so far is below; if no pytest is running, it was killed there"


def _facts(run: Run, about: RunFacts, resolutions: Sequence[Resolution]) -> Iterator[tuple[str, str]]:
    if about.machine_class:
        yield "machine class", about.machine_class
    if run.stacks:
        yield "base", run.stacks.base
        yield "candidate", run.stacks.candidate
    if about.started:
        yield "started", about.started
    for resolution in seen(resolutions):
        name, _, rest = resolution.partition(": ")
        yield name, rest


def _of_run(run: Run, about: RunFacts, grounds: Sequence[Ground]) -> Group:
    results = run.results
    judgements = [result.judgement for result in results]
    uncovered = (*wider_bands(judgements), *not_covered(judgements))
    return Group(
        title=about.machine_class or "metrics",
        outcomes=tuple(run.outcomes),
        changes=tuple(_changes_of_run(run)),
        notes=(
            *chosen(results),
            *untouched(results),
            *served(results),
            *noted(results),
            *uncovered,
            *skips(run.skipped, verbose=True),
        ),
        cards=tuple(_cards(grounds, run.outcomes)),
        history=about.history,
    )


def _changes_of_run(run: Run) -> Iterator[StackChange]:
    """What differs from the base, or from the baselines in use, each difference once."""
    if run.stacks:
        yield from (_change(each, "between the stacks") for each in run.stacks.contrast.differences)
        return

    found: dict[Difference, str] = {}
    for result in run.results:
        judgement = result.judgement
        found |= {each: "cannot touch these metrics" for each in judgement.harmless if each not in found}
        found |= dict.fromkeys(judgement.differences, "declared")
        found |= dict.fromkeys(judgement.undeclared, "not declared")

    yield from (_change(each, standing) for each, standing in found.items())


def _change(difference: Difference, standing: str) -> StackChange:
    base, new = ("absent" if side is ABSENT else str(side) for side in (difference.base, difference.new))
    return StackChange(difference.field, base, new, standing)


def _cards(grounds: Sequence[Ground], outcomes: Sequence[Outcome]) -> Iterator[Card]:
    # Of several tries of a metric the one that does not pass is meant, whatever came after it.
    by_name = {outcome.name: outcome for outcome in sorted(outcomes, key=weight, reverse=True)}
    for ground in grounds:
        found = tuple(by_name[name] for name in ground.names if name in by_name)
        if found:
            results = [outcome for outcome in found if isinstance(outcome, Result)]
            text = explain(results[0].judgement) if results else str(_failed(found)[0].error)
            follow = dict.fromkeys(line for result in results for line in advice(result.judgement))
            yield Card("bad" if ground.blocks else "open", ground.text, found, text, tuple(follow)[:MOST_ADVICE])


def _failed(outcomes: Sequence[Outcome]) -> list[Failed]:
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]


_STATUS: Mapping[int, tuple[str, Tone]] = {
    0: ("ALL PASSED", "good"),
    1: ("REGRESSED", "bad"),
    2: ("NOT PROVEN", "open"),
}


def of_comparison(compared: Compared, command: Sequence[str] = ()) -> Content:
    """The report of stored baselines beside each other. command: the words that started it."""
    answer, tone = _STATUS[compared.status]
    sections = comparison.sections(compared)
    pairs = [_of_pair(pair, section) for pair, section in zip(compared.pairs, sections, strict=False)]
    alone = [Group(section.title, notes=section.notes) for section in sections[len(compared.pairs) :]]
    return Content(
        title="decodegate compare",
        answer=answer,
        tone=tone,
        said=comparison.answer(compared),
        groups=(*pairs, *alone),
        repeat=shlex.join(redact_arguments(command)),
    )


def _of_pair(pair: BaselinePair, section: comparison.Section) -> Group:
    outcomes = tuple(_stored(pair, section.title, judgement) for judgement in pair.judgements)
    return Group(
        title=section.title,
        outcomes=outcomes,
        changes=tuple(_change(each.difference, each.standing) for each in pair.found),
        notes=(*section.notes, *([section.summary] if pair.judgements else [])),
        cards=tuple(_cards(decide_all(outcomes).grounds, outcomes)),
        history={name: _levels(pair, name) for name in pair.base.metrics if name in pair.new.metrics},
    )


def _stored(pair: BaselinePair, title: str, judgement: Judgement) -> Result:
    """A judgement with the processes and the GPUs of the newest session of either side, as a run's result has them."""
    base, new = (side.metrics[judgement.name].sessions[-1] for side in (pair.base, pair.new))
    processes = (*spreads(base.replicates, is_base=True), *spreads(new.replicates))
    return Result(title, judgement, values=new.values, processes=processes, gpus=gpus_seen(new.telemetry))


def _levels(pair: BaselinePair, name: str) -> list[float]:
    """The mean of each session of a metric: the reference's, then those of the new file that it has not."""
    base, new = pair.base.metrics[name].sessions, pair.new.metrics[name].sessions
    known = {session.id for session in base}
    sessions = (*base, *(session for session in new if session.id not in known))
    return [level for session in sessions if (level := geometric_mean(session.values)) is not None]


def weight(outcome: Outcome) -> int:
    """Where an outcome stands when what matters most comes first."""
    return BY_WEIGHT.index(counted_as(outcome))


def by_family(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by what they measure, each family where its first one stands."""
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(_family(outcome.name), []).append(outcome)

    return found


def _family(name: str) -> str:
    """What a metric measures, without its sizes: "marlin_moe" of "marlin_moe[m=8]"; of a test's id the whole of it."""
    return name if "::" in name else name.partition("[")[0]
