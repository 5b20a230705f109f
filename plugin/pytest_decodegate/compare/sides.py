"""What the user names on the command line, as baselines: files, folders, globs, and `git:REV:PATH` of any of these."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

from ..baseline.reader import load, parse
from ..baseline.schema import Baseline
from ..errors import BadInput
from . import git

Named: TypeAlias = tuple[str, Callable[[], Baseline]]
"""The name of a baseline file, and how to load it."""

T = TypeVar("T")

_NUMBERED = re.compile(r"\d{4,18}_.*\.json")
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BaselineSet:
    """One thing to compare: `name` as it was typed or found, and its baselines, one per machine class."""

    name: str
    baselines: tuple[Baseline, ...]


def groups(arguments: Sequence[str]) -> list[list[BaselineSet]]:
    """The sides of each comparison, the reference first. Raises BadInput where something cannot be found or read.

    A file is itself, a glob each of its matches in the order of their names, and a folder (a class folder, or one that
    holds class folders) its file of each machine class that was recorded last. A folder or glob that is alone stands
    for all of its files, and makes one group per machine class: how this class went over time.
    """
    found = [each for argument in arguments for each in _found(argument)]
    if len(arguments) == 1:
        return _by_class([BaselineSet(name, (read(),)) for _, inside in found for name, read in inside], arguments[0])

    sides = [BaselineSet(name, _newest(read() for _, read in inside)) for name, inside in found]
    if len(sides) < 2:
        raise BadInput(f"{' '.join(arguments) or 'nothing'}: at least two files are needed, the first is the reference")

    return [sides]


def _by_class(sides: Sequence[BaselineSet], argument: str) -> list[list[BaselineSet]]:
    if len(sides) < 2:
        raise BadInput(
            f"{argument}: one baseline alone compares with nothing; name another file, folder or git:REV:PATH"
        )

    classes: dict[str, list[BaselineSet]] = {}
    for side in sides:
        classes.setdefault(side.baselines[0].machine_class, []).append(side)

    return list(classes.values())


def _newest(baselines: Iterable[Baseline]) -> tuple[Baseline, ...]:
    """Of each machine class the baseline that was recorded last; where two were at the same time, the later one."""
    best: dict[str, Baseline] = {}
    for baseline in baselines:
        known = best.get(baseline.machine_class)
        if known is None or _instant(baseline) >= _instant(known):
            best[baseline.machine_class] = baseline

    return tuple(best.values())


def _instant(baseline: Baseline) -> datetime:
    return baseline.newest.instant if baseline.newest else _NEVER


def _found(argument: str) -> list[tuple[str, list[Named]]]:
    """Each file or folder that `argument` names, with the baseline files that it stands for."""
    if argument.startswith(git.PREFIX):
        return [(argument, _in_git(argument))]

    path = Path(argument)
    if path.exists() or not glob.has_magic(argument):
        return [(argument, _on_disk(path))]

    matches = sorted(glob.glob(argument, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not matches:
        raise BadInput(f"{argument}: no file matches this pattern; quote it as it is, or check the folder")

    return [(match, _on_disk(Path(match))) for match in matches]


def _on_disk(path: Path) -> list[Named]:
    if not path.is_dir():
        return [_of_disk(path)]

    inside = _numbered(str(file.relative_to(path)) for file in (*path.glob("*.json"), *path.glob("*/*.json")))
    return [_of_disk(path / name) for name in _some(inside, str(path))]


def _of_disk(path: Path) -> Named:
    return str(path), lambda: load(path)


def _in_git(argument: str) -> list[Named]:
    revision, path = git.split(argument)
    if not git.is_folder(revision, path):
        return [_of_revision(revision, path)]

    names = _some(_numbered(git.files(revision, path)), argument)
    return [_of_revision(revision, f"{path.rstrip('/')}/{name}" if path.strip("/") else name) for name in names]


def _of_revision(revision: str, path: str) -> Named:
    name = f"{git.PREFIX}{revision}:{path}"
    return name, lambda: parse(Path(name), git.content(revision, path))


def _numbered(names: Iterable[str]) -> list[str]:
    """Names of baseline files in a class folder or one level above, by folder and number."""
    paths = [PurePosixPath(name) for name in names]
    kept = [path for path in paths if len(path.parts) <= 2 and _NUMBERED.fullmatch(path.name)]
    return [str(path) for path in sorted(kept, key=lambda path: (str(path.parent), int(path.name.split("_")[0])))]


def _some(found: list[T], where: str) -> list[T]:
    if not found:
        raise BadInput(f"{where}: no NNNN_*.json in it or in its folders; name the folder that --perf-record writes to")

    return found
