"""What the controller and the ranks say to each other: plain data, pickled only over authenticated connections."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..cause import Cause
from ..errors import BadInput

ADDRESS = "DECODEGATE_ADDRESS"
"""Environment of a rank: where the controller listens, a socket path or HOST:PORT."""

KEY_FILE = "DECODEGATE_KEY_FILE"
"""Environment of a rank: the file (mode 0600) that holds the key; the key itself travels nowhere."""

GANG_ID = "DECODEGATE_GANG"
"""Environment of everything below a gang, by which a stray process is recognised."""


def this_system() -> str:
    """The boot of this machine and the pid namespace of this process; "" where the kernel does not tell."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Function:
    """A module-level function, named so that another process can find it.

    root: the sys.path entry that pytest found the module under; empty if the module is installed.
    """

    module: str
    qualname: str
    file: str
    root: str

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, function: Callable[..., Any]) -> Function:
        """Name `function`; raises BadInput for what another process could not find again."""
        qualname = getattr(function, "__qualname__", repr(function))
        if not inspect.isfunction(function):
            raise BadInput(
                f"ranks cannot run {qualname!r}, a {type(function).__name__}: pass a function that is written with "
                "`def` at module level, and its data as arguments"
            )
        if "<" in qualname or "." in qualname:
            raise BadInput(
                f"ranks cannot run {qualname!r} of {function.__module__}: they find a function by its name, so move it "
                "to module level (no lambda, no nested function, no method) and pass what it needs as arguments"
            )

        if getattr(sys.modules.get(function.__module__), qualname, None) is not function:
            raise BadInput(
                f"ranks cannot run {qualname!r}: that name in module {function.__module__!r} is not this function (a "
                "decorator or a later assignment replaced it); pass the function that the name leads to"
            )

        file = inspect.getsourcefile(function)
        if file is None:
            raise BadInput(f"ranks cannot run {qualname!r}: it has no source file; write it in a module")

        return cls(function.__module__, qualname, os.path.realpath(file), _root(function.__module__, file))

    @lru_cache(maxsize=1024)  # noqa: B019 - keyed by value: a reference is frozen and holds four strings
    def resolve(self) -> Callable[..., Any]:
        """Find the function in this process: by module name if that leads to the same file, else from the file."""
        if self.root and self.root not in sys.path:
            sys.path.append(self.root)  # last: it must not hide anything that the rank's own Python has

        target: Any = getattr(self._module(), self.qualname)
        return target  # type: ignore[no-any-return]

    def _module(self) -> ModuleType:
        if _installed(self.file):
            return importlib.import_module(self.module)

        loaded = sys.modules.get(self.module) or self._import()
        if loaded is not None and _same_file(loaded, self.file):
            return loaded

        alias = f"{self.module}@{self.file}"  # another conftest, or pytest's importlib mode: not on sys.path
        return sys.modules.get(alias) or _load(self.module, alias, self.file)

    def _import(self) -> ModuleType | None:
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name and (self.module == error.name or self.module.startswith(f"{error.name}.")):
                return None
            raise


def _root(module: str, file: str) -> str:
    path = Path(file).absolute()
    package = path.parent if path.name == "__init__.py" else path.with_suffix("")
    parents = package.parts[: -module.count(".") - 1]
    root = str(Path(*parents)) if parents else ""
    return root if root in sys.path and not _installed(file) else ""


def _installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _same_file(module: ModuleType, file: str) -> bool:
    return os.path.realpath(getattr(module, "__file__", None) or "") == file


def _load(name: str, alias: str, file: str) -> ModuleType:
    if name == "__main__":  # a script: its `if __name__ == "__main__"` is not for the ranks
        name = alias

    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    added = sys.modules.setdefault(name, module) is module  # so that what the module defines can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(alias)
        if added:
            sys.modules.pop(name, None)
        raise

    return module


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a rank: who and where it is.

    system: of `this_system` there; only on one and the same is `pid` a number that means anything here.
    """

    rank: int
    local_rank: int
    pid: int
    host: str
    log_dir: str
    python: str
    system: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Run `function`; `arguments` is pickled on its own because it may name classes of the function's module."""

    task: int
    function: Function
    arguments: bytes


@dataclass(frozen=True, slots=True)
class Bye:
    """Leave: drop state, destroy the process group, exit; within `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text: exception objects often pickle but do not unpickle (cpython#83932).

    at: seconds since the epoch, to find the earliest of several. cause: what the rank, which had the exception itself,
    says is behind it.
    """

    type: str
    message: str
    traceback: str
    at: float
    cause: Cause = Cause.EXCEPTION


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of task `task`: exactly one of value (pickled), failure and skip (a reason) is set."""

    task: int
    value: bytes | None = None
    failure: Failure | None = None
    skip: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A sign of life during task `task`."""

    task: int
    text: str


def dump(message: object) -> bytes:
    """Pickle a frame; never Connection.send(), whose pickler torch teaches to pass tensors by shared memory."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def load(frame: bytes | memoryview) -> Any:
    """Unpickle a frame that came over an authenticated connection."""
    return pickle.loads(frame)


def call(task: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The frame of a call; raises BadInput if the function or an argument cannot travel."""
    named = Function.of(function)
    try:
        arguments = dump((args, dict(kwargs)))
    except Exception as error:
        raise BadInput(
            f"an argument of {named.qualname}() cannot be pickled ({error}); pass numbers, strings and module-level "
            "classes, and let the ranks build the rest"
        ) from error

    return dump(Call(task, named, arguments))
