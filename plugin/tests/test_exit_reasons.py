"""Texts of what went wrong with ranks: who, why probably, and where."""

from __future__ import annotations

import pytest

from pytest_decodegate.gang import exit_reasons
from pytest_decodegate.gang.exit_reasons import RankNames
from pytest_decodegate.gang.protocol import Failure, Hello


def test_equal_stacks_are_shown_once_and_missing_ones_are_explained() -> None:
    text = exit_reasons.stacks({0: "in barrier", 1: "", 2: "in barrier", 3: ""}, {3: "stopped by a signal"})
    assert text.splitlines() == [
        "--- stack of ranks 0, 2 ---",
        "in barrier",
        "--- no stack of rank 1: it did not react ---",
        "--- no stack of rank 3: stopped by a signal ---",
    ]


def rank_names(*hosts: str) -> RankNames:
    hellos = {rank: Hello(rank, rank, 4710 + rank, host, "/logs", "python") for rank, host in enumerate(hosts)}
    return RankNames("w2-3", hellos)


def test_the_earliest_failure_is_the_cause() -> None:
    late = Failure("RuntimeError", "connection closed by peer", "late trace", 20.5)
    failures = {0: late, 1: Failure("ValueError", "bad shape", "first trace", 20.0)}
    text = exit_reasons.raised("work()", failures, rank_names("n1", "n1"))
    assert text.startswith("rank 1 of w2-3 raised ValueError in work(): bad shape\nrank 0 raised too, 0.500 s later: ")
    assert exit_reasons.earliest(failures) == "rank 1 raised ValueError: bad shape"
    assert text.endswith("first trace")


@pytest.mark.parametrize(("oom_kills", "hint"), [(0, "dmesg"), (1, "out-of-memory killer struck 1 times")])
def test_a_sigkill_points_to_the_out_of_memory_killer(oom_kills: int, hint: str) -> None:
    text = exit_reasons.died("work()", {1: -9}, oom_kills, [], rank_names("n1", "n1"))
    assert text.startswith("rank 1 of w2-3 (pid 4711) died (SIGKILL) in work()")
    assert hint in text


def test_ranks_on_several_hosts_are_named_with_theirs() -> None:
    failures = {1: Failure("ValueError", "bad shape", "", 20.0)}
    several = rank_names("n1", "n2")
    who = "rank 1 of w2-3 (host n2, pid 4711)"
    assert exit_reasons.died("work()", {1: 7}, 0, [], several) == f"{who} died (exit code 7) in work()"
    assert exit_reasons.hung("work()", 1, [1], [], "", several).startswith(f"{who} did not answer work()")
    assert exit_reasons.waiting([1], 2, "", several).startswith(f"{who} did not answer within 2 s of that")
    assert exit_reasons.raised("work()", failures, several).startswith("rank 1 of w2-3 (host n2) raised ValueError in ")
    assert exit_reasons.disagreed("work()", {1: "tired"}, [0], several).startswith(
        "rank 1 of w2-3 (host n2) ('tired') skip"
    )


@pytest.mark.parametrize(("refused", "start"), [(1, "1 stranger was refused"), (2, "2 strangers were refused")])
def test_strangers_are_counted(refused: int, start: str) -> None:
    assert exit_reasons.strangers(refused)[0].startswith(start)
    assert exit_reasons.strangers(0) == []
