from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from children import killed_after

from pytest_decodegate.process import guard, processes

TAG = "GUARD_TEST_TAG"
SECONDS = 10.0  # generous: the bound under test is "bounded", not a speed

SLEEP = "import time; time.sleep(3600)"
TREE = f"""
import subprocess, sys, time
for session in (False, True):
    subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=session)
print("ready", flush=True)
time.sleep(3600)
"""
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(3600)"
)
OWNER = """
import os, signal, subprocess, sys
# As in a terminal: a run in the background (`nohup ... &`, many CI runners) starts its children with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from pytest_decodegate.process.guard import guarded
guarded([sys.executable, "-S", "-c", sys.argv[2]], env=os.environ).wait()
"""


@pytest.fixture
def tag() -> Iterator[str]:
    value = uuid.uuid4().hex
    yield value
    processes.kill_tagged(TAG, value)


def environment(tag: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], TAG: tag}


def left_after(tag: str, seconds: float = SECONDS) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := processes.tagged(TAG, tag)) and time.monotonic() < deadline:
        os.sched_yield()

    return left


def read_ready(stream: IO[bytes] | None) -> None:
    assert stream is not None
    assert stream.readline() == b"ready\n"


def start(script: str, tag: str, grace_seconds: float = 0.2) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-c", script]
    return guard.guarded(command, env=environment(tag), stdout=subprocess.PIPE, grace_seconds=grace_seconds)


def test_a_terminated_guard_leaves_no_descendant_not_even_in_another_session(tag: str) -> None:
    with killed_after(start(TREE, tag)) as process:
        read_ready(process.stdout)
        # A process shows no environment in the moment of its exec.
        deadline = time.monotonic() + SECONDS
        while len(processes.tagged(TAG, tag)) < 4 and time.monotonic() < deadline:
            os.sched_yield()

        assert len(processes.tagged(TAG, tag)) == 4
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
        assert left_after(tag, 0) == []


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(tag: str) -> None:
    with killed_after(start(DEAF, tag)) as process:
        read_ready(process.stdout)
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGKILL
        assert left_after(tag, 0) == []


ENDING = f"""
import ctypes, subprocess, sys, threading, time
subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
threading.Thread(target=time.sleep, args=[3600]).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_main_thread_has_ended_does_not_hide_what_is_below_it(tag: str) -> None:
    """As a rank does while its many threads end: looked at just then, its child would be missed, and left behind."""
    script = [sys.executable, "-S", "-c", ENDING]
    with killed_after(subprocess.Popen(script, env=environment(tag), stdout=subprocess.PIPE)) as ending:
        read_ready(ending.stdout)
        stat = Path(f"/proc/{ending.pid}/stat")
        deadline = time.monotonic() + SECONDS
        while stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
            os.sched_yield()

        below = guard.descendants(os.getpid())
        children = guard.descendants(ending.pid)
        family = processes.family()

    assert len(children) == 1
    assert children[0] in below
    assert ending.pid not in below
    assert {ending.pid, *children} <= family  # its threads may still hold a GPU, which is then no stranger's


def test_the_end_of_the_command_ends_what_it_left_behind(tag: str) -> None:
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"
    with killed_after(start(script, tag)) as process:
        assert process.wait(SECONDS) == 0
        assert left_after(tag, 0) == []


CHAIN = """
import os, time
for _ in range(20):
    if os.fork():
        os._exit(0)
time.sleep(3600)
"""


def test_what_was_forked_while_its_parent_ended_is_ended_too(tag: str) -> None:
    """A walk of /proc that began before the fork and came to the parent after its end sees neither of the two."""
    for _ in range(20):
        with killed_after(start(CHAIN, tag)) as process:
            assert process.wait(SECONDS) == 0
            assert left_after(tag, 0) == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_owner(tag: str, signum: signal.Signals) -> None:
    package = str(Path(guard.__file__).parents[2])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, package, TREE],
        env=environment(tag),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with killed_after(owner):
        read_ready(owner.stdout)
        owner.send_signal(signum)
        owner.wait(SECONDS)
        assert left_after(tag) == []


def test_the_command_dies_with_its_guard(tag: str) -> None:
    script = SLEEP.replace("import time;", "import time; print('ready', flush=True);")
    with killed_after(start(script, tag)) as process:
        read_ready(process.stdout)
        process.kill()
        assert left_after(tag) == []


@pytest.mark.parametrize(("script", "code"), [("raise SystemExit(7)", 7), ("pass", 0)])
def test_the_exit_code_of_the_command_is_the_guards(tag: str, script: str, code: int) -> None:
    with killed_after(start(script, tag)) as process:
        assert process.wait(SECONDS) == code


def test_a_command_that_ends_at_once_is_never_missed(tag: str) -> None:
    guards = [guard.guarded(["/bin/true"], env=environment(tag)) for _ in range(20)]
    assert [one.wait(SECONDS) for one in guards] == [0] * 20


def test_a_killed_command_is_named_with_its_signal(tag: str) -> None:
    with killed_after(start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tag)) as process:
        assert process.stdout is not None
        said = process.stdout.read().decode()
        assert process.wait(SECONDS) == 128 + signal.SIGKILL

    assert said.startswith(f"guard: {sys.executable} (pid ")
    assert said.endswith("was killed by SIGKILL\n")


def test_a_command_that_does_not_exist_is_named(tag: str) -> None:
    with killed_after(guard.guarded(["/no/such/command"], env=environment(tag), stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"guard: cannot start '/no/such/command': No such file or directory\n"
        assert process.wait(SECONDS) == 127


def test_an_owner_that_is_gone_starts_nothing(tag: str) -> None:
    with subprocess.Popen(["/bin/true"]) as gone:
        pass

    script = [sys.executable, "-I", "-S", guard.__file__, str(gone.pid), "1", "/bin/echo", "started"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"owner {gone.pid} is gone already" in done.stderr


def test_orphans_are_reaped_while_the_command_runs(tag: str) -> None:
    script = """
import subprocess, sys, time
middle = "import subprocess, sys; print(subprocess.Popen(['/bin/cat'], stdin=subprocess.PIPE).pid)"
pid = subprocess.run([sys.executable, "-S", "-c", middle], capture_output=True, text=True).stdout.strip()
print(pid, flush=True)  # an orphan that ends on the end of its input
time.sleep(3600)
"""
    with killed_after(start(script, tag)) as process:
        assert process.stdout is not None
        orphan = Path("/proc", process.stdout.readline().decode().strip())
        deadline = time.monotonic() + SECONDS
        while orphan.exists() and time.monotonic() < deadline:
            os.sched_yield()

        assert not orphan.exists()
        process.terminate()
        process.wait(SECONDS)
