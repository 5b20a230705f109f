"""Every way a gang can break: what is raised, how soon, what is said, whether it is used again, and what is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gang_tasks
import pytest
from children import killed_after

from pytest_decodegate.errors import BadInput, GangError, RankDied, RankHung, RankRaised
from pytest_decodegate.gang import connection, protocol
from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.process import processes

TAG = "GANG_TEST_TAG"
START_SECONDS = 90.0
GONE_SECONDS = 10.0
DEADLINE_SECONDS = 1.0
GRACE_SECONDS = 1.0
DEATH_SECONDS = 1.0
AFTER_DEADLINE_SECONDS = 2.0
SLACK_SECONDS = 4.0
"""Two cores may be shared with another test run: limits are the product's plus this."""

NewGang = Callable[..., Gang]


@dataclass
class Crew:
    """Gangs that are marked in their environment, so that whatever they leave behind can be found.

    under_way: one that was begun early and is the next to be asked for.
    """

    log_root: Path
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    gangs: list[Gang] = field(default_factory=list)
    under_way: Gang | None = None

    def options(self, env: Mapping[str, str] | None = None, **changes: Any) -> GangOptions:
        given = {"start_seconds": START_SECONDS, "grace_seconds": GRACE_SECONDS, **changes}
        return GangOptions(log_root=self.log_root, env={TAG: self.tag, **(env or {})}, **given)

    def begin(self) -> None:
        """Start the gang that is asked for next, and return at once."""
        gang = self.gang()
        gang.spawn()
        self.under_way = gang

    def gang(self, env: Mapping[str, str] | None = None, **changes: Any) -> Gang:
        if self.under_way is not None:
            assert not env, "it was begun without these: take bare_crew"
            assert not changes, "it was begun without these: take bare_crew"
            gang, self.under_way = self.under_way, None
            return gang

        gang = Gang(2, self.options(env, **changes), name="faults")
        self.gangs.append(gang)
        return gang

    def left(self, seconds: float = 0.0) -> list[int]:
        return left(self.tag, seconds)

    def close(self) -> None:
        """End all of it; nothing may be left by then."""
        for gang in self.gangs:
            gang.close()

        found = self.left()
        processes.kill_tagged(TAG, self.tag)
        assert found == []

    def pids(self, command: str) -> list[int]:
        """Processes of ours with `command` in their command line."""
        return [pid for pid in processes.tagged(TAG, self.tag) if command in command_line(pid)]

    def environment_of_guard(self) -> dict[str, str]:
        """That of the guard which was just started: in the moment of its exec a process shows none."""
        deadline = time.monotonic() + START_SECONDS
        while not (guards := self.pids("guard.py")) and time.monotonic() < deadline:
            time.sleep(0.01)

        return environment_of(guards[0])

    def pid_of_torchrun(self) -> int:
        (pid,) = [pid for pid in self.pids("torch.distributed.run") if "guard.py" not in command_line(pid)]
        return pid


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")

    return ""


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return dict(entry.split("=", 1) for entry in entries)


def left(tag: str, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (pids := processes.tagged(TAG, tag)) and time.monotonic() < deadline:
        os.sched_yield()

    return pids


def count_reaches(tag: str, count: int) -> bool:
    """Whether so many processes get up: one that was just started shows no environment in the moment of its exec."""
    deadline = time.monotonic() + START_SECONDS
    while len(processes.tagged(TAG, tag)) != count and time.monotonic() < deadline:
        time.sleep(0.01)

    return len(processes.tagged(TAG, tag)) == count


@pytest.fixture
def bare_crew(tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(tmp_path)
    yield crew
    crew.close()


@pytest.fixture(scope="module")
def next_crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Crew]]:
    """Gives a crew whose gang is under way, and begins that of the next one.

    Ranks take seconds to import torch, and most tests here wait for a deadline or an end in the meantime.
    """
    waiting: list[Crew] = []

    def begin() -> None:
        waiting.append(Crew(tmp_path_factory.mktemp("crew")))
        waiting[-1].begin()

    def take() -> Crew:
        begin()
        return waiting.pop(0)

    begin()
    yield take
    for crew in waiting:
        crew.close()


@pytest.fixture
def crew(next_crew: Callable[[], Crew]) -> Iterator[Crew]:
    crew = next_crew()
    yield crew
    crew.close()


