"""Who used the cores meanwhile: the parsers of /proc, the subtraction, and a real busy process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from children import killed_after
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.evidence.validity import broken_rules
from pytest_decodegate.machine.cpu_load import (
    CpuLoad,
    OtherUse,
    ProcessTime,
    Reading,
    other_use,
    parse_busy,
    parse_process,
    parse_stalled,
    read,
)
from pytest_decodegate.machine.watch import Watch
from pytest_decodegate.metric import Measurement, Metric, Replicate
from pytest_decodegate.process.processes import family

HERTZ = os.sysconf("SC_CLK_TCK")
SLOW_SECONDS = 120.0

STAT = """cpu  9 9 9 9 9 9 9 9 9 9
cpu0 100 20 30 5000 40 5 6 70 80 9
cpu1 200 0 0 5000 0 0 0 0 0 0
cpu7 300 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""
PRESSURE = """some avg10=8.06 avg60=5.72 avg300=2.52 total=14442327
full avg10=0.00 avg60=0.00 avg300=0.00 total=7
"""


def stat_line(pid: int = 7, name: str = "x", parent: int = 1, own: int = 0, reaped: int = 0, started: int = 5) -> str:
    half = own // 2
    fields = ["S", parent, 7, 7, 0, -1, 0, 0, 0, 0, 0, half, own - half, reaped, 0, 20, 0, 1, 0, started, 0]
    return f"{pid} ({name}) {' '.join(map(str, fields))}\n"


def process(pid: int, own_s: float, name: str = "x", reaped_s: float = 0.0, started: int = 5) -> ProcessTime:
    return ProcessTime(pid, 1, name, own_s, reaped_s, started)


def reading(at_s: float, busy_s: float, *processes: ProcessTime, stalled_s: float | None = None) -> Reading:
    return Reading(at_s, 2, busy_s, stalled_s, {one.pid: one for one in processes})


def test_busy_time_is_that_of_processes_and_interrupts_core_by_core() -> None:
    assert parse_busy(STAT) == {0: 161 / HERTZ, 1: 200 / HERTZ, 7: 300 / HERTZ}
    assert parse_busy("") == {}


def test_stalled_time_is_that_of_some_process() -> None:
    assert parse_stalled(PRESSURE) == 14.442327
    assert parse_stalled("") is None


@given(
    pid=st.integers(1, 2**22),
    name=st.text(st.characters(exclude_characters="\0"), max_size=16),
    parent=st.integers(0, 2**22),
    own=st.integers(0, 10**9),
    reaped=st.integers(0, 10**9),
    started=st.integers(0, 10**12),
)
def test_a_process_is_read_whatever_it_calls_itself(
    pid: int, name: str, parent: int, own: int, reaped: int, started: int
) -> None:
    found = parse_process(stat_line(pid, name, parent, own, reaped, started))
    assert found is not None
    assert (found.pid, found.parent, found.started) == (pid, parent, started)
    assert found.own_s == pytest.approx(own / HERTZ)
    assert found.reaped_s == reaped / HERTZ
    assert found.name.isprintable()
    assert len(found.name) == len(name)


@given(st.text() | st.builds(lambda a, b: f"{a}){b}", st.text(), st.lists(st.text("0123456789 -x")).map(" ".join)))
def test_what_is_no_process_is_none_and_no_error(text: str) -> None:
    found = parse_process(text)
    assert found is None or isinstance(found.pid, int)


