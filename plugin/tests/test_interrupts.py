"""Signals that end a run: the table is printed as after Ctrl-C, and nothing is left in TMPDIR, whenever they come."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from made_up_source import SOURCE

from pytest_decodegate.gang import listener
from pytest_decodegate.gang.listener import Listener
from pytest_decodegate.process import private_folders
from pytest_decodegate.process.interrupts import interrupt_on_signals

BOTH = (signal.SIGTERM, signal.SIGHUP)

TESTS = (
    SOURCE
    + """
    import os, signal, time
    from pytest_decodegate.machine.provenance import Provenance


    class SourceThatStops(Source):
        def __init__(self, then):
            self.then = then

        def take(self, count):
            self.then()
            return super().take(count)


    HOST = {"cpu": "made up", "cores": 2}


    def stop():
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        time.sleep(0.1)  # an ignored signal lets it go on


    @pytest.mark.perf
    @pytest.mark.parametrize("name, then", [("short", lambda: None), ("long", stop), ("after", lambda: None)])
    def test_it(perf, name, then):
        perf.gate(Metric.of(name, "cpu"), SourceThatStops(then), lambda: Provenance(HOST, {}, {}))
"""
)


@pytest.fixture(autouse=True)
def signals_that_a_shell_gives() -> Iterator[None]:
    """Neither is ignored, though this run may stand under `nohup`: children inherit what their parent ignores."""
    before = [signal.signal(number, signal.SIG_DFL) for number in BOTH]
    yield
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_ends_a_run_with_its_table(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    pytester.makepyfile(TESTS)
    monkeypatch.setenv("SIGNAL", str(int(number)))
    result = pytester.runpytest_subprocess("-v", "-m", "perf", "--perf-record")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "short *NO_BASELINE, recorded *",
            "counts: 1 RECORDED*",
            f"!*! KeyboardInterrupt: {number.name} !*!",
        ]
    )


def test_under_nohup_the_end_of_a_terminal_ends_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(TESTS)
    monkeypatch.setenv("SIGNAL", str(int(signal.SIGHUP)))
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *pytester._getpytestargs()]
    result = pytester.run(*command, "-m", "perf", "--perf-record")
    result.assert_outcomes(passed=3)


def test_a_handler_of_somebody_else_stays() -> None:
    def theirs(*_: object) -> None:
        return None

    before = [signal.getsignal(number) for number in BOTH]
    assert before == [signal.SIG_DFL, signal.SIG_DFL]
    signal.signal(signal.SIGTERM, theirs)
    try:
        take_back = interrupt_on_signals()
        assert signal.getsignal(signal.SIGTERM) is theirs
        with pytest.raises(KeyboardInterrupt, match="SIGHUP"):
            os.kill(os.getpid(), signal.SIGHUP)

        take_back()
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    assert [signal.getsignal(number) for number in BOTH] == before


def interrupted_at(line: int) -> Any:
    """A trace function that raises KeyboardInterrupt at the `line`-th line that runs in a listener's making."""
    files = {listener.__file__, private_folders.__file__}
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt

        return trace

    return trace


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of listeners half made
def test_wherever_a_launch_is_interrupted_no_folder_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for line in itertools.count():
        before = sys.gettrace()
        sys.settrace(interrupted_at(line))
        try:
            Listener()
        except KeyboardInterrupt:
            whole = False
        else:
            whole = True
        finally:
            sys.settrace(before)

        private_folders.remove_all()  # as at the end of the process
        assert list(tmp_path.iterdir()) == [], f"line {line}"
        if whole:
            break

    assert line > 15


FORKS = """
import os, sys
from pytest_decodegate.process import private_folders

made = private_folders.make("dgate-", sys.argv[1])
if os.fork() == 0:
    sys.exit()
os.wait()
print(made.stat().st_mode & 0o777 == 0o700, flush=True)
sys.exit("interrupted" if sys.argv[2] == "fails" else 0)
"""


@pytest.mark.parametrize("how", ["ends", "fails"])
def test_a_folder_goes_with_its_process_and_not_with_a_fork_of_it(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "planted")
    (tmp_path / "dgate-planted").symlink_to("/etc")
    with pytest.raises(FileExistsError):
        private_folders.make("dgate-", str(tmp_path))
