"""A report as Markdown for a pull request or a job summary: failures first, what passed folded, and never long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..gate.decision import ADVISORY, RECORDED, counted_as
from ..gate.result import Failed, Result
from ..gate.text.quantity import format_percent
from ..gate.verdict import Verdict
from ..printable import printable
from .content import Card, Content, Group, Outcome, StackChange, by_family, weight
from .escape import escaped
from .table import cells, cut, unjudged

MOST_BYTES: Final = 4000
"""Of the whole text: it is read in a pull request, and the page has everything."""

MOST_TEXT: Final = 240
"""Characters of one sentence."""

MOST_NAME: Final = 60

HEADER: Final = ("metric", "verdict", "change", "interval", "base", "now")
_FOLDED: Final = (Verdict.IMPROVED, Verdict.PASS)


def markdown(content: Content) -> str:
    """The whole report, in at most MOST_BYTES; nothing that a file, a log or a name says becomes markup."""
    text = _Bounded(MOST_BYTES)
    text.add(f"## {_short(content.title)}: {_short(content.answer)}", "")
    text.add(_short(content.said), "")
    if content.stopped:
        text.add(f"**{_short(content.stopped)}**", "")
    end = _commands(content)
    text.add(end=end)
    for group in content.groups:
        _group(text, group, titled=len(content.groups) > 1)

    text.add_kept([*text.left_out, *end])
    return text.text()


class _Bounded:
    """Lines of at most `most` bytes: what does not fit is counted and said, and what stands at the end has its room."""

    def __init__(self, most: int) -> None:
        self._room = most - _bytes([_LEFT_OUT.format(10**6), ""])
        self._lines: list[str] = []
        self._left_out = 0

    def add(self, *lines: str, end: Sequence[str] = ()) -> bool:
        """Add these lines together, or none of them; whether they had room. end: lines that keep theirs for later."""
        size = _bytes((*lines, *end))
        if size > self._room:
            self._left_out += 1
            return False

        self._room -= size
        self._lines += lines
        return True

    def add_kept(self, lines: Sequence[str]) -> None:
        """Add `lines`, for which room was kept."""
        self._lines += lines

    @property
    def left_out(self) -> list[str]:
        """What says that something had no room, which always has."""
        return [_LEFT_OUT.format(self._left_out), ""] if self._left_out else []

    def text(self) -> str:
        """What was added."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


_LEFT_OUT: Final = "{} more entries have no room here; report.html has them."
_CLOSED: Final = ("", "</details>", "")


def _bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _short(text: str) -> str:
    return escaped(cut(text, MOST_TEXT))


def _commands(content: Content) -> list[str]:
    """In fences: what is to be pasted stays as it is, on one line each, whatever it holds."""
    found = (("next", content.next_command), ("repeat", content.repeat))
    return [line for name, command in found if command for line in _fenced(name, command)]


def _fenced(name: str, command: str) -> Iterator[str]:
    shown = printable(command)
    fence = "`" * 3
    while fence in shown:
        fence += "`"
    if len(shown) <= 3 * MOST_TEXT:
        yield from (f"{name}:", "", fence, shown, fence, "")


def _group(text: _Bounded, group: Group, *, titled: bool) -> None:
    if titled:
        text.add(f"### {_short(group.title)}", "")
    for card in group.cards:
        _card(text, card)
    if group.changes:
        _listed(text, "What differs", [_changed(change) for change in group.changes])

    for verdict in _FOLDED:
        found = [outcome for outcome in group.outcomes if counted_as(outcome) == verdict]
        if found:
            text.add(*_folded(f"{len(found)} {verdict}", _family_lines(found)))

    others = [outcome for outcome in sorted(group.outcomes, key=weight) if _is_aside(outcome)]
    if others:
        _listed(text, "Shown, deciding nothing", [f"{_name(each)}: {escaped(_said(each))}" for each in others])
    bracketed = unjudged(outcome.judgement for outcome in group.outcomes if isinstance(outcome, Result))
    notes = list(dict.fromkeys((*bracketed, *group.notes)))
    if notes:
        _listed(text, "Notes", [_short(note) for note in notes])


def _is_aside(outcome: Outcome) -> bool:
    """Whether it is neither in a card nor folded: recorded, or advisory."""
    return counted_as(outcome) in (RECORDED, ADVISORY)


def _said(outcome: Outcome) -> str:
    change = "" if isinstance(outcome, Failed) or outcome.judgement.numbers.change is None else _percent(outcome)
    return f"{counted_as(outcome)}{f' {change}' if change else ''}"


def _percent(outcome: Result) -> str:
    return format_percent(outcome.judgement.numbers.change or 0.0)


def _card(text: _Bounded, card: Card) -> None:
    """A cause with as many of its rows as have room."""
    if not text.add(f"**{_short(card.text)}**", "", _line(HEADER), _line("---" for _ in HEADER), end=("",)):
        return

    for outcome in sorted(card.outcomes, key=lambda each: (weight(each), -_moved(each))):
        text.add(_line(_cells(outcome)))
    text.add_kept(("",))
    if card.advice:
        text.add(*(f"- next: {_short(line)}" for line in card.advice), "")


def _moved(outcome: Outcome) -> float:
    return abs(outcome.numbers.change or 0.0) if isinstance(outcome, Failed) else abs(_change(outcome))


def _change(outcome: Result) -> float:
    return outcome.judgement.numbers.change or 0.0


def _cells(outcome: Outcome) -> Iterator[str]:
    shown = outcome.judgement if isinstance(outcome, Result) else outcome
    _, *rest = cells(shown, ("name", "verdict", "change", "interval", "base", "measured"))
    yield _name(outcome)
    yield from map(escaped, rest)


def _name(outcome: Outcome) -> str:
    return escaped(cut(outcome.name, MOST_NAME))


def _line(found: Iterable[str]) -> str:
    return f"| {' | '.join(found)} |"


def _changed(change: StackChange) -> str:
    field, base, new = (escaped(cut(each, MOST_NAME)) for each in (change.field, change.base, change.new))
    return f"{field}: {base} -> {new} ({escaped(change.standing)})"


def _listed(text: _Bounded, title: str, entries: Sequence[str]) -> None:
    if text.add(f"<details><summary>{title} ({len(entries)})</summary>", "", end=_CLOSED):
        for entry in entries:
            text.add(f"- {entry}")
        text.add_kept(_CLOSED)


def _folded(title: str, entries: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *(f"- {entry}" for entry in entries), *_CLOSED]


def _family_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A line a family with its sizes and what moved most: "gemm: [m=1], [m=8] (at most +1.2 %)"."""
    return [_family_line(name, members) for name, members in by_family(outcomes).items()]


def _family_line(name: str, members: Sequence[Outcome]) -> str:
    sizes = ", ".join(each.name.removeprefix(name).strip("[]") for each in members)
    largest = max((each for each in members if isinstance(each, Result)), key=lambda each: abs(_change(each)))
    listed = f": {escaped(cut(sizes, 2 * MOST_NAME))}" if sizes.strip(", ") else ""
    return f"{escaped(cut(name, MOST_NAME))}{listed} (at most {_percent(largest)})"
