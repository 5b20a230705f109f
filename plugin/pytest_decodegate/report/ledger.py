"""The ledger of a decode step as people read it: each part, the sum, and what the measured step holds beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .table import table

if TYPE_CHECKING:
    from ..profile.explained import Explained
    from ..profile.ledger import Entry, Ledger
    from ..profile.what_if import Prediction

HEADER: Final = ("part of the step", "category", "count", "us each", "ms", "share")
Z95: Final = 1.96


def text(step: Ledger, title: str, tpot_s: float | None, predictions: Sequence[Prediction]) -> list[str]:
    """The table, the predicted step with its interval, the measured TPOT and the rest, and the what-ifs."""
    return [title, *table([HEADER, *_rows(step)]), *_sums(step, tpot_s), *map(str, predictions)]


def explained_text(found: Explained, source: str) -> list[str]:
    """What a profile has beyond the predicted step, a line for each name, and what of the measured one has none."""
    whole = found.measured.seconds if found.measured else found.profiled
    rows = [(name, f"{seconds * 1e3:+.3f}", f"{seconds / whole:+.1%}") for name, seconds in found.names]
    of = "TPOT" if found.measured else "the profiled step"
    head = ("beyond the prediction", "ms", f"of {of}")
    profiled = f"profiled step {found.profiled * 1e3:.3f} ms"
    if (added := found.profiled_gaps - found.gaps) > 0:
        profiled += f", in which the profiler makes gaps longer by {added * 1e3:.3f} ms"

    lines = [f"as {source} has the step:", *table([head, *rows]), profiled]
    if found.unexplained is not None:
        lines.append(f"without a name: {found.unexplained * 1e3:+.3f} ms ({found.unexplained / whole:+.1%} of TPOT)")

    return lines


def _rows(step: Ledger) -> Iterator[tuple[str, ...]]:
    for entry in sorted(step.entries, key=lambda each: -each.seconds):
        yield (
            entry.name,
            entry.category.label,
            f"{entry.count:g}",
            f"{entry.time.seconds * 1e6:.2f}",
            f"{entry.seconds * 1e3:.3f}",
            _share(step, entry),
        )


def _share(step: Ledger, entry: Entry) -> str:
    return "beside" if entry.branch == step.hidden else f"{entry.seconds / step.seconds:.1%}"


def _sums(step: Ledger, tpot_s: float | None) -> Iterator[str]:
    lo, hi = ((step.seconds + sign * Z95 * step.error_s) * 1e3 for sign in (-1, 1))
    yield f"predicted step {step.seconds * 1e3:.3f} ms [{lo:.3f}, {hi:.3f}]"
    if step.hidden:
        hidden = sum(entry.seconds for entry in step.entries if entry.branch == step.hidden)
        yield f"{step.hidden} experts run beside the others: {hidden * 1e3:.3f} ms are in no sum"
    if tpot_s is not None:
        rest = tpot_s - step.seconds
        yield f"measured TPOT {tpot_s * 1e3:.3f} ms: {rest * 1e3:+.3f} ms ({rest / tpot_s:+.1%}) are in no part"
    if step.missing:
        yield f"NOT WHOLE: nothing measured {', '.join(step.missing)}"
