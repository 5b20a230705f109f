"""`decodegate doctor`: what a perf run would find on this host."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DecodegateError, ServerError
from ..process.import_path import VARIABLE, inherited, path_for, withheld
from ..process.processes import scrubbed

if TYPE_CHECKING:
    import pytest

    from ..baseline.schema import Baseline
    from ..baseline.selection import Selection
    from ..baseline.store import Store
    from ..machine.fingerprint import Fingerprint
    from ..machine.provenance import Provenance
    from ..session.forecast import Expected

_STREAMS = 128


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
        from ..machine.classes import machine_class

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


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser("doctor", help="say what a perf run would find here: machine, stack, baselines")
    parser.add_argument("--python", default=sys.executable, help="the Python that the ranks would run under")
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), help="folder of stored baselines")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    missing = False
    for line, good in _findings(options.python, options.baselines):
        missing = missing or not good
        print(f"{'ok     ' if good else 'missing'}  {line}")

    return int(missing)


def _findings(python: str, baselines: Path) -> Iterator[tuple[str, bool]]:
    from ..machine.fingerprint import machine

    fingerprint: Fingerprint | None = None
    try:
        fingerprint = machine()
    except DecodegateError as error:
        yield str(error), False
    else:
        yield from _hardware(fingerprint)

    import_path = _import_path()
    if problem := withheld(python, import_path):
        yield problem, True
    yield from (_module(python, name, import_path) for name in ("torch", "vllm"))
    yield _client()
    if fingerprint:
        from ..session.forecast import expected_of

        yield from _baselines(fingerprint, baselines, expected_of(fingerprint, python, import_path))


def _hardware(fingerprint: Fingerprint) -> Iterator[tuple[str, bool]]:
    yield f"machine class {fingerprint.machine_class}", True
    if fingerprint.gpus:
        yield f"driver {fingerprint.driver}", True
    else:
        yield f"no GPU, the stand-ins would run: {fingerprint.no_gpu_reason}", True

    yield from ((f"NVML: {problem}", False) for problem in fingerprint.problems)


def _baselines(fingerprint: Fingerprint, baselines: Path, expected: Expected) -> Iterator[tuple[str, bool]]:
    from ..baseline.store import Store
    from ..session.lost_gpus import lost_gpus

    here = BaselinesHere(Store(baselines), fingerprint)
    if lost := lost_gpus(here.store, fingerprint):
        yield lost, False

    files = [baseline.path for baseline in here.stored()]
    names = ", ".join(f"{file.parent.name}/{file.name}" for file in files)
    yield f"baselines of this machine and its parts: {names or 'none'}", bool(files)
    if files:
        yield from ((line, True) for line in _forecast(here, fingerprint, expected))


def _forecast(here: BaselinesHere, fingerprint: Fingerprint, expected: Expected) -> Iterator[str]:
    """What a run of everything that is stored here would be told before it measures, and who is in its way."""
    from ..machine.cpu_load import CpuLoad
    from ..machine.gpu_memory import leftovers
    from ..machine.nvml import open_sensor
    from ..process.processes import family
    from ..session.forecast import Planned, forecast, in_the_way

    load = CpuLoad(family)
    load.start()
    yield from forecast(Planned(here.planned), here, expected)
    labels = {gpu.uuid: f"GPU {gpu.index}" for gpu in fingerprint.gpus}
    yield from in_the_way(leftovers(labels, open_sensor() if labels else None), load.since_start())


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
    # The plugin runs already, as this command.
    quiet = "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning"
    pytest.main([quiet, "-p", "no:cacheprovider"], plugins=[asked])
    return asked.entries


def _module(python: str, name: str, import_path: Sequence[str]) -> tuple[str, bool]:
    code = f"import {name}; print({name}.__version__)"
    environment = {**scrubbed(os.environ), VARIABLE: path_for(python, import_path), "PYTHONSAFEPATH": "1"}
    try:
        found = subprocess.run(
            [python, "-c", code], env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return f"{name}: {python} cannot be run ({error.strerror}); give --python the Python of the ranks", False

    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no output"])[-1]
        return f"{name} in {python}: {reason}", False

    return f"{name} {found.stdout.strip().splitlines()[-1]} in {python}", True
