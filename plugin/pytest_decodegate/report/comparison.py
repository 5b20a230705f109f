"""A comparison of stored baselines as text, the same for every format: sections with notes, rows and explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..compare.pairs import Alone, BaselinePair, Compared
from ..compare.standing import StandingDifference
from ..gate.published import without_numbers
from ..gate.text.advice import advice
from ..gate.text.explain import explain, not_covered, notes_of, wider_bands
from ..gate.verdict import Judgement, Verdict
from ..machine.provenance import Difference, unknown_on_both
from ..machine.reach import reach
from .table import Column, unjudged

HEADER = ("metric", "verdict", "reference", "new", "change", "interval", "band", "sessions")
COLUMNS: tuple[Column, ...] = ("name", "verdict", "base", "measured", "change", "interval", "band", "sessions")
"""What stands under HEADER."""

SURE = 0.025
"""One-sided level at which a regression holds: that of a single metric, whose interval of 95 % lies above zero."""


@dataclass(frozen=True, slots=True)
class Section:
    """One pair of baselines, or one that has no counterpart; text from files is as it is, not yet escaped."""

    title: str
    notes: tuple[str, ...]
    judgements: tuple[Judgement, ...] = ()

    @property
    def summary(self) -> str:
        """How many of each verdict, and what brackets in the table mean."""
        verdicts = Counter([judgement.verdict for judgement in self.judgements])
        counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        return "; ".join([counted or "no metric in common", *unjudged(self.judgements)])

    def explanations(self) -> Iterator[str]:
        """Why metrics did not pass, in several lines each; those that one cause confounds are explained together."""
        together: dict[tuple[str, ...], list[Judgement]] = {}
        for judgement in self.judgements:
            if judgement.verdict is Verdict.CONFOUNDED:
                together.setdefault((*judgement.reasons, *advice(judgement)), []).append(judgement)
            elif not judgement.verdict.passes:
                yield explain(judgement)

        yield from map(_confounded, together.values())


def sections(compared: Compared, *, names: bool = True) -> list[Section]:
    """The report in the order in which it is read; without `names`, what is on one side only is counted."""
    only = _names if names else _count
    pairs = [_pair(pair, only) for pair in compared.pairs]
    return [*pairs, *(_alone(alone, only) for alone in compared.alone)]


def answer(compared: Compared) -> str:
    """The last line: all verdicts, and what the exit status says."""
    verdicts = Counter([judgement.verdict for pair in compared.pairs for judgement in pair.judgements])
    missing = sum(len(pair.only_base) + len(pair.only_new) for pair in compared.pairs)
    alone = sum(len(each.baseline.metrics) for each in compared.alone)
    counted = [f"{count} {verdict}" for verdict, count in verdicts.items()]
    counted += [f"{missing + alone} on one side only"] if missing + alone else []
    same = sum(len(pair.same) for pair in compared.pairs)
    counted += [f"{same} the same recording on both sides, which shows nothing"] if same else []
    said = {0: "all passed", 1: "something regressed", 2: "not everything could be shown to pass"}
    return f"{', '.join(counted) or 'nothing was compared'}: {said[compared.status]}"


def _names(metrics: Iterable[str]) -> str:
    return ", ".join(metrics) or "no metric"


def _count(metrics: Iterable[str]) -> str:
    return f"{len(list(metrics))} metric(s), which -v names"


def _pair(pair: BaselinePair, only: Callable[[Iterable[str]], str]) -> Section:
    return Section(
        title=f"{pair.base.machine_class}: {pair.base.path} -> {pair.new.path}",
        notes=tuple(_notes(pair, only)),
        judgements=pair.judgements,
    )


def _alone(alone: Alone, only: Callable[[Iterable[str]], str]) -> Section:
    baseline = alone.baseline
    note = f"no baseline of this class in {alone.missing_in}: {only(baseline.metrics)}"
    return Section(f"{baseline.machine_class}: {baseline.path}", (note,))


def _notes(pair: BaselinePair, only: Callable[[Iterable[str]], str]) -> Iterator[str]:
    yield from (
        f"{side.path}: published figures, so the band alone decides and no interval is known; {side.published}"
        for side in (pair.base, pair.new)
        if side.published
    )
    yield from differences(pair.found, unknown_on_both(pair.base.provenance, pair.new.provenance), pair.judgements)
    if pair.only_base:
        yield f"only in the reference: {only(pair.only_base)}"
    if pair.only_new:
        yield f"only in the new file: {only(pair.only_new)}"
    if pair.same:
        yield f"the same sessions on both sides, which show nothing and are not judged: {only(pair.same)}"

    yield from _asides(pair)
    yield from wider_bands(pair.judgements)
    yield from not_covered(pair.judgements)
    yield from _together(pair.judgements)


def _asides(pair: BaselinePair) -> Iterator[str]:
    """What is to be known of metrics that passed, and so are explained nowhere: another band, a swapped kernel."""
    shared = sum(difference.standing in ("declared", "allowed") for difference in pair.found)
    known: dict[str, list[str]] = {}
    for judgement in pair.judgements:
        if judgement.verdict.passes and (own := (*notes_of(judgement), *judgement.changed[shared:])):
            for text in own:
                known.setdefault(text, []).append(judgement.metric.name)

    yield from (f"{text}: {', '.join(names)}" for text, names in known.items())


def _together(judgements: Sequence[Judgement]) -> Iterator[str]:
    """How far the regressions hold when all metrics are looked at together: one of many is slower by chance."""
    red = (judgement.numbers for judgement in judgements if judgement.verdict is Verdict.REGRESSED)
    regressed = [numbers.p_worse for numbers in red if numbers.p_worse is not None]
    count = sum(judgement.verdict.judged and judgement.numbers.lo is not None for judgement in judgements)
    if not regressed or count < 2:
        return

    from ..gate.stats.together import holm  # most comparisons show no regression

    holds = sum(p < SURE for p in holm([*regressed, *[1.0] * (count - len(regressed))])[: len(regressed)])
    rest = "" if holds == len(regressed) else "; the rest may be chance: record another session before you act on it"
    yield (
        f"{len(regressed)} of {count} metrics regressed; {holds} of them hold when all {count} are looked at together "
        f"(Holm, {100 * SURE:g} % one-sided){rest}"
    )


def differences(
    found: Sequence[StandingDifference], unknown: Sequence[str] = (), judgements: Sequence[Judgement] = ()
) -> Iterator[str]:
    """What differs, one line each, GPUs that differ alike together: "nccl: 2.28.3 -> 2.28.9 (declared)".

    unknown: fields that neither side knows. judgements: of the metrics, each of which says what cannot touch it.
    """
    if not found:
        yield f"nothing {'known on both sides ' if unknown else ''}differs in machine and stack"
    if unknown:
        yield f"unknown on both sides, so not compared: {', '.join(dict.fromkeys(map(without_numbers, unknown)))}"

    spoken_of = Counter(_gathered(each, judgements) for each in found if each.standing != "not published")
    for (text, standing), count in spoken_of.items():
        yield f"{text}{f', {count} times' if count > 1 else ''} ({standing})"

    if silent := dict.fromkeys(
        without_numbers(each.difference.field) for each in found if each.standing == "not published"
    ):
        yield f"not published, so not compared: {', '.join(silent)}"


def _gathered(found: StandingDifference, judgements: Sequence[Judgement]) -> tuple[str, str]:
    difference = found.difference
    standing = _reached(difference, judgements) if found.standing == "undeclared" else found.standing
    return str(replace(difference, field=without_numbers(difference.field))), standing


def _reached(difference: Difference, judgements: Sequence[Judgement]) -> str:
    """How an undeclared difference stands, and which share of the metrics it can touch."""
    standing = "neither declared nor allowed"
    untouched = sum(difference in judgement.harmless for judgement in judgements)
    if not untouched:
        return standing

    reached = len(judgements) - untouched
    line = reach(difference.field)
    share = f"can touch {reached} of {len(judgements)} metrics" if reached else "can touch none of the metrics"
    return f"{standing}; {share}{f': {line.reason}' if line else ''}"


def _confounded(judgements: Sequence[Judgement]) -> str:
    first = judgements[0]
    names = ", ".join(judgement.metric.name for judgement in judgements)
    lines = (*(f"- {reason}" for reason in first.reasons), *(f"next: {line}" for line in advice(first)))
    return "\n  ".join([f"{first.verdict}: {len(judgements)} metric(s), {names}", *lines])
