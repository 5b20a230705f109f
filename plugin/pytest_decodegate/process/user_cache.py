"""What runs of one user keep for each other, in $XDG_CACHE_HOME/decodegate or ~/.cache/decodegate."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where all of it lies; a relative XDG_CACHE_HOME counts for nothing, as its specification has it.

    Raises FileNotFoundError where nobody knows a home of this user: containers run under ids that no file names.
    """
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "decodegate"
    try:
        return Path.home() / ".cache" / "decodegate"
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home folder") from error


class NotPrivate(PermissionError):
    """Somebody else can have written to a folder; its text says to which, and who."""


def check_private(folder: Path) -> None:
    """Raise NotPrivate unless `folder` is this user's alone, OSError where that cannot be known."""
    found, link = folder.stat(), folder.lstat()
    if {found.st_uid, link.st_uid} != {os.geteuid()}:
        owner = found.st_uid if found.st_uid != os.geteuid() else link.st_uid
        raise NotPrivate(f"{folder}: belongs to user {owner}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPrivate(f"{folder}: can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")


def private_folder() -> Path:
    """The folder of all, made if need be; raises OSError where it cannot be had, NotPrivate as `check_private` does."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)
    folder.chmod(0o700)
    return folder


def kept_files(scratch: Path) -> Path:
    """A folder with the files of `scratch` whose path is the same in every run; `scratch` where none can be kept.

    Its name is a digest of what it holds, so that it never holds anything else.
    """
    try:
        folder = private_folder() / "files"
        folder.mkdir(mode=0o700, exist_ok=True)
        target = folder / _digest(scratch)
        if _is_whole(target):
            return target

        _put(scratch, target)
        return target if _is_whole(target) else scratch
    except OSError:
        return scratch


def _is_whole(target: Path) -> bool:
    """Whether it holds what its name says, and nobody else can have written there."""
    try:
        check_private(target)
    except (NotPrivate, FileNotFoundError):
        return False

    return target.is_dir() and _digest(target) == target.name


def _put(scratch: Path, target: Path) -> None:
    """Copy all of it or nothing, in place of what is broken; another run may do the same meanwhile."""
    made = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        shutil.copytree(scratch, made / "new")
        (made / "new").chmod(0o700)  # copied with the mode that the umask gave it
        with suppress(FileNotFoundError):
            target.rename(made / "broken")
        with suppress(OSError):  # another run was first
            (made / "new").rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _digest(folder: Path) -> str:
    """Of the names and contents of all files; not of what Python compiles there."""
    digest = hashlib.sha256()
    for path in _files(folder):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
        digest.update(content)

    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return (path for path in found if "__pycache__" not in path.parts)
