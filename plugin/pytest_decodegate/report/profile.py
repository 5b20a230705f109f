"""A profile of the decode step as people read it: the operators' table, as text or Markdown, and stacked bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from ..printable import printable
from ..profile.attribution import between
from ..profile.categories import Category
from ..profile.step_profile import CategoryTime, KernelTime, StepProfile
from .escape import escaped
from .table import cut, table

HEADER: Final = ("category", "ms", "share", "calls", "us/call")
KERNELS: Final = 15
"""Rows of the longest kernels."""

_BAR_WIDTH: Final = 72
_NAME_WIDTH: Final = 60
_LETTERS: Final[Mapping[Category, str]] = dict(zip(Category, "ACFMGRDNSYz", strict=True))
COLOURS: Final[Mapping[Category, str]] = dict(
    zip(
        Category,
        (
            *("#c0392b", "#e67e22", "#8e44ad", "#2471a3", "#5dade2", "#17a589"),
            *("#f1c40f", "#7dcea0", "#a04000", "#839192", "#d5d8dc"),
        ),
        strict=True,
    )
)


def text(profile: StepProfile) -> list[str]:
    """Title, table of categories, what else the step holds, and the longest kernels."""
    return [
        title(profile),
        *table([HEADER, *_rows(profile)]),
        *_times(profile),
        "",
        *table([("kernel", *HEADER[1:], "kind"), *_kernel_rows(profile.kernels)]),
    ]


def markdown(profile: StepProfile) -> list[str]:
    """The same as Markdown; nothing that a file says becomes markup."""
    return [
        f"### {escaped(title(profile))}",
        "",
        *_markdown_table(HEADER, _rows(profile)),
        "",
        *(f"- {escaped(line)}" for line in _times(profile)),
        "",
        *_markdown_table(("kernel", *HEADER[1:], "kind"), _kernel_rows(profile.kernels)),
    ]


def title(profile: StepProfile) -> str:
    """What the profile is of, in one line; a partial one begins with the word."""
    size = "" if profile.streams is None else f" of {profile.streams} stream(s), {profile.tokens} token(s)"
    missing = f"PARTIAL, without rank(s) {_list(profile.missing)}: " if profile.partial else ""
    gpu = f", {profile.facts['gpu']}" if "gpu" in profile.facts else ""
    return printable(
        f"{missing}decode step{size}: mean of {profile.steps} steps on rank(s) {_list(profile.ranks)}{gpu}, "
        f"{profile.tool}, {profile.source}"
    )


def change_text(before: StepProfile, after: StepProfile) -> list[str]:
    """Two profiles by category: kernel time of each, the difference, what explains it, and bars of both."""
    header = ("category", "before ms", "after ms", "change ms", "calls", "us/call")
    return [
        *table([header, *_change_rows(before, after)]),
        str(between(before, after)),
        "",
        *bars({"before": before, "after": after}),
    ]


def bars(profiles: Mapping[str, StepProfile]) -> list[str]:
    """One stacked bar for each profile, on one scale, drawn with a letter for each category."""
    most = max(profile.kernel_ms for profile in profiles.values())
    width = max(map(len, profiles))
    legend = ", ".join(f"{_LETTERS[category]} {category.label}" for category in used_categories(profiles))
    drawn = (
        f"{name:<{width}} |{_bar(profile, most):<{_BAR_WIDTH}}| {profile.kernel_ms:.3f} ms"
        for name, profile in profiles.items()
    )
    return [*drawn, legend]


def used_categories(profiles: Mapping[str, StepProfile]) -> list[Category]:
    """Those that take time in any of `profiles`."""
    return [category for category in Category if any(found.of(category).ms for found in profiles.values())]


def svg(profiles: Mapping[str, StepProfile]) -> str:
    """The same as an SVG picture that needs nothing else; widths are of one scale, and each part says what it is."""
    most = max(profile.kernel_ms for profile in profiles.values())
    drawn = enumerate(profiles.items())
    rows = "".join(_svg_bar(name, profile, most, 60 + 60 * row) for row, (name, profile) in drawn)
    height = 60 + 60 * len(profiles) + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" '
        'font-family="sans-serif" font-size="13">\n'
        f'<rect width="1000" height="{height}" fill="white"/>\n'
        '<text x="20" y="26" font-size="16">Kernel time of a decode step, ms</text>\n'
        f"{rows}{_svg_legend(height)}</svg>\n"
    )


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _rows(profile: StepProfile) -> Iterator[tuple[str, ...]]:
    for found in profile.categories:
        yield (found.category.label, *_numbers(found))

    calls = sum(found.calls for found in profile.categories)
    yield ("total", f"{profile.kernel_ms:.3f}", "100.0 %", _calls(calls), f"{profile.kernel_ms * 1e3 / calls:.2f}")


def _numbers(found: CategoryTime | KernelTime) -> tuple[str, ...]:
    return (f"{found.ms:.3f}", f"{100 * found.share:.1f} %", _calls(found.calls), f"{found.us_per_call:.2f}")


def _calls(calls: float) -> str:
    return f"{calls:.2f}".rstrip("0").rstrip(".")


def _kernel_rows(kernels: Sequence[KernelTime]) -> Iterator[tuple[str, ...]]:
    for kernel in kernels[:KERNELS]:
        yield (cut(printable(kernel.name), _NAME_WIDTH), *_numbers(kernel), printable(kernel.kind))


def _times(profile: StepProfile) -> list[str]:
    """What is in no row of the table: overlap, waiting, gaps, and what was left out."""
    overlap_ms = profile.kernel_ms - profile.busy_ms
    lines = [
        f"busy {profile.busy_ms:.3f} ms, the union of the kernels: {overlap_ms:.3f} ms of them overlap",
        f"waiting for a late rank, in no category: {profile.waiting_ms:.3f} ms",
    ]
    if profile.idle_ms is not None and profile.period_ms is not None:
        period = f"{profile.period_ms:.3f} ms from step to step, which holds the profiler's own cost: no TPOT"
        lines.append(f"no kernel at all: {profile.idle_ms:.3f} ms of {period}")

    if len(profile.stream_ms) > 1:
        longest = sorted(profile.stream_ms.items(), key=lambda stream: -stream[1])[:4]
        lines.append("busiest streams: " + ", ".join(f"{stream}: {ms:.3f} ms" for stream, ms in longest))

    left_out = ", ".join(f"{count} {reason}" for reason, count in profile.cut.items())
    return [*lines, f"left out: {left_out}"] if left_out else lines


def _markdown_table(header: Sequence[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    right = ["---", *("---:" for _ in HEADER[1:]), *("---" for _ in header[len(HEADER) :])]
    return [line(header), line(right), *(line(map(escaped, row)) for row in rows)]


def _change_rows(before: StepProfile, after: StepProfile) -> Iterator[tuple[str, ...]]:
    for old, new in zip(before.categories, after.categories, strict=True):
        yield (
            old.category.label,
            f"{old.ms:.3f}",
            f"{new.ms:.3f}",
            f"{new.ms - old.ms:+.3f}",
            _from_to(_calls(old.calls), _calls(new.calls)),
            _from_to(f"{old.us_per_call:.2f}", f"{new.us_per_call:.2f}"),
        )

    change = after.kernel_ms - before.kernel_ms
    yield ("total", f"{before.kernel_ms:.3f}", f"{after.kernel_ms:.3f}", f"{change:+.3f}", "", "")


def _from_to(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def _bar(profile: StepProfile, most_ms: float) -> str:
    """Letters up to where the running sum ends, so that roundings do not add up."""
    drawn, reached = "", 0.0
    for found in profile.categories:
        reached += found.ms
        drawn += _LETTERS[found.category] * (round(reached / most_ms * _BAR_WIDTH) - len(drawn))

    return drawn


def _svg_bar(name: str, profile: StepProfile, most_ms: float, y: int) -> str:
    parts, x = [], 100.0
    for found in profile.categories:
        width = 800 * found.ms / most_ms
        tip = f"{found.category.label}: {found.ms:.3f} ms, {100 * found.share:.1f} %, {_calls(found.calls)} calls"
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="36" fill="{COLOURS[found.category]}">'
            f"<title>{escape(tip)}</title></rect>\n"
        )
        x += width

    label = f'<text x="90" y="{y + 23}" text-anchor="end">{escape(printable(name))}</text>\n'
    return label + "".join(parts) + f'<text x="{x + 6:.2f}" y="{y + 23}">{profile.kernel_ms:.3f}</text>\n'


def _svg_legend(height: int) -> str:
    return "".join(
        f'<rect x="{20 + 88 * number}" y="{height - 26}" width="10" height="10" fill="{COLOURS[category]}"/>'
        f'<text x="{34 + 88 * number}" y="{height - 17}" font-size="9">{escape(category.label)}</text>\n'
        for number, category in enumerate(Category)
    )
