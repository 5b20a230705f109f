"""The text of a judgement: what moved, how much, how sure, against which file, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...metric import Level
from ..verdict import Judgement, Verdict
from .quantity import format_band, format_percent, format_value

_REPLICATE: Mapping[Level, str] = {
    "process": "fresh processes",
    "gang": "fresh gangs",
    "window": "windows of one server",
    "server": "fresh servers",
    "published": "published figures",
}


def explain(judgement: Judgement) -> str:
    """Several short lines for a terminal or a log: no colour, no traceback, the first line is a summary."""
    name = judgement.metric.name
    return "\n  ".join([f"{name}: {judgement.verdict}: {headline(judgement)}", *_details(judgement)])


def headline(judgement: Judgement) -> str:
    """The finding in one line, without the name and the verdict."""
    band = format_band(judgement.metric.tolerance)
    measured = _value(judgement, judgement.measured)
    match judgement.verdict:
        case Verdict.PASS if judgement.change is None:
            return "answers like the baseline, as far as that agrees with itself"
        case Verdict.PASS:
            return f"{_change(judgement)} stays inside the band of {band}"
        case Verdict.IMPROVED:
            return f"better by more than {band}: {_change(judgement)}"
        case Verdict.REGRESSED:
            return f"worse by more than the band of {band}: {_change(judgement)}"
        case Verdict.INCONCLUSIVE:
            return f"{_change(judgement)} neither shows a stay inside the band of {band} nor a regression"
        case Verdict.NO_BASELINE:
            return f"measured {measured}, with nothing to compare it with"
        case Verdict.CONFOUNDED:
            other = "base" if judgement.paired else "baseline"
            return f"measured {measured}, but more than the declared change differs from the {other}"
        case Verdict.INVALID:
            return f"measured {measured}, but the measurement broke a rule and is not judged"
        case Verdict.WRONG_RESULT:
            return "the numbers are wrong, so the speed was not looked at"


def _change(judgement: Judgement) -> str:
    band = judgement.metric.tolerance
    change = _percent(judgement.change, band)
    if judgement.untold is not None:
        return f"{change} (+ is worse, noise unknown)"

    return f"{change} [{_percent(judgement.lo, band)}, {_percent(judgement.hi, band)}] (+ is worse)"


def _percent(fraction: float | None, band: float) -> str:
    return "unknown" if fraction is None else format_percent(fraction, beside=band)


def _value(judgement: Judgement, value: float | None) -> str:
    return "nothing" if value is None else format_value(value, judgement.metric.unit)


def _details(judgement: Judgement) -> Iterator[str]:
    if judgement.base is not None:
        here, there = ("on the candidate", "on the base") if judgement.paired else ("now", "in the baseline")
        values = f"{_value(judgement, judgement.measured)} {here}, {_value(judgement, judgement.base)} {there}"
        yield f"{values}; {judgement.metric.better} is better"
    if judgement.confidence is not None:
        yield from _certainty(judgement, judgement.confidence)
    if judgement.untold is not None:
        yield from _published(judgement.untold)

    yield from (f"- {reason}" for reason in judgement.reasons)
    yield from (f"note: {note}" for note in judgement.notes)
    yield from (f"changed: {change}" for change in judgement.changed)
    if judgement.baseline is not None:
        yield f"baseline: {judgement.baseline}"

    yield from (f"- {line}" for line in judgement.choice)
    yield from (f"next: {line}" for line in judgement.advice)


def _published(untold: Sequence[str]) -> Iterator[str]:
    yield "against a published figure: a point without samples, so the band alone decides and no interval is known"
    if untold:
        yield f"not published, so not compared: {', '.join(untold)}"


def _certainty(judgement: Judgement, confidence: float) -> Iterator[str]:
    sessions = "1 session" if judgement.sessions == 1 else f"{judgement.sessions} sessions"
    looks = f" (95 % over {judgement.looks} looks)" if judgement.looks > 1 else ""
    if judgement.paired:
        pairs = f"{judgement.replicates} pairs ({_REPLICATE[judgement.level]} of each stack in turn)"
        yield f"{100 * confidence:.3g} % interval{looks} from {pairs}"
        return

    replicates = f"{judgement.replicates} replicates ({_REPLICATE[judgement.level]})"
    if judgement.new_sessions > 1:
        replicates += f" in {judgement.new_sessions} sessions"
    yield f"{100 * confidence:.3g} % interval{looks} from {replicates} against {sessions}"
    if judgement.level == "window":
        yield "windows of one server cannot see what a restart of the server would change"
    if judgement.sessions == 1 and judgement.session_noise is not None:
        assumed = format_percent(judgement.session_noise, signed=False)
        yield (
            "one baseline session cannot show how much sessions differ: "
            f"{assumed} is assumed for kind {judgement.metric.kind!r} until more are recorded"
        )