@pytest.fixture(scope="module")
def shared_gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    """For faults that a gang must survive."""
    crew = Crew(tmp_path_factory.mktemp("shared"))
    with crew.gang() as gang:
        yield gang

    assert crew.left() == []


def raised(gang: Gang, kind: type[GangError], *call: Any, within: float, **options: Any) -> str:
    """The text of what the call raises, within `within` seconds and some slack for a busy machine."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        gang.run(*call, **options)

    assert time.monotonic() - started < within + SLACK_SECONDS
    assert type(caught.value) is kind
    return str(caught.value)


def assert_survived(gang: Gang, pids: list[int]) -> None:
    assert gang.alive
    assert gang.run(gang_tasks.allreduce_of_ranks) == [3.0, 3.0]
    assert [hello.pid for hello in gang.hellos.values()] == pids


def assert_ended(gang: Gang, crew: Crew) -> None:
    """No process of it is left by the time the error is raised, and the gang refuses work with the cause."""
    assert crew.left() == []
    assert not gang.alive
    assert gang.cause is not None
    with pytest.raises(GangError, match=re.escape(str(gang.cause).splitlines()[0])):
        gang.run(gang_tasks.nothing)


@pytest.fixture
def pids(shared_gang: Gang) -> list[int]:
    return [hello.pid for hello in shared_gang.hellos.values()]


# --- what a gang survives


def test_values_come_back_by_rank(shared_gang: Gang) -> None:
    assert shared_gang.run(gang_tasks.my_rank) == [0, 1]
    assert shared_gang.run(gang_tasks.add, 1, right=2) == [3, 3]


def function_of_this_test_module() -> int:
    return gang_tasks.my_rank() + 10


def test_what_decodegate_refuses_on_a_rank_is_a_sentence_without_traceback(shared_gang: Gang) -> None:
    with pytest.raises(RankRaised) as error:
        shared_gang.run(gang_tasks.refuse)

    told = r"rank [01] of faults raised BadInput in refuse\(\): the moon is not a GPU; take another one\n"
    assert re.match(told, str(error.value))
    assert "Traceback" not in str(error.value)


def test_a_function_of_the_test_module_itself_runs(shared_gang: Gang) -> None:
    assert shared_gang.run(function_of_this_test_module) == [10, 11]


def test_large_arguments_and_values_pass(shared_gang: Gang) -> None:
    size = 3_000_000
    assert [len(value) for value in shared_gang.run(gang_tasks.bytes_of, size)] == [size, size]
    assert shared_gang.run(gang_tasks.add, 1, right=10**1_000_000) == [1 + 10**1_000_000] * 2


def test_a_lambda_is_refused_before_any_rank_hears_of_it(shared_gang: Gang, pids: list[int]) -> None:
    with pytest.raises(BadInput, match="module level"):
        shared_gang.run(lambda: 0)

    assert_survived(shared_gang, pids)


def test_all_ranks_raise(shared_gang: Gang, pids: list[int]) -> None:
    text = raised(shared_gang, RankRaised, gang_tasks.raise_all, within=0.5)
    assert re.match(r"rank [01] of faults raised ValueError in raise_all\(\): bad shape on all ranks\n", text)
    assert "raised too" in text
    assert 'gang_tasks.py", line' in text
    assert_survived(shared_gang, pids)


def test_an_exception_that_cannot_be_unpickled(shared_gang: Gang, pids: list[int]) -> None:
    text = raised(shared_gang, RankRaised, gang_tasks.raise_exception_that_cannot_be_unpickled, within=0.5)
    assert "raised NeedsTwoError in" in text
    assert "needs two" in text
    assert_survived(shared_gang, pids)


def test_an_exception_whose_text_raises(shared_gang: Gang, pids: list[int]) -> None:
    text = raised(shared_gang, RankRaised, gang_tasks.raise_exception_without_text, within=0.5)
    assert "<its __str__ raised RuntimeError>" in text
    assert_survived(shared_gang, pids)


def test_a_value_that_cannot_be_pickled(shared_gang: Gang, pids: list[int]) -> None:
    text = raised(shared_gang, RankRaised, gang_tasks.return_lambda, within=0.5)
    assert "raised while pickling the value that this rank returned, a function" in text
    assert_survived(shared_gang, pids)


def test_a_value_that_cannot_be_unpickled_names_its_rank(shared_gang: Gang, pids: list[int]) -> None:
    text = raised(shared_gang, RankRaised, gang_tasks.return_rubbish, within=0.5)
    assert text.startswith("rank 0 of faults returned a value that cannot be unpickled here (ValueError: ")
    assert_survived(shared_gang, pids)


def test_sys_exit_in_the_ranks_is_a_failure_like_any_other(shared_gang: Gang, pids: list[int]) -> None:
    assert "raised SystemExit" in raised(shared_gang, RankRaised, gang_tasks.leave_interpreter, within=0.5)
    assert_survived(shared_gang, pids)


def test_ranks_that_all_skip_skip_the_test(shared_gang: Gang, pids: list[int]) -> None:
    with pytest.raises(pytest.skip.Exception, match="no such device"):
        shared_gang.run(gang_tasks.skip_on, [0, 1])

    assert_survived(shared_gang, pids)


def test_ranks_that_disagree_on_a_skip_are_an_error(shared_gang: Gang, pids: list[int]) -> None:
    text = raised(shared_gang, RankRaised, gang_tasks.skip_on, [1], within=0.5)
    assert text.startswith("rank 1 of faults ('no such device') skipped skip_on() but rank 0 did not")
    assert_survived(shared_gang, pids)


def test_notes_arrive_in_order(shared_gang: Gang) -> None:
    heard: list[tuple[int, str]] = []
    shared_gang.run(gang_tasks.three_notes, on_note=lambda rank, text: heard.append((rank, text)))
    for rank in (0, 1):
        assert [text for who, text in heard if who == rank] == ["step 0", "step 1", "step 2"]


def test_a_call_that_was_given_up_is_waited_for_and_its_answer_dropped(shared_gang: Gang) -> None:
    shared_gang.submit(gang_tasks.add, 1, right=1)
    assert shared_gang.run(gang_tasks.add, 2, right=2) == [4, 4]
    shared_gang.submit(gang_tasks.raise_all)
    assert shared_gang.run(gang_tasks.add, 3, right=3) == [6, 6]


def test_output_is_found_by_rank_and_stream(shared_gang: Gang) -> None:
    marks = shared_gang.marks()
    shared_gang.run(gang_tasks.speak, "hello")
    assert shared_gang.output_since(marks) == [
        (0, "stdout", "out hello\n"),
        (0, "stderr", "err hello\n"),
        (1, "stdout", "out hello\n"),
        (1, "stderr", "err hello\n"),
    ]


def test_ranks_that_print_100_mb_are_neither_slowed_nor_quoted_in_full(shared_gang: Gang, pids: list[int]) -> None:
    marks = shared_gang.marks()
    shared_gang.run(gang_tasks.shout, 50)
    started = time.monotonic()
    sections = shared_gang.output_since(marks)
    assert time.monotonic() - started < SLACK_SECONDS
    for _, _, text in sections:
        assert text.startswith("first line\n")
        assert text.endswith("last line\n")
        assert re.search(r"\[\.\.\. 52\d{6} bytes left out; all of it is in .*stdout\.log \.\.\.\]", text)
        assert len(text) < 25_000

    assert_survived(shared_gang, pids)


def test_state_stays_between_calls(shared_gang: Gang) -> None:
    shared_gang.run(gang_tasks.keep, 3)
    assert shared_gang.run(gang_tasks.kept) == [3, 3]


def test_variables_of_torchrun_do_not_reach_a_child_of_pytest(shared_gang: Gang) -> None:
    (ranks, _) = shared_gang.run(gang_tasks.environment)
    assert ranks["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
    assert "TORCHELASTIC_USE_AGENT_STORE" not in ranks  # a child's tcp:// store would wait 30 minutes
    assert "RANK" in ranks
    assert not [name for name in processes.scrubbed(ranks) if name.startswith(("TORCHELASTIC", "MASTER", "DECODEGATE"))]
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"} & set(os.environ)


def test_neither_key_nor_its_file_stays(shared_gang: Gang) -> None:
    (ranks, _) = shared_gang.run(gang_tasks.environment)
    assert not Path(ranks[protocol.KEY_FILE]).exists()
    assert not Path(ranks[protocol.ADDRESS]).exists()


# --- what ends it: a rank


@pytest.mark.parametrize(("who", "signum"), [(1, signal.SIGKILL), (0, signal.SIGSEGV)], ids=["SIGKILL", "SIGSEGV"])
def test_a_rank_killed_by_a_signal_is_named(crew: Crew, who: int, signum: signal.Signals) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankDied, gang_tasks.die, who, signum, within=DEATH_SECONDS)
        pid = gang.hellos[who].pid
        assert f"rank {who} of faults (pid {pid}) died ({signum.name})" in text.splitlines()[0]
        assert f"pid {gang.hellos[1 - who].pid}" not in text.splitlines()[0]
        assert "torchrun reports:" in text
        if signum is signal.SIGSEGV:
            assert "Fatal Python error: Segmentation fault" in text
        else:  # as the out-of-memory killer does it
            assert "out-of-memory killer" in text
        assert_ended(gang, crew)
        assert gang.output_since({}) is not None


def test_a_rank_that_dies_while_a_forked_child_holds_its_socket_is_noticed(crew: Crew) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankDied, gang_tasks.die_with_forked_child, 1, within=DEATH_SECONDS)
        assert "rank 1" in text.splitlines()[0]
        assert_ended(gang, crew)


def test_all_ranks_exit_and_their_output_is_still_there(crew: Crew) -> None:
    with crew.gang() as gang:
        gang.run(gang_tasks.speak, "last words")
        text = raised(gang, RankDied, gang_tasks.exit_now, 7, within=DEATH_SECONDS)
        assert "died (exit code 7)" in text.splitlines()[0]
        assert_ended(gang, crew)
        assert (1, "stdout", "out last words\n") in gang.output_since({})


def test_a_rank_that_closes_its_socket_is_named(crew: Crew) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankDied, gang_tasks.close_own_socket, 1, within=DEATH_SECONDS)
        assert "rank 1 of faults (pid" in text.splitlines()[0]
        assert "the connection to pytest is gone" in text
        assert_ended(gang, crew)


def test_a_rank_that_dies_between_calls_is_noticed_at_the_next(crew: Crew) -> None:
    with crew.gang() as gang:
        os.kill(gang.hellos[0].pid, signal.SIGKILL)
        text = raised(gang, RankDied, gang_tasks.barrier, within=DEATH_SECONDS)
        assert "rank 0" in text.splitlines()[0]
        assert "SIGKILL" in text
        assert_ended(gang, crew)


def test_one_rank_raises_while_the_other_waits_for_it(crew: Crew) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankRaised, gang_tasks.raise_one, 1, within=GRACE_SECONDS + DEATH_SECONDS)
        assert text.startswith("rank 1 of faults raised ValueError in raise_one(): bad shape on one rank\n")
        assert f"rank 0 of faults (pid {gang.hellos[0].pid}) did not answer within 1 s of that" in text
        assert "--- stack of rank 0 ---" in text
        assert "in barrier" in text
        assert_ended(gang, crew)


def test_ranks_that_are_out_of_step_after_an_error_fail_the_health_check_and_the_error_is_named(crew: Crew) -> None:
    with crew.gang() as gang:
        raised(gang, RankRaised, gang_tasks.raise_after_lone_collective, within=0.5)
        assert gang.check() is False
        first = str(gang.cause).splitlines()[0]
        assert re.search(r"in check_health\(\).*; before that: rank [01] raised ValueError: out of step$", first)
        assert not gang.alive
        assert crew.left() == []


def test_a_rank_that_sleeps_is_shown_with_its_stack_and_last_note(crew: Crew) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankHung, gang_tasks.sleep_on, 1, within=3.0, deadline_seconds=DEADLINE_SECONDS)
        assert f"rank 1 of faults (pid {gang.hellos[1].pid}) did not answer sleep_on() within 1 s" in text
        assert re.search(r"rank 1 last said 'before the nap', \d+ s ago", text)
        assert re.search(r"--- stack of rank 0 ---\n.*\n.*in barrier\n", text)
        assert re.search(r"--- stack of rank 1 ---\n.*\n.*in sleep_on\b", text)
        assert_ended(gang, crew)


def test_ranks_that_hold_the_gil_in_c_and_ignore_sigterm_are_shown_once_for_equal_stacks_and_killed(crew: Crew) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankHung, gang_tasks.deaf_and_stuck, within=3.0, deadline_seconds=DEADLINE_SECONDS)
        assert re.search(r"--- stack of ranks 0, 1 ---\n.*\n.*in hold_gil\b.*\n.*in deaf_and_stuck\b", text)
        assert_ended(gang, crew)


def test_ranks_that_do_not_read_a_large_argument_are_silent_and_not_dead(crew: Crew) -> None:
    with crew.gang() as gang:
        for hello in gang.hellos.values():
            os.kill(hello.pid, signal.SIGSTOP)

        large = b"x" * 5_000_000
        text = raised(
            gang,
            RankHung,
            gang_tasks.length_of,
            large,
            within=AFTER_DEADLINE_SECONDS,
            deadline_seconds=DEADLINE_SECONDS,
        )
        for rank in (0, 1):
            assert f"rank {rank} of faults (pid {gang.hellos[rank].pid})" in text.splitlines()[0]
            assert f"--- no stack of rank {rank}: stopped by a signal ---" in text

        assert_ended(gang, crew)


def test_a_rank_that_stops_in_the_middle_of_a_large_answer_is_silent_and_not_dead(crew: Crew) -> None:
    with crew.gang() as gang:
        text = raised(gang, RankHung, gang_tasks.stop_while_answering, 1, within=3.0, deadline_seconds=DEADLINE_SECONDS)
        assert text.startswith(f"rank 1 of faults (pid {gang.hellos[1].pid}) did not answer stop_while_answering()")
        assert "--- no stack of rank 1: stopped by a signal ---" in text
        assert_ended(gang, crew)


def test_a_busy_gang_that_is_given_up_has_the_grace_and_names_the_reason(crew: Crew) -> None:
    with crew.gang() as gang:
        gang.submit(gang_tasks.sleep_on, 1)
        gang.give_up(RankRaised("rank 0 of another raised ValueError in work(): boom\nTraceback"))
        started = time.monotonic()
        assert gang.check() is False
        assert time.monotonic() - started < GRACE_SECONDS + SLACK_SECONDS
        assert str(gang.cause) == (
            "gang 'faults' was still busy with sleep_on() 1 s after it was given up, and ended; "
            "before that: RankRaised: rank 0 of another raised ValueError in work(): boom"
        )
        assert_ended(gang, crew)


def test_a_gang_that_is_given_up_but_answers_in_time_stays(shared_gang: Gang, pids: list[int]) -> None:
    shared_gang.submit(gang_tasks.add, 1, right=1)
    shared_gang.give_up(ValueError("another gang failed"))
    assert_survived(shared_gang, pids)


def test_waiting_a_little_for_an_answer_does_not_end_the_call(shared_gang: Gang, tmp_path: Path) -> None:
    answer = shared_gang.submit(gang_tasks.wait_for_file, str(tmp_path / "go"))
    assert not answer.wait(0.01)
    (tmp_path / "go").touch()
    assert answer.wait(DEADLINE_SECONDS + SLACK_SECONDS)
    assert answer.result() == [None, None]


def test_no_deadline_ends_a_call_while_a_debugger_is_open(bare_crew: Crew) -> None:
    heard: list[str] = []
    # The debugger is closed when both ranks were heard.
    with bare_crew.gang(deadlines_off=lambda: len(heard) < 2) as gang:
        with pytest.raises(RankHung):
            gang.run(gang_tasks.sleep_on, 1, deadline_seconds=1e-9, on_note=lambda _, text: heard.append(text))

        assert heard == ["before the nap"] * 2


# --- what ends it: a process above the ranks


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_torchrun_is_killed(crew: Crew, signum: signal.Signals) -> None:
    with crew.gang() as gang:
        torchrun = crew.pid_of_torchrun()

        def kill(_rank: int, _text: str) -> None:
            with suppress(ProcessLookupError):
                os.kill(torchrun, signum)

        text = raised(gang, RankDied, gang_tasks.wait_with_grandchild, within=DEATH_SECONDS, on_note=kill)
        assert "died (" in text.splitlines()[0]
        if signum is signal.SIGKILL:
            assert f"(pid {torchrun}) was killed by SIGKILL" in text
        assert_ended(gang, crew)


def test_the_guard_is_killed(crew: Crew) -> None:
    with crew.gang() as gang:
        (guard,) = crew.pids("guard.py")

        def kill(_rank: int, _text: str) -> None:
            with suppress(ProcessLookupError):
                os.kill(guard, signal.SIGKILL)

        text = raised(gang, RankDied, gang_tasks.wait_with_grandchild, within=DEATH_SECONDS, on_note=kill)
        assert f"the guard of torchrun (pid {guard}) was killed by SIGKILL" in text
        assert_ended(gang, crew)


HOST = """
import signal, sys
from pathlib import Path
import gang_tasks
from pytest_decodegate.gang.controller import Gang, GangOptions

