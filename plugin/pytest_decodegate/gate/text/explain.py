"""The text of a judgement: what moved, how much, how sure, against which file, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ...machine.reach import reasons
from ...metric import Level
from ..materiality import is_not_material
from ..stats.recorded import noise_class, recorded
from ..verdict import BY_STATISTICS, Confirmation, Judgement, Verdict
from .advice import advice
from .quantity import format_band, format_percent, format_value

_REPLICATE: Mapping[Level, str] = {
    "process": "fresh processes",
    "gang": "fresh gangs",
    "window": "windows of one server",
    "server": "fresh servers",
    "published": "published figures",
}


ELSEWHERE: Final = (
    "measured elsewhere, on a stack that the publication does not name: it is shown and gates nothing; record this host"
)


def explain(judgement: Judgement) -> str:
    """Several short lines for a terminal or a log: no colour, no traceback, the first line is a summary."""
    name = judgement.metric.name
    return "\n  ".join([f"{name}: {judgement.verdict}: {headline(judgement)}", *_details(judgement)])


def confirmation_text(confirmation: Confirmation) -> str:
    """Whether a change was there again: "confirmed by 5 fresh replicates (+4.0 %)"."""
    fresh = f"{confirmation.replicates} fresh replicates"
    if confirmation.repeats:
        return f"confirmed by {fresh} ({_moved(confirmation.fresh_change)})"

    first = f"{confirmation.first} at first ({_moved(confirmation.first_change)})"
    return f"{first}, which {fresh} do not repeat: {confirmation.fresh} ({_moved(confirmation.fresh_change)})"


def _moved(change: float | None) -> str:
    return "unknown" if change is None else format_percent(change)


def explain_briefly(judgement: Judgement, other: str) -> str:
    """Two lines for a metric that is not judged for the very reasons that the metric `other` was explained with."""
    return f"{judgement.name}: {judgement.verdict}: {headline(judgement)}\n  for the same reasons as {other}, see there"


def notes_of(judgement: Judgement) -> tuple[str, ...]:
    """What a reader should know of a metric whatever its verdict is, its band last where that is not its own."""
    return (*judgement.notes, *_wider(judgement))


def wider_bands(judgements: Iterable[Judgement]) -> list[str]:
    """One line for the metrics that are judged in wider bands, with the widest; none where there are none.

    judgements: all of a run, or of two files.
    """
    judged = [judgement for judgement in judgements if judgement.verdict in BY_STATISTICS]
    wider = [judgement for judgement in judged if judgement.other_cards and judgement.other_cards.is_wider]
    if not wider:
        return []

    most = max(wider, key=lambda each: each.metric.tolerance)
    many = f"{len(wider)} of {len(judged)} metrics are judged in wider bands, up to {_band(most)} for {most.name}"
    if most.basis.reference == "file":
        return [f"{many}, since the two files are of different cards"]

    return [f"{many}, since no session that gates is of these cards: record on this host"]


def _band(judgement: Judgement) -> str:
    """The band in force, and the metric's own where that is another."""
    band = format_band(judgement.metric.tolerance)
    known = judgement.other_cards
    return f"{band} (its own is {format_band(known.own)})" if known and known.is_wider else band


def _wider(judgement: Judgement) -> Iterator[str]:
    """Why the band is not the metric's own, where it is wider. Of two files neither is of this host."""
    known = judgement.other_cards
    if not (known and known.is_wider):
        return

    of_files, own = judgement.basis.reference == "file", format_band(known.own)
    what = "a file" if of_files else "sessions"
    differ = format_percent(known.differ, signed=False)
    here = "" if of_files else f"; record here for {own}"
    more = f"; {format_band(known.kept)} is what an unchanged metric keeps there" if known.kept > known.band else ""
    yield (
        f"band {format_band(known.band)} instead of {own}: compared with {what} of other cards, which differ by "
        f"{differ}{here}{more}"
    )


def headline(judgement: Judgement) -> str:
    """The finding in one line, without the name and the verdict."""
    band = _band(judgement)
    match judgement.verdict:
        case Verdict.PASS if judgement.numbers.change is None:
            return "answers like the baseline, as far as that agrees with itself"
        case Verdict.PASS if is_not_material(judgement):
            return f"{_change(judgement)} is not shown to stay inside the band of {band}, and is not material"
        case Verdict.PASS:
            return f"{_change(judgement)} stays inside the band of {band}"
        case Verdict.IMPROVED:
            return f"better by more than {band}: {_change(judgement)}"
        case Verdict.REGRESSED:
            return f"worse by more than the band of {band}: {_change(judgement)}"
        case Verdict.INCONCLUSIVE:
            return f"{_change(judgement)} neither shows a stay inside the band of {band} nor a regression"
        case Verdict.NO_BASELINE:
            return f"{_measured(judgement)}, with nothing to compare it with"
        case Verdict.CONFOUNDED:
            other = "base" if judgement.basis.reference == "stack" else "baseline"
            return f"{_measured(judgement)}, not judged: more than the declared change differs from the {other}"
        case Verdict.INVALID:
            return f"{_measured(judgement)}, not judged: the measurement broke a rule"
        case Verdict.WRONG_RESULT:
            return "the numbers are wrong, so the speed was not looked at"


def _measured(judgement: Judgement) -> str:
    """What is known where nothing is judged: both values and the change, or the measured value alone."""
    numbers = judgement.numbers
    parts = [f"measured {_value(judgement, numbers.measured)}"]
    if numbers.base is not None:
        parts.append(f"against {_value(judgement, numbers.base)}")
    if numbers.change is not None:
        parts.append(f"a change of {_change(judgement)}")

    return ", ".join(parts)


