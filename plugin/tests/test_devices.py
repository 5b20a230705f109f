"""How many ranks this run may have, by the GPUs that it sees; with a double of NVML that has four."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fake_nvml import FakeGpu, FakeNvml

from pytest_decodegate.gang.options import GangOptions
from pytest_decodegate.gang.worker import _local_device
from pytest_decodegate.machine import fingerprint, nvml, stack
from pytest_decodegate.machine.fingerprint import Fingerprint, machine
from pytest_decodegate.measure.paired_source import PairBench
from pytest_decodegate.metric import Json
from pytest_decodegate.resources.hardware import Hardware
from pytest_decodegate.session.session import PerfSession, session_of


def four(visible: str | None = None) -> Fingerprint:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return machine(environ, FakeNvml(*(FakeGpu(place) for place in range(1, 5))))


def session_on(pytester: pytest.Pytester, seen: Fingerprint, *options: str) -> PerfSession:
    session = session_of(pytester.parseconfigure(*options))
    session.hardware.fingerprint = seen
    return session


def hardware(seen: Fingerprint) -> Hardware:
    return Hardware(lambda: seen, never)


@pytest.mark.parametrize(
    ("visible", "ranks", "reason"),
    [
        (None, 4, None),
        (None, 8, "world size 8 needs 8 GPUs; this run sees 4"),
        ("2,0", 2, None),
        ("2,0", 4, "world size 4 needs 4 GPUs; this run sees 2"),
        ("3", 2, "world size 2 needs 2 GPUs; this run sees 1"),
        ("", 2, None),  # no GPU at all: the ranks run on the CPU
    ],
)
def test_more_ranks_than_visible_gpus_are_refused(
    pytester: pytest.Pytester, visible: str | None, ranks: int, reason: str | None
) -> None:
    assert session_on(pytester, four(visible)).gangs.too_few_gpus(ranks) == reason


def test_the_fixture_skips_sizes_that_the_visible_gpus_do_not_allow(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setattr(fingerprint, "machine", lambda: four(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setattr(nvml, "open_sensor", lambda: None)
    pytester.makepyfile(
        """
        import pytest


        @pytest.mark.world_size(2, 4, 8)
        def test_sizes(world_size):
            assert world_size == 2
        """
    )
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*world size 4 needs 4 GPUs; this run sees 2*", "*world size 8 needs 8 GPUs*"])


class Gangs:
    """Stands in for a bench whose ranks are there."""

    def __init__(self, torch: str) -> None:
        self._torch = torch

    def gangs(self, count: int) -> list[Gangs]:
        return [self] * count

    def run(self, function: object, deadline_seconds: float) -> list[dict[str, Json]]:
        assert function is stack.probe
        return [{"torch": self._torch}] * 2


def test_the_stack_is_read_from_the_candidate_while_two_stacks_hold_the_machine(pytester: pytest.Pytester) -> None:
    session = session_on(pytester, Fingerprint(four("").host))
    base: Any = Gangs("2.11")
    candidate: Any = Gangs("2.12")
    pair = PairBench(base, candidate)
    session.hardware.take(pair, lambda: None)
    assert session.provenances.of_ranks("kernel").stack["torch"] == "2.12"
    assert session.hardware.lease.holder is pair


def test_a_rank_without_a_gpu_of_its_own_refuses_to_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert _local_device(2) == 1
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RuntimeError, match=r"local rank 2 has no GPU: this host shows 2 \(CUDA_VISIBLE_DEVICES=2,0\)"):
        _local_device(2)


def never() -> GangOptions:
    raise AssertionError("nothing is to be started")


def test_a_watch_knows_where_the_cards_sit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "open_sensor", lambda: nvml.NvmlSensor(FakeNvml(FakeGpu(1), FakeGpu(2))))
    seen = machine({"CUDA_VISIBLE_DEVICES": "1"}, FakeNvml(FakeGpu(1), FakeGpu(2)))
    devices = hardware(seen)
    assert devices.uuids == [FakeGpu(2).uuid]
    with devices.watch() as watch:
        pass

    (gpu,) = watch._tallies.values()
    assert gpu.facts()["bus_id"] == "0000:02:00.0"
    assert gpu.facts()["pcie_most"] == "gen 5 x16"


def test_the_server_of_somebody_else_is_nobodys_stranger() -> None:
    devices = hardware(Fingerprint(four("").host))
    assert devices.sensor is None
    assert os.getppid() in devices.watch_attached()._own_pids()
    assert os.getppid() not in devices.watch()._own_pids()


def test_a_machine_without_gpus_is_never_sick() -> None:
    devices = hardware(Fingerprint(four("").host))
    devices.health.doubt(RuntimeError("CUDA error"))
    assert devices.health.sick(never) == ()
