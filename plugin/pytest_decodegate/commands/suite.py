"""Which perf tests a command runs: those that it is given, else the configured ones, else the suite that ships."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    import pytest

SHIPPED = "pytest_decodegate.perf_tests"
"""The package of perf tests that is installed with the plugin."""


QUIET = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""For a pytest that a command starts: the plugin runs already, as this command, and asserts nothing to be rewritten."""


class SuiteSelection:
    """Plugin of one run of pytest that a command starts, in whatever folder.

    pytest itself would search the current folder where neither an argument nor `testpaths` names tests: a home folder,
    say, with test files of other projects. Such a run takes the shipped suite, and its header says so.
    """

    def __init__(self) -> None:
        self._chosen = ""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Choose, before anything is collected; raises UsageError where the shipped suite is wanted and not there."""
        match config.args_source:
            case config.ArgsSource.ARGS:
                self._chosen = "those named by the arguments"
            case config.ArgsSource.TESTPATHS:
                self._chosen = f"testpaths of {config.inipath}"
            case _:
                folder = str(_shipped_or_refuse())
                config.args = [folder]
                self._chosen = (
                    f"the suite that ships with decodegate ({folder}), since no argument and no testpaths name others; "
                    "`-- .` takes those of this folder"
                )

    def pytest_report_header(self) -> str:
        """What was chosen, and why."""
        return f"perf tests: {self._chosen}"


def shipped() -> Path:
    """The folder of the shipped suite; raises BadInput where an older editable install does not know it."""
    spec = find_spec(SHIPPED)
    if spec is None or spec.origin is None:
        raise BadInput(f"{SHIPPED} is not installed: install decodegate again (`pip install -e .` in its clone)")

    return Path(spec.origin).parent


def _shipped_or_refuse() -> Path:
    import pytest

    try:
        return shipped()
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error
