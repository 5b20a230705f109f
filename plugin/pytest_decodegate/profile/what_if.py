"""What a step would take if something were otherwise: predictions from a ledger, with intervals, and marked as such."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..errors import BadInput
from .categories import Category
from .ledger import Entry, Ledger, Time

Z95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step as it would be. what: in words. saved_s: of the step, below zero where it would take longer.

    error_s: standard error of saved_s. of_s: the step, or the measured TPOT, that shares are of.
    """

    what: str
    saved_s: float
    error_s: float
    of_s: float

    @property
    def share(self) -> float:
        """Saved, as a fraction of `of_s`."""
        return self.saved_s / self.of_s

    @property
    def interval(self) -> tuple[float, float]:
        """Of saved_s, 95 %, as far as the metrics' own errors go; not of how well the sum describes a step."""
        return self.saved_s - Z95 * self.error_s, self.saved_s + Z95 * self.error_s

    def __str__(self) -> str:
        lo, hi = (edge * 1e3 for edge in self.interval)
        verb = "saves" if self.saved_s >= 0 else "costs"
        around = f" [{lo:+.2f}, {hi:+.2f}]" if self.error_s else ""
        return f"{self.what}: {verb} {abs(self.saved_s) * 1e3:.2f} ms{around}, {abs(self.share):.0%}; predicted"


def exchanged(now: Ledger, name: str, count: float, by: Entry, *, of_s: float | None = None) -> Prediction:
    """`count` calls of `name` become those of `by`; the others stay. of_s: the measured TPOT, if known.

    Raises BadInput for a name that the ledger does not have, or more calls than it has.
    """
    entries = _entries(now, name)
    calls = sum(entry.count for entry in entries)
    if not 0 < count <= calls:
        raise BadInput(f"what-if: {name} has {calls:g} calls a step, of which {count:g} cannot be exchanged")

    what = _becomes(count, name, entries[0].time, by)
    return _compared(what, now, now.replaced(name, by=[*_less(entries, count), by]), of_s)


def _less(entries: Sequence[Entry], count: float) -> Iterator[Entry]:
    """`entries` without `count` of their calls, which are taken from where there are most."""
    for entry in sorted(entries, key=lambda entry: -entry.count):
        taken = min(count, entry.count)
        count -= taken
        if taken < entry.count:
            yield replace(entry, count=entry.count - taken)


def faster(now: Ledger, name: str, time: Time, whose: str, *, of_s: float | None = None) -> Prediction:
    """Every call of `name` takes the time of another way to do the same, which `whose` names."""
    entries = _entries(now, name)
    by = [replace(entry, name=whose, time=time) for entry in entries]
    calls = sum(entry.count for entry in entries)
    what = _becomes(calls, name, entries[0].time, replace(by[0], count=calls))
    return _compared(what, now, now.replaced(name, by=by), of_s)


def without(now: Ledger, category: Category, *, of_s: float | None = None) -> Prediction:
    """Nothing of one category is there: dtype casts, say."""
    names = [entry.name for entry in now.entries if entry.category == category]
    return _compared(f"no {category.label}", now, now.replaced(*names), of_s)


def speculative(
    now: Ledger, verifying: Ledger, drafts: int, acceptance: float, draft: Time, *, of_s: float | None = None
) -> Prediction:
    """Time per token with `drafts` draft tokens a step, each accepted by chance `acceptance` if those before it were.

    verifying: the step of drafts + 1 times as many tokens. draft: of one draft token. A step then gives
    (1 - a^(k+1)) / (1 - a) tokens (Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative
    Decoding", 2023, equation 1). Raises BadInput for an acceptance that is no probability, or no draft.
    """
    if not 0 <= acceptance <= 1 or drafts < 1:
        raise BadInput(f"what-if: acceptance {acceptance:g} with {drafts} drafts; give 0 to 1, and at least 1 draft")

    tokens = drafts + 1.0 if acceptance == 1 else (1 - acceptance ** (drafts + 1)) / (1 - acceptance)
    per_token = (verifying.seconds + drafts * draft.seconds) / tokens
    error = math.hypot(now.error_s, verifying.error_s / tokens, drafts * draft.seconds * draft.error / tokens)
    what = f"{drafts} drafts a step at acceptance {acceptance:.0%} ({tokens:.2f} tokens a step)"
    return Prediction(what, now.seconds - per_token, error, of_s or now.seconds)


def other_ranks(now: Ledger, then: Ledger, ranks: int, *, of_s: float | None = None) -> Prediction:
    """The step on another number of ranks, whose ledger is `then`."""
    return _compared(f"{ranks} ranks", now, then, of_s)


def _compared(what: str, now: Ledger, then: Ledger, of_s: float | None) -> Prediction:
    """What is the same in both ledgers cancels, with its error."""
    old, new = now.calls, then.calls
    more = {of: new.get(of, 0.0) - old.get(of, 0.0) for of in {**old, **new}}
    errors = (count * time.seconds * time.error for (_, time), count in more.items())
    return Prediction(what, now.seconds - then.seconds, math.hypot(*errors), of_s or now.seconds)


def _entries(now: Ledger, name: str) -> list[Entry]:
    """All of that name: what one metric measured may stand in a step twice."""
    found = [entry for entry in now.entries if entry.name == name]
    if not found:
        known = ", ".join(dict.fromkeys(entry.name for entry in now.entries))
        raise BadInput(f"what-if: the step has no {name!r}; it has {known}")

    return found


def _becomes(count: float, name: str, time: Time, by: Entry) -> str:
    return f"{count:g} {name} of {_us(time)} become {by.count:g} {by.name} of {_us(by.time)}"


def _us(time: Time) -> str:
    return f"{time.seconds * 1e6:.3g} us"
