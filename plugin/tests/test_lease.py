"""One holder at a time, and memory that must come back, with a double for NVML."""

from __future__ import annotations

from functools import partial

import pytest

from pytest_decodegate.errors import DecodegateError
from pytest_decodegate.machine.nvml import GpuProcess, GpuReading
from pytest_decodegate.resources import lease
from pytest_decodegate.resources.lease import Lease


class Memory:
    """A sensor that knows one GPU whose memory holders use."""

    problems: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.used = 100

    def utilization(self, uuid: str) -> int | None:
        return None

    def used_mib(self, uuid: str) -> int:
        assert uuid == "GPU-1"
        return self.used

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        return (GpuProcess(4711, "python", self.used),)

    def sample(self, uuid: str) -> GpuReading:
        raise AssertionError("not asked here")


def test_a_holder_leaves_before_the_next_takes_the_machine() -> None:
    said: list[str] = []
    machine = Lease({}, None)
    machine.take("bench", partial(said.append, "bench leaves"))
    machine.take("bench", partial(said.append, "never"))
    machine.take("server", partial(said.append, "server leaves"))
    assert said == ["bench leaves"]
    machine.release("bench")
    assert said == ["bench leaves"]
    machine.release()
    machine.release()
    assert said == ["bench leaves", "server leaves"]
    assert machine.holder is None


def test_memory_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "MEMORY_SECONDS", 0.05)
    memory = Memory()
    machine = Lease({"GPU-1": "GPU 1"}, memory)
    machine.take("server", lambda: None)
    memory.used = 14_000
    with pytest.raises(DecodegateError, match="4711") as error:
        machine.take("bench", lambda: None)

    assert "python" in str(error.value)


def test_a_holder_that_gives_its_memory_back_is_no_problem() -> None:
    memory = Memory()
    machine = Lease({"GPU-1": "GPU 1"}, memory)
    machine.take("server", partial(setattr, memory, "used", 100))
    memory.used = 14_000
    machine.release()
