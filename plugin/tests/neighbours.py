"""Other people's pytest plugins, installed once beside this environment: in it they would run with our tests, too."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PLUGINS = (
    *("pytest-rerunfailures==16.7", "pytest-repeat==0.9.4", "pytest-timeout==2.4.0", "pytest-randomly==5.1.0"),
    *("pytest-xdist==3.8.0", "execnet==2.1.2", "pytest-cov==7.1.0", "coverage==7.17.5"),
)
"""With what they need beyond pytest."""

PIP = ("-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--retries=0", "--timeout=10")

SECONDS_TO_FETCH = 120


def import_path() -> str:
    """A folder for PYTHONPATH from which all of PLUGINS are loaded; skips the test if pip cannot fetch them."""
    found = _installed()
    if isinstance(found, str):
        pytest.skip(found)

    return str(found)


@functools.cache
def _installed() -> Path | str:
    """The folder in the user's cache, or the reason why there is none."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(base) / "decodegate" / "plugins" / f"py{sys.version_info.major}.{sys.version_info.minor}-{_versions()}"
    if kept.exists():
        return kept

    kept.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=kept.parent))
    try:
        if reason := _install(folder):
            return reason
        if not kept.exists():  # another test process may have made it in the meantime
            folder.rename(kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    return kept


def _versions() -> str:
    return "-".join(name.partition("==")[2] for name in PLUGINS)


def _install(folder: Path) -> str | None:
    command = [sys.executable, *PIP, f"--target={folder}", *PLUGINS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_FETCH)
    except subprocess.TimeoutExpired:
        return f"pip did not fetch the plugins within {SECONDS_TO_FETCH} s"

    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return f"pip cannot fetch other plugins of pytest (offline?): {last}"

    return None
