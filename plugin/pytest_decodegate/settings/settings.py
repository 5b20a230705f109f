"""Settings of a run: command line and ini file, read once and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from . import values
from .patterns import matches

if TYPE_CHECKING:
    import pytest

    from ..gang.options import Nodes
    from .stack import Stack


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. Times in seconds, tolerances as fractions. baseline: None chooses from `baselines`.

    import_path: folders that pytest's Python imports from by the user's wish: its `pythonpath`, then PYTHONPATH.
    started_by_command: whether a command gave the two stacks, and says itself what came of them.
    despite: names of checks of the host that do not end the run.
    """

    record: values.Record
    baseline: Path | None
    baselines: Path
    replicates: int
    max_replicates: int
    change: frozenset[str]
    tolerances: tuple[tuple[str, float], ...]
    not_material: float | None
    server: str | None
    serve: tuple[str, ...] | None
    server_seconds: float
    start_seconds: float
    deadline_seconds: float
    nodes: Nodes | None
    report: Path | None
    pins: Mapping[str, str]
    stack: Stack
    base: Stack | None
    budget_seconds: float
    server_key_env: str | None
    server_model: str | None
    server_restarts: int | None
    warm_up_seconds: float
    quality_prompts: tuple[str, ...]
    import_path: tuple[str, ...]
    started_by_command: bool
    despite: frozenset[str] = frozenset()

    def tolerance(self, metric: str, own: float) -> float:
        """The band of `metric`: the last matching line of the ini option perf_tolerance, else its own."""
        matching = self._bands(metric)
        return matching[-1] if matching else own

    def sets_band(self, metric: str) -> bool:
        """Whether a line of the ini option perf_tolerance gives the band of `metric`: then it holds on all cards."""
        return bool(self._bands(metric))

    def _bands(self, metric: str) -> list[float]:
        return [band for pattern, band in self.tolerances if matches(pattern, metric)]

    @property
    def attached(self) -> bool:
        """Whether a server that runs already is measured."""
        return bool(self.server or self.stack.server)

    def launched(self, stack: Stack) -> tuple[str, ...] | None:
        """The words of vLLM's command line for `stack` but its flags; None where the suite's own model is served."""
        if self.serve is None and stack.model is None:
            return None

        return (*(("--model", stack.model) if stack.model else ()), *(self.serve or ()))

    def gpus_of_server(self, stack: Stack, gpus: int) -> int:
        """How many of this host's `gpus` a launched server of `stack` uses; raises BadInput if it wants more.

        The user's says so, the suite's own takes all unless tp= is given.
        """
        from ..serving.command import gpus_of
        from ..serving.flags import TENSOR_PARALLEL, flag_words

        flags = flag_words(dict(stack.flags))
        words = self.launched(stack)
        wanted = gpus_of([*((f"--{TENSOR_PARALLEL}={max(1, gpus)}",) if words is None else words), *flags])
        if wanted > max(1, gpus):
            raise BadInput(
                f"{stack}: a server of it wants {wanted} GPUs (tp= and other parallel sizes), and this host has {gpus}"
            )

        return min(wanted, gpus)

    def own_band(self, metric: str, stem: str) -> float | None:
        """The band of the last line of perf_tolerance that matches `metric` and begins with `stem`; None without one.

        "* = 5%" is a band for what is gated anyway, and gates nothing more.
        """
        bands = [band for pattern, band in self.tolerances if pattern.startswith(stem) and matches(pattern, metric)]
        return bands[-1] if bands else None


def read_settings(config: pytest.Config) -> Settings:
    """Check everything that can be checked before a test runs; raises BadInput naming the option and the value."""
    given = values.stacks_of_command(config)
    stack, base = values.stacks(config, given)
    replicates = values.count(config, "--perf-replicates", default=6 if base else 5, at_least=2)
    most = values.count(config, "--perf-max-replicates", default=4 * replicates, at_least=replicates)
    server, serve = config.getoption("--perf-server"), config.getoption("--perf-launch")
    if server and serve:
        raise BadInput("--perf-server and --perf-launch: give one, a server to attach to or one to launch")

    both = (stack,) if base is None else (base, stack)
    words, pins = values.serve(serve, both), values.pins(config.getoption("--perf-pin"))
    values.check_flags(both, server, words or (), pins)
    attached = server or stack.server
    return Settings(
        record=values.record(config.getoption("--perf-record")),
        baseline=values.existing_file(config.getoption("--perf-baseline")),
        baselines=config.rootpath / (config.getini("perf_baselines") or "baselines"),
        replicates=replicates,
        max_replicates=most,
        change=values.change(config.getoption("--perf-change")),
        tolerances=tuple(values.tolerance_lines(config.getini("perf_tolerance"))),
        not_material=values.not_material(config.getini("perf_not_material")),
        server=values.url(server),
        serve=words,
        server_seconds=values.seconds(config, "--perf-server-timeout", default=2700),
        start_seconds=values.seconds(config, "--perf-start-timeout", default=300),
        deadline_seconds=values.seconds(config, "--perf-deadline", default=600),
        nodes=values.nodes(config),
        report=values.report_folder(config.getoption("--perf-report")),
        pins=pins,
        stack=stack,
        base=base,
        budget_seconds=values.budget(config, default=1800 if base else 1200),
        server_key_env=values.key_env(config.getoption("--perf-server-key-env"), attached),
        server_model=values.server_model(config.getoption("--perf-server-model"), attached),
        server_restarts=values.restarts(config, server),
        warm_up_seconds=values.seconds(config, "--perf-warmup-timeout", default=900),
        quality_prompts=values.quality_prompts(config.getoption("--perf-quality-prompts")),
        import_path=values.import_path(config),
        started_by_command=given is not None,
        despite=values.names(config.getoption("--perf-despite")),
    )
