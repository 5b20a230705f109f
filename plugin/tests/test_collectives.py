"""Collectives on real gangs over gloo: every path that a CPU has, and faults that must be named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import collective_tasks
import pytest
from scripted_gangs import refused, source

from pytest_decodegate.errors import BadInput, RankHung, RankRaised
from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.gate.evidence.bandwidth import CROSSINGS, bus_factor
from pytest_decodegate.measure.bench import Bench
from pytest_decodegate.workloads.collectives.allreduce import allreduce
from pytest_decodegate.workloads.kimi import KIMI_K25

HUNG_SECONDS = 2.0
GPUS = list(Path("/dev").glob("nvidia[0-9]*"))
RANKS = 2 if GPUS else 3
"""On a host more than two, so that who sends to whom matters; on GPUs as many as the smallest host has."""

GRAPHED = 20

needs_two_gpus = pytest.mark.skipif(len(GPUS) < 2, reason=f"needs 2 GPUs, this machine has {len(GPUS)}")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    options = GangOptions(log_root=tmp_path_factory.mktemp("gangs"), grace_seconds=1.0)
    bench = Bench(RANKS, options, progress=lambda _: None)
    yield bench
    bench.close()


@pytest.fixture
def gang(bench: Bench) -> Gang:
    return bench.gangs(1)[0]


# --- all is well


def test_every_path_of_the_host_is_right(gang: Gang) -> None:
    ranks = gang.run(collective_tasks.check_and_time_all)
    assert len(ranks) == RANKS
    assert {wrong for taken in ranks for wrong, _, _ in taken.values()} == {None}
    assert min(seconds for taken in ranks for _, seconds, _ in taken.values()) > 0
    contracts = {name: contract for name, (_, _, contract) in ranks[0].items()}
    for name, contract in contracts.items():
        assert contract["path"] == "gloo", name
        assert (contract["start"], contract["world_size"]) == ("host barrier", RANKS), name
        assert contract["collective"] in CROSSINGS, name

    assert contracts["allreduce"]["bytes"] == 2 * KIMI_K25.hidden * 2
    assert (contracts["sweep"]["bytes"], contracts["sweep"]["calls"]) == (1 << 16, 3)
    assert contracts["logits_gather"]["bytes"] == RANKS * 2 * KIMI_K25.shard(8).logits_bytes
    assert contracts["allgather"]["bytes"] == contracts["reduce_scatter"]["bytes"] == RANKS * 3 * KIMI_K25.hidden * 2
    # Eight experts of a token hit most of the ranks, and no rank twice.
    assert 1 < contracts["dispatch"]["bytes"] / (KIMI_K25.hidden * 2) <= RANKS


def test_a_replicate_states_both_bandwidths_and_each_ranks_own_part(bench: Bench) -> None:
    with source(bench, workload=allreduce, path="gloo", calls=collective_tasks.CALLS) as measured:
        (replicate,) = measured.take(1).replicates

    facts = replicate.facts
    algbw = 14_336 / replicate.value
    assert facts["algbw_bytes_s"] == pytest.approx(algbw)
    assert facts["busbw_bytes_s"] == pytest.approx(algbw * bus_factor("allreduce", RANKS))
    assert isinstance(own := facts["own_medians"], list)
    assert len(own) == RANKS


# --- wrong numbers name the rank


def test_a_wrong_sum_on_one_rank_is_a_wrong_result_that_names_it(bench: Bench) -> None:
    wrong = refused(bench, collective_tasks.wrong_sum, who=1)
    assert wrong.startswith("replicate 1, rank 1: AllReduce by gloo, call 1 of 5, round 1 of 2 on rank 1: 1 of 7168")


def test_a_stale_buffer_is_found_by_the_second_round(bench: Bench) -> None:
    wrong = refused(bench, collective_tasks.stale_buffer, who=0)
    assert wrong.startswith("replicate 1, rank 0: AllReduce by gloo, call 0 of 5, round 2 of 2 on rank 0: 7168 of 7168")
    assert "it is the result of the round before, a stale buffer" in wrong


def test_a_rank_that_skipped_a_call_is_named_by_itself_and_by_the_others(bench: Bench) -> None:
    wrong = refused(bench, collective_tasks.skipped_call, who=1)
    assert wrong.startswith("replicate 1, rank 0: AllReduce by gloo, call 2 of 5")
    assert "rank 1 has put in the data of another call" in wrong
    assert "rank 1: AllReduce by gloo, call 2 of 5" in wrong
    assert "it is what rank 1 has put in, which did not take part" in wrong


def test_one_wrong_value_is_found_in_every_collective(gang: Gang) -> None:
    right, guilty, *others = gang.run(collective_tasks.check_all_with_one_wrong, 1)
    assert {wrong for rank in (right, *others) for wrong in rank.values()} == {None}
    assert all("call 1 of " in wrong and "on rank 1: 1 of " in wrong for wrong in guilty.values())


# --- stragglers


def test_a_straggler_shows_in_its_own_part_and_in_nobody_elses(gang: Gang) -> None:
    prompt, slow, *_ = gang.run(collective_tasks.straggling, 1)
    assert len(prompt) == len(slow)
    # The prompt rank waits in every collective; were that in its own part, it would be as long as the slow one's.
    assert median(prompt) < min(slow)


# --- what is not there is a skip with a reason


@pytest.mark.skipif(bool(GPUS), reason="with GPUs this path is there")
def test_a_path_of_the_device_is_skipped_without_one(gang: Gang) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"AllReduce by graph needs CUDA, which torch .* does not see"):
        gang.run(allreduce, "graph")


def test_what_one_rank_lacks_all_ranks_skip(gang: Gang) -> None:
    with pytest.raises(
        pytest.skip.Exception, match=r"needs no_such_vllm, which this Python cannot import.*\(on rank 1\)"
    ):
        gang.run(collective_tasks.missing_on, 1)

    assert gang.check()


def test_memory_that_is_used_up_is_one_sentence_and_the_ranks_take_the_next_call(gang: Gang) -> None:
    with pytest.raises(RankRaised, match=r"Marlin MoE \(8 tokens\): the GPU is out of memory"):
        gang.run(collective_tasks.out_of_memory)

    assert gang.check()


def test_an_unknown_path_is_refused_with_those_that_exist() -> None:
    with pytest.raises(BadInput, match=r"unknown path 'smoke signals'; use one of gloo, eager, graph, pynccl_eager"):
        allreduce("smoke signals")


# --- on GPUs


@needs_two_gpus
@pytest.mark.parametrize("path", ["eager", "graph", "pynccl_eager", "pynccl_graph", "custom_graph", "symm_mem_graph"])
def test_every_path_of_the_device_is_right(gang: Gang, path: str) -> None:
    for wrong, seconds in gang.run(collective_tasks.check_on_device, path, GRAPHED):
        assert wrong is None
        assert seconds > 0


@needs_two_gpus
@pytest.mark.parametrize("path", ["graph", "pynccl_graph", "agrs_graph"])
@pytest.mark.parametrize("name", ["dispatch", "combine", "allgather", "reduce_scatter"])
def test_every_exchange_of_the_device_is_right(gang: Gang, name: str, path: str) -> None:
    if name in ("dispatch", "combine") and path != "graph":
        pytest.skip("all_to_all_single is torch's alone")

    for wrong, seconds in gang.run(collective_tasks.check_exchange_on_device, name, path):
        assert wrong is None
        assert seconds > 0


# --- last, because it ends the gang


def test_a_hang_names_the_collective_the_rank_and_where_it_is(bench: Bench) -> None:
    gang = bench.gangs(1)[0]
    with pytest.raises(RankHung) as caught:
        gang.run(collective_tasks.check_hanging, 1, deadline_seconds=HUNG_SECONDS)

    said = str(caught.value)
    assert "AllReduce by gloo: 5 calls are ready, checking numbers" in said
    assert "guiltily" in said
    assert not gang.alive
