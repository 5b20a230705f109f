"""A report as one HTML file that needs nothing else: no network, no font, and without its script all is still there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..gate.decision import ADVISORY, BY_WEIGHT, counted_as, is_fine
from ..gate.result import Failed, Result
from ..gate.text.quantity import format_band, format_percent
from ..gate.verdict import Verdict
from ..printable import printable, printable_lines
from .charts import charts
from .content import Card, Content, Group, Outcome, Tone, by_family, weight
from .profile import svg, used_categories
from .svg import forest, spark, strip
from .table import cells

_BAD: Final = (Verdict.REGRESSED, Verdict.WRONG_RESULT, "ERROR")

WIDEST: Final = 6.0
"""Bands that a forest plot shows at most to either side; what lies beyond is drawn at the edge."""


LEAST_HISTORY: Final = 3
"""Sessions whose levels are drawn as a line: two are the change that stands beside it."""


@dataclass(frozen=True, slots=True)
class _HtmlRow:
    """A metric as the template shows it; texts are not escaped yet."""

    name: str
    verdict: str
    tone: Tone
    now: str
    base: str
    change: str
    interval: str
    band: str
    forest: Markup
    strip: Markup
    processes: str
    step: str


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    counts: str
    tone: Tone
    rows: tuple[_HtmlRow, ...]
    scale: str


def page(content: Content) -> str:
    """The whole file. Everything is escaped by the template, and first made printable."""
    return rendered(
        "report.html.j2",
        content=content,
        groups=[_group(group) for group in content.groups],
        profiles=_profiles(content),
        counts=_counts(content.outcomes),
    )


@cache
def _environment() -> Environment:
    """Templates that escape what they are given, and fail for what they are not given."""
    made = Environment(
        loader=PackageLoader("pytest_decodegate", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["plain"] = lambda text: printable(str(text))
    made.filters["breakable"] = lambda text: escape(text).replace(",", Markup(",<wbr>"))
    made.filters["lines"] = lambda text: printable_lines(str(text))
    return made


def rendered(template: str, **values: Any) -> str:
    """A template of this package, filled in."""
    return f"{_environment().get_template(template).render(**values).rstrip()}\n"


def _group(group: Group) -> dict[str, Any]:
    return {
        "title": group.title,
        "changes": group.changes,
        "notes": list(dict.fromkeys(group.notes)),
        "cards": [_card(card, group.history) for card in group.cards],
        "families": list(_families(group.outcomes)),
        "charts": charts([outcome for outcome in group.outcomes if isinstance(outcome, Result)]),
    }


def _card(card: Card, levels_of: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    widest = _widest(card.outcomes)
    history = ((outcome.name, levels_of.get(outcome.name, ())) for outcome in card.outcomes)
    return {
        "card": card,
        "rows": [_row(outcome, widest) for outcome in card.outcomes],
        "history": [(name, len(levels), spark(levels)) for name, levels in history if len(levels) >= LEAST_HISTORY],
    }


def _families(outcomes: Sequence[Outcome]) -> Iterator[_Family]:
    """By what matters most, then in the order of measurement."""
    for name, found in sorted(by_family(outcomes).items(), key=lambda item: min(map(weight, item[1]))):
        widest = _widest(found)
        yield _Family(
            name=name,
            counts=", ".join(f"{count} {verdict}" for verdict, count in _counts(found)),
            tone=_tone(min(found, key=weight)),
            rows=tuple(_row(outcome, widest) for outcome in found),
            scale=format_percent(widest, signed=False) if widest else "",
        )


def _counts(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    found = sorted(outcomes, key=weight)
    return [(str(BY_WEIGHT[at]), len(list(same))) for at, same in groupby(found, key=weight)]


def _tone(outcome: Outcome) -> Tone:
    return "good" if is_fine(outcome) else "bad" if counted_as(outcome) in _BAD else "open"


def _worse(outcome: Outcome) -> tuple[float, float | None, float | None] | None:
    """Change and interval with + for the worse, whatever the unit; None where no change is known."""
    if isinstance(outcome, Failed) or outcome.judgement.numbers.change is None:
        return None

    numbers, sign = outcome.judgement.numbers, 1 if outcome.judgement.metric.better == "lower" else -1
    ends = sorted(sign * end for end in (numbers.lo, numbers.hi) if end is not None)
    low, high = ends if len(ends) == 2 else (None, None)
    return sign * outcome.judgement.numbers.change, low, high


def _widest(outcomes: Sequence[Outcome]) -> float:
    """The change at the edges of the forest plot of `outcomes`; 0 where nothing is drawn."""
    found = [(outcome, worse) for outcome in outcomes if (worse := _worse(outcome)) is not None]
    bands = [outcome.judgement.metric.tolerance for outcome, _ in found if isinstance(outcome, Result)]
    if not bands:
        return 0.0

    reach = max(abs(end) for _, worse in found for end in worse if end is not None)
    return max(1.25 * max(bands), min(1.05 * reach, WIDEST * max(bands)))


def _row(outcome: Outcome, widest: float) -> _HtmlRow:
    judgement = outcome.judgement if isinstance(outcome, Result) else outcome
    base, now, change, interval = cells(judgement, ("base", "measured", "change", "interval"))
    counted = counted_as(outcome)
    advised = isinstance(outcome, Result) and counted == ADVISORY
    return _HtmlRow(
        name=outcome.name,
        verdict=f"{outcome.judgement.verdict}, advisory" if advised and isinstance(outcome, Result) else counted,
        tone=_tone(outcome),
        now=now,
        base=base,
        change=change,
        interval=interval,
        band=format_band(outcome.judgement.metric.tolerance) if isinstance(outcome, Result) else "",
        forest=_forest(outcome, widest),
        strip=_strip(outcome),
        processes=_processes(outcome),
        step=_step(outcome),
    )


def _step(outcome: Outcome) -> str:
    """What the change means for the decode step, where that is known and not the metric itself."""
    share = outcome.judgement.step if isinstance(outcome, Result) else None
    return "" if share is None or share.step == outcome.name else f"{format_percent(share.change)} of {share.step}"


def _forest(outcome: Outcome, widest: float) -> Markup:
    worse = _worse(outcome)
    if worse is None or isinstance(outcome, Failed):
        return Markup("")

    change, low, high = worse
    interval = (low, high) if low is not None and high is not None else None
    return forest(interval, change, outcome.judgement.metric.tolerance, widest)


def _strip(outcome: Outcome) -> Markup:
    if isinstance(outcome, Failed) or not outcome.processes:
        return Markup("")

    sides = ([each for each in outcome.processes if each.is_base is base] for base in (True, False))
    return strip([[(each.low, each.value, each.high) for each in side] for side in sides if side])


def _processes(outcome: Outcome) -> str:
    """What the strip shows, in words."""
    if isinstance(outcome, Failed) or not outcome.processes:
        return ""

    base = sum(each.is_base for each in outcome.processes)
    samples = sum(each.samples for each in outcome.processes)
    count = f"{len(outcome.processes) - base} processes"
    beside = f" beside {base} of the base" if base else ""
    return f"{count}{beside}{f', {samples} samples' if samples else ''}"


def _profiles(content: Content) -> list[tuple[str, str, Markup, list[tuple[str, str]]]]:
    """Decode steps as bars on one scale: title, description, picture, and a row for each category."""
    profiles = content.profiles
    if not profiles:
        return []

    return [
        (
            f"Decode step: {', '.join(profiles)}",
            "; ".join(f"{name}: {profile.kernel_ms:.3f} ms of kernels" for name, profile in profiles.items()),
            Markup(svg(profiles)),  # noqa: S704 - escapes what it is given, see its tests
            _categories(profiles),
        )
    ]


def _categories(profiles: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (category.label, " -> ".join(f"{profile.of(category).ms:.3f} ms" for profile in profiles.values()))
        for category in used_categories(profiles)
    ]
