"""Hooks that every pytest run calls, perf tests or none: options, markers, and whether a session of ours is needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .fixtures import gpus, perf, server, torchrun, world_size
from .session import hookspecs
from .settings import options

if TYPE_CHECKING:
    from pathlib import Path

    from .report.documents import Documents
    from .session.session import PerfSession

__all__ = ["gpus", "perf", "server", "torchrun", "world_size"]

FIXTURES = frozenset(__all__)
DESELECTED = pytest.StashKey[int]()
EXTENDED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the command line and the ini file."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let programs and other plugins give stacks and take outcomes."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and check the options, so that a bad one costs no measurement."""
    for line in options.MARKERS:
        config.addinivalue_line("markers", line)

    wanted = options.perf_wanted(config)
    if wanted:
        from .settings.other_plugins import refuse_xdist

        refuse_xdist(config)
    if wanted or options.any_given(config):
        _activate(config)


def _activate(config: pytest.Config) -> PerfSession:
    """The session of this run, with the hooks that tell it what happens; raises UsageError for bad options."""
    from .errors import BadInput
    from .process.interrupts import interrupt_on_signals
    from .session.hooks import SessionHooks
    from .session.session import session_of

    try:
        session = session_of(config)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error

    if not config.pluginmanager.has_plugin("decodegate-session"):
        config.add_cleanup(interrupt_on_signals())
        config.pluginmanager.register(SessionHooks(session), "decodegate-session")
        if session.settings.report is not None:
            config.pluginmanager.register(_documents(session, session.settings.report), "decodegate-documents")
        if not config.option.collectonly and os.environ.get("GITHUB_ACTIONS") == "true":
            from .report.github import GithubJob

            config.pluginmanager.register(GithubJob(session.run_facts, os.environ), "decodegate-github")

    return session


def _documents(session: PerfSession, folder: Path) -> Documents:
    from .errors import BadInput
    from .report.documents import Documents

    made = Documents(folder, session.id, session.run_facts, session.results.add_problem)
    try:
        made.begin()
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error

    return made


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Look at the host before a perf run does anything: what is wrong with its GPUs is one sentence, and no run."""
    if not options.perf_wanted(session.config) or session.config.option.collectonly:
        return

    from .errors import DecodegateError

    try:
        _activate(session.config).look_at_host()
    except DecodegateError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is measured and against which folder, in a perf run only."""
    if not options.perf_wanted(config) or config.option.collectonly:
        return []

    session = _activate(config)
    fingerprint = session.hardware.fingerprint
    driver = f"driver {fingerprint.driver}" if fingerprint.gpus else f"no GPU: {fingerprint.no_gpu_reason}"
    return [
        f"perf: machine class {fingerprint.machine_class} ({driver}); baselines {session.settings.baselines}",
        *(f"perf: {fault}" for fault in session.host_faults),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run per world size; session scope makes pytest group the tests of each."""
    marker = metafunc.definition.get_closest_marker("world_size")
    if marker is None and "world_size" not in metafunc.fixturenames:
        return

    from .errors import BadInput
    from .settings.markers import marker_world_sizes

    nodeid = metafunc.definition.nodeid
    try:
        sizes = marker_world_sizes(nodeid, marker)
    except BadInput as error:
        raise pytest.Collector.CollectError(str(error)) from error

    if "world_size" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{nodeid}: has a world_size marker but takes no world_size; take the fixture, or torchrun, which does"
        )

    # Without a marker there is nothing to choose, and the test id stays as the user wrote it.
    ids = [f"world={size}" for size in sizes] if marker else [pytest.HIDDEN_PARAM]
    metafunc.parametrize("world_size", sizes, indirect=True, scope="session", ids=ids)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the markers of perf tests, and deselect them unless they were asked for."""
    perf_items = [item for item in items if item.get_closest_marker("perf")]
    if not perf_items:
        return

    from .settings.markers import check_markers, marker_extended
    from .settings.only import deselect, deselect_others

    check_markers(perf_items)
    if patterns := config.getoption("--perf-only"):
        deselect_others(config, items, perf_items, patterns)
    if not options.perf_wanted(config):
        config.stash[DESELECTED] = deselect(config, items, perf_items)
        return

    from .settings.other_plugins import refuse_repeats

    refuse_repeats(perf_items)
    if not config.getoption("--perf-extended"):
        extended = [item for item in perf_items if marker_extended(item)]
        config.stash[EXTENDED] = deselect(config, items, extended)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the perf tests that are left when every plugin has had its say; a run that needs a session gets one."""
    selected = sum(item.get_closest_marker("perf") is not None for item in session.items)
    if selected or any(FIXTURES.intersection(getattr(item, "fixturenames", ())) for item in session.items):
        perf_session = _activate(session.config)
        perf_session.results.selected, perf_session.items = selected, session.items


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Lines that say how to run what was deselected, and what a perf run is about to do."""
    how = {DESELECTED: ("perf", "pytest -m perf"), EXTENDED: ("extended perf", "pytest -m perf --perf-extended")}
    lines = [
        f"{count} {kind} {'test' if count == 1 else 'tests'} deselected; run with: {command}"
        for key, (kind, command) in how.items()
        if (count := config.stash.get(key, 0))
    ]
    if options.perf_wanted(config) and items and not config.option.collectonly:
        lines += [f"perf: {line}" for line in _forecast(config, items)]

    return lines


def _forecast(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Nothing where the collection has failed already, which pytest says itself."""
    from .errors import BadInput

    try:
        return _activate(config).forecast(items)
    except BadInput:
        return []
