from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from children import killed_after
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.process import processes


def test_a_family_is_found_through_odd_names_and_missing_parents(tmp_path: Path) -> None:
    for pid, parent, name in [
        (1, 0, "init"),
        (5, 1, "a) S 404 ("),
        (6, 5, "b c"),
        (7, 6, "d"),
        (8, 1, "e"),
        (9, 404, "f"),
    ]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {'Z' if pid == 6 else 'S'} {parent} {pid} 0\n")
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "stat").write_text("")

    assert processes.family(5, tmp_path) == {5, 6, 7}
    assert processes.family(1, tmp_path) == {1, 5, 6, 7, 8}


def test_a_real_grandchild_belongs_to_the_family() -> None:
    code = "import subprocess, sys; c = subprocess.Popen(['cat'], stdin=0); print(c.pid, flush=True); c.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        grandchild = int(child.stdout.readline())
        family = processes.family()
        child.communicate()

    assert {os.getpid(), child.pid, grandchild} <= family
    assert os.getppid() not in family


def test_a_process_that_is_gone_has_no_name_and_maps_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()

    assert processes.program_name(child.pid) == "unknown"
    assert not processes.may_map(child.pid, "libc")


def test_a_library_that_this_process_has_loaded_is_found() -> None:
    assert processes.may_map(os.getpid(), "libc.so")
    assert not processes.may_map(os.getpid(), "no-such-library")


def test_a_process_that_is_first_looked_at_in_its_exec_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its environment reads empty; the moment is too short to be met by waiting for it."""
    tag = uuid.uuid4().hex
    pipe = subprocess.PIPE
    with killed_after(subprocess.Popen(["cat"], env={"PROCESSES_TEST_TAG": tag}, stdin=pipe, stdout=pipe)) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"its exec is over\n")
        child.stdin.flush()
        child.stdout.readline()
        read, looks = processes._environment, []

        def in_its_exec_at_first(pid: str) -> list[bytes]:
            if pid == str(child.pid):
                looks.append(pid)
            return [b""] if len(looks) == 1 and pid == str(child.pid) else read(pid)

        monkeypatch.setattr(processes, "_environment", in_its_exec_at_first)
        processes.kill_tagged("PROCESSES_TEST_TAG", tag)
        assert child.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -SEGV $$", -11), ("exit 0", 0)])
def test_the_exit_code_of_a_process_is_read_before_its_parent_reaps_it(script: str, code: int) -> None:
    with subprocess.Popen(["/bin/sh", "-c", script]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes.exit_code(child.pid) == code

    assert processes.exit_code(child.pid) is None


@pytest.mark.parametrize(("code", "text"), [(7, "exit code 7"), (-9, "SIGKILL"), (-40, "signal 40")])
def test_exit_codes_are_told_in_words(code: int, text: str) -> None:
    assert processes.describe_exit(code) == text


TORCHRUN = [
    "TORCHELASTIC_USE_AGENT_STORE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "GROUP_RANK",
    "ROLE_NAME",
]


@given(st.sets(st.sampled_from([*TORCHRUN, "PET_NNODES", "PYTHON_EXEC", "PYTEST_CURRENT_TEST", "DECODEGATE_KEY_FILE"])))
def test_no_variable_of_torchrun_reaches_a_child(names: set[str]) -> None:
    mine = {"PATH": "/bin", "RANKING": "1", "NCCL_ALGO": "Ring", "MASTER_ADDRESS": "x"}
    assert processes.scrubbed({**mine, **dict.fromkeys(names, "1")}) == mine
