"""A host of scripted GPUs for runs inside of pytester: real sessions, stores and verdicts, no ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from fake_nvml import H200, FakeGpu, FakeNvml

from pytest_decodegate.machine import fingerprint, nvml
from pytest_decodegate.machine.fingerprint import Fingerprint
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.metric import Json, Level, Replicate
from pytest_decodegate.reference.loaded import Loaded, ProvenanceReader
from pytest_decodegate.resources.gangs import Gangs
from pytest_decodegate.resources.sources import Sources

really = fingerprint.machine


def host(count: int, base: Mapping[str, Any] = H200, changes: Callable[[int], Mapping[str, Any]] | None = None) -> Any:
    """A fingerprint of `count` GPUs; changes: what each answers otherwise, by its place from 1."""
    cards = (FakeGpu(place, base, changes(place) if changes else {}) for place in range(1, count + 1))
    return really({}, FakeNvml(*cards))


class SteadySource:
    """Gives every replicate the same seconds."""

    level: Level = "gang"

    def __init__(self, seconds: float, contract: Mapping[str, Json]) -> None:
        self._seconds, self._contract = seconds, contract
        self._taken = 0

    def take(self, count: int) -> Taken:
        """`count` more, quiet to a thousandth."""
        self._taken += count
        samples = (self._seconds * (1 + 0.001 * (place % 3)) for place in range(self._taken))
        return Taken("gang", tuple(Replicate((value, value)) for value in samples), contract=self._contract)


def without_ranks(monkeypatch: pytest.MonkeyPatch, stack: Mapping[str, Json] | None = None) -> None:
    """Let runs in this process take `stack` for what ranks and servers load, which a process of torch's would say."""
    loaded = Loaded(stack or {"torch": "2.11", "nccl": "2.28.9"}, {})
    monkeypatch.setattr(ProvenanceReader, "_of_ranks", loaded)
    monkeypatch.setattr(ProvenanceReader, "_probed", loaded)


def run_on(
    monkeypatch: pytest.MonkeyPatch,
    seen: Fingerprint,
    *,
    seconds: float = 1e-5,
    stack: Mapping[str, Json] | None = None,
) -> None:
    """Let runs in this process see the host `seen`; every metric of ranks takes `seconds`."""

    @contextmanager
    def steady(*_: Any, **__: Any) -> Iterator[SteadySource]:
        yield SteadySource(seconds, {})

    without_ranks(monkeypatch, stack)
    monkeypatch.setattr(fingerprint, "machine", lambda: seen)
    monkeypatch.setattr(nvml, "open_sensor", lambda: None)
    monkeypatch.setattr(Gangs, "bench", lambda gangs, world_size: None)
    monkeypatch.setattr(Sources, "gangs", steady)
