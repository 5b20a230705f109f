from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from stored import MOE, baseline, stored, write

from pytest_decodegate.cli import BAD_INPUT, main
from pytest_decodegate.client import floor
from pytest_decodegate.commands import examination
from pytest_decodegate.errors import ServerError
from pytest_decodegate.fitness.readings import Importable
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.machine.host import file_safe
from pytest_decodegate.reference.loaded import Loaded
from pytest_decodegate.session import forecast


def test_slice_writes_a_model_that_names_its_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slice", "--world", "2", "--layers", "3", str(tmp_path / "model")]) == 0
    assert json.loads((tmp_path / "model" / "config.json").read_text())["num_hidden_layers"] == 3
    said = capsys.readouterr().out
    assert "3-layer rank slice for 2 GPU(s)" in said
    served = next(line for line in said.splitlines() if line.startswith("serve it with: "))
    assert json.loads(shlex.split(served)[-1])["cudagraph_capture_sizes"], "a shell can take it as it stands"


def test_bad_input_is_one_line_and_exit_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slice", "--world", "2", "--layers", "1", str(tmp_path / "model")]) == 3
    said = capsys.readouterr().err
    assert said.startswith("decodegate: rank-slice: 1 layers")
    assert said.count("\n") == 1
    assert not (tmp_path / "model").exists()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_doctor_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seven seconds: a real Python imports torch and vLLM, as those of ranks do."""
    main(["doctor", "--baselines", str(tmp_path)])
    said = capsys.readouterr().out
    assert re.search(r"^(OK|WARN)  gpus ", said, re.MULTILINE)
    assert re.search(r"^WARN  baselines +of this machine and its parts: none$", said, re.MULTILINE)
    assert "mend:  pytest -m perf --perf-record" in said
    assert "run   how long a run takes here is not known before one is recorded here" in said


def test_doctor_says_what_would_gate_and_what_confounds_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test above asks a real Python what it loads, for six seconds.
    monkeypatch.setattr(examination, "_module", lambda _, name, __: Importable(name, "2.11"))
    monkeypatch.setattr(forecast, "probe_loaded", lambda *_, **__: Loaded({"torch": "2.11"}, {}))
    here = machine().machine_class
    other = baseline(stored(MOE, 40e-6), machine_class=here, path=f"{file_safe(here)}/0001_other.json")
    write(tmp_path, other)
    main(["doctor", "--baselines", str(tmp_path)])
    said = capsys.readouterr().out
    assert "run   1 metric\n" in said
    assert f"1 CONFOUNDED already by {file_safe(here)}/0001_other.json: " in said
    assert "nccl: 2.28.3 -> absent" in said


def test_doctor_asks_the_python_of_the_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    assert main(["doctor", "--python", str(bare), "--baselines", str(tmp_path)]) == 1
    assert re.search(
        rf"^FAIL  packages +torch in {re.escape(str(bare))}: ModuleNotFoundError", said(capsys), re.MULTILINE
    )


def test_doctor_goes_on_where_something_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(streams: int) -> None:
        raise ServerError(f"no server for {streams} streams")

    monkeypatch.setattr(floor, "client_floor", failing)
    assert main(["doctor", "--python", str(tmp_path / "none"), "--baselines", str(tmp_path)]) == 1
    lines = said(capsys)
    assert f"torch: {tmp_path / 'none'} cannot be run (No such file or directory); give --python" in lines
    assert re.search(r"^FAIL  client +the client's own floor: no server for 128 streams$", lines, re.MULTILINE)
    assert lines.splitlines()[-1].startswith("NOT FIT to gate: packages, client")


def test_a_reader_that_has_gone_is_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys; from pytest_decodegate.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "slice", "--world", "1", str(tmp_path / "model")],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("arguments", [[], ["dance"], ["slice", "folder"]])
def test_unusable_words_are_explained_by_the_parser(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == BAD_INPUT
    assert "usage: decodegate" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["pytest_decodegate", "pytest_decodegate.cli"])
def test_a_module_is_as_good_as_the_script(module: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    version = run("--version")
    assert (version.returncode, version.stdout) == (0, f"decodegate {metadata.version('pytest-decodegate')}\n")
    nothing = run()
    assert nothing.returncode == BAD_INPUT
    assert nothing.stderr.startswith("usage: decodegate ")
    assert run("compare", "no.json", "such.json").returncode == BAD_INPUT
