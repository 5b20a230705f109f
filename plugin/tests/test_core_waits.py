"""How long threads waited for a core: the parsers, and this very process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.machine.core_waits import longest_wait, parse_wait, read_waits, throttled_s

threads = st.dictionaries(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.floats(0, 1e6))


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(0, 2**40))
def test_the_second_number_is_the_wait(running: int, waiting: int, times: int) -> None:
    assert parse_wait(f"{running} {waiting} {times}\n") == waiting / 1e9


@given(st.text())
def test_other_text_is_none_and_no_error(text: str) -> None:
    found = parse_wait(text)
    assert found is None or found >= 0


@given(threads, threads)
def test_the_longest_wait_is_that_of_a_thread_that_is_there(
    before: dict[tuple[int, int], float], after: dict[tuple[int, int], float]
) -> None:
    found = longest_wait(before, after)
    assert (found is None) == (not after)
    if found:
        assert found[0] in {pid for pid, _ in after}
        assert 0 <= found[1] <= max(after.values())


def test_a_thread_that_came_counts_from_its_start() -> None:
    assert longest_wait({(1, 1): 5.0}, {(1, 1): 5.5, (2, 7): 0.75}) == (2, 0.75)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel counts no waits (CONFIG_SCHEDSTATS)")
def test_every_thread_of_this_process_is_read() -> None:
    assert (os.getpid(), os.getpid()) in read_waits({os.getpid()})
    assert read_waits({2**22 + 1}) == {}


@pytest.mark.parametrize(
    ("group", "file", "text", "seconds"),
    [
        ("0::/a/b", "sys/fs/cgroup/a/b/cpu.stat", "usage_usec 9\nthrottled_usec 1500000\n", 1.5),
        ("0::/host/path", "sys/fs/cgroup/cpu.stat", "nr_throttled 3\nthrottled_usec 500000\n", 0.5),
        ("3:cpu,cpuacct:/a", "sys/fs/cgroup/cpu,cpuacct/a/cpu.stat", "throttled_time 2500000000\n", 2.5),
        ("1:cpu:/\n0::/", "sys/fs/cgroup/cpu/cpu.stat", "throttled_time 0\n", 0.0),
        ("0::/", "sys/fs/cgroup/cpu.stat", "usage_usec 9\n", None),
        ("2:memory:/a", "sys/fs/cgroup/memory/a/cpu.stat", "throttled_usec 9\n", None),
    ],
)
def test_what_the_quota_took_is_read_from_either_version(
    tmp_path: Path, group: str, file: str, text: str, seconds: float | None
) -> None:
    for name, content in (("proc/self/cgroup", group), (file, text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    assert throttled_s(tmp_path) == seconds
