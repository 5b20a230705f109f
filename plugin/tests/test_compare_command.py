"""`decodegate compare` from the command line: what names files, what is written where, and the exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import CLASS, MOE, RATE, STACK, baseline, stored, write

from pytest_decodegate.baseline.schema import Baseline
from pytest_decodegate.cli import main

OTHER_CLASS = "NVIDIA-H100-x2-NVLink"


def moe(seconds: float, number: int, *, folder: str = CLASS, sessions: int = 1, nccl: str = "2.28.3") -> Baseline:
    return baseline(
        stored(MOE, seconds, sessions=sessions),
        path=f"{folder}/{number:04d}_vllm.json",
        machine_class=Path(folder).name,
        stack={**STACK, "nccl": nccl},
    )


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current directory of the command, and of dumps, which looks for a repository around it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def compared(outside: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[tuple[str, str]]]]:
    """Run the command; exit status, and the files of each pair."""

    def run(*arguments: str) -> tuple[int, list[tuple[str, str]]]:
        status = main(["compare", "--format", "json", *arguments])
        content = json.loads(capsys.readouterr().out)
        return status, [(one["reference"]["file"], one["new"]["file"]) for one in content["pairs"]]

    return run


Run = Callable[..., tuple[int, list[tuple[str, str]]]]


def test_files_in_the_asked_order(outside: Path, compared: Run) -> None:
    for number, seconds in enumerate((40e-6, 40.1e-6, 44e-6), start=1):
        write(outside, moe(seconds, number, folder=f"d{number}/{CLASS}"))

    files = [f"d{number}/{CLASS}/{number:04d}_vllm.json" for number in (3, 1, 2)]

    assert compared(*files) == (0, [(files[0], files[1]), (files[0], files[2])])
    assert compared(files[1], files[2]) == (0, [(files[1], files[2])])
    assert compared(files[1], files[0])[0] == 1


def test_a_folder_stands_for_what_was_recorded_last_in_each_class(outside: Path, compared: Run) -> None:
    for folder in ("before", "after"):
        write(outside, moe(40e-6, 1, folder=f"{folder}/{CLASS}", sessions=3))
        write(outside, moe(60e-6, 2, folder=f"{folder}/{CLASS}"))
        write(outside, moe(40e-6, 1, folder=f"{folder}/{OTHER_CLASS}"))

    last, other = f"{CLASS}/0001_vllm.json", f"{OTHER_CLASS}/0001_vllm.json"

    status, pairs = compared("before", "after/")
    assert status == 0
    assert sorted(pairs) == [(f"before/{other}", f"after/{other}"), (f"before/{last}", f"after/{last}")]
    assert compared(f"before/{CLASS}", "after") == (2, [(f"before/{last}", f"after/{last}")])


def test_a_folder_alone_stands_for_all_of_its_files_by_class(outside: Path, compared: Run) -> None:
    for number in (10, 9, 8):
        write(outside, moe(40e-6, number))
    write(outside, moe(40e-6, 1, folder=OTHER_CLASS))
    (outside / CLASS / "notes.json").write_text("[]")

    first, second, third = (f"{CLASS}/{number:04d}_vllm.json" for number in (8, 9, 10))

    status, pairs = compared(".")
    assert pairs == [(first, second), (first, third)]
    assert status == 2  # the other class has one file, which nothing is compared with
    assert compared(CLASS) == (0, pairs)


def test_a_glob_is_its_matches(outside: Path, compared: Run) -> None:
    for number in (1, 2, 3):
        write(outside, moe(40e-6, number))

    files = [f"{CLASS}/{number:04d}_vllm.json" for number in (1, 2, 3)]
    assert compared(f"{CLASS}/000[12]*.json") == (0, [(files[0], files[1])])
    assert compared(files[2], "*/0001*") == (0, [(files[2], files[0])])


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_git_revisions(outside: Path, compared: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q", "-b", "main")
    write(outside, moe(40e-6, 1, folder=f"baselines/{CLASS}"))
    git("add", ".")
    git("commit", "-q", "-m", "one")
    write(outside, moe(44e-6, 1, folder=f"baselines/{CLASS}"))

    file = f"baselines/{CLASS}/0001_vllm.json"
    assert compared(f"git:main:{file}", file) == (1, [(f"git:main:{file}", file)])
    assert compared("git:main:baselines", "baselines") == (1, [(f"git:main:{file}", file)])
    monkeypatch.chdir(outside / "baselines")
    assert compared(f"git:HEAD:./{CLASS}", CLASS)[0] == 1


def test_the_change_is_declared_and_fields_are_allowed(
    outside: Path, capsys: pytest.CaptureFixture[str], compared: Run
) -> None:
    one, two = (str(write(outside, moe(40e-6, n, nccl=f"2.28.{n}"))) for n in (1, 2))
    three = str(write(outside, moe(40e-6, 3, folder=OTHER_CLASS)))

    assert compared(one, two)[0] == 2
    assert compared(one, two, "--change", "nccl")[0] == 0
    assert compared(one, two, "--allow", "nccl")[0] == 0
    assert compared(one, three, "--change=nccl")[0] == 2
    assert compared(one, three, "--change=nccl", "--allow", "machine_class")[0] == 0

    assert main(["compare", one, two, "--change=nccl", "--allow=dirver"]) == 0
    assert "--allow dirver: nothing that differs has this name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "start"),
    [
        ("r.md", (), "## decodegate compare"),
        ("r.html", (), "<!DOCTYPE html>"),
        ("r.json", (), "{"),
        ("r.txt", (), CLASS),
        ("r.txt", ("--format", "markdown"), "## decodegate compare"),
    ],
)
def test_the_report_goes_into_a_file(
    outside: Path, capsys: pytest.CaptureFixture[str], name: str, options: tuple[str, ...], start: str
) -> None:
    one, two = (str(write(outside, moe(40e-6, number))) for number in (1, 2))

    assert main(["compare", one, two, "-o", name, *options]) == 0
    assert (outside / name).read_text().startswith(start)
    assert capsys.readouterr().out == f"1 PASS: all passed; written to {name}\n"


@pytest.mark.parametrize(("columns", "shown"), [("", True), ("200", True), ("70", False)])
def test_columns_is_honoured_and_a_pipe_has_no_width(
    outside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, shown: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    one, two = (str(write(outside, moe(40e-6, number))) for number in (1, 2))

    main(["compare", one, two])

    assert ("sessions\n" in capsys.readouterr().out) == shown


def test_a_file_beside_itself_does_not_exit_0(outside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(write(outside, moe(40e-6, 1)))

    assert main(["compare", one, one]) == 2
    said = capsys.readouterr().out
    assert "the same sessions on both sides, which show nothing and are not judged" in said
    assert said.endswith("which shows nothing: not everything could be shown to pass\n")


def test_names_in_files_become_no_paths(outside: Path, compared: Run) -> None:
    evil = baseline(stored(MOE, 40e-6), path="a.json", machine_class="../../evil")
    file = str(write(outside, evil))

    assert main(["compare", file, file, "-o", "out/../r.html"]) == 3
    assert compared(file, file) == (2, [(file, file)])
    assert sorted(path.name for path in outside.iterdir()) == ["a.json"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{one}"], "one baseline alone compares with nothing"),
        (["{one}", "gone.json"], "gone.json: cannot be read: No such file or directory"),
        (["{one}", "gone*.json"], "gone*.json: no file matches this pattern"),
        (["{one}", "empty"], "empty: no NNNN_*.json in it"),
        (["{one}", "junk.json"], "junk.json: not JSON, perhaps cut short"),
        (["{one}", "git:main"], "'git:main' is not git:REV:PATH"),
        (["{one}", "git:--output=x:y"], "is not git:REV:PATH"),
        (["{one}", "git:nope:y"], "git:nope:y: fatal: "),
        (["{one}", "{one}", "--change", "weather"], "declared change 'weather'"),
        (["{one}", "{one}", "-o", "r.csv"], "-o r.csv: no format has the suffix '.csv'; use one of .txt, .md, .json"),
        (["{one}", "{one}", "-o", "gone/r.md"], "gone/r.md: cannot be written: No such file or directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_3(
    outside: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    one = str(write(outside, moe(40e-6, 1)))
    (outside / "empty").mkdir()
    (outside / "junk.json").write_text("{")

    assert main(["compare", *(argument.format(one=one) for argument in arguments)]) == 3

    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


HEAVY = ("torch", "numpy", "scipy", "pynvml", "vllm", "aiohttp", "pytest", "pytest_benchmark")


def test_it_starts_without_anything_heavy(outside: Path) -> None:
    one, two = (write(outside, baseline(stored(MOE, 40e-6), stored(RATE, 80.0), path=name)) for name in ("a", "b"))
    code = (
        "import sys; from pytest_decodegate.cli import main; "
        f"status = main(['compare', {str(one)!r}, {str(two)!r}]); "
        f"print(status, [name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "0 []"
