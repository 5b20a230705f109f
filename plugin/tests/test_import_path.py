"""What ranks, servers and those who ask import from: the same vLLM and the same helpers as the pytest above them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cli import main
from pytest_decodegate.process.import_path import inherited, is_this_python, path_for, withheld
from pytest_decodegate.resources.probe import probe_python
from pytest_decodegate.serving import home
from pytest_decodegate.session.session import session_of

BIN = Path(sys.executable).parent


def test_entries_are_absolute_because_children_run_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert inherited({"PYTHONPATH": "/a:b:"}) == ("/a", f"{tmp_path}/b", str(tmp_path))
    assert inherited({"PYTHONPATH": ""}) == inherited({}) == ()


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A virtual environment of the same interpreter: another Python to packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    return str(tmp_path / "other" / "bin" / "python")


def test_a_python_is_known_by_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str) -> None:
    monkeypatch.setenv("PATH", str(BIN))
    assert is_this_python(sys.executable)
    assert is_this_python(Path(sys.executable).name)
    assert is_this_python(str(BIN / ".." / BIN.name / Path(sys.executable).name))
    assert not is_this_python(other)
    assert not is_this_python(str(tmp_path / "nowhere"))


@given(st.lists(st.sampled_from(["/a", "/b", "/c"])), st.lists(st.sampled_from(["/package", "/a"])))
def test_what_comes_first_stays_first_and_nothing_comes_twice(own: list[str], first: list[str]) -> None:
    entries = [entry for entry in path_for(sys.executable, own, first).split(os.pathsep) if entry]
    assert entries == list(dict.fromkeys([*first, *own]))
    assert path_for("/another/python", own, first) == os.pathsep.join(dict.fromkeys(first))
    assert (withheld("/another/python", own) is None) == (not own)
    assert withheld(sys.executable, own) is None


def test_another_python_is_asked_without_the_entries_of_this_one(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf \'{"path": "%s"}\' "$PYTHONPATH"\n')
    python.chmod(0o755)
    path = probe_python(str(python), {}, 60.0, ("/theirs",))["path"]
    assert isinstance(path, str)
    assert Path(path).name == "path"
    assert os.pathsep not in path


RANKS = """
    import importlib.util

    from helper import seven


    def on_rank():
        vllm = importlib.util.find_spec("vllm")
        return seven(), vllm and vllm.origin


    def test_ranks_import_what_pytest_imports(torchrun):
        assert torchrun(on_rank) == [on_rank()]
        assert on_rank()[1].startswith(PROJECT)
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A src-layout project whose PYTHONPATH has a vLLM of its own, named as it is seen from its folder."""
    pytester.makeini("[pytest]\npythonpath = src\n")
    (pytester.mkdir("src") / "helper.py").write_text("def seven():\n    return 7\n")
    pytester.mkdir("own")
    (pytester.mkpydir("own/vllm") / "__init__.py").write_text("__version__ = '9.9'\n")
    monkeypatch.setenv("PYTHONPATH", "own")
    return pytester.path


@pytest.mark.skipif(find_spec("torch") is None, reason="ranks run on torch")
def test_ranks_find_the_projects_helpers_and_its_vllm(pytester: pytest.Pytester, project: Path) -> None:
    pytester.makepyfile(f"    PROJECT = {str(project)!r}\n{RANKS}")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_doctor_finds_the_same_vllm(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "own" / "torch.py").write_text("__version__ = '1.2.3'\n")
    (project / "src" / "vllm.py").write_text("__version__ = '8.8'\n")  # pytest's own entries come before PYTHONPATH's
    main(["doctor"])
    pytest.LineMatcher(capsys.readouterr().out.splitlines()).fnmatch_lines(["OK    packages *torch 1.2.3; vllm 8.8"])


def test_doctor_says_what_another_python_does_not_get(
    project: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--python", other])
    pytest.LineMatcher(capsys.readouterr().out.splitlines()).fnmatch_lines(
        [
            f"FAIL  packages *torch in {other}: *",
            f"run * pythonpath ({project}/src:{project}/own) is not given to {other}: *",
        ]
    )


@pytest.mark.parametrize("own", [True, False], ids=["this", "another"])
def test_a_server_imports_what_ranks_of_its_stack_do(
    pytester: pytest.Pytester, project: Path, monkeypatch: pytest.MonkeyPatch, other: str, own: bool
) -> None:
    started: list[home.ServerLaunch] = []

    def launched(start: home.ServerLaunch, **_: Any) -> Any:
        started.append(start)
        raise KeyboardInterrupt

    monkeypatch.setattr(home, "launch_own", launched)
    session = session_of(pytester.parseconfigure(*([] if own else [f"--perf-candidate=python={sys.executable}"])))
    if not own:
        monkeypatch.setattr(type(session.settings.stack), "python", other, raising=False)
    with pytest.raises(KeyboardInterrupt):
        session.servers._open()

    assert started[0].environment["PYTHONPATH"] == (f"{project}/src:{project}/own" if own else "")


def test_a_run_says_what_ranks_under_another_python_do_not_get(pytester: pytest.Pytester, project: Path) -> None:
    """A venv that shares this one's packages, as a clone of a serving environment would."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "clone"], cwd=project, check=True)
    (site,) = (project / "clone").glob("lib/*/site-packages")
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    pytester.makepyfile("import pytest\n\n@pytest.mark.perf\ndef test_speed(): pytest.skip('made up')")
    result = pytester.runpytest_subprocess("-m", "perf", "--perf-candidate=python=clone/bin/python")
    # pytester puts its own folder before PYTHONPATH.
    result.stdout.fnmatch_lines(
        [f"perf: *({project}/src:*:{project}/own) is not given to {project}/clone/bin/python: *"]
    )
