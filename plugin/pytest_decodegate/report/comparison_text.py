"""A comparison of stored baselines on a terminal: plain columns, colour only where someone looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..compare.pairs import Compared
from ..gate.verdict import Judgement, Verdict
from ..printable import printable
from .comparison import COLUMNS, HEADER, Section, answer, sections
from .table import cells, fitted, table

MOST_EXPLAINED = 20
"""Metrics that are explained at length; the table and the other formats have them all."""

MOST_CHARACTERS = 1000
"""Of one line of an explanation: the names of thousands of metrics that one cause confounds stand in the table."""

_MAY_GO = [HEADER.index(name) for name in ("sessions", "band", "reference", "new")]
"""Columns that a narrow terminal does without, the least needed first."""

_RESET = "\033[0m"
_COLOURS = {Verdict.PASS: "\033[32m", Verdict.IMPROVED: "\033[32m", Verdict.REGRESSED: "\033[31m"}
_OTHER_COLOUR = "\033[33m"


@dataclass(frozen=True, slots=True)
class Terminal:
    """What a report is written for. width: characters of a line; None where lines may be as long as they are.

    names: whether each metric on one side only is named, or they are counted.
    """

    colour: bool = False
    names: bool = True
    width: int | None = None


def text(compared: Compared, terminal: Terminal) -> str:
    """The whole report, lines ended."""
    shown = sections(compared, names=terminal.names)
    lines = [line for section in shown for line in _section(section, terminal)]
    return "\n".join([*lines, answer(compared), ""])


def _section(section: Section, terminal: Terminal) -> Iterator[str]:
    yield printable(section.title)
    yield from (f"  {printable(note)}" for note in section.notes)
    if section.judgements:
        yield ""
        yield from _table(section.judgements, terminal)
        yield ""
        yield from _explained(section)
        yield section.summary

    yield ""


def _explained(section: Section) -> Iterator[str]:
    explanations = section.explanations()
    for explanation in islice(explanations, MOST_EXPLAINED):
        yield from (_short(printable(line)) for line in explanation.splitlines())

    if next(explanations, None) is not None:
        yield f"more than {MOST_EXPLAINED} did not pass; --format json, markdown and html explain all of them"


def _short(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]} ..."


def _table(judgements: Sequence[Judgement], terminal: Terminal) -> Iterator[str]:
    rows = [HEADER, *(cells(judgement, COLUMNS) for judgement in judgements)]
    (header, *lines), left_out = (table(rows), ()) if terminal.width is None else fitted(rows, terminal.width, _MAY_GO)
    yield header
    for judgement, line in zip(judgements, lines, strict=True):
        yield f"{_COLOURS.get(judgement.verdict, _OTHER_COLOUR)}{line}{_RESET}" if terminal.colour else line

    if left_out:
        yield f"({terminal.width} columns: without {', '.join(left_out)}; COLUMNS=200, or --format json, shows all)"
