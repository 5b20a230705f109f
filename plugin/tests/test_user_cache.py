"""What runs of one user keep for each other, and never what somebody else can have put there."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from homeless import without_a_home

from pytest_decodegate.process.user_cache import cache_folder, kept_files
from pytest_decodegate.serving.models import write_rank_slice
from pytest_decodegate.serving.server import ServerOptions, begin


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_folder()


def files(folder: Path, **contents: str) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    return folder


def test_the_same_files_are_kept_once_wherever_they_were_written(tmp_path: Path) -> None:
    first = kept_files(files(tmp_path / "one", a="1", b="2"))
    assert first == kept_files(files(tmp_path / "two", a="1", b="2"))
    assert {path.name: path.read_text() for path in first.iterdir()} == {"a": "1", "b": "2"}
    others = [{"a": "1", "b": "3"}, {"a": "12", "b": ""}, {"a": "1"}]
    assert len({first, *(kept_files(files(tmp_path / str(each), **each)) for each in others)}) == 4


def test_what_python_compiles_there_makes_them_no_others(tmp_path: Path) -> None:
    kept = kept_files(files(tmp_path / "one", a="1"))
    files(kept / "__pycache__", a="compiled")
    assert kept_files(tmp_path / "one") == kept


def widened(path: Path) -> None:
    path.chmod(0o777)


def edited(path: Path) -> None:
    (path / "a").write_text("x")


def littered(path: Path) -> None:
    (path / ".DS_Store").write_text("x")


@pytest.mark.parametrize("harm", [widened, edited, littered])
def test_files_that_another_can_have_touched_are_put_there_anew(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    scratch = files(tmp_path / "one", a="1")
    kept = kept_files(scratch)
    harm(kept)
    assert kept_files(scratch) == kept
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"a": "1"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_files_are_kept_under_every_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        assert kept_files(files(tmp_path / "one", a="1")).parent == cache_folder() / "files"
    finally:
        os.umask(before)


def test_a_relative_folder_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", ".cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kept_files(files(tmp_path / "one", a="1")).parent == tmp_path / ".cache" / "decodegate" / "files"


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_a_home(monkeypatch)
    scratch = files(tmp_path / "one", a="1")
    assert kept_files(scratch) == scratch


@pytest.mark.parametrize("make", [widened, lambda cache: (cache.rmdir(), cache.write_text("a file"))])
def test_nothing_is_kept_where_others_can_write_or_no_folder_can_be(
    cache: Path, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    cache.mkdir(parents=True)
    make(cache)
    scratch = files(tmp_path / "one", a="1")
    assert kept_files(scratch) == scratch


def test_a_folder_of_another_user_is_none_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scratch = files(tmp_path / "one", a="1")
    kept_files(scratch)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert kept_files(scratch) == scratch


def test_a_copy_that_breaks_off_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    scratch = files(tmp_path / "one", a="1")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", full)
        assert kept_files(scratch) == scratch

    assert list((cache / "files").iterdir()) == []
    assert kept_files(scratch).parent == cache / "files"


def test_nothing_by_which_vllm_finds_what_it_compiled_differs_between_two_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is of the model's path, and of all of its variables that it does not know to be harmless.

    A start of 42 layers took 98 s on an H200, 28 of them to compile what the start before had compiled.
    """
    begun: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        "pytest_decodegate.serving.server.ServerProcess",
        lambda command, *, environment, **_: begun.append((command, environment)),
    )
    for name in ("one", "two"):
        model = write_rank_slice(tmp_path / name, world_size=1, layers=2).kept()
        begin(ServerOptions("python", model, {"A": "1"}, tmp_path / "log"))

    (first, variables), (second, others) = begun
    assert variables == others
    assert {a for a, b in zip(first, second, strict=True) if a != b} == {
        first[first.index("--port") + 1],
        first[first.index("--served-model-name") + 1],
    }
