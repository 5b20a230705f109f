"""Hooks only: what pytest calls, and which room answers. Imports nothing heavy before a perf test runs."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from .errors import BadInput, DecodegateError
from .fixtures import gpus, perf, server, torchrun, world_size
from .session.session import SUITE, Suite
from .settings import options

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

__all__ = ["gpus", "perf", "server", "torchrun", "world_size"]

DESELECTED = pytest.StashKey[int]()
EXTENDED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the command line and the ini file."""
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and check the options, so that a bad one costs no measurement."""
    for line in options.MARKERS:
        config.addinivalue_line("markers", line)

    try:
        settings = options.read_settings(config)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error

    if options.perf_wanted(config):
        from .process.interrupts import interrupt_on_sigterm

        _refuse_xdist(config)
        config.add_cleanup(interrupt_on_sigterm())

    config.stash[SUITE] = Suite(config, settings)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is measured and against which folder, in a perf run only."""
    if not options.perf_wanted(config) or config.option.collectonly:
        return []

    suite = config.stash[SUITE]
    fingerprint = suite.fingerprint
    driver = f"driver {fingerprint.driver}" if fingerprint.gpus else f"no GPU: {fingerprint.no_gpu_reason}"
    return [f"perf: machine class {suite.machine_class} ({driver}); baselines {suite.settings.baselines}"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop whatever is still alive, also after Ctrl-C."""
    suite = config.stash.get(SUITE, None)
    if suite is not None:
        suite.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run per world size; session scope makes pytest group the tests of each."""
    nodeid, marker = metafunc.definition.nodeid, metafunc.definition.get_closest_marker("world_size")
    try:
        sizes = options.marker_world_sizes(nodeid, marker)
    except BadInput as error:
        raise pytest.Collector.CollectError(str(error)) from error

    if "world_size" not in metafunc.fixturenames:
        if marker is not None:
            raise pytest.Collector.CollectError(
                f"{nodeid}: has a world_size marker but takes no world_size; take the fixture, or torchrun, which does"
            )
        return

    # Without a marker there is nothing to choose, and the test id stays as the user wrote it.
    ids = [f"world={size}" for size in sizes] if marker else [pytest.HIDDEN_PARAM]
    metafunc.parametrize("world_size", sizes, indirect=True, scope="session", ids=ids)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the markers of perf tests, and deselect them unless they were asked for."""
    perf_items = [item for item in items if item.get_closest_marker("perf")]
    try:
        for item in perf_items:
            options.marker_tolerance(item)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error

    if not options.perf_wanted(config):
        config.stash[DESELECTED] = _deselect(config, items, perf_items)
    elif not config.getoption("--perf-extended"):
        extended = [item for item in perf_items if options.marker_extended(item)]
        config.stash[EXTENDED] = _deselect(config, items, extended)


def _deselect(config: pytest.Config, items: list[pytest.Item], some: list[pytest.Item]) -> int:
    """Take `some` out of `items`; how many they are."""
    if some:
        out = set(some)
        config.hook.pytest_deselected(items=some)
        items[:] = [item for item in items if item not in out]

    return len(some)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the perf tests that are left when every plugin has had its say."""
    session.config.stash[SUITE].selected = sum(item.get_closest_marker("perf") is not None for item in session.items)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """A line that says how to run what was deselected."""
    how = {DESELECTED: ("perf", "pytest -m perf"), EXTENDED: ("extended perf", "pytest -m perf --perf-extended")}
    return [
        f"{count} {kind} {'test' if count == 1 else 'tests'} deselected; run with: {command}"
        for key, (kind, command) in how.items()
        if (count := config.stash.get(key, 0))
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell the suite which test the ranks and servers work for."""
    suite = item.config.stash[SUITE]
    suite.begin(item)
    try:
        return (yield)
    finally:
        suite.begin(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell a run on two stacks of tests that say more than their verdicts."""
    report = yield
    suite = item.config.stash[SUITE]
    if suite.against is not None and item.get_closest_marker("perf"):
        suite.against.note(report, passing=suite.passes(item), advisory=options.marker_advisory(item))

    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Rank output and clear errors while fixtures start gangs and servers."""
    return (yield from _phase(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Rank output and clear errors while the test runs."""
    return (yield from _phase(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Rank output and clear errors while gangs and servers stop."""
    return (yield from _phase(item, "teardown"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A gate that measured nothing fails, and so does one that cannot give the machine back."""
    suite = session.config.stash[SUITE]
    suite.close()
    if exitstatus == pytest.ExitCode.OK and suite.measured_nothing and not session.config.option.collectonly:
        nothing = f"{suite.selected} perf test(s) were selected and none came to a verdict"
        suite.add_problem(f"{nothing}: a gate that measured nothing fails")
    finished = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if finished and suite.against is not None and (unreached := suite.against.unreached()):
        suite.add_problem(unreached)
    if exitstatus == pytest.ExitCode.OK and suite.problem:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if suite.against is not None:
        suite.against.end(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """The verdict table; silent when no perf test ran."""
    suite = config.stash[SUITE]
    if suite.selected or suite.problem:
        from .report import terminal

        terminal.write_summary(terminalreporter, suite)


def pytest_enter_pdb(config: pytest.Config) -> None:
    """A person is looking: deadlines of the ranks wait."""
    config.stash[SUITE].debugging = True


def pytest_leave_pdb(config: pytest.Config) -> None:
    """Deadlines count again."""
    config.stash[SUITE].debugging = False


def _phase(item: pytest.Item, when: str) -> Generator[None, object, object]:
    suite = item.config.stash[SUITE]
    try:
        result = yield
        if when == "call" and item.get_closest_marker("perf") and not suite.has_result(item):
            raise pytest.fail.Exception("this perf test measured nothing: it came to no verdict", pytrace=False)

        return result
    except DecodegateError as error:
        suite.doubt(error)
        # Our own frames help nobody; the line of the test does.
        raise pytest.fail.Exception(_told(error, item), pytrace=False) from None
    finally:
        for title, text in suite.rank_output():
            item.add_report_section(when, title, text)


def _told(error: DecodegateError, item: pytest.Item) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(item.path)]
    where = f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}\n" if own else ""
    return f"{where}{type(error).__name__}: {error}"


def _refuse_xdist(config: pytest.Config) -> None:
    workers = config.getoption("numprocesses", default=None)
    if workers or config.getoption("dist", default="no") != "no":
        raise pytest.UsageError(
            f"perf tests own the hardware and cannot share it with other workers (-n {workers}); run them without -n"
        )
