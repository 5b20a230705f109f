"""Hooks of runs that measure: registered only where perf tests are wanted or a test takes one of the fixtures."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ..errors import BadInput, DecodegateError
from ..settings import options
from ..settings.markers import marker_advisory
from ..settings.other_plugins import why_nothing_ran

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from .session import PerfSession


def is_perf(item: pytest.Item) -> bool:
    """Whether the item is a perf test."""
    return item.get_closest_marker("perf") is not None


class SessionHooks:
    """What pytest tells a session, and what the session tells pytest."""

    def __init__(self, session: PerfSession) -> None:
        self._session = session
        self._headings: set[str] = set()

    def pytest_unconfigure(self) -> None:
        """Stop whatever is still alive, also after Ctrl-C."""
        self._session.close()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Sort perf tests by their cost, before any other plugin has its say; not where they run among other tests."""
        if config.option.collectonly or config.getoption("--perf") or not options.perf_wanted(config):
            return

        # A marker or a file that cannot be read is told where it is used.
        with suppress(BadInput):
            self._session.sort_cheap_first(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Say which test the ranks and servers work for."""
        self._session.begin(item)
        try:
            return (yield)
        finally:
            self._session.begin(None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell the reference of tests that say more than their verdicts."""
        report = yield
        if is_perf(item):
            if report.failed:
                self._session.results.attempt_failed(item.nodeid)

            self._leave_out_output(item, report)
            passing = all(result.passes for result in self._session.results.of(item))
            self._session.results.test_ended(report, passing=passing, advisory=marker_advisory(item))

        return report

    def _leave_out_output(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """What ranks and servers print helps with a crash; beside a verdict its hundreds of lines would say nothing."""
        if item.config.get_verbosity() < 1 and self._session.results.concluded(item):
            report.sections = [section for section in report.sections if section[0] not in self._headings]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Rank output and clear errors while fixtures start gangs and servers; here another try begins, too."""
        self._session.results.begin_attempt(item.nodeid)
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Rank output and clear errors while the test runs."""
        return (yield from self._phase(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Rank output and clear errors while gangs and servers stop."""
        return (yield from self._phase(item, "teardown"))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A gate that measured nothing fails, and so does one that cannot give the machine back."""
        own, results = self._session, self._session.results
        own.close()
        if session.config.option.collectonly:  # nothing was asked of the GPUs, and nothing is
            return
        if exitstatus == pytest.ExitCode.OK and results.measured_nothing:
            why = why_nothing_ran(session.config)
            nothing = f"{results.selected} perf test(s) were selected and none came to a verdict"
            results.add_problem(f"{nothing}{why}: a gate that measured nothing fails")
        if exitstatus == pytest.ExitCode.OK and (not_passed := results.not_passed):
            rule = "a perf run fails if any result did not pass, whatever ran again"
            results.add_problem(f"{rule} (advisory=True in the perf marker only reports a test): {not_passed}")
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._note_problem_of_reference()
        if exitstatus == pytest.ExitCode.OK and results.problem:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if results.answers or own.settings.base is not None:
            own.reference.ended()
            decision = results.end(exitstatus, own.settings.tolerance)
            if exitstatus == pytest.ExitCode.OK and decision.answer.status:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _note_problem_of_reference(self) -> None:
        results = self._session.results
        if results.selected and results.all_begun and (problem := self._session.reference.problem()):
            results.add_problem(problem)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> Generator[None, object, object]:
        """The answer, after pytest's own summaries; silent when no perf test ran, or a command says it itself."""
        result = yield
        if self._session.answers:
            from ..report import terminal

            terminal.write_summary(terminalreporter, self._session.summary(terminalreporter))
        elif self._session.results.problem:
            terminalreporter.write_line(self._session.results.problem, red=True)

        return result

    def pytest_enter_pdb(self) -> None:
        """A person is looking: deadlines of the ranks wait."""
        self._session.debugging = True

    def pytest_leave_pdb(self) -> None:
        """Deadlines count again."""
        self._session.debugging = False

    def _phase(self, item: pytest.Item, when: str) -> Generator[None, object, object]:
        try:
            result = yield
            if when == "call" and is_perf(item) and not self._session.results.concluded(item):
                raise pytest.fail.Exception("this perf test measured nothing: it came to no verdict", pytrace=False)

            return result
        except DecodegateError as error:
            self._session.doubt(error)
            self._session.results.note_failure(item.nodeid, error)
            # Our own frames help nobody; the line of the test does.
            raise pytest.fail.Exception(_without_our_frames(error, item), pytrace=False) from None
        finally:
            for title, text in self._session.output():
                item.add_report_section(when, title, text)
                self._headings.add(f"Captured {title} {when}")  # as TestReport.from_item_and_call writes it


def _without_our_frames(error: DecodegateError, item: pytest.Item) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(item.path)]
    where = f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}\n" if own else ""
    return f"{where}{type(error).__name__}: {error}"
