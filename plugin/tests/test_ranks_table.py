"""The table of ranks: when it is shown, and what it says of each."""

from __future__ import annotations

from dataclasses import replace

from results import result

from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.verdict import Verdict
from pytest_decodegate.metric import Json
from pytest_decodegate.report.fields import as_json
from pytest_decodegate.report.ranks import HEADER, rank_tables


def ranks(*relative: float) -> tuple[Json, ...]:
    return tuple(
        {
            "rank": rank,
            "host": "node-a",
            "gpu": f"GPU {rank} (GPU-aa)",
            "bus_id": f"0000:{18 + rank}:00.0",
            "pcie": "gen 5 x16",
            "sm_clock_mhz": 1980.0,
            "own_s": 35.5e-6 * one,
            "relative": one,
        }
        for rank, one in enumerate(relative)
    )


def measured(*relative: float) -> Result:
    return replace(result(Verdict.PASS), ranks=ranks(*relative))


def test_equal_ranks_are_shown_on_request_only() -> None:
    calm = measured(1.0, 0.99, 1.01, 1.0)
    assert list(rank_tables([calm, result(Verdict.PASS)], always=False)) == []
    heading, header, *rows = rank_tables([calm, result(Verdict.PASS)], always=True)
    assert heading == "allreduce[world=8]: local work of each rank, the same on all:"
    assert [cell.strip() for cell in header.split("  ") if cell.strip()] == list(HEADER)
    assert len(rows) == 4


def test_a_rank_that_is_apart_brings_the_table_of_its_metric() -> None:
    shown = list(rank_tables([measured(1.0, 1.0, 1.4, 1.0), measured(1.0, 1.0, 1.0, 1.0)], always=False))
    assert len(shown) == 2 + 4
    assert " ".join(shown[4].split()) == "2 node-a GPU 2 0000:20:00.0 gen 5 x16 1980 MHz 49.7 us 1.40x"


def test_what_is_not_known_of_a_rank_is_a_dash() -> None:
    bare: tuple[Json, ...] = tuple({"rank": rank, "own_s": 1e-3, "relative": None} for rank in range(4))
    *_, last = rank_tables([replace(result(Verdict.PASS), ranks=bare)], always=True)
    assert last.split() == ["3", "-", "-", "-", "-", "-", "1.00", "ms", "-"]


def test_the_json_line_has_the_table() -> None:
    told_ranks = as_json(measured(1.0, 1.4))["ranks"]
    assert isinstance(told_ranks, list)
    assert [one["relative"] for one in told_ranks if isinstance(one, dict)] == [1.0, 1.4]
