"""Environments for `vllm=VERSION`: made once, kept, and made again when they were not finished."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.gang import environments
from pytest_decodegate.gang.environments import COMPLETE, cache_folder, commands, environment_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "decodegate"


def scripted(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """A line of Python stands for the command that installs something; `folder` is where."""
    program = f"import os, sys; folder = sys.argv[1]; {line}"
    monkeypatch.setattr(environments, "commands", lambda _, folder: [[sys.executable, "-c", program, str(folder)]])


def test_it_is_installed_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "os.mkdir(folder); os.mkdir(folder + '.once')")
    first = environment_of("0.26.0")
    assert first == environment_of("0.26.0")
    assert Path(first).parts[-3].startswith("vllm-0.26.0-py3.")


def test_what_fails_to_install_says_so_and_is_tried_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    scripted(monkeypatch, "os.mkdir(folder); sys.exit('no matching distribution')")
    with pytest.raises(BadInput, match=r"vllm=9.9 could not be installed: .* ended with 1:\nno matching distribution"):
        environment_of("9.9")

    assert list(cache.glob(f"*/{COMPLETE}")) == []
    scripted(monkeypatch, "os.mkdir(folder)")
    assert environment_of("9.9").startswith(str(cache))


@pytest.mark.parametrize("version", ["", "../x", "latest", "1 2"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(BadInput, match="is no version"):
        environment_of(version)


@pytest.mark.parametrize("uv", ["/bin/uv", None])
def test_uv_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch, uv: str | None) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: uv)
    create, install = commands("0.26.0", Path("/e"))
    assert create[-1] == "/e"
    assert install[-1] == "vllm==0.26.0"
    assert (create[0], install[0]) == ((uv, uv) if uv else (sys.executable, "/e/bin/python"))


def test_without_a_cache_home_it_is_the_users() -> None:
    assert cache_folder({}) == Path.home() / ".cache" / "decodegate"