def test_the_cores_of_this_process_are_read_and_what_is_gone_is_left_out(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid in (5, 6):
        (proc / str(pid)).mkdir(parents=True)

    (proc / "stat").write_text(STAT)
    (proc / "5" / "stat").write_text(stat_line(5, "ffmpeg", own=3 * HERTZ))
    (proc / "6" / "stat").write_text("")
    found = read(proc, own={5}, cores={0, 1})
    assert (found.cores, found.stalled_s, found.waits, found.throttled_s) == (2, None, {}, None)
    assert found.busy_s == pytest.approx(361 / HERTZ)
    assert {pid: one.own_s for pid, one in found.processes.items()} == {5: 3.0}


def test_others_are_all_that_was_busy_less_our_own_and_the_busiest_is_named() -> None:
    before = reading(10.0, 100.0, process(1, 5.0), process(2, 50.0, "ffmpeg"), process(3, 7.0), stalled_s=4.0)
    after = reading(20.0, 119.0, process(1, 10.0), process(2, 62.0, "ffmpeg"), process(3, 8.0), stalled_s=9.0)
    found = other_use(before, after, own={1})
    assert found == OtherUse(2, others=1.4, own=0.5, most=("ffmpeg (pid 2)", 1.2), stalled=0.5)
    assert found.note == "other processes used 1.4 of 2 cores while this was measured, most: ffmpeg (pid 2), 1.2"
    assert found.facts == {
        "cores": 2,
        "others_cores": 1.4,
        "own_cores": 0.5,
        "most": "ffmpeg (pid 2)",
        "most_cores": 1.2,
        "stalled_share": 0.5,
        "waited_by": None,
        "waited_share": None,
        "throttled_share": None,
    }


def test_who_of_ours_waited_and_what_the_quota_took_are_shares_of_the_time() -> None:
    before = replace(reading(0.0, 0.0, process(1, 0.0)), waits={(1, 1): 2.0, (1, 9): 7.0}, throttled_s=1.0)
    after = replace(reading(10.0, 9.0, process(1, 5.0, "rank")), waits={(1, 1): 5.0, (1, 9): 7.5}, throttled_s=2.5)
    found = other_use(before, after, own={1})
    assert found is not None
    assert (found.waited, found.throttled) == (("rank (pid 1)", 0.3), 0.15)
    assert (found.facts["waited_by"], found.facts["waited_share"], found.facts["throttled_share"]) == (
        "rank (pid 1)",
        0.3,
        0.15,
    )


def test_children_of_ours_that_ended_meanwhile_were_ours() -> None:
    before = reading(0.0, 0.0, process(1, 0.0), process(2, 1.0))
    after = reading(10.0, 9.0, process(1, 0.0, reaped_s=10.0))
    assert other_use(before, after, own={1, 2}) == OtherUse(2, others=0.0, own=0.9, most=None, stalled=None)


def test_a_number_that_was_used_again_is_another_process() -> None:
    before = reading(0.0, 0.0, process(2, 50.0, "old"))
    after = reading(10.0, 3.0, process(2, 3.0, "new", started=99))
    found = other_use(before, after, own=())
    assert found is not None
    assert found.most == ("new (pid 2)", 0.3)


def test_work_of_nobody_who_can_be_seen_is_said_as_such() -> None:
    found = other_use(reading(0.0, 0.0), reading(10.0, 15.0), own=())
    assert found is not None
    assert found.note == (
        "other processes used 1.5 of 2 cores while this was measured; none of them can be seen from here"
    )


def test_next_to_nothing_is_not_worth_a_note() -> None:
    found = other_use(reading(0.0, 0.0), reading(10.0, 0.9, process(2, 0.9)), own=())
    assert found is not None
    assert found.note is None
    many = replace(reading(10.0, 25.0, process(2, 25.0)), cores=64)
    assert (busy := other_use(reading(0.0, 0.0), many, own=())) is not None
    assert busy.note is None, "2.5 of 64 cores"


def test_no_time_or_no_cores_say_nothing() -> None:
    assert other_use(reading(1.0, 0.0), reading(1.0, 0.0), own=()) is None
    assert other_use(reading(0.0, 0.0), replace(reading(1.0, 0.0), cores=0), own=()) is None


def test_a_busy_process_is_told_from_ours_and_its_name_stands_beside_the_verdict() -> None:
    """Of two children one is taken for the measurement; the other is busier than anything of this test."""
    code = "print('ready', flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    with killed_after(busy):
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"ready\n"
        others, ours = CpuLoad(lambda: {os.getpid()}), CpuLoad(family)
        deadline = time.monotonic() + SLOW_SECONDS
        with Watch([], frozenset, sensor=None, cpu=others) as watch:
            ours.start()
            until = time_of(busy.pid) + 0.5
            while time_of(busy.pid) < until and time.monotonic() < deadline:
                time.sleep(0.05)

            ours.stop()

    theirs, mine = others.use(), ours.use()
    assert theirs is not None
    assert mine is not None
    assert theirs.others > mine.others
    assert mine.own > theirs.own
    assert mine.most is None or f"(pid {busy.pid})" not in mine.most[0]
    spent = [one for one in (theirs.most,) if one and one[1] > 0]
    assert spent
    telemetry = watch.report()
    assert telemetry.facts["cpu"] == theirs.facts
    (note,) = telemetry.notes
    assert note.startswith(f"other processes used {theirs.others:.1f} of ")
    assert "; load average " in note


SPIN = "print('ready', flush=True)\nwhile True: pass"


@contextmanager
def spinning(core: int) -> Iterator[int]:
    """The pid of a process that spins on one core."""
    with subprocess.Popen([sys.executable, "-S", "-c", SPIN], stdout=subprocess.PIPE) as process, killed_after(process):
        os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


@pytest.mark.parametrize("after_seconds", [0.0, 0.5], ids=["before", "half-way"])
def test_a_stranger_on_the_core_of_a_rank_is_found_and_named(after_seconds: float) -> None:
    """Both are held on one core, so that the rank must wait, whatever else this machine does."""
    core = min(os.sched_getaffinity(0))
    with spinning(core) as rank:
        load = CpuLoad(lambda: {rank})
        load.start()
        time.sleep(after_seconds)
        with spinning(core) as stranger:
            until, deadline = time_of(stranger) + 0.5, time.monotonic() + SLOW_SECONDS
            while time_of(stranger) < until and time.monotonic() < deadline:
                time.sleep(0.05)

            load.stop()

    use = load.use()
    assert use is not None
    if not Path(f"/proc/{os.getpid()}/schedstat").exists():
        pytest.skip("this kernel counts no waits (CONFIG_SCHEDSTATS)")

    assert use.waited is not None
    assert use.waited[0].endswith(f"(pid {rank})")
    metric = Metric("allreduce_gloo[world=2]", "s", "collective", 0.5, {"clock": "perf_counter"})
    replicates = tuple(Replicate(tuple(1 + i / 100 for i in range(10))) for _ in range(2))
    (reason,) = broken_rules(Measurement(metric, replicates, "gang", {"telemetry": [{"cpu": use.facts}]}))
    assert reason.cause is Cause.BUSY_CORES
    assert reason.startswith(use.waited[0])
    assert "waited for a core" in reason
    assert "most: " in reason


def time_of(pid: int) -> float:
    found = parse_process(Path(f"/proc/{pid}/stat").read_text())
    assert found is not None
    return found.own_s
