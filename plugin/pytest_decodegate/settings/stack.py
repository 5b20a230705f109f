"""The grammar of a stack on the command line.

Which Python, NCCL and variables ranks and servers run with, and which model and flags servers are given besides.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..client.endpoint import base_url
from ..errors import BadInput
from ..gang import protocol
from ..printable import printable
from ..redaction import redact_value
from ..serving.flags import TENSOR_PARALLEL, FlagValue, flag_words, parse_flag, redacted_flag, shown_flag
from ..workloads.runtime.slowdown import VARIABLE, Slowdown, read_slowdowns

if TYPE_CHECKING:
    from ..gang.options import GangOptions

THIS = "this"
"""The Python and the environment that pytest itself runs with."""

GRAMMAR = (
    "python=PATH (the Python of another environment), nccl=PATH (a libnccl.so to preload), vllm=VERSION (what that "
    "Python has; without one `decodegate upgrade` makes an environment for it), env:NAME=VALUE, for servers "
    "flag:--NAME=VALUE or flag:--NAME (of vLLM's command line), tp=N and model=PATH_OR_NAME, several joined by commas, "
    f"or {THIS!r}; or, for both stacks, server=URL (a server that runs already)"
)

OF_PYTHON = frozenset({"cuda", "nccl", "python", "torch", "vllm"})
"""What another Python may bring along, in the words of --perf-change."""

OF_SERVER = frozenset({"vllm", "sglang", "tensorrt", "llamacpp"})
"""What another server may be a version of, in the same words."""

_WORDS = ("python", "nccl", "vllm", "server", "model", "tp")
_ENV, _FLAG = "env:", "flag:"
_NEXT = re.compile(rf",(?=(?:{'|'.join(_WORDS)})=|{_ENV}|{_FLAG}-)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRELOAD = ("LD_PRELOAD", "VLLM_NCCL_SO_PATH")
_OF_THE_GANG = (protocol.ADDRESS, protocol.KEY_FILE, protocol.GANG_ID)
_TAKEN: Mapping[str, str] = {
    **dict.fromkeys(("PYTHONPATH", "PYTHONSAFEPATH"), "it brings this plugin to the ranks; use python=PATH"),
    **dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "torchrun sets it"),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"), "both stacks must run on the same GPUs"),
}


@dataclass(frozen=True, slots=True)
class Stack:
    """How the ranks and servers of one stack differ from what pytest itself runs with; None and () mean "not at all".

    python: executable, absolute but not resolved: a venv is known by the path of its link.
    nccl: the library that is preloaded. env: variables set in the ranks. server: the URL of a stack that runs already
    and has no ranks; all else is then unset. vllm: the version that its Python must have. model: what its servers
    serve instead of the suite's own model. flags: of its servers, as serving.flags.parse_flag names them.
    """

    python: str | None = None
    nccl: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    server: str | None = None
    vllm: str | None = None
    model: str | None = None
    flags: tuple[tuple[str, FlagValue], ...] = ()

    @property
    def slowdowns(self) -> tuple[Slowdown, ...]:
        """What it slows down on purpose."""
        return read_slowdowns(dict(self.env).get(VARIABLE, ""))

    @property
    def parts(self) -> list[str]:
        """The words that `parse_stack` reads it from, one for each part; secrets as they are, so never to be shown."""
        named = [(name, getattr(self, name)) for name in ("python", "nccl", "vllm", "server", "model")]
        paths = [f"{name}={value}" for name, value in named if value]
        variables = (f"{_ENV}{name}={value}" for name, value in self.env)
        return [*paths, *variables, *(_FLAG + word for word in flag_words(dict(self.flags)))] or [THIS]

    def __str__(self) -> str:
        return ",".join(self._shown)

    @property
    def _shown(self) -> list[str]:
        env = tuple((name, redact_value(name, value)) for name, value in self.env)
        flags = tuple((name, redacted_flag(name, value)) for name, value in self.flags)
        return list(map(printable, replace(self, env=env, flags=flags).parts))

    @property
    def of_servers(self) -> tuple[str, ...]:
        """Its words that ranks know nothing of, as they may be shown."""
        alone = Stack(model=self.model, flags=self.flags)
        return () if alone == Stack() else tuple(alone._shown)

    @property
    def of_ranks(self) -> Stack:
        """What ranks know of it."""
        return replace(self, model=None, flags=())

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The variables that the ranks get on top of `environ`."""
        if self.nccl is None:
            return dict(self.env)

        preload, own_copy = _PRELOAD
        added = {preload: ":".join(filter(None, (self.nccl, environ.get(preload))))}
        if own_copy in environ:  # this host gives vLLM a copy of its own, which would be measured instead
            added[own_copy] = self.nccl

        return {**added, **dict(self.env)}

    def applied(self, options: GangOptions) -> GangOptions:
        """`options` for ranks of this stack."""
        return replace(options, python=self.python or options.python, env={**options.env, **self.environment()})


