"""The state of one pytest session: settings, the machine, who holds it now, and the verdicts so far."""

from __future__ import annotations

import os
import secrets
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import timeouts
from .errors import DecodegateError
from .report.progress import Progress
from .tenancy import Tenancy

if TYPE_CHECKING:
    from .baseline.store import Store
    from .gang.bench import Bench
    from .gang.controller import GangOptions
    from .machine.fingerprint import Fingerprint
    from .machine.nvml import Sensor
    from .machine.provenance import Provenance
    from .machine.watch import Watch
    from .metric import Measurement
    from .options import Settings
    from .perf import Result
    from .serving.server import Server

SUITE: pytest.StashKey[Suite] = pytest.StashKey()

ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""For ranks and servers: NVML counts GPUs in this order, so index 3 is the same card on both sides."""


class _Everyone(frozenset[int]):
    """All pids there are."""

    def __contains__(self, pid: object) -> bool:
        return True


class Suite:
    """One session: what it measures on, with, and against, and what came out so far."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.progress = Progress(config)
        self.session_id = time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + secrets.token_hex(2)
        self._item: pytest.Item | None = None
        self._item_started = 0.0
        self.debugging = False
        self.selected = 0
        self.results: list[Result] = []
        self._benches: dict[int, Bench] = {}
        self._server: Server | None = None
        self.problem: str | None = None

    def begin(self, item: pytest.Item | None) -> None:
        """The ranks and the server work for `item` from now on, or for none."""
        self._item, self._item_started = item, time.monotonic()

    def deadline(self) -> float:
        """Seconds for a call on the ranks, now: --perf-deadline, or less if another timeout would end the test."""
        return timeouts.deadline(self._item, self._item_started, self.settings.deadline_seconds)

    @property
    def measured_nothing(self) -> bool:
        """True if perf tests were selected and not one of them came to a verdict."""
        return self.selected > 0 and not self.results

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The machine, read once."""
        from .machine.fingerprint import machine

        return machine()

    @cached_property
    def store(self) -> Store:
        """The stored baselines."""
        from .baseline.store import Store

        return Store(self.settings.baselines)

    @cached_property
    def provenance(self) -> Provenance:
        """Machine and stack as the ranks really loaded it; starts a gang of one rank if none is alive."""
        from .gang.bench import Bench
        from .machine.fingerprint import provenance
        from .machine.stack import agree, probe

        bench = self._tenancy.tenant if isinstance(self._tenancy.tenant, Bench) else self.bench(1)
        probes = bench.gangs(1)[0].run(probe, deadline_seconds=self.settings.start_seconds)
        return provenance(self.fingerprint, agree(probes), os.environ)

    def too_few_gpus(self, world_size: int) -> str | None:
        """Why `world_size` ranks cannot have a GPU each, or None. Without any GPU the ranks run on the CPU."""
        nodes = len(self.settings.nodes.start) if self.settings.nodes else 1
        if world_size % nodes:
            return f"world size {world_size} does not divide over {nodes} nodes"

        count = nodes * len(self.fingerprint.gpus)
        if count == 0 or count >= world_size:
            return None

        return f"world size {world_size} needs {world_size} GPUs; this run sees {count}"

    @property
    def machine_class(self) -> str:
        """The folder of the baselines; several nodes are a class of their own."""
        nodes = self.settings.nodes
        return self.fingerprint.machine_class + (f"-{len(nodes.start)}nodes" if nodes else "")

    @cached_property
    def _tenancy(self) -> Tenancy:
        return Tenancy(self._uuids, self._sensor)

    def bench(self, world_size: int) -> Bench:
        """The gangs of one world size; whoever held the machine before is asked to leave."""
        from .gang.bench import Bench

        if world_size not in self._benches:
            self._benches[world_size] = Bench(world_size, self._gang_options(), progress=self.progress.tick)

        bench = self._benches[world_size]
        self._tenancy.move_in(bench, bench.close)
        return bench

    def close_bench(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""
        if bench := self._benches.get(world_size):
            self._tenancy.move_out(bench)

    def server(self) -> Server:
        """The server under test, started on first use and kept until something else needs the machine."""
        if self._server is None:
            _ = self.provenance  # read in the ranks while they may still hold the machine
            self._tenancy.move_in("server", self._stop_server)
            self._server = self._open_server()

        return self._server

    def _stop_server(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.stop()

    def _open_server(self) -> Server:
        from .serving import home
        from .serving.server import attach

        settings = self.settings
        if settings.server is not None:
            return attach(settings.server)

        start = home.Launch(self.folder("server"), ENVIRONMENT, settings.server_seconds, self.progress.tick)
        if settings.serve is not None:
            return home.launch_users(start, settings.serve)

        gpus = self.fingerprint.gpus
        return home.launch_own(start, gpus=len(gpus), memory_gib=min((gpu.memory_gib for gpu in gpus), default=0))

    def rank_output(self) -> list[tuple[str, str]]:
        """What ranks and server wrote since last asked: (section title, text)."""
        return [section for bench in self._benches.values() for section in bench.output()]

    def close(self) -> None:
        """Stop whatever is alive; bounded. What goes wrong is kept in `problem`: no test is left to fail with it."""
        if "_tenancy" not in self.__dict__:  # nothing was started; do not ask NVML just to say so
            return
        try:
            self._tenancy.move_out()
        except DecodegateError as error:
            self.problem = str(error)

    @cached_property
    def _sensor(self) -> Sensor | None:
        from .machine.nvml import open_sensor

        return open_sensor() if self.fingerprint.gpus else None

    @property
    def _uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.fingerprint.gpus]

    def watch(self) -> Watch:
        """A watch over the GPUs in use, for the time of one measurement."""
        from .machine.watch import Watch, descendants

        # The pids of an attached server are not known, so no process can be told to be a stranger to it.
        own_pids = _Everyone if self.settings.server else descendants
        return Watch(self._uuids, own_pids, sensor=self._sensor)

    def record(self, measurement: Measurement) -> Path:
        """Store a measurement in the file of this machine class and stack; returns the file."""
        from .machine.stack import stack_label

        label = stack_label(self.provenance.stack)
        return self.store.record(self.provenance, self.machine_class, label, measurement, self.session_id)

    def share(self, measurement: Measurement) -> None:
        """Show a measurement in pytest-benchmark's own table and files, if the user asked for these."""
        from .baseline.store import one_session
        from .report.benchmark import share

        if problem := share(self.config, one_session(measurement, self.provenance, self.session_id)):
            self.progress.say(problem)

    def report(self, result: Result, item: pytest.Item) -> None:
        """Say and write a result as it comes, so that a crash later loses nothing."""
        from .report import lines

        self.results.append(result)
        self.progress.say(lines.told(result))
        item.user_properties.extend(lines.properties(result))
        if self.settings.report is not None:
            with self.settings.report.open("a") as report:
                report.write(lines.json_line(result, self.session_id) + "\n")

    def folder(self, name: str) -> Path:
        """A fresh folder under pytest's own temporary folder, kept for as many runs as pytest keeps."""
        factory = self.config._tmp_path_factory  # type: ignore[attr-defined]
        folder: Path = factory.mktemp(name)
        return folder

    def _gang_options(self) -> GangOptions:
        from .gang.controller import GangOptions

        return GangOptions(
            log_root=self.folder("gangs"),
            env=ENVIRONMENT,
            start_seconds=self.settings.start_seconds,
            deadline_seconds=self.settings.deadline_seconds,
            deadlines_off=lambda: self.debugging,
            nodes=self.settings.nodes,
        )
