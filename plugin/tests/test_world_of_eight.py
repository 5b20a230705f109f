"""The reference host's world size without its GPUs: eight real ranks over gloo, and one of them wrong or hung.

More ranks than cores: what is checked is numbers and names, never a time. One gang serves all tests; the hang is last,
since it breaks the gang.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import collective_tasks
import pytest
from scripted_gangs import refused

from pytest_decodegate.errors import RankHung
from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.measure.bench import Bench
from pytest_decodegate.workloads.kimi import KIMI_K25

RANKS = 8
GPUS = list(Path("/dev").glob("nvidia[0-9]*"))
HUNG_SECONDS = 3.0

pytestmark = pytest.mark.skipif(
    0 < len(GPUS) < RANKS, reason=f"ranks on GPUs need one each: this machine has {len(GPUS)}"
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    env = {"OMP_NUM_THREADS": "1"}  # as torchrun sets it, said here because eight times two threads would starve
    options = GangOptions(log_root=tmp_path_factory.mktemp("gangs"), env=env, start_seconds=240.0, grace_seconds=1.0)
    bench = Bench(RANKS, options, progress=lambda _: None)
    yield bench
    bench.close()


@pytest.fixture
def gang(bench: Bench) -> Gang:
    return bench.gangs(1)[0]


def test_every_collective_is_right_on_all_ranks(gang: Gang) -> None:
    """Its setup starts the eight ranks of all tests here: eight imports of torch."""
    ranks = gang.run(collective_tasks.check_and_time_all)
    assert [wrong for taken in ranks for wrong, _, _ in taken.values()] == [None] * RANKS * len(ranks[0])
    contracts = {name: contract for name, (_, _, contract) in ranks[0].items()}
    assert {contract["world_size"] for contract in contracts.values()} == {RANKS}
    # Top-8 of 384 experts on eight ranks hits 5.3 of them on average: a token is sent more than once, never nine times.
    assert 4 < contracts["dispatch"]["bytes"] / (KIMI_K25.hidden * 2) < 7
    assert contracts["allgather"]["bytes"] == RANKS * 3 * KIMI_K25.hidden * 2


def test_a_wrong_sum_on_rank_5_names_rank_5_alone(bench: Bench) -> None:
    wrong = refused(bench, collective_tasks.wrong_sum, who=5)
    assert wrong.startswith("replicate 1, rank 5: AllReduce by gloo, call 1 of 5, round 1 of 2 on rank 5: 1 of 7168")
    assert [rank for rank in range(RANKS) if f"rank {rank}:" in wrong] == [5]


def test_a_wrong_value_is_found_in_all_to_all_and_in_every_other_collective(gang: Gang) -> None:
    found = gang.run(collective_tasks.check_all_with_one_wrong, 5)
    guilty = found.pop(5)
    assert {wrong for rank in found for wrong in rank.values()} == {None}
    assert all(wrong and "on rank 5: 1 of " in wrong for wrong in guilty.values())


def test_a_hang_in_rank_6_names_rank_6_and_where_it_is(bench: Bench) -> None:
    gang = bench.gangs(1)[0]
    with pytest.raises(RankHung) as caught:
        gang.run(collective_tasks.check_hanging, 6, deadline_seconds=HUNG_SECONDS)

    said = str(caught.value)
    # All eight wait, seven of them for the one that never entered the collective: only its stack tells.
    guilty = next(part for part in said.split("rank ") if "guiltily" in part)
    assert guilty.startswith("6")
    assert "AllReduce by gloo: 5 calls are ready, checking numbers" in said
    assert not gang.alive
