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
from .errors import BadInput, DecodegateError, ServerError
from .report.progress import Progress
from .tenancy import Tenancy

if TYPE_CHECKING:
    from .gang.bench import Bench
    from .gang.controller import GangOptions
    from .machine.fingerprint import Fingerprint
    from .machine.nvml import Sensor
    from .machine.provenance import Provenance
    from .machine.watch import Watch
    from .options import Settings
    from .recorder import Recorder
    from .report.result import Result
    from .serving.server import Server

SUITE: pytest.StashKey[Suite] = pytest.StashKey()

ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""For ranks and servers: NVML counts GPUs in this order, so index 3 is the same card on both sides."""


LOG_BYTES = 20_000
"""Of the server's log, what a report section of one phase shows at most: its end."""


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
        self._server_failure: str | None = None
        self._server_log = 0
        self._measured: dict[str, str] = {}
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
    def recorder(self) -> Recorder:
        """The stored baselines of this machine class."""
        from .recorder import Recorder

        return Recorder(self.config, self.settings, self.machine_class, self.session_id, self.progress.say)

    @cached_property
    def provenance(self) -> Provenance:
        """Machine and stack as the ranks really loaded it; starts a gang of one rank if none is alive."""
        from .gang.bench import Bench
        from .machine.fingerprint import provenance
        from .machine.stack import agree, probe

        bench = self._tenancy.tenant if isinstance(self._tenancy.tenant, Bench) else self.bench(self._nodes)
        probes = bench.gangs(1)[0].run(probe, deadline_seconds=self.settings.start_seconds)
        return provenance(self.fingerprint, agree(probes), os.environ)

    def too_few_gpus(self, world_size: int) -> str | None:
        """Why `world_size` ranks cannot have a GPU each, or None. Without any GPU the ranks run on the CPU."""
        nodes = self._nodes
        if world_size % nodes:
            return f"world size {world_size} does not divide over {nodes} nodes"

        count = nodes * len(self.fingerprint.gpus)
        if count == 0 or count >= world_size:
            return None

        return f"world size {world_size} needs {world_size} GPUs; this run sees {count}"

    @property
    def _nodes(self) -> int:
        return len(self.settings.nodes.start) if self.settings.nodes else 1

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
        if self._server_failure is not None:
            raise ServerError(f"the server failed before, and is not started again: {self._server_failure}")

        try:
            if self._server is None:
                self._start_server()
            elif self._server.process:
                self._server.process.check("between two tests")
        except ServerError as error:
            self._server_failure = str(error)
            raise

        assert self._server is not None
        return self._server

    def _start_server(self) -> None:
        if not self.settings.server:
            _ = self.provenance  # read in the ranks while they may still hold the machine

        self._tenancy.move_in("server", self._stop_server)
        self._server = self._open_server()
        self._server_log = 0

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
        sections = [section for bench in self._benches.values() for section in bench.output()]
        if self._server is not None:
            start, self._server_log = self._server_log, self._server.log_size()
            if text := self._server.log(max(start, self._server_log - LOG_BYTES), self._server_log):
                sections.append(("log of the server", text))

        return sections

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
        """A watch over the GPUs in use, for the time of one measurement by processes of this one."""
        from .machine.watch import Watch, descendants

        return Watch(self._uuids, descendants, sensor=self._sensor)

    def watch_attached(self) -> Watch:
        """The same while an attached server is measured: its pids are not known, so nobody can be told a stranger."""
        from .machine.watch import Watch

        return Watch(self._uuids, _Everyone, sensor=self._sensor)

    def provenance_of(self, server: Server) -> Provenance:
        """Machine and stack of a server: this Python's if it was launched, its own word if it was attached."""
        from .machine.fingerprint import provenance

        return provenance(self.fingerprint, server.stack(), {}) if server.attached else self.provenance

    def claim(self, metric: str, nodeid: str) -> None:
        """Note that a test measures `metric`; raises BadInput if another one did, whose sessions it would replace."""
        first = self._measured.setdefault(metric, nodeid)
        if first != nodeid:
            raise BadInput(f"metric {metric!r} was measured by {first} in this run already; give each its own name")

    def has_result(self, item: pytest.Item) -> bool:
        """Whether a metric of this test came to a verdict."""
        return any(result.nodeid == item.nodeid for result in self.results)

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
