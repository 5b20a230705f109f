"""A comparison of stored baselines as Markdown, for pull requests and job summaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..compare.pairs import Compared
from .comparison import COLUMNS, HEADER, Section, answer, sections
from .escape import escaped
from .table import cells


def markdown(compared: Compared) -> str:
    """The whole report; nothing that a file says becomes markup."""
    lines = ["## decodegate compare", "", f"**{escaped(answer(compared))}**", ""]
    for section in sections(compared):
        lines += _section(section)

    return "\n".join(lines)


def _section(section: Section) -> Iterator[str]:
    yield from (f"### {escaped(section.title)}", "")
    yield from (f"- {escaped(note)}" for note in section.notes)
    yield ""
    if section.judgements:
        yield _line(HEADER)
        yield _line("---" for _ in HEADER)
        yield from (_line(map(escaped, cells(judgement, COLUMNS))) for judgement in section.judgements)
        yield from ("", escaped(section.summary), "")

    if explanations := list(section.explanations()):
        yield from ("<details><summary>What did not pass</summary>", "")
        yield from map(_explained, explanations)
        yield from ("", "</details>", "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _explained(explanation: str) -> str:
    """A list entry whose lines stay lines."""
    return "- " + "<br>\n  ".join(escaped(line.strip()) for line in explanation.splitlines())