def parse_stack(texts: Sequence[str], option: str, environment_of: Callable[[str], str] | None = None) -> Stack:
    """Read a stack from the values of `option`, which may have been given several times; raises BadInput.

    environment_of: makes or finds the environment of a vLLM version and returns its Python; without it none is made,
    because installing vLLM takes minutes that nobody expects of a test run. `vllm=` is then what this Python has, as it
    is what the Python has that is given beside it; whoever runs the stack checks that.
    """
    found: dict[str, str] = {}
    flags: dict[str, FlagValue] = {}
    for text in texts:
        for name, value in _pieces(text, option):
            if name == "tp" or name.startswith(_FLAG):
                _add_flag(flags, name, value, option)
                continue
            if name in found:
                first, second = (redact_value(name, given) for given in (found[name], value))
                raise BadInput(f"{option}: {name} is given twice, as {first!r} and {second!r}; give one stack")
            found[name] = value

    if "server" in found and len(found) + len(flags) > 1:
        others = ", ".join([*sorted(found.keys() - {"server"}), *(f"{_FLAG}--{name}" for name in sorted(flags))])
        raise BadInput(f"{option}: server={found['server']} runs already, with a stack of its own; leave out {others}")

    env = tuple(sorted((name.removeprefix("env:"), value) for name, value in found.items() if name.startswith("env:")))
    if "nccl" in found and (both := [name for name, _ in env if name in _PRELOAD]):
        raise BadInput(f"{option}: nccl= sets {both[0]} itself; leave env:{both[0]} out")

    python, nccl = _python(found, option, environment_of), _nccl(found.get("nccl"), option)
    model = found.get("model")
    return Stack(
        python,
        nccl,
        env,
        found.get("server"),
        found.get("vllm"),
        # The server runs in a folder of its own, where a relative path would lead nowhere.
        str(Path(model).absolute()) if model and Path(model).exists() else model,
        tuple(sorted(flags.items())),
    )


def check_servers(base: Stack, candidate: Stack, *, same: bool, launches: bool) -> None:
    """Raise BadInput unless both stacks are different attached servers, or none is one.

    same: one stack is measured twice on purpose. launches: servers are to be launched with the user's arguments.
    """
    if not (base.server or candidate.server):
        return
    if "@" in f"{base.server}{candidate.server}":
        # Not quoted, here or below: it would stand in the report.
        raise BadInput("server=URL holds a user or a password; leave them out, and see --perf-server-key-env for keys")
    if not (base.server and candidate.server):
        raise BadInput(
            f"base {base}, candidate {candidate}: only one of them is an attached server, and what runs there cannot "
            "be started here; give server=URL for both, or for none"
        )
    if launches:
        raise BadInput("server=URL and --perf-launch: give one, servers to attach to or one to launch")
    if base_url(base.server) == base_url(candidate.server) and not same:
        raise BadInput(
            f"server={candidate.server} on both sides would be measured against itself; give two servers, or "
            f"`pytest -m perf --perf-candidate server={candidate.server} --perf-base same` to see what can be resolved"
        )


