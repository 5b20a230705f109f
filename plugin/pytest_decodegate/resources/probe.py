"""What a Python would load as a rank, asked of a process of its own: seconds, where a gang takes many."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..errors import BadInput
from ..gang.agents import import_folder
from ..process import private_folders
from ..process.import_path import import_variables
from ..process.processes import scrubbed

if TYPE_CHECKING:
    from ..metric import Json

PROBE: Final = "machine.stack:probe"
"""What a process of the stack has loaded."""

INSTALLED: Final = "machine.requirements:installed"
"""What packages say that they want of each other; imports none of them."""


def probe_python(
    python: str, environment: Mapping[str, str], seconds: float, import_path: Sequence[str]
) -> dict[str, Json]:
    """The facts of machine.stack.probe; see `ask_python`."""
    return ask_python(python, PROBE, environment, seconds, import_path)


def ask_python(
    python: str, question: str, environment: Mapping[str, str], seconds: float, import_path: Sequence[str]
) -> dict[str, Json]:
    """The answer to `question`, PROBE or INSTALLED, of a process of `python` with `environment` on top of ours.

    import_path: what this Python imports from, given to that process if it is the same Python. Raises BadInput, quoting
    its last line, if that Python cannot be run, lacks torch or takes more than `seconds`.
    """
    folder = private_folders.make("decodegate-", tempfile.gettempdir())
    try:
        imports = import_variables(python, import_path, [import_folder(folder)])
        own = {**probe_environment(environment), **imports}
        done = _run([python, "-c", _code(question)], own, seconds)
    finally:
        private_folders.remove(folder)

    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["it said nothing"]
    if done.returncode:
        raise BadInput(f"{python!r} cannot run ranks: {lines[-1]}")

    facts: dict[str, Json] = json.loads(lines[-1])
    return facts


def probe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a process that is asked finds in its environment, `environment` on top of what it gets of ours."""
    return {**scrubbed(os.environ), **environment}


def _code(question: str) -> str:
    module, _, function = question.partition(":")
    return f"import json; from pytest_decodegate.{module} import {function}; print(json.dumps({function}()))"


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    python = command[0]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False, timeout=seconds
        )
    except OSError as error:
        raise BadInput(f"{python!r} cannot be run: {error.strerror}; give the Python of an environment") from error
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"{python!r} did not import torch within {seconds:g} s") from error
