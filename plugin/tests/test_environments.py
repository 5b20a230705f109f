"""Environments for `vllm=VERSION`: made once, kept, and made again when they were not finished."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from homeless import without_a_home

from pytest_decodegate.errors import BadInput
from pytest_decodegate.process.user_cache import cache_folder
from pytest_decodegate.settings import venvs
from pytest_decodegate.settings.venvs import COMPLETE, commands, environment_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "decodegate"


MAKE = "os.makedirs(folder + '/bin'); os.symlink(sys.executable, folder + '/bin/python')"


def scripted(monkeypatch: pytest.MonkeyPatch, line: str = MAKE) -> None:
    """A line of Python stands for the command that installs something; `folder` is where."""
    program = f"import os, sys; folder = sys.argv[1]; {line}"
    monkeypatch.setattr(venvs, "commands", lambda _, folder: [[sys.executable, "-c", program, str(folder)]])


def test_it_is_installed_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch)
    first = environment_of("0.26.0")
    assert Path(first).parts[-3].startswith("vllm-0.26.0-py3.")
    scripted(monkeypatch, "sys.exit('installed twice')")
    assert first == environment_of("0.26.0")


def test_one_whose_python_is_gone_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch)
    python = Path(environment_of("0.26.0"))
    python.unlink()
    python.symlink_to("/no/such/python3.11")
    assert os.access(environment_of("0.26.0"), os.X_OK)


def test_a_run_that_was_killed_half_way_leaves_nothing_that_is_used(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    scripted(monkeypatch, f"{MAKE}; open(folder + '/half', 'x'); os.kill(os.getpid(), 9)")
    with pytest.raises(BadInput, match="ended with -9"):
        environment_of("0.26.0")

    (half,) = cache.glob("*/half")
    scripted(monkeypatch)
    environment_of("0.26.0")
    assert not half.exists()


def test_of_two_runs_one_waits_for_the_other_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, f"import time; time.sleep(0.5); {MAKE}")
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(environment_of, ["0.26.0"] * 2)

    assert first == second
    told = capfd.readouterr().err
    assert told.count("another run makes this environment; waiting for it") == 1
    assert told.count("sleep") == 1


def test_a_cache_that_cannot_be_written_is_told_by_name(cache: Path) -> None:
    cache.touch()
    with pytest.raises(BadInput, match=r"no environment can be made: .*/decodegate'?; set XDG_CACHE_HOME to"):
        environment_of("0.26.0")


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_home(monkeypatch)
    with pytest.raises(BadInput, match="no environment can be made: this user has no home folder; set XDG_CACHE_HOME"):
        environment_of("0.26.0")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full: make room"),
        ("NewConnectionError: Connection refused; No matching distribution found", "the index cannot be reached"),
        ("cause: Because there is no version of vllm==9.9", "no such version for this Python and platform"),
        ("error: compiler is missing", "ended with 1; it says:"),
    ],
)
def test_the_installers_words_are_read(monkeypatch: pytest.MonkeyPatch, said: str, advice: str) -> None:
    scripted(monkeypatch, f"sys.exit({said!r})")
    with pytest.raises(BadInput, match=advice) as failure:
        environment_of("9.9")

    assert str(failure.value).endswith(f":\n{said}")


def test_what_fails_to_install_says_so_and_is_tried_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    scripted(monkeypatch, "os.mkdir(folder); sys.exit('no matching distribution')")
    with pytest.raises(
        BadInput, match=r"vllm=9.9 could not be installed: .* ended with 1; it says:\nno matching distribution"
    ):
        environment_of("9.9")

    assert list(cache.glob(f"*/{COMPLETE}")) == []
    scripted(monkeypatch)
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


def test_the_cache_is_this_users_alone(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    scripted(monkeypatch)
    cache.mkdir(mode=0o755)
    environment_of("0.26.0")
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["cache", "environment"])
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_what_others_could_write_is_not_run(
    monkeypatch: pytest.MonkeyPatch, cache: Path, planted: str, mode: int
) -> None:
    scripted(monkeypatch)
    python = Path(environment_of("0.26.0"))
    folder = cache if planted == "cache" else python.parents[1]
    folder.chmod(mode)
    with pytest.raises(BadInput, match=rf"{folder}: can be written by others \(mode {mode:04o}\).*remove it"):
        environment_of("0.26.0")


def test_what_belongs_to_somebody_else_is_not_run(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    scripted(monkeypatch)
    environment_of("0.26.0")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match=rf"{cache}: belongs to user {os.getuid()}, and programs in it would be run"):
        environment_of("0.26.0")
