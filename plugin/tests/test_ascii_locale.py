"""A host whose locale is ASCII, and folders whose names are not: Python then holds their bytes as lone surrogates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_source import SOURCE

from pytest_decodegate.gang.agent import _write_script
from pytest_decodegate.printable import as_on_disk
from pytest_decodegate.process import processes

# Without the last two Python takes UTF-8 whatever the locale says (PEP 538, PEP 540).
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}

TESTS = (
    SOURCE
    + """
    from pytest_decodegate.machine.provenance import Provenance, redact


    def here():
        stack = {"env:LD_PRELOAD": redact({"LD_PRELOAD": __file__})["LD_PRELOAD"]}
        return Provenance({"cpu": "made up", "cores": 2}, stack, {"executable": __file__})


    @pytest.mark.perf
    def test_it(perf):
        perf.gate(Metric.of("nap", "cpu"), Source(), here)
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything lies, TMPDIR included, for children that run with an ASCII locale."""
    folder = tmp_path / "gemütlich"
    (folder / "tmp").mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_nap.py").write_text("\n".join(line.removeprefix("    ") for line in TESTS.splitlines()))
    for name, value in {**ASCII, "TMPDIR": str(folder / "tmp")}.items():
        monkeypatch.setenv(name, value)

    return folder


def run(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
    return done.stdout.decode(errors="replace")


def test_a_run_records_gates_and_reports_there(folder: Path) -> None:
    options = ("pytest", "-m", "perf", "--perf-report=fällt", "--junitxml=fällt.xml")
    for option, verdict in (("--perf-record", "NO_BASELINE"), ("-v", "PASS")):
        assert f" {verdict}" in run(folder, *options, option)

    verdicts = [json.loads(line).get("verdict") for line in (folder / "fällt/results.jsonl").read_text().splitlines()]
    assert [verdict for verdict in verdicts if verdict] == ["PASS"], "of the last run"
    (path,) = (folder / "baselines").glob("*/*.json")
    # The folder's name as it is on the disk, so that the file is the same under every locale.
    assert json.loads(path.read_bytes())["decodegate"]["provenance"]["stack"]["env:LD_PRELOAD"]
    assert "gemütlich" in path.read_text(encoding="utf-8")

    for words in (["baselines"], ["history", "nap"]):
        run(folder, "pytest_decodegate", *words)


@given(st.binary(max_size=20))
def test_names_become_what_they_are_on_the_disk(name: bytes) -> None:
    held = name.decode("ascii", "surrogateescape")
    assert as_on_disk(held) == name.decode("utf-8", "replace")


def test_the_start_script_of_a_node_holds_any_path(tmp_path: Path) -> None:
    """As os.fsdecode gives it under an ASCII locale: the bytes are what counts."""
    _write_script(tmp_path / "start.sh", {"WHERE": "/gem\udcc3\udcbctlich"}, ["printenv", "WHERE"])
    done = subprocess.run(["sh", str(tmp_path / "start.sh")], capture_output=True, check=True)
    assert done.stdout == "/gemütlich\n".encode()


def test_a_process_may_be_called_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_bytes(b"gem\xfctlich\n")
    assert processes.program_name(7, tmp_path).startswith("gem")


MAPPED = """
import mmap, os, re, sys
from pytest_decodegate.machine import stack

with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (found,) = stack.mapped_libraries(stack.own_maps(), re.compile(r"libnccl\\.so"))

print(os.path.samefile(found, sys.argv[1]), len(stack.sha256(found)))
"""


def test_a_library_that_is_mapped_from_there_is_found_and_hashed(folder: Path) -> None:
    library = folder / "libnccl.so"
    library.write_bytes(b"no library")
    command = [sys.executable, "-c", MAPPED, os.fspath(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True 64\n", done.stderr
