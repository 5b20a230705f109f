"""A comparison of stored baselines as text, the same for every format: sections with notes, rows and explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..baseline.schema import StoredMetric
from ..compare.pairs import Alone, Compared, Pair
from ..compare.standing import Found, without_numbers
from ..gate.text.explain import explain
from ..gate.text.quantity import format_band, format_interval, format_percent, format_value
from ..gate.verdict import Judgement, Verdict
from ..machine.provenance import Difference, unknown_on_both

HEADER = ("metric", "verdict", "reference", "new", "change", "interval", "band", "sessions")

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
        """How many of each verdict."""
        verdicts = Counter([judgement.verdict for judgement in self.judgements])
        return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "no metric in common"

    def explanations(self) -> Iterator[str]:
        """Why metrics did not pass, in several lines each; those that one cause confounds are explained together."""
        together: dict[tuple[str, ...], list[Judgement]] = {}
        for judgement in self.judgements:
            if judgement.verdict is Verdict.CONFOUNDED:
                together.setdefault((*judgement.reasons, *judgement.advice), []).append(judgement)
            elif not judgement.verdict.passes:
                yield explain(judgement)

        yield from map(_confounded, together.values())


def sections(compared: Compared) -> list[Section]:
    """The report in the order in which it is read."""
    return [*map(_pair, compared.pairs), *map(_alone, compared.alone)]


def answer(compared: Compared) -> str:
    """The last line: all verdicts, and what the exit status says."""
    verdicts = Counter([one.verdict for pair in compared.pairs for one in pair.judgements])
    missing = sum(len(pair.only_base) + len(pair.only_new) for pair in compared.pairs)
    alone = sum(len(one.baseline.metrics) for one in compared.alone)
    counted = [f"{count} {verdict}" for verdict, count in verdicts.items()]
    counted += [f"{missing + alone} on one side only"] if missing + alone else []
    said = {0: "all passed", 1: "something regressed", 2: "not everything could be shown to pass"}
    return f"{', '.join(counted) or 'nothing was compared'}: {said[compared.status]}"


def printable(text: str) -> str:
    """`text` from a file without what would move a cursor or ring a bell."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _pair(pair: Pair) -> Section:
    return Section(
        title=f"{pair.base.machine_class}: {pair.base.path} -> {pair.new.path}",
        notes=tuple(_notes(pair)),
        judgements=pair.judgements,
    )


def _alone(alone: Alone) -> Section:
    one = alone.baseline
    names = ", ".join(one.metrics) or "no metric"
    return Section(f"{one.machine_class}: {one.path}", (f"no baseline of this class in {alone.missing_in}: {names}",))


def _notes(pair: Pair) -> Iterator[str]:
    yield from (
        f"{side.path}: published figures, so the band alone decides and no interval is known; {side.published}"
        for side in (pair.base, pair.new)
        if side.published
    )
    yield from differences(pair.found, unknown_on_both(pair.base.provenance, pair.new.provenance))
    if pair.only_base:
        yield f"only in the reference: {', '.join(pair.only_base)}"
    if pair.only_new:
        yield f"only in the new file: {', '.join(pair.only_new)}"
    if same := [name for name, new in pair.new.metrics.items() if _is_itself(pair.base.metrics.get(name), new)]:
        yield f"the same sessions on both sides, which show nothing: {', '.join(same)}"

    yield from _asides(pair)
    yield from _together(pair.judgements)


def _is_itself(base: StoredMetric | None, new: StoredMetric) -> bool:
    """Whether both sides hold one and the same recording: it equals itself, and proves no host or stack as good."""
    return base is not None and new.level != "published" and base.current == new.current


def _asides(pair: Pair) -> Iterator[str]:
    """What is to be known of metrics that passed, and so are explained nowhere: another band, a swapped kernel."""
    shared = sum(one.standing in ("declared", "allowed") for one in pair.found)
    told: dict[str, list[str]] = {}
    for one in pair.judgements:
        if one.verdict.passes and (own := (*one.notes, *one.changed[shared:])):
            for text in own:
                told.setdefault(text, []).append(one.metric.name)

    yield from (f"{text}: {', '.join(names)}" for text, names in told.items())


def _together(judgements: Sequence[Judgement]) -> Iterator[str]:
    """How far the regressions hold when all metrics are looked at together: one of many is slower by chance."""
    regressed = [one.p_worse for one in judgements if one.verdict is Verdict.REGRESSED and one.p_worse is not None]
    count = sum(one.lo is not None for one in judgements)
    if not regressed or count < 2:
        return

    from ..gate.pairs import holm  # most comparisons show no regression

    holds = sum(p < SURE for p in holm([*regressed, *[1.0] * (count - len(regressed))])[: len(regressed)])
    rest = "" if holds == len(regressed) else "; the rest may be chance: record another session before you act on it"
    yield (
        f"{len(regressed)} of {count} metrics regressed; {holds} of them hold when all {count} are looked at together "
        f"(Holm, {100 * SURE:g} % one-sided){rest}"
    )


def differences(found: Sequence[Found], unknown: Sequence[str] = ()) -> Iterator[str]:
    """What differs, one line each, GPUs that differ alike together: "nccl: 2.28.3 -> 2.28.9 (declared)".

    unknown: fields that neither side knows.
    """
    if not found:
        yield f"nothing {'known on both sides ' if unknown else ''}differs in machine and stack"
    if unknown:
        yield f"unknown on both sides, so not compared: {', '.join(dict.fromkeys(map(without_numbers, unknown)))}"

    for (text, standing), count in Counter(_gathered(one) for one in found if one.standing != "not published").items():
        confounds = "neither declared nor allowed" if standing == "undeclared" else standing
        yield f"{text}{f', {count} times' if count > 1 else ''} ({confounds})"

    if silent := dict.fromkeys(
        without_numbers(one.difference.field) for one in found if one.standing == "not published"
    ):
        yield f"not published, so not compared: {', '.join(silent)}"


def _gathered(found: Found) -> tuple[str, str]:
    one = found.difference
    return str(Difference(without_numbers(one.field), one.base, one.new, one.declarable)), found.standing


def _confounded(judgements: Sequence[Judgement]) -> str:
    one = judgements[0]
    names = ", ".join(judgement.metric.name for judgement in judgements)
    lines = (*(f"- {reason}" for reason in one.reasons), *(f"next: {line}" for line in one.advice))
    return "\n  ".join([f"{one.verdict}: {len(judgements)} metric(s), {names}", *lines])


def cells(judgement: Judgement) -> tuple[str, ...]:
    """One metric as HEADER names the columns; "-" for what was not compared."""
    metric = judgement.metric
    return (
        metric.name,
        str(judgement.verdict),
        "-" if judgement.base is None else format_value(judgement.base, metric.unit),
        "-" if judgement.measured is None else format_value(judgement.measured, metric.unit),
        "-" if judgement.change is None else format_percent(judgement.change),
        format_interval(judgement.lo, judgement.hi),
        format_band(metric.tolerance),
        f"{judgement.sessions}, {judgement.new_sessions}" if judgement.sessions else "-",
    )
