"""The verdict of each metric that two baselines have in common. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from ..baseline.edits import band_is_set
from ..baseline.schema import Baseline, Session, StoredMetric
from ..cause import Cause, Finding
from ..gate.bands import LOOKS as LOOKS_OF_A_RUN
from ..gate.evidence import speculation
from ..gate.evidence.apart import rest_of_stored, stored_findings
from ..gate.evidence.swaps import is_swap, swap_findings
from ..gate.other_cards import of_metric, unchanged_run
from ..gate.own_cards import cards_of_sessions, class_of, metrics_on, one_set_of_cards, ran_elsewhere
from ..gate.published import MODEL, renamed, without_numbers
from ..gate.stats.noise import ClassNoise, Sessions, Spread, class_noise
from ..gate.stats.recorded import NoiseClass
from ..gate.stats.rules import Comparison, Settlement, compare_sessions, decide, sessions_that_settle
from ..gate.stats.together import JointPart
from ..gate.verdict import (
    Basis,
    Judgement,
    Numbers,
    Verdict,
    beside_point,
    by_answers,
    comparable,
    difference_finding,
    identity_differences,
    level_of,
    session_logs,
    unjudged,
    with_apart,
)
from ..machine.clocks import FIELD as CLOCK
from ..machine.clocks import ClockShift, clock_shift
from ..machine.provenance import Difference
from ..machine.reach import Link, slowest_link, without_harmless
from ..metric import Json, Replicate
from .standing import MACHINE_CLASS, StandingDifference, Terms, silent

LOOKS = 1
"""Stored sessions are looked at once."""


@dataclass(frozen=True, slots=True)
class _Common:
    """A metric that both baselines have.

    logs: of both sides, by `session_logs`. own: their noise. fitted: to all metrics of its class, `found`. cards: those
    that all sessions of both sides ran on, if these are the same.
    """

    base: StoredMetric
    new: StoredMetric
    logs: tuple[Sessions, Sessions]
    own: Spread
    fitted: ClassNoise
    found: NoiseClass
    cards: frozenset[str]

    @property
    def comparison(self) -> Comparison:
        """Of the new sessions with those of the base."""
        base, new = self.logs
        return compare_sessions(new, base, self.own, self.fitted, LOOKS)

    @property
    def apart(self) -> tuple[Finding, ...]:
        """The processes that are far from the others of their session, on both sides."""
        base = stored_findings(self.base, "session of the reference")
        return (*base, *stored_findings(self.new, "session of the new file"))

    @property
    def rest(self) -> _Common:
        """The same without these processes."""
        base, new = rest_of_stored(self.base), rest_of_stored(self.new)
        logs = session_logs(base), session_logs(new)
        return replace(self, base=base, new=new, logs=logs, own=Spread.of(*logs))

    @property
    def is_elsewhere(self) -> bool:
        """Whether each session of the new side ran on other cards than all of the base."""
        return all(ran_elsewhere(self.base, cards) for cards in cards_of_sessions(self.new))


@dataclass(frozen=True)
class Judge:
    """Judges the common metrics of two baselines; what differs between these, `found`, is weighed once for all."""

    base: Baseline
    new: Baseline
    found: tuple[StandingDifference, ...]
    terms: Terms

    def judgements(self) -> Iterator[Judgement]:
        """One per metric that both have, but for `same`, in the order of `base`."""
        logs = [(session_logs(base), session_logs(new)) for base, new in self._common]
        own = [Spread.of(*sides) for sides in logs]
        cards = [one_set_of_cards(base, new) for base, new in self._common]
        classes = [class_of(base, same_cards=bool(each)) for (base, _), each in zip(self._common, cards, strict=True)]
        noises = _fitted(classes, own)
        rows = zip(self._common, logs, own, noises, classes, cards, strict=True)
        for (base, new), sides, mine, noise, found, here in rows:
            yield self._judgement(_Common(base, new, sides, mine, noise, found, here))

    @property
    def allowed(self) -> frozenset[str]:
        """What the user allowed and does differ."""
        fields = [found.difference.field for found in self.found]
        if self.terms.allowed:
            fields += [difference.field for base, new in self._common for difference in self._another(base, new)]
            fields += [CLOCK for base, new in self._common if _clock_shift(base, new)]

        return self.terms.used(fields)

    def _judgement(self, common: _Common) -> Judgement:
        base, new = common.base, common.new
        refusals, notes = self._identity(base, new)
        changed = (*self._changed, *notes)
        if fields := (*self._refused, *refusals):
            reasons = tuple(map(difference_finding, fields))
            bare = replace(self._bare(common, changed), reasons=reasons, another=fields)
            return unjudged(bare, self._compared(bare, common)) if comparable(base.metric, new.metric) else bare

        timed = not self._published and new.metric.kind != "quality"
        shift = _clock_shift(base, new) if timed else None
        if shift and self.terms.allow(CLOCK):
            changed, shift = (*changed, f"{shift} (allowed)"), None

        bare = self._bare(common, changed)
        judgement = self._confounded(self._compared(bare, common), shift)
        return with_apart(judgement, lambda: self._compared(bare, common.rest))

    def _compared(self, bare: Judgement, common: _Common) -> Judgement:
        """The judgement completed by the rule that is the metric's: of a published point, of answers, or of times."""
        base, new = common.base, common.new
        if self._published:
            return _beside_point(bare, base, new)
        if new.metric.kind == "quality":
            return by_answers(bare, _replicates(new), base)

        comparison = common.comparison
        notes = _speculation(base, new, comparison) if new.metric.kind == "serving" else ()
        return replace(self._weighed(bare, common, comparison), notes=(*notes, *common.apart))

    def _bare(self, common: _Common, changed: tuple[str, ...]) -> Judgement:
        """The judgement before anything is compared."""
        new, sessions = common.new, common.logs[1]
        differences, _, free = without_harmless(self._differences, self._confounders, new.metric, self._link)
        return Judgement(
            metric=new.metric,
            verdict=Verdict.CONFOUNDED,
            basis=Basis(
                new.level,
                sum(map(len, sessions)),
                reference="file",
                new_sessions=len(sessions),
                unpublished=self._unpublished if self._published else None,
                baseline=self.base.path,
            ),
            numbers=Numbers(level_of(sessions, new.metric)),
            changed=changed,
            differences=differences,
            harmless=free,
        )

    def _weighed(self, bare: Judgement, common: _Common, comparison: Comparison) -> Judgement:
        """The judgement with its statistics."""
        sessions, found = common.logs[0], common.found
        # The band is that of a run beside the base: neither side of a comparison can widen it by what it measured.
        unchanged = unchanged_run(sessions, self._noise_of_base(found, common.cards), LOOKS_OF_A_RUN)
        fixed = band_is_set(self.new, bare.name)
        own = bare.metric.tolerance
        other_cards = of_metric(own, unchanged, found, fixed=fixed) if common.is_elsewhere else None
        tolerance = other_cards.band if other_cards else own
        outcome = decide(comparison, tolerance)
        level = level_of(sessions, common.base.metric)
        return replace(
            bare,
            metric=replace(bare.metric, tolerance=tolerance),
            other_cards=other_cards,
            foreseen=JointPart(unchanged.error, unchanged.df, found.streams),
            verdict=Verdict(outcome),
            basis=replace(
                bare.basis,
                sessions=len(sessions),
                session_noise=comparison.noise.session_sd,
                foreign_cards=other_cards is not None,
                same_cards=bool(common.cards),
                streams=found.streams,
                fixed_band=fixed,
            ),
            numbers=bare.numbers.compared(bare.metric, level, comparison),
            settlement=_settlement(comparison, tolerance) if outcome == "INCONCLUSIVE" else None,
        )

    def _confounded(self, judgement: Judgement, shift: ClockShift | None = None) -> Judgement:
        """The judgement as it stands where something undeclared can touch it: numbers that decide nothing."""
        confounders = tuple(each for each in self._confounders if each not in judgement.harmless)
        if not (confounders or shift):
            return judgement

        return replace(
            judgement,
            verdict=Verdict.CONFOUNDED,
            reasons=(
                *map(difference_finding, confounders),
                *([Finding(shift, Cause.CLOCK_SHIFT)] if shift else ()),
            ),
            numbers=replace(judgement.numbers, p_worse=None),
            undeclared=confounders,
            settlement=None,
        )

    def _identity(self, base: StoredMetric, new: StoredMetric) -> tuple[list[Difference], list[str]]:
        """What makes the two another measurement, and what is allowed or only worth a note."""
        refusals: list[Difference] = []
        notes: list[str] = []
        if base.metric == new.metric and base.level == new.level:
            return refusals, notes

        for difference in self._another(base, new):
            if is_swap(difference) and self._changed:
                notes.extend(swap_findings([difference]))
                continue

            if self._published and difference.field == MODEL:
                notes.extend(renamed([difference]))
                continue

            # A change between seconds and tokens per second is no number.
            if self.terms.allow(difference.field) and difference.field != "unit":
                notes.append(f"{difference} (allowed)")
            else:
                refusals.append(difference)

        old, young = base.metric.tolerance, new.metric.tolerance
        if old != young:
            notes.append(f"band: {100 * old:g} % -> {100 * young:g} % (the new one holds)")

        return refusals, notes

    def _another(self, base: StoredMetric, new: StoredMetric) -> Iterator[Difference]:
        for difference in identity_differences(base, new.metric, new.level):
            if not (silent(self.base, difference.base) or silent(self.new, difference.new)):
                yield difference

    @cached_property
    def _link(self) -> Link:
        return slowest_link(self.base.provenance, self.new.provenance)

    @cached_property
    def _noise_of_base(self) -> Callable[[NoiseClass, frozenset[str]], ClassNoise]:
        """What the metrics of a class say together by the base alone, on just some cards if there are any."""

        @cache
        def fitted(found: NoiseClass, cards: frozenset[str]) -> ClassNoise:
            stored = metrics_on(self.base.metrics.values(), cards)
            members = [each for each in stored if class_of(each, same_cards=bool(cards)) == found]
            return class_noise([Spread.of(session_logs(each)) for each in members], found)

        return fitted

    @cached_property
    def same(self) -> tuple[str, ...]:
        """Metrics whose recording is one and the same on both sides: it equals itself, and proves nothing."""
        return tuple(base.metric.name for base, new in self._in_both if _is_itself(base, new))

    @cached_property
    def _common(self) -> list[tuple[StoredMetric, StoredMetric]]:
        return [(base, new) for base, new in self._in_both if base.metric.name not in self.same]

    @cached_property
    def _in_both(self) -> list[tuple[StoredMetric, StoredMetric]]:
        new = self.new.metrics
        return [(stored, new[name]) for name, stored in self.base.metrics.items() if name in new]

    @cached_property
    def _published(self) -> bool:
        return bool(self.base.published or self.new.published)

    @cached_property
    def _unpublished(self) -> tuple[str, ...]:
        silences = (found.difference.field for found in self.found if found.standing == "not published")
        return tuple(dict.fromkeys(map(without_numbers, silences)))

    @cached_property
    def _refused(self) -> tuple[Difference, ...]:
        return tuple(difference for difference in self._undeclared if difference.field == MACHINE_CLASS)

    @cached_property
    def _confounders(self) -> tuple[Difference, ...]:
        return tuple(difference for difference in self._undeclared if difference.field != MACHINE_CLASS)

    @cached_property
    def _differences(self) -> tuple[Difference, ...]:
        return tuple(found.difference for found in self.found)

    @cached_property
    def _undeclared(self) -> tuple[Difference, ...]:
        return tuple(found.difference for found in self.found if found.standing == "undeclared")

    @cached_property
    def _changed(self) -> tuple[str, ...]:
        spoken_of = (found for found in self.found if found.standing in ("declared", "allowed"))
        return tuple(f"{found.difference} ({found.standing})" for found in spoken_of)


