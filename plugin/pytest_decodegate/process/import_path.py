"""What the children of a run import from: one path for ranks, servers and those who ask, so that all find one vLLM."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

VARIABLE = "PYTHONPATH"


def inherited(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The entries of PYTHONPATH, absolute: children run in other folders."""
    text = environ.get(VARIABLE, "")
    return tuple(os.path.abspath(entry) for entry in text.split(os.pathsep)) if text else ()  # noqa: PTH100 - no links


def is_this_python(python: str) -> bool:
    """Whether `python` is the interpreter of this process, in its very environment: a venv is known by its folder."""
    found = shutil.which(python)
    if found is None:
        return False

    theirs, ours = Path(found).absolute(), Path(sys.executable).absolute()
    return theirs == ours or (theirs.parent.resolve() == ours.parent.resolve() and theirs.resolve() == ours.resolve())


def path_for(python: str, own: Iterable[str], first: Iterable[object] = ()) -> str:
    """The value of PYTHONPATH for a child under `python`: `first`, then the entries `own` of this Python.

    Another Python gets none of these: packages that were built for this one would break it.
    """
    entries = [*map(str, first), *(own if is_this_python(python) else ())]
    return os.pathsep.join(dict.fromkeys(entries))


def import_variables(python: str, own: Iterable[str], first: Iterable[object] = ()) -> dict[str, str]:
    """The variables by which a child under `python` imports: path_for, and nothing from the current folder."""
    return {VARIABLE: path_for(python, own, first), "PYTHONSAFEPATH": "1"}


def withheld(python: str, own: Iterable[str]) -> str | None:
    """A sentence if a child under `python` does not get the entries `own`, None if it does or there are none."""
    entries = list(own)
    if not entries or is_this_python(python):
        return None

    return (
        f"what this Python imports from PYTHONPATH and pytest's pythonpath ({os.pathsep.join(entries)}) is not given "
        f"to {python}: a helper that tests import on ranks must be installed there"
    )
