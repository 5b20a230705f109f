"""Which category of kernels explains a change of TPOT, from two profiles of a step or two ledgers of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .categories import Category
from .ledger import Ledger
from .step_profile import StepProfile

LEAST_SHARE: Final = 0.05
"""Of the change: categories that moved by less are summed up as the rest."""


@dataclass(frozen=True, slots=True)
class CategorySum:
    """What a category takes of a step: seconds, and calls."""

    seconds: float
    calls: float


Sums = Mapping[Category, CategorySum]


@dataclass(frozen=True, slots=True)
class Moved:
    """How a category changed from one step to another."""

    category: Category
    base: CategorySum
    new: CategorySum

    @property
    def seconds(self) -> float:
        """+ is longer now."""
        return self.new.seconds - self.base.seconds

    def __str__(self) -> str:
        return f"{self.category.label} {_ms(self.seconds)}{self._calls()}"

    def _calls(self) -> str:
        """By what each call changed, or how many more or fewer there are."""
        if not self.new.calls:
            return " (gone)" if self.base.calls else ""
        if not self.base.calls:
            return f" (new, {self.new.calls:g} calls)"
        if self.base.calls != self.new.calls:
            return f" ({self.base.calls:g} -> {self.new.calls:g} calls)"

        each = self.seconds / self.new.calls
        return f" ({self.new.calls:g} calls x {each * 1e6:+.1f} us)"


@dataclass(frozen=True, slots=True)
class Attribution:
    """What explains a change of TPOT. change_s: of TPOT, + is slower. moved: the largest first; rest_s: of all others
    and of what is no kernel, so that they add up to the change. largest: the category that now takes most; was_largest:
    before. of: what changed, as people call it.
    """

    change_s: float
    moved: tuple[Moved, ...]
    rest_s: float
    largest: Category
    was_largest: Category
    of: str = "TPOT"

    def __str__(self) -> str:
        named = [*map(str, self.moved), f"rest {_ms(self.rest_s)}"]
        text = f"{self.of} {_ms(self.change_s)} ms: {', '.join(named)}"
        if self.largest != self.was_largest:
            text += f"; the largest is now {self.largest.label}, {self.was_largest.label} before"

        return text


def of_profile(profile: StepProfile) -> dict[Category, CategorySum]:
    """The categories of a profile."""
    return {found.category: CategorySum(found.ms / 1e3, found.calls) for found in profile.categories}


def of_ledger(ledger: Ledger) -> dict[Category, CategorySum]:
    """The categories of a ledger, of what counts in its sum."""
    return {
        category: CategorySum(
            ledger.of(category), sum(entry.count for entry in ledger.counted if entry.category == category)
        )
        for category in Category
    }


def between(base: StepProfile, new: StepProfile) -> Attribution:
    """What explains that the kernels of a step take longer, or less long, in one profile than in another."""
    return attribute((new.kernel_ms - base.kernel_ms) / 1e3, of_profile(base), of_profile(new), of="kernels")


def attribute(change_s: float, base: Sums, new: Sums, of: str = "TPOT") -> Attribution:
    """What explains that TPOT, or what `of` names, changed by `change_s`, in seconds, + is slower."""
    nothing = CategorySum(0.0, 0.0)
    moved = [Moved(category, base.get(category, nothing), new.get(category, nothing)) for category in Category]
    named = tuple(sorted(_named(moved, change_s), key=lambda each: -abs(each.seconds)))
    return Attribution(
        change_s=change_s,
        moved=named,
        rest_s=change_s - sum(each.seconds for each in named),
        largest=_largest(new),
        was_largest=_largest(base),
        of=of,
    )


def _named(moved: Sequence[Moved], change_s: float) -> Iterator[Moved]:
    """Those that explain a part worth naming; also those that moved against the change."""
    largest = max(abs(change_s), *(abs(each.seconds) for each in moved))
    return (each for each in moved if abs(each.seconds) > LEAST_SHARE * largest)


def _largest(sums: Sums) -> Category:
    return max(sums, key=lambda category: sums[category].seconds)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:+.2f}"