def _speculation(base: StoredMetric, new: StoredMetric, comparison: Comparison) -> tuple[Finding, ...]:
    return speculation.acceptance(_replicates(new), base, math.expm1(comparison.change))


def _settlement(comparison: Comparison, tolerance: float) -> Settlement:
    return Settlement(None, sessions_that_settle(comparison, tolerance), math.expm1(comparison.hi))


def _clock_shift(base: StoredMetric, new: StoredMetric) -> ClockShift | None:
    old, young = ([session.telemetry for session in side.current] for side in (base, new))
    return clock_shift(old, young)


def _is_itself(base: StoredMetric, new: StoredMetric) -> bool:
    """By ids, values and what replicates say: what else a file says of a session may have been edited since."""
    sides = ({session.id: _content(session) for session in side.current} for side in (base, new))
    return next(sides) == next(sides)


def _content(session: Session) -> tuple[Sequence[float], Sequence[Mapping[str, Json]]]:
    return session.values, [replicate.facts for replicate in session.replicates]


def _replicates(stored: StoredMetric) -> list[Replicate]:
    """All that gate."""
    return [replicate for session in stored.current for replicate in session.replicates]


def _beside_point(judgement: Judgement, base: StoredMetric, new: StoredMetric) -> Judgement:
    measured, point = ([level_of(session_logs(side), side.metric)] for side in (new, base))
    return beside_point(judgement, measured, point)


def _fitted(classes: Sequence[NoiseClass], own: Sequence[Spread]) -> list[ClassNoise]:
    """For each metric what the metrics of its class say together."""
    members: dict[NoiseClass, list[Spread]] = {}
    for found, spread in zip(classes, own, strict=True):
        members.setdefault(found, []).append(spread)

    fitted = {found: class_noise(spreads, found) for found, spreads in members.items()}
    return [fitted[found] for found in classes]
