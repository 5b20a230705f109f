"""What is to be known of all metrics of a run together, in a few lines; with -v each is said of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from ..gate.decision import named

if TYPE_CHECKING:
    from ..cause import Finding
    from ..gate.result import Result
    from ..machine.provenance import Difference

MOST_NOTES: Final = 6
"""Of a screen."""

MOST_OF_DIFFERENCE: Final = 60
"""Characters of a difference with both its values; of a longer one the field is named."""


def compared(results: Sequence[Result]) -> Iterator[str]:
    """Each baseline in use with the reasons that it has for all of its metrics: "against 0001_x.json: the only one"."""
    choices: dict[str, list[tuple[str, ...]]] = {}
    for result in results:
        basis = result.judgement.basis
        if file := basis.baseline:
            choices.setdefault(f"{file.parent.name}/{file.name}", []).append(basis.choice)

    for name, reasons in choices.items():
        shared = [reason for reason in reasons[0] if all(reason in each for each in reasons)]
        many = f" ({len(reasons)} metric{'s' * (len(reasons) > 1)})" * (len(choices) > 1)
        yield f"against {': '.join(filter(None, (name, '; '.join(shared))))}{many}"


def harmless(results: Sequence[Result]) -> Iterator[str]:
    """What differs from the baselines where it can touch nothing, in one line."""
    touched = [result.judgement.harmless for result in results if result.judgement.harmless]
    found = dict.fromkeys(_in_short(difference) for each in touched for difference in each)
    if found:
        many = f"{len(touched)} metric{'s' * (len(touched) > 1)}"
        yield f"differs and cannot touch {many} (why: -v): {'; '.join(found)}"


def _in_short(difference: Difference) -> str:
    text = str(difference)
    return text if len(text) <= MOST_OF_DIFFERENCE else difference.field


def notes(results: Sequence[Result]) -> Iterator[str]:
    """Each thing to know once, with the metrics that it is about; what differs in its numbers alone is one thing."""
    found: dict[Hashable, list[tuple[str, str]]] = {}
    for result in results:
        for note in result.judgement.notes:
            found.setdefault(_same_thing(note), []).append((note.brief, result.name))

    for each in islice(found.values(), MOST_NOTES):
        texts, names = (list(dict.fromkeys(column)) for column in zip(*each, strict=True))
        more = f" (and {len(texts) - 1} like it: -v)" if len(texts) > 1 else ""
        yield f"note: {named(names)}: {texts[0]}{more}"
    if len(found) > MOST_NOTES:
        yield f"and {len(found) - MOST_NOTES} more notes (-v)"


def _same_thing(note: Finding) -> Hashable:
    """Equal for notes that are one: by what they are about, where they say so."""
    return note.key if note.about else note.brief
