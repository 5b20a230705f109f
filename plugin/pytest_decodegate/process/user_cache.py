"""What runs of one user keep for each other, in $XDG_CACHE_HOME/decodegate or ~/.cache/decodegate."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_LEAST_SECRET = 40  # characters; a shorter file was not written to its end


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where all of it lies."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "decodegate")


def why_not_private(folder: Path) -> str:
    """Who else can have written to `folder`; "" if it is this user's alone. Raises OSError."""
    found, link = folder.stat(), folder.lstat()
    if {found.st_uid, link.st_uid} != {os.geteuid()}:
        return f"belongs to user {found.st_uid if found.st_uid != os.geteuid() else link.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"

    return ""


def kept_secret(name: str) -> str:
    """A secret that is the same in every run of this user; one of this run alone where none can be kept.

    For what is not to change from run to run and that other users of the host must not know.
    """
    fresh = secrets.token_urlsafe(32)
    try:
        path = _private_folder() / name
        return _read_secret(path) if path.exists() else _write_secret(path, fresh)
    except (OSError, ValueError):  # somebody else's, or another run writes it just now
        return fresh


def kept_files(scratch: Path) -> Path:
    """A folder with the files of `scratch` whose path is the same in every run; `scratch` where none can be kept.

    Its name is a digest of what it holds, so that it never holds anything else.
    """
    try:
        folder = _private_folder() / "files"
        folder.mkdir(mode=0o700, exist_ok=True)
        target = folder / _digest(scratch)
        if not target.exists():
            _put(scratch, target)

        return target if not why_not_private(target) and _digest(target) == target.name else scratch
    except OSError:
        return scratch


def _private_folder() -> Path:
    """The folder of all; raises OSError where it cannot be had, or others can write to it."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if reason := why_not_private(folder):
        raise PermissionError(f"{folder} {reason}")

    return folder


def _write_secret(path: Path, secret: str) -> str:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret.encode())

    return secret


def _read_secret(path: Path) -> str:
    """What was kept; raises ValueError where others can read it, or it is not whole."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError(f"{path} is not this user's alone")
    if len(text := path.read_text("ascii")) < _LEAST_SECRET:
        raise ValueError(f"{path} was not written to its end")

    return text


def _put(scratch: Path, target: Path) -> None:
    """Copy all of it or nothing; another run may do the same meanwhile."""
    made = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        shutil.copytree(scratch, made, dirs_exist_ok=True)
        if not target.exists():
            made.rename(target)
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