# As in a terminal: a run in the background (`nohup ... &`, many CI runners) starts its children with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
options = GangOptions(log_root=Path(sys.argv[1]))
with Gang(2, options, name="host") as gang:
    gang.run(gang_tasks.leave_grandchild)
    print("ready", flush=True)
    gang.run(gang_tasks.hold_gil)
"""


# To this host SIGTERM is as SIGKILL: it installs no handler. pytest does, which test_acceptance.py shows.
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_pytest_leaves_nothing_not_even_a_grandchild_in_its_own_session(
    tmp_path: Path, signum: signal.Signals
) -> None:
    tag = uuid.uuid4().hex
    environment = {**os.environ, TAG: tag, "PYTHONPATH": str(Path(gang_tasks.__file__).parent)}
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with killed_after(host):
            assert host.stdout is not None
            assert host.stdout.readline() == b"ready\n"
            assert count_reaches(tag, 7)  # host, guard, torchrun, two ranks, two grandchildren
            host.send_signal(signum)
            host.wait(GONE_SECONDS)
            assert left(tag, GONE_SECONDS) == []
    finally:
        processes.kill_tagged(TAG, tag)


def test_a_gang_that_is_closed_while_it_works_says_so(crew: Crew) -> None:
    with crew.gang() as gang:
        answer = gang.submit(gang_tasks.sleep_on, 1)
        gang.close()
        assert crew.left() == []
        with pytest.raises(GangError, match=r"was closed before it answered sleep_on\(\)"):
            answer.result()


def test_an_interrupted_wait_ends_the_gang(crew: Crew) -> None:
    """Ctrl-C, or the alarm of pytest-timeout, while ranks work."""

    def interrupt(_rank: int, _text: str) -> None:
        raise KeyboardInterrupt

    with crew.gang() as gang:
        with pytest.raises(KeyboardInterrupt):
            gang.run(gang_tasks.sleep_on, 1, on_note=interrupt)

        assert crew.left() == []
        with pytest.raises(GangError, match="interrupted by KeyboardInterrupt"):
            gang.run(gang_tasks.nothing)


# --- leaving


@dataclass
class Leaver:
    """A rank without a process, and its own wire; it notes what it is asked for. hung_up: nobody listens there."""

    log: list[str]
    hung_up: bool = False
    ended: bool = False

    @property
    def connection(self) -> Leaver:
        return self

    def send(self, frame: bytes) -> None:
        if self.hung_up:
            raise BrokenPipeError

        self.log.append(type(protocol.load(frame)).__name__)

    def await_end(self, seconds: float) -> None:
        assert seconds > 0
        self.log.append("wait")

    def kill(self) -> None:
        self.log.append("kill")

    def close(self) -> None:
        self.log.append("hang up")


def gang_of(tmp_path: Path, *ranks: Leaver) -> Gang:
    """A gang that is ready, of ranks that are none, under no torchrun."""
    gang = Gang(len(ranks), GangOptions(log_root=tmp_path), name="leavers")
    some: Any = dict(enumerate(ranks))
    agents: Any = SimpleNamespace(running=True, terminate=lambda: None, stop=lambda: None)
    gang._ranks, gang._agents, gang._ready = some, agents, True
    return gang


def test_a_gang_that_is_dismissed_is_told_once_waited_for_once_and_takes_no_work(tmp_path: Path) -> None:
    log: list[str] = []
    gang = gang_of(tmp_path, Leaver(log))
    assert gang.check() is True
    gang.dismiss()
    gang.dismiss()
    assert log == ["Bye"]
    assert gang.check() is False
    with pytest.raises(GangError, match=r"gang 'leavers' cannot take work: it was dismissed or closed"):
        gang.run(gang_tasks.nothing)

    gang.close()
    assert log == ["Bye", "wait", "kill", "hang up"]
    gang.dismiss()
    gang.close()
    assert log[4:] == ["hang up"]


def test_a_gang_of_which_a_rank_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    log: list[str] = []
    gang = gang_of(tmp_path, Leaver(log), Leaver(log, hung_up=True))
    gang.dismiss()
    gang.close()
    assert log == ["Bye", "Bye", "kill", "kill", "hang up", "hang up"]


def test_a_gang_that_is_killed_after_it_was_dismissed_is_not_waited_for(tmp_path: Path) -> None:
    log: list[str] = []
    gang = gang_of(tmp_path, Leaver(log))
    gang.dismiss()
    gang.kill(KeyboardInterrupt())
    gang.close()
    assert log == ["Bye", "kill", "hang up"]


def test_ctrl_c_while_ranks_leave_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Leaver, seconds: float) -> None:
        raise KeyboardInterrupt

    log: list[str] = []
    monkeypatch.setattr(Leaver, "await_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gang_of(tmp_path, Leaver(log)).close()

    assert log == ["Bye", "kill", "hang up"]


# --- what keeps it from starting


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def refused(address: str) -> None:
    """A stranger who has another key connects, and is hung up on."""
    with socket.socket(socket.AF_UNIX) as client, pytest.raises((EOFError, OSError)):
        client.connect(address)
        connection.answer(client, b"another key", time.monotonic() + 10.0)


def test_strangers_do_not_disturb_a_start_whose_key_is_in_no_environment_and_no_command_line(bare_crew: Crew) -> None:
    """One stays silent, one sends rubbish, one has another key; none is waited for."""
    gang = bare_crew.gang()
    gang.spawn()
    environment = bare_crew.environment_of_guard()
    address, key = environment[protocol.ADDRESS], Path(environment[protocol.KEY_FILE]).read_bytes()
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as rude:
        silent.connect(address)
        rude.connect(address)
        rude.sendall(b"GET / HTTP/1.1\r\n\r\n")
        refused(address)
        gang.ready()

    assert gang.run(gang_tasks.my_rank) == [0, 1]
    for pid in processes.tagged(TAG, bare_crew.tag):
        for file in ("environ", "cmdline"):
            content = Path(f"/proc/{pid}/{file}").read_bytes()
            assert key not in content
            assert key.hex().encode() not in content


def test_a_rank_that_never_connects_is_named(bare_crew: Crew, tmp_path: Path) -> None:
    script = f'#!/bin/sh\n[ "$RANK" = 1 ] && exec sleep 3600\nexec {sys.executable} "$@"\n'
    # PYTHON_EXEC is torchrun's own way to replace the Python of the ranks.
    gang = bare_crew.gang({"PYTHON_EXEC": written(tmp_path / "python", script)})
    waited: list[str] = []

    def wait(text: str) -> None:
        """Let no time be left once the other rank is up, however long that takes on a busy machine."""
        waited.append(text)
        if "1 of 2 ranks are up" in text and gang._agents is not None:
            gang._agents._deadline = time.monotonic()

    gang.spawn()
    refused(bare_crew.environment_of_guard()[protocol.ADDRESS])
    with pytest.raises(RankHung, match=r"rank 1 did not connect within 90 s\n1 stranger was refused: "):
        gang.ready(wait)

    assert "1 of 2 ranks are up" in waited[-1]
    assert_ended(gang, bare_crew)


def test_a_rank_that_dies_while_starting_is_quoted(bare_crew: Crew, tmp_path: Path) -> None:
    script = '#!/bin/sh\necho "no such library" >&2\nexit 3\n'
    gang = bare_crew.gang({"PYTHON_EXEC": written(tmp_path / "python", script)})
    with pytest.raises(RankDied, match=r"torchrun ended before ranks 0, 1 came up") as caught:
        gang.ready()

    assert "no such library" in str(caught.value)
    assert "exitcode  : 3" in str(caught.value)
    assert_ended(gang, bare_crew)


def test_a_python_without_torch_is_named_with_what_to_install(bare_crew: Crew, tmp_path: Path) -> None:
    python = written(tmp_path / "bare-python", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    gang = bare_crew.gang(python=python)
    with pytest.raises(RankDied, match=r"bare-python has no torch: install it there"):
        gang.ready()

    assert_ended(gang, bare_crew)


def test_a_python_that_does_not_exist_is_refused(bare_crew: Crew) -> None:
    with pytest.raises(BadInput, match="'/no/such/python', does not exist"):
        bare_crew.gang(python="/no/such/python").spawn()
