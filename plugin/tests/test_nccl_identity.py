"""How NCCL is asked, on gloo ranks: by workloads that write as NCCL does, and by one that does not use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nccl_tasks
import pytest

from pytest_decodegate.gang.controller import GangOptions
from pytest_decodegate.gang.protocol import Function
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.machine.nccl_log import NcclCall, NcclLog
from pytest_decodegate.measure.nccl_identity import Identity, NcclProbe, answered_apart, identity_from
from pytest_decodegate.metric import Json
from pytest_decodegate.workloads.collectives.allreduce import allreduce

DEADLINE_SECONDS = 60.0
GPUS = machine().gpus
needs_two_gpus = pytest.mark.skipif(len(GPUS) < 2, reason=f"needs 2 GPUs, this machine has {len(GPUS)}")
SILENT = NcclLog((), (), (), {}, ())
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""For ranks that write in NCCL's place: where there is a GPU, the real one would write, too."""


def ask(probe: NcclProbe, workload: Any, **params: Any) -> Identity:
    """Under a key of their own for each workload and its parameters, as metrics have."""
    key = f"{workload.__name__}{params}"
    return probe.identity(key, Function.of(workload), params, DEADLINE_SECONDS)


def test_one_gang_answers_for_each_workload_by_its_own_lines_and_is_not_started_again(tmp_path: Path) -> None:
    probe = NcclProbe(2, GangOptions(log_root=tmp_path, env=NO_GPU))
    try:
        silent = ask(probe, allreduce, path="gloo", calls=2)
        assert silent == Identity(facts={"unnamed": "NCCL wrote nothing: no rank used it"})
        ring, tree = ask(probe, nccl_tasks.collective, tokens=1), ask(probe, nccl_tasks.collective, tokens=4)
        assert ring.contract == {"nccl_algorithm": "RING", "nccl_protocol": "LL", "nccl_channels": 2}
        assert tree.contract == {"nccl_algorithm": "RING", "nccl_protocol": "LL", "nccl_channels": 5}
        # The second used communicators that had told their transports and their version before.
        facts: dict[str, Json] = {
            "versions": ["2.28.9"],
            "nranks": [],
            "transports": ["P2P/CUMEM"],
            "channels": {},
            "functions": ["AllReduce"],
        }
        assert (ring.facts, tree.facts) == (facts, facts)
        assert "sends and receives" in str(ask(probe, nccl_tasks.exchange).facts["unnamed"])

        before = probe._sizes()
        assert ask(probe, nccl_tasks.collective, tokens=4) == tree  # known already
        assert probe._sizes() == before

        failed = ask(probe, nccl_tasks.failing)
        assert failed.contract == {}
        assert "CUDA error: out of memory" in str(failed.facts["unnamed"])
        # A gang that cannot do this would cost its start with every metric.
        assert ask(probe, nccl_tasks.collective, tokens=7) == failed
        assert ask(probe, nccl_tasks.collective, tokens=1) == ring
    finally:
        probe.close()

    assert len(list(tmp_path.glob("nccl-w2-*"))) == 1
    logs = [log.read_text() for log in probe.folder.glob("*.log")]
    assert sorted("Algo RING" in log for log in logs) == [False, True]  # of both ranks, and they stay


def test_a_point_to_point_exchange_is_not_called_by_an_algorithm() -> None:
    identity = identity_from(NcclLog(("2.28.9",), (2,), ("SHM/direct",), {"p2p": 2}, ()), SILENT)
    assert identity.contract == {}
    assert identity.facts["transports"] == ["SHM/direct"]
    assert "sends and receives" in str(identity.facts["unnamed"])


def test_a_log_that_was_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    probe = NcclProbe(1, GangOptions(log_root=tmp_path))
    probe.folder.mkdir(parents=True)
    (log := probe.folder / "node.1.log").write_text("x NCCL INFO long before\n" * 9)
    begin = probe._sizes()
    log.write_text("x NCCL INFO 64 Bytes -> Algo RING proto LL time 1.0\n")
    assert "64 Bytes" in probe._text(begin)


@needs_two_gpus
@pytest.mark.parametrize("path", ["eager", "graph"])
def test_the_nccl_of_this_machine_names_itself(tmp_path: Path, path: str) -> None:
    probe = NcclProbe(2, GangOptions(log_root=tmp_path))
    try:
        identity = ask(probe, allreduce, path=path, calls=3)
    finally:
        probe.close()

    assert set(identity.contract) == {"nccl_algorithm", "nccl_protocol", "nccl_channels"}, identity.facts
    assert identity.facts["functions"] == ["AllReduce"]
    assert identity.facts["nranks"] == [2]
    assert identity.facts["transports"]


def test_issued_by_several_functions_is_all_in_the_facts() -> None:
    during = NcclLog(
        (), (), (), {}, (NcclCall("AllReduce", 9, "RING", "LL", 1), NcclCall("AllGather", 1, "PAT", "LL", 1))
    )
    identity = identity_from(NcclLog(("2.31.2",), (2,), (), {}, during.issued), during)
    assert identity.facts["functions"] == ["AllGather", "AllReduce"]
    assert identity.contract["nccl_algorithm"] == "RING"


def answers(*given: tuple[str, str] | None) -> list[dict[str, Json]]:
    return [{"nccl_answered": {"version": each[0], "file": each[1]}} if each else {} for each in given]


def test_one_nccl_must_answer_in_all_ranks_and_be_the_one_of_the_log() -> None:
    new, old = ("2.28.9", "/new"), ("2.28.3", "/old")
    assert list(answered_apart(answers(new, new), ["2.28.9"])) == []
    assert list(answered_apart(answers(new, new), [])) == []
    assert list(answered_apart(answers(new, new), ["2.28.3", "2.28.9"])) == []
    assert list(answered_apart(answers(None, None), ["2.28.3"])) == []
    assert list(answered_apart(answers(new, old, old), ["2.28.9"])) == [
        "rank 1 is answered by NCCL 2.28.3 (/old), the first by 2.28.9 (/new)"
    ]
    assert list(answered_apart(answers(new, new), ["2.28.3"])) == [
        "NCCL 2.28.9 (/new) answers, and NCCL's own log names 2.28.3"
    ]