def declared(base: Stack, candidate: Stack) -> frozenset[str]:
    """What differs between two stacks on purpose, in the words of --perf-change."""
    names: set[str] = {f"env:{name}" for name, _ in set(base.env) ^ set(candidate.env)}
    if base.python != candidate.python:
        names |= OF_PYTHON
    if base.nccl != candidate.nccl:
        names |= {"nccl", *(f"env:{name}" for name in _PRELOAD)}
    if base.server != candidate.server:
        names |= OF_SERVER
    if base.model != candidate.model:
        names.add("model")

    names |= {f"{_FLAG}{name}" for name, _ in set(base.flags) ^ set(candidate.flags)}

    return frozenset(names)


def _pieces(text: str, option: str) -> Iterator[tuple[str, str]]:
    """(name, value) of each part; a comma inside a value stays, unless one of our own words follows it."""
    if text.strip() == THIS:
        return

    for piece in _NEXT.split(text.strip()):
        if piece.startswith(_FLAG):
            yield _FLAG, piece.removeprefix(_FLAG)
            continue

        name, equals, value = piece.partition("=")
        if not equals or (name not in _WORDS and not name.startswith(_ENV)):
            raise BadInput(f"{option}: {piece!r} in {text!r} is no part of a stack; write {GRAMMAR}")
        if name.startswith("env:"):
            _check_variable(name.removeprefix("env:"), option)
            if name == f"env:{VARIABLE}":
                read_slowdowns(value)
        elif not value.strip("="):
            raise BadInput(f"{option}: {piece!r} in {text!r} names nothing; write {GRAMMAR}")

        yield name, value.removeprefix("=") if name == "vllm" else value


def _add_flag(flags: dict[str, FlagValue], word: str, text: str, option: str) -> None:
    """Add a flag of servers, as `flag:` or `tp=` gives it; raises BadInput for one that is given twice."""
    if word == "tp" and not (text.isdecimal() and int(text)):
        raise BadInput(f"{option}: tp={text} is no number of GPUs; write for example tp=2")
    try:
        name, value = (TENSOR_PARALLEL, text) if word == "tp" else parse_flag(text)
    except BadInput as error:
        raise BadInput(f"{option}: flag: {error}") from error

    if name in flags:
        first, second = (shown_flag(name, given) for given in (flags[name], value))
        raise BadInput(f"{option}: --{name} is given twice, as {first} and {second}; give one stack")

    flags[name] = value


def _check_variable(name: str, option: str) -> None:
    if not _ENV_NAME.fullmatch(name):
        raise BadInput(f"{option}: {name!r} is no name of an environment variable; write env:NAME=VALUE")
    if why := _TAKEN.get(name) or ("it belongs to the gang" if name in _OF_THE_GANG else None):
        raise BadInput(f"{option}: env:{name} cannot be part of a stack: {why}")


def _python(found: Mapping[str, str], option: str, environment_of: Callable[[str], str] | None) -> str | None:
    if (text := found.get("python")) is None:
        version = found.get("vllm")
        return environment_of(version) if environment_of and version else None

    path = Path(os.path.abspath(os.path.expanduser(text)))  # noqa: PTH100, PTH111 - resolving would leave the venv
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise BadInput(f"{option}: python={text} is not there ({str(path)!r} is no file); give a Python or its venv")
    if not os.access(path, os.X_OK):
        raise BadInput(f"{option}: python={text} cannot be executed; give the Python of an environment")

    return str(path)


def _nccl(text: str | None, option: str) -> str | None:
    if text is None:
        return None

    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise BadInput(f"{option}: nccl={text} is no file; give the libnccl.so.2 itself")
    if set(str(path)) & {":", " "}:
        raise BadInput(f"{option}: nccl={text} cannot be preloaded: the loader splits LD_PRELOAD at colons and spaces")
    if problem := _why_no_nccl(path):
        raise BadInput(f"{option}: nccl={text} is no NCCL: {problem}; give the libnccl.so.2 itself")

    return str(path)


def _why_no_nccl(path: Path) -> str | None:
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return "it is no shared library"
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            return None if library.find(b"ncclGetVersion\0") >= 0 else "it has no ncclGetVersion"


def describe(stacks: Iterable[Stack]) -> str:
    """Two stacks in one line: "base: this; candidate: nccl=/opt/libnccl.so.2"."""
    base, candidate = stacks
    return f"base: {base}; candidate: {candidate}" if base != candidate else f"base and candidate: {candidate}"
