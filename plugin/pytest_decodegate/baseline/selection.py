"""Selection of the stored stack that a run is compared with, and why: pure functions over a machine class's files.

The rule, in order; among equals the stack that was recorded last, and of those the one that holds the metric:
1. with a declared change, a stack that differs in what was declared and in nothing else. A file of the very stack
   under test comes after these: it could only show that the stack equals itself, so that such a run fails;
2. the very stack under test;
3. any other, so that what confounds the comparison can be shown. It is never judged;
4. published figures, which have no samples.
A file whose attached server did not say a setting that another file knows comes last: what changed would not be seen.
What cannot touch the metric decides nothing, in a file without it either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ..machine.cards import cards_of, no_card_in_common, swapped
from ..machine.provenance import FLAG, Difference, Provenance, differences, undeclared, unsaid
from ..machine.reach import slowest_link, without_harmless
from ..metric import Json, Metric
from .schema import Baseline

MOST_OTHERS = 3
"""Files that were not chosen are named up to this number, and then counted."""

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """The baseline that a run is compared with, and how the two stacks differ.

    baseline: None when the folder has none. folder: where it was looked for.
    differences: what differs and was declared, or can touch the metric. undeclared: the part that confounds.
    harmless: what differs besides, and cannot touch the metric.
    choice: why this file and what else was there, in sentences. declared: the change under test.
    unsaid: settings that the attached server says now and did not say when it was recorded. cards: unique ids of those
    that are measured, as far as they are known.
    """

    folder: Path
    baseline: Baseline | None = None
    differences: tuple[Difference, ...] = ()
    undeclared: tuple[Difference, ...] = ()
    harmless: tuple[Difference, ...] = ()
    choice: tuple[str, ...] = ()
    declared: frozenset[str] = frozenset()
    unsaid: tuple[str, ...] = ()
    cards: frozenset[str] = frozenset()

    @property
    def itself(self) -> bool:
        """Whether a change was declared and the stored stack is this very one: comparing them would show nothing."""
        return bool(self.declared) and self.fit == "same"

    @property
    def fit(self) -> Literal["changed", "same", "confounded", "published"]:
        """How the stored stack stands to the one under test: differs only as declared, not at all, or otherwise."""
        if self.baseline is not None and self.baseline.published:
            return "published"
        if self.undeclared:
            return "confounded"

        return "changed" if self.differences else "same"


def contrast(
    baseline: Baseline,
    provenance: Provenance,
    declared: Collection[str],
    metric: str | None = None,
    *,
    as_measured: Metric | None = None,
) -> Selection:
    """Select `baseline` whatever its stack is: this is how `--perf-baseline PATH` compares.

    metric: whose newest session says which cards were measured, and whose way of being measured says what can touch it;
    without it the newest session of all does, and everything that differs is held to touch. as_measured: says how the
    metric is measured where the file lacks it, so that what cannot touch it decides nothing there either.
    """
    telemetry = _telemetry(baseline, metric)
    found = (
        *differences(baseline.provenance, provenance),
        *swapped(telemetry, provenance.telemetry),
    )
    cards = no_card_in_common(telemetry, provenance.telemetry)
    silent = unsaid(baseline.provenance, provenance)
    notes = (
        *(("recorded on other cards of this kind; cards of one kind differ by some percent",) if cards else ()),
        *((f"the server that was recorded did not say: {', '.join(silent)}",) if silent else ()),
    )
    stored = baseline.metrics.get(metric) if metric else None
    link = slowest_link(baseline.provenance, provenance)
    confounding = undeclared(found, declared)
    free: tuple[Difference, ...] = ()
    if measured := stored.metric if stored else as_measured:
        found, confounding, free = without_harmless(found, confounding, measured, link)
    return Selection(
        baseline.path.parent,
        baseline,
        differences=found,
        undeclared=confounding,
        harmless=free,
        choice=notes,
        unsaid=silent,
        declared=frozenset(declared),
        cards=cards_of(provenance.telemetry),
    )


def choose(
    folder: Path,
    baselines: Sequence[Baseline],
    provenance: Provenance,
    declared: Collection[str],
    metric: str | None = None,
) -> Selection:
    """The best of `baselines`, which lie in `folder` in the order of their numbers, by the rule of this module."""
    # Of two that were recorded at the same time, the higher number comes first.
    by_age = sorted(baselines, key=lambda baseline: _recorded(baseline, metric))
    newest_first = by_age[::-1]
    known = next((stored.metric for each in newest_first if (stored := each.metrics.get(metric or ""))), None)
    candidates = [contrast(each, provenance, declared, metric, as_measured=known) for each in newest_first]
    order = ("changed", "same", "confounded", "published")
    said = _said(candidates, metric)
    ranked = sorted(
        candidates,
        key=lambda candidate: (
            bool(said & {*candidate.unsaid}),
            order.index(candidate.fit),
            not _holds(candidate, metric),
        ),
    )
    if not ranked:
        return Selection(folder)

    best = ranked[0]
    return replace(best, choice=(*_reasons(best, candidates, declared, metric), *best.choice))


def _said(candidates: Sequence[Selection], metric: str | None) -> frozenset[str]:
    """Settings that some file with the metric knows of its attached server."""
    known = (each.baseline.provenance.stack for each in candidates if each.baseline and _holds(each, metric))
    settings = (name for stack in known for name, value in stack.items() if value is not None)
    return frozenset(name.removeprefix(FLAG) for name in settings if name.startswith(FLAG))


def _reasons(
    best: Selection, candidates: Sequence[Selection], declared: Collection[str], metric: str | None
) -> Iterator[str]:
    names = ", ".join(sorted(declared))
    others = [candidate for candidate in candidates if candidate is not best]
    newer = others[: candidates.index(best)]
    if _holds(best, metric):  # what lacks the metric is neither an equal nor a reason
        others = [other for other in others if _holds(other, metric)]

    equals = [other for other in others if other.fit == best.fit]
    yield _why(best, 1 + len(equals), names)
    if best.fit == "changed" and (idle := ", ".join(_without_effect(best, declared))):
        yield f"declared, but the same on both sides: {idle}"

    if best.fit in ("changed", "same"):
        yield from (
            f"recorded at the same time, lower number: {_name(other)}" for other in equals if _tied(other, best, metric)
        )
        yield from _listed("also fits", [other for other in equals if not _tied(other, best, metric)], _shown)

    left_out = [other for other in newer if other in others and other.fit != best.fit]
    yield from _listed("newer, left out", left_out, _shown)
    yield from _listed("newer, without this metric", [other for other in newer if other not in others])


def _why(best: Selection, equals: int, names: str) -> str:
    """The rule that led to `best`, one of `equals` files that fit as well."""
    which = "the only one" if equals == 1 else f"the last recorded of {equals}"
    if best.fit == "changed":
        return f"{which} that differs from this stack only in what was declared ({names})"
    if best.fit == "same" and names:
        return f"{which} of this very stack: no stored stack differs only in what was declared ({names})"
    if best.fit == "same":
        return f"{which} of this very stack"
    if best.fit == "published" and best.baseline is not None:
        return (
            f"{which} of published figures, for nothing was recorded on this machine class: {best.baseline.published}"
        )

    return f"{which} stored, to show what confounds: none is of this stack" + (
        f" or differs only in what was declared ({names})" if names else ""
    )


def _listed(title: str, some: Sequence[Selection], why: Callable[[Selection], str] | None = None) -> Iterator[str]:
    for other in some[:MOST_OTHERS]:
        yield f"{title}: {_name(other)}{f' ({why(other)})' if why else ''}"

    if more := len(some) - MOST_OTHERS:
        yield from (f"{title}: {more} more",) if more > 0 else ()


def _shown(selection: Selection) -> str:
    """The first difference that explains why a file was ranked where it is."""
    found = selection.undeclared or selection.differences
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else "this very stack"


def _without_effect(best: Selection, declared: Collection[str]) -> list[str]:
    """Names in `declared` that stand for no difference at all."""
    return [name for name in sorted(declared) if all(undeclared((found,), {name}) for found in best.differences)]


def _holds(selection: Selection, metric: str | None) -> bool:
    return metric is None or (selection.baseline is not None and metric in selection.baseline.metrics)


def _tied(other: Selection, best: Selection, metric: str | None) -> bool:
    sides = [side.baseline for side in (other, best) if side.baseline is not None]
    return len({_recorded(side, metric) for side in sides}) == 1 and _holds(other, metric) == _holds(best, metric)


def _recorded(baseline: Baseline, metric: str | None) -> datetime:
    """When `metric` was recorded last; without it in the file, when anything was."""
    stored = baseline.metrics.get(metric) if metric else None
    if stored is not None:
        return max(session.instant for session in stored.sessions)

    return baseline.newest.instant if baseline.newest else _NEVER


def _telemetry(baseline: Baseline, metric: str | None) -> Mapping[str, Json]:
    stored = baseline.metrics.get(metric) if metric else None
    newest = max(stored.sessions, key=lambda session: session.instant) if stored else baseline.newest
    return newest.telemetry if newest else {}


def _name(selection: Selection) -> str:
    return selection.baseline.path.name if selection.baseline else "nothing"
