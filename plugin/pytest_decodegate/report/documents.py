"""The files of --perf-report: written again after each outcome, so that a killed run leaves what it had measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from ..errors import BadInput
from ..gate.run import Run
from ..profile.documents import replace_whole
from ..profile.step_profile import StepProfile
from .content import Begun, Content, RunFacts, of_run
from .exports import csv_table, prometheus
from .html import page
from .lines import json_line
from .markdown import markdown
from .upgrade import document

LINES: Final = "results.jsonl"


class Documents:
    """A plugin that keeps the files of a report true: after each outcome, and when a test is begun.

    folder: made if need be; what an earlier run left there is replaced. about: what a report says beside the outcomes,
    asked each time, because the machine is known late. on_problem: told the first time that nothing can be written.
    """

    def __init__(
        self, folder: Path, session_id: str, about: Callable[[], RunFacts], on_problem: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._session_id = session_id
        self._about = about
        self._on_problem = on_problem
        self._run = Run()
        self._begun = Begun(0, 0, "", "")
        self._tests: set[str] = set()
        self._profiles: dict[str, StepProfile] = {}
        self._usable = True
        self._started = _now()

    def begin(self) -> None:
        """Make the folder and empty the file of lines; raises BadInput if that cannot be done."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_whole(self._folder / LINES, b"")
        except OSError as error:
            raise BadInput(f"--perf-report: cannot write to {str(self._folder)!r}: {error.strerror}") from error

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the perf tests, and say that none has begun."""
        selected = sum(item.get_closest_marker("perf") is not None for item in session.items)
        self._begun = replace(self._begun, selected=selected)
        if not session.config.option.collectonly:
            self._write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Say which test is begun, so that it is known where a run was killed."""
        if item.get_closest_marker("perf") is None:
            return

        self._tests.add(item.nodeid)  # another try of a test is no other test
        self._begun = replace(self._begun, number=len(self._tests), test=item.nodeid, when=_now())
        self._append(self._begun)
        self._write()

    def pytest_decodegate_outcome(self, outcome: object) -> None:
        """Append the outcome as a line, and write the documents with it."""
        if isinstance(outcome, StepProfile):
            self._profiles[f"profile {len(self._profiles) + 1}"] = outcome
        else:
            self._run.add(outcome)
            self._append(outcome)
        self._write()

    def _append(self, outcome: object) -> None:
        def append() -> None:
            with (self._folder / LINES).open("a", encoding="utf-8") as lines:
                lines.write(json_line(outcome, self._session_id) + "\n")

        self._tried(append)

    def _write(self) -> None:
        about = replace(self._about(), started=self._started, begun=self._begun, profiles=self._profiles)
        content = of_run(self._run, about)

        def write() -> None:
            written = {
                "report.html": page(content),
                "report.md": markdown(content),
                "results.csv": csv_table(self._run.outcomes),
                "summary.json": document(self._run),
                "metrics.prom": prometheus(self._run, about.machine_class, time.time()),
            }
            for name, text in written.items():
                replace_whole(self._folder / name, text.encode())

        self._tried(write)

    def _tried(self, write: Callable[[], None]) -> None:
        """A full disk costs the report, not the measurement; and the run says so."""
        if not self._usable:
            return

        try:
            write()
        except OSError as error:
            self._usable = False
            self._on_problem(f"--perf-report: cannot write to {str(self._folder)!r} any more: {error.strerror}")


def write_comparison(folder: Path, content: Content, as_json: str) -> None:
    """The same documents of stored files; as_json: their comparison. Raises BadInput if the folder cannot be used."""
    results = content.outcomes
    written = {
        "report.html": page(content),
        "report.md": markdown(content),
        LINES: "".join(f"{json_line(outcome, 'compare')}\n" for outcome in results),
        "results.csv": csv_table(results),
        "comparison.json": as_json,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            replace_whole(folder / name, text.encode())
    except OSError as error:
        raise BadInput(f"--report: cannot write to {str(folder)!r}: {error.strerror}; name another folder") from error


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
