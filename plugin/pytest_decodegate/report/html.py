"""A comparison of stored baselines as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape as _escape

from ..compare.pairs import Compared
from ..gate.verdict import Judgement
from ..printable import printable
from .comparison import COLUMNS, HEADER, Section, answer, sections
from .table import cells

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .2em .8em; text-align: left; white-space: nowrap; border-bottom: 1px solid #8884; }
td { font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; margin: .2em 0 1em; }
.PASS td:nth-child(2), .IMPROVED td:nth-child(2) { color: #187a35; }
.REGRESSED td:nth-child(2) { color: #c0182c; font-weight: bold; }
.INCONCLUSIVE td:nth-child(2), .CONFOUNDED td:nth-child(2) { color: #9a6200; }
@media (prefers-color-scheme: dark) { :root { color-scheme: dark; } body { background: #161616; color: #ddd; } }
"""


def page(compared: Compared) -> str:
    """The whole report; everything that comes from a file is escaped."""
    said = escape(answer(compared))
    body = "".join(part for section in sections(compared) for part in _section(section))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>decodegate compare: {said}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>decodegate compare</h1><p><strong>{said}</strong></p>\n{body}</body></html>\n"
    )


def escape(text: str) -> str:
    """`text` as HTML that shows it as it is; lines stay lines."""
    return _escape("\n".join(map(printable, text.splitlines())))


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>\n<ul>"
    yield from (f"<li>{escape(note)}</li>" for note in section.notes)
    yield "</ul>\n"
    if section.judgements:
        yield f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in HEADER)}</tr></thead><tbody>\n"
        yield from map(_row, section.judgements)
        yield f"</tbody></table>\n<p>{escape(section.summary)}</p>\n"

    if explanations := list(section.explanations()):
        yield "<details open><summary>What did not pass</summary>\n"
        yield from (f"<pre>{escape(explanation)}</pre>\n" for explanation in explanations)
        yield "</details>\n"

    yield "</section>\n"


def _row(judgement: Judgement) -> str:
    row = "".join(f"<td>{escape(cell)}</td>" for cell in cells(judgement, COLUMNS))
    return f'<tr class="{judgement.verdict}">{row}</tr>\n'
