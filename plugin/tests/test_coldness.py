"""Cold means cold: what shows it, what shows the opposite, and what shows neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_gangs import ScriptedBench, ScriptedGang, source

from pytest_decodegate.cause import Cause
from pytest_decodegate.gate.evidence.coldness import SHOWN, Coldness
from pytest_decodegate.report.rates import line, rates
from pytest_decodegate.workloads.runtime.rank import Examined, Opened
from pytest_decodegate.workloads.runtime.timing import Traffic

L2 = 60_000_000


@pytest.mark.parametrize(
    ("read_bytes", "ratio", "share", "shown", "broken"),
    [
        (30e6, 0.73, 0.75, True, False),
        (30e6, 1.00, 1.03, False, True),
        (30e6, 0.99, 0.19, False, False),
        (294e6, None, 0.9, True, False),
        (294e6, 1.00, 0.9, True, False),
        (90e6, 1.00, 0.9, False, False),
        (30e6, None, 0.9, False, False),
    ],
    ids=["faster hot", "no faster at memory's limit", "no memory's limit", "large", "large twin", "between", "no twin"],
)
def test_size_or_the_hot_twin_decides(
    read_bytes: float, ratio: float | None, share: float, shown: bool, broken: bool
) -> None:
    found = Coldness(read_bytes, L2, ratio, share)
    assert found.shown is shown
    problem = found.broken()
    assert (problem is not None) is broken
    if problem:
        assert problem.cause is Cause.NOT_COLD
        assert (
            "read 30.0 MB from memory, at 103% of what that can do, but with the data in the cache it takes 1.00"
            in problem
        )


numbers = st.floats(0.01, 3.0)


@given(st.floats(1.0, 1e10), st.integers(0, 200_000_000), numbers | st.none(), numbers | st.none())
def test_what_is_shown_breaks_nothing(read_bytes: float, l2: int, ratio: float | None, share: float | None) -> None:
    found = Coldness(read_bytes, l2, ratio, share)
    assert not (found.shown and found.broken())
    if l2 == 0:  # a size that nobody tells shows nothing
        assert not found.shown
        assert found.broken() is None


def measured(hot_s: float, cache: str = "cold", bytes_s: float = 4e12) -> ScriptedBench:
    opened = Opened(None, contract={"cache": cache}, traffic=Traffic(bytes=30e6, flops=1.0))
    found = Examined(bytes_s, hot_s, None, l2_bytes=L2)
    return ScriptedBench(*(ScriptedGang(name, [], opened=opened, found=found, samples=(1e-5, 1e-5)) for name in "ab"))


def test_a_source_keeps_whether_cold_is_shown_and_the_report_says_where_it_is_not() -> None:
    with source(measured(0.7e-5)) as shown, source(measured(0.99e-5, bytes_s=9e12)) as open_question:
        first, second = shown.take(2), open_question.take(2)

    assert (first.broken, second.broken) == ((), ())
    assert [each.facts[SHOWN] for each in (*first.replicates, *second.replicates)] == [True, True, False, False]
    assert "cold not shown" not in line(rates(first.replicates))
    assert line(rates(second.replicates)).endswith("hot 0.99x, cold not shown")


def test_a_rotation_that_does_not_rotate_is_found_by_its_twin() -> None:
    with source(measured(1e-5)) as same:
        broken = same.take(2).broken

    assert [problem.cause for problem in broken] == [Cause.NOT_COLD] * 2
    assert broken[0].startswith("replicate 1: a call is to read 30.0 MB from memory")


def test_what_promises_nothing_about_the_cache_is_not_asked() -> None:
    with source(measured(1e-5, cache="hot")) as hot:
        taken = hot.take(2)

    assert taken.broken == ()
    assert not any(SHOWN in replicate.facts for replicate in taken.replicates)
