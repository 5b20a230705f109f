"""Everything that doctor looks at on this host, from the cheapest to the load."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..baseline.durations import seconds_by_metric
from ..baseline.store import Store
from ..errors import BadInput, DecodegateError, ServerError
from ..fitness.reading import read_all, read_early, with_loads
from ..fitness.readings import HostReadings, Importable, LoadedStack
from ..machine.classes import machine_class
from ..machine.cpu_load import CpuLoad
from ..machine.gpu_memory import LEAST_MIB
from ..machine.watch import steal_share, steal_ticks
from ..process.import_path import import_variables, inherited, withheld
from ..process.processes import family, scrubbed
from ..resources.probe import INSTALLED, ask_python
from ..resources.short_load import load_cards
from ..session.forecast import Planned, expected_of, forecast, minutes
from ..session.lost_gpus import lost_gpus
from .suite import QUIET

if TYPE_CHECKING:
    import pytest

    from ..baseline.schema import Baseline
    from ..baseline.selection import Selection
    from ..machine.fingerprint import Fingerprint
    from ..machine.nvml import CardSensor
    from ..machine.provenance import Provenance
    from ..session.forecast import Expected

_STREAMS: Final = 128
_ASK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class BaselinesHere:
    """The baselines of a host and its parts; nothing is recorded into them. See forecast.StoredBaselines."""

    store: Store
    host: Fingerprint
    records: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """Machine classes of everything here that a metric may run on."""
        return tuple(part.machine_class for part in self.host.parts)

    def stored(self) -> list[Baseline]:
        """All of them."""
        return [baseline for each in self.classes for baseline in self.store.candidates(each)]

    def select(self, metric: str, provenance: Provenance) -> Selection:
        """The one that gates `metric`, with no declared change."""
        return self.store.select(machine_class(provenance.machine), provenance, frozenset(), metric)

    @property
    def planned(self) -> dict[str, int]:
        """Every metric that was recorded, with the GPUs that it uses."""
        parts = ((part, self.store.load_all(part.machine_class)) for part in self.host.parts)
        return {
            name: len(part.gpus)
            for part, baselines in parts
            for baseline in baselines
            if not baseline.published
            for name in baseline.metrics
        }


@dataclass(frozen=True, slots=True)
class RunForecast:
    """What a run of all that is stored here would be told. minutes: None where no recording tells."""

    lines: tuple[str, ...] = ()
    minutes: int | None = None


class Examination:
    """One look at this host, from the cheapest to the load."""

    def __init__(self, python: str, baselines: Path, *, load: bool) -> None:
        self._python = python
        self._store = Store(baselines)
        self._load = load
        self._import_path = _import_path()
        self._steal = steal_ticks()
        self._cores = CpuLoad(family)
        self._cores.start()
        self._fingerprint: Fingerprint | None = None

    def readings(self) -> HostReadings:
        """Everything that the checks look at."""
        from ..machine.fingerprint import machine

        try:
            self._fingerprint = fingerprint = machine()
        except DecodegateError as error:
            return HostReadings(None, str(error), stack=LoadedStack(self._packages()), client_floor=_client())

        sensor = _sensor(fingerprint)
        others = self._cores.since_start()
        return replace(
            self._inspected(fingerprint, sensor),
            others=others,
            stack=self._stack(sensor),
            client_floor=_client(),
            baselines=self._files(fingerprint),
            lost_gpus=lost_gpus(self._store, fingerprint),
            steal=steal_share(self._steal, steal_ticks()),
        )

    def forecast(self) -> RunForecast:
        """What a run of everything that is stored here would be told before it measures."""
        problem = withheld(self._python, self._import_path)
        said = (problem,) if problem else ()
        if self._fingerprint is None or not self._files(self._fingerprint):
            return RunForecast(said)

        here = BaselinesHere(self._store, self._fingerprint)
        planned = here.planned
        about = minutes(planned, seconds_by_metric(here.stored()))
        return RunForecast((*said, *forecast(Planned(planned), here, self._expected)), about)

    def _inspected(self, fingerprint: Fingerprint, sensor: CardSensor | None) -> HostReadings:
        early = read_all(read_early(fingerprint, sensor, self._store.root, family(), attached=False))
        why_not = self._why_no_load(early)
        if why_not or sensor is None:
            return replace(early, not_loaded=why_not)
        try:
            uuids = [gpu.uuid for gpu in fingerprint.gpus]
            return with_loads(early, load_cards(self._python, uuids, sensor, self._import_path))
        except BadInput as error:
            return replace(early, not_loaded=str(error))

    def _why_no_load(self, early: HostReadings) -> str:
        if not early.cards:
            return "no GPU to load"
        if not self._load:
            return "not loaded: --no-load"
        if any(card.foreign or card.used_mib >= LEAST_MIB or card.busy_percent for card in early.cards):
            return "not loaded: somebody uses the GPUs, and a load would disturb what runs there"

        return ""

    def _stack(self, sensor: CardSensor | None) -> LoadedStack:
        stack = LoadedStack(self._packages(), driver_cuda=sensor.driver_cuda if sensor else None)
        try:
            loaded = self._expected(None)
            wanted = ask_python(self._python, INSTALLED, {}, _ASK_SECONDS, self._import_path)
        except BadInput as error:
            return replace(stack, problem=str(error))

        facts = {**loaded.telemetry, **loaded.stack}
        return replace(stack, facts=facts, installed={name: str(value) for name, value in wanted.items()})

    @cached_property
    def _expected(self) -> Expected:
        assert self._fingerprint
        return expected_of(self._fingerprint, self._python, self._import_path)

    def _packages(self) -> tuple[Importable, ...]:
        return tuple(_module(self._python, name, self._import_path) for name in ("torch", "vllm"))

    def _files(self, fingerprint: Fingerprint) -> tuple[str, ...]:
        here = BaselinesHere(self._store, fingerprint)
        files = (baseline.path for baseline in here.stored())
        return tuple(f"{file.parent.name}/{file.name}" for file in files)


def _sensor(fingerprint: Fingerprint) -> CardSensor | None:
    from ..machine.nvml import open_sensor

    return open_sensor() if fingerprint.gpus else None


def _client() -> tuple[str, bool]:
    from ..client.floor import client_floor

    try:
        return str(client_floor(_STREAMS)), True
    except ServerError as error:
        return f"the client's own floor: {error}", False


class _ImportPath:
    """A plugin for a pytest that ends once it has read its ini file: what pytest's Python imports from."""

    def __init__(self) -> None:
        self.entries = inherited()

    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """Keep it, and go no further: the first hook that answers ends the run."""
        from ..settings.values import import_path

        self.entries = import_path(config)
        return 0


def _import_path() -> tuple[str, ...]:
    """What a run of pytest in this folder would import from, its ini option `pythonpath` included."""
    import pytest

    asked = _ImportPath()
    pytest.main([QUIET, "-p", "no:cacheprovider"], plugins=[asked])
    return asked.entries


def _module(python: str, name: str, import_path: Sequence[str]) -> Importable:
    code = f"import {name}; print({name}.__version__)"
    environment = {**scrubbed(os.environ), **import_variables(python, import_path)}
    try:
        found = subprocess.run(
            [python, "-c", code], env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        problem = f"{name}: {python} cannot be run ({error.strerror}); give --python the Python of the ranks"
        return Importable(name, None, problem)

    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no output"])[-1]
        return Importable(name, None, f"{name} in {python}: {reason}")

    return Importable(name, found.stdout.strip().splitlines()[-1])