def _change(judgement: Judgement) -> str:
    band = judgement.metric.tolerance
    worse = "+ is worse" if judgement.metric.better == "lower" else "- is worse"
    change = _percent(judgement.numbers.change, band)
    if judgement.numbers.lo is None:
        return f"{change} ({worse}, noise unknown)"

    return f"{change} [{_percent(judgement.numbers.lo, band)}, {_percent(judgement.numbers.hi, band)}] ({worse})"


def _percent(fraction: float | None, band: float) -> str:
    return "unknown" if fraction is None else format_percent(fraction, beside=band)


def _value(judgement: Judgement, value: float | None) -> str:
    return "nothing" if value is None else format_value(value, judgement.metric.unit)


def _details(judgement: Judgement) -> Iterator[str]:
    numbers, basis = judgement.numbers, judgement.basis
    if numbers.base is not None:
        here, there = ("on the candidate", "on the base") if basis.reference == "stack" else ("now", "in the baseline")
        values = f"{_value(judgement, numbers.measured)} {here}, {_value(judgement, numbers.base)} {there}"
        yield f"{values}; {judgement.metric.better} is better"
    if numbers.confidence is not None:
        yield from _certainty(judgement, numbers.confidence)
    if basis.unpublished is not None:
        yield from _published(basis.unpublished, elsewhere=basis.elsewhere)
    if judgement.confirmation is not None:
        yield confirmation_text(judgement.confirmation)

    if (share := judgement.step) is not None:
        yield f"of {share.step}: {format_percent(share.change)} of its time, at worst {format_percent(share.worst)}"

    yield from (f"- {reason}" for reason in judgement.reasons)
    yield from (f"note: {note}" for note in notes_of(judgement))
    yield from (f"changed: {change}" for change in judgement.changed)
    for reason, found in reasons(judgement.harmless).items():
        yield f"differs and cannot touch it: {'; '.join(map(str, found))} ({reason})"

    if basis.baseline is not None:
        yield f"baseline: {basis.baseline}"

    yield from (f"- {line}" for line in basis.choice)
    yield from (f"next: {line}" for line in advice(judgement))


def _published(unpublished: Sequence[str], *, elsewhere: bool) -> Iterator[str]:
    yield "against a published figure: a point without samples, so the band alone decides and no interval is known"
    if elsewhere:
        yield ELSEWHERE
    if unpublished:
        yield f"not published, so not compared: {', '.join(unpublished)}"


def _certainty(judgement: Judgement, confidence: float) -> Iterator[str]:
    basis = judgement.basis
    sessions = "1 session" if basis.sessions == 1 else f"{basis.sessions} sessions"
    if basis.reference == "stack":
        looks = f" (95 % over {basis.looks} looks)" if basis.looks > 1 else ""
        pairs = f"{basis.replicates} pairs ({_REPLICATE[basis.level]} of each stack in turn)"
        yield f"{100 * confidence:.3g} % interval{looks} from {pairs}"
        return

    replicates = f"{basis.replicates} replicates ({_REPLICATE[basis.level]})"
    if basis.new_sessions > 1:
        replicates += f" in {basis.new_sessions} sessions"
    looks = f" over {basis.looks} looks" if basis.looks > 1 else ""
    ends = f"5 % beyond its worse end, 2.5 % beyond the better{looks}"
    yield f"{100 * confidence:.3g} % interval ({ends}) from {replicates} against {sessions}"
    yield from uncovered(judgement)


def not_covered(judgements: Iterable[Judgement]) -> list[str]:
    """What comparisons that pass or gate nothing do not cover, and nobody else says: once, with their number."""
    silent = [judgement for judgement in judgements if judgement.verdict.passes or judgement.basis.elsewhere]
    counts = Counter(text for judgement in silent for text in _unseen(judgement))
    assumed: dict[str, list[float]] = {}
    for noise, source in filter(None, map(_assumed_noise, silent)):
        assumed.setdefault(source, []).append(noise)

    said = [*counts.items(), *((_one_session(taken, source), len(taken)) for source, taken in assumed.items())]
    return [f"{text} ({count} metric{'s' * (count > 1)})" for text, count in said]


def uncovered(judgement: Judgement) -> Iterator[str]:
    """What a comparison does not cover whatever the verdict is, in sentences."""
    yield from _unseen(judgement)
    if found := _assumed_noise(judgement):
        noise, source = found
        yield _one_session([noise], source)


def _unseen(judgement: Judgement) -> Iterator[str]:
    """What is not looked at where it is compared, or between windows of one server."""
    basis = judgement.basis
    if basis.elsewhere:
        yield ELSEWHERE
    if _has_interval(judgement) and basis.level == "window":
        yield "windows of one server cannot see what a restart of the server would change"


def _assumed_noise(judgement: Judgement) -> tuple[float, str] | None:
    """How much sessions are taken to differ, and where that is from, while only one is stored; else None."""
    basis = judgement.basis
    if not _has_interval(judgement) or basis.sessions != 1 or basis.session_noise is None:
        return None

    found = noise_class(judgement.metric, basis.level, same_cards=basis.same_cards, streams=basis.streams)
    known = recorded(found)
    return basis.session_noise, known.session_source


def _has_interval(judgement: Judgement) -> bool:
    """Whether it is beside stored sessions whose noise counts."""
    return judgement.numbers.confidence is not None and judgement.basis.reference != "stack"


def _one_session(taken: Sequence[float], source: str) -> str:
    least, most = (format_percent(limit(taken), signed=False) for limit in (min, max))
    between = least if least == most else f"{least} to {most}"
    return f"one baseline session cannot show how much sessions differ; {between} is taken until then ({source})"
