"""What a job of GitHub Actions shows of a run: the report as its summary, and an annotation for what blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from ..errors import BadInput
from ..gate.decision import named
from ..gate.run import Run
from ..printable import printable
from .content import Content, RunFacts, of_run
from .markdown import markdown

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

SUMMARY: Final = "GITHUB_STEP_SUMMARY"
MOST: Final = 10
"""Annotations of one kind that a step may have; GitHub shows no more."""


class GithubJob:
    """A plugin that appends the report to the job's summary and prints annotations when a run ends.

    about: what a report says beside the outcomes. environment: names the file of the summary.
    """

    def __init__(self, about: Callable[[], RunFacts], environment: Mapping[str, str]) -> None:
        self._about = about
        self._summary = environment.get(SUMMARY)
        self._run = Run()

    def pytest_decodegate_outcome(self, outcome: object) -> None:
        """Keep it."""
        self._run.add(outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Append the summary and print the annotations, if anything was measured or failed."""
        if not self._run.outcomes:
            return

        content = of_run(self._run, self._about())
        for line in commands(content):
            terminalreporter.write_line(line)
        if self._summary and (problem := append(Path(self._summary), markdown(content))):
            terminalreporter.write_line(problem)


def append(summary: Path, text: str) -> str:
    """Append to the job's summary; what went wrong, "" if nothing did: a report changes no exit status."""
    try:
        with summary.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return str(BadInput(f"{SUMMARY}: {str(summary)!r} cannot be appended to: {error.strerror}"))

    return ""


def commands(content: Content) -> Iterator[str]:
    """Commands for GitHub's runner: an error for each cause that blocks, a warning for each that leaves it open."""
    for tone, command in (("bad", "error"), ("open", "warning")):
        cards = [card for group in content.groups for card in group.cards if card.tone == tone]
        for card in cards[:MOST]:
            said = f"{named([outcome.name for outcome in card.outcomes])}: {card.text}"
            title = f"decodegate {content.answer}"
            yield f"::{command} title={_value(title)}::{_data(said)}"


def _data(text: str) -> str:
    """As the runner decodes it (actions/toolkit, command.ts): nothing in it ends the command."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
