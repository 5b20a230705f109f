"""Logs of ranks: deltas that are cut in the middle, and stacks without our own frames."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_decodegate.gang import logs


def written(factory: pytest.TempPathFactory, content: bytes) -> Path:
    path = factory.getbasetemp() / "delta.log"
    path.write_bytes(content)
    return path


def printable(least: int = 0) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=least, max_size=300).map(lambda content: bytes(32 + byte % 90 for byte in content))


marks, limits = st.integers(0, 300), st.integers(2, 80)


@given(content=printable(), mark=marks, limit=limits)
def test_a_short_log_delta_is_whole(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, mark: int, limit: int
) -> None:
    assume(len(content) - mark <= limit)
    assert logs.read_since(written(tmp_path_factory, content), mark, limit) == content[mark:].decode()


@given(content=printable(least=200), mark=st.integers(0, 199), limit=limits)
def test_a_long_log_delta_keeps_both_ends_and_counts_what_it_leaves_out(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, mark: int, limit: int
) -> None:
    delta, half = content[mark:], limit // 2
    assume(len(delta) > limit)
    text = logs.read_since(written(tmp_path_factory, content), mark, limit)
    assert text.startswith(delta[:half].decode() + "\n")
    assert text.endswith("\n" + delta[-half:].decode())
    assert f"[... {len(delta) - 2 * half} bytes left out;" in text


def test_a_log_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert logs.read_since(tmp_path / "none.log", 0) == ""
    assert logs.tail(tmp_path / "none.log") == ""


DUMP = """Thread 0x00007fd3e71ff6c0 (most recent call first):
  File "/run/path/pytest_decodegate/gang/worker.py", line 187 in _watch
  File "/python/threading.py", line 982 in run

Current thread 0x00007fd3e882ab80 (most recent call first):
  File "/tests/tasks.py", line 50 in sleep
  File "/run/path/pytest_decodegate/gang/worker.py", line 131 in _run
  File "<frozen runpy>", line 198 in _run_module_as_main
"""


def test_a_stack_shows_the_users_frames_only() -> None:
    assert logs.clean_stack(DUMP) == (
        'Current thread (most recent call first):\n  File "/tests/tasks.py", line 50 in sleep'
    )
