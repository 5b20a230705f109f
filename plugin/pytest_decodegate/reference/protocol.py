"""What a metric is compared with: one protocol, whether that is a stored baseline or a stack measured in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from ..gate.bands import RecordedBand
    from ..gate.verdict import Judgement
    from ..machine.provenance import Provenance
    from ..measure.beside_tpot import WindowQuantity
    from ..measure.sampling import Plan
    from ..measure.source import Source
    from ..measure.window import Load
    from ..metric import Json, Metric, Replicate
    from ..serving.server import Server


@dataclass(frozen=True, slots=True)
class GangWork:
    """A metric of ranks. workload: a module-level function that each rank calls with `params`."""

    metric: Metric
    workload: Callable[..., Any]
    params: Mapping[str, Any]
    world_size: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class ServerWork:
    """A metric of a server under a load, a closed loop.

    beside: metrics of a TPOT's windows that are gated too, each with what it is of.
    """

    metric: Metric
    server: Server
    load: Load
    beside: Sequence[tuple[Metric, WindowQuantity]] = ()


class RecordedIn(NamedTuple):
    """Where a metric was recorded, and under which band. gated: beside its verdict, which stands."""

    path: Path
    band: RecordedBand
    gated: bool


def _nothing() -> None:
    """Record nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came out of a metric.

    replicates: of the stack under test. base: of the base of two stacks. gpus: as the watch saw them.
    ranks: where each works and how long it needs by itself, as
    gate.evidence.stragglers.table; () where that is not known. world_size: of the gangs, 0 for servers.
    record: stores what was asked to be stored; None if nothing was to be stored. beside: of the same windows.
    """

    judgement: Judgement
    replicates: Sequence[Replicate] = ()
    ranks: Sequence[Json] = ()
    world_size: int = 0
    record: Callable[[], RecordedIn | None] = _nothing
    base: Sequence[Replicate] = ()
    gpus: Sequence[Json] = ()
    beside: Sequence[Judged] = ()


class Interrupted(KeyboardInterrupt):
    """A run was stopped while a metric was measured. judged: what was whole of it by then. by: what stopped it."""

    def __init__(self, judged: Judged, by: KeyboardInterrupt) -> None:
        super().__init__(*by.args)
        self.judged = judged
        self.by = by


class Reference(Protocol):
    """What the metrics of a run are compared with. Methods that measure raise DecodegateError for what broke."""

    def measure(self, work: GangWork) -> Judged:
        """Measure on gangs of ranks."""

    def measure_tpot(self, work: ServerWork) -> Judged:
        """Measure the time per output token of a server, and what is beside it, unless its answers are wrong."""

    def measure_plateau(self, work: ServerWork, most: int) -> Judged:
        """Sweep a server over 1, 2, 4 ... `most` streams and measure the throughput of its plateau."""

    def measure_quality(self, metric: Metric, server: Server) -> Judged:
        """Compare the answers of a server; `metric` is its `quality_metric`, with the band that holds."""

    def quality_metric(self, server: Server) -> Metric:
        """The metric that holds the answers of a server."""

    def measure_source(self, metric: Metric, source: Source, provenance: Callable[[], Provenance] | None) -> Judged:
        """Measure what `source` gives. provenance: where that comes from; the ranks' unless given."""

    def server(self) -> Server:
        """The server under test."""

    def slice_server(self, layers: int) -> Server:
        """The suite's own server as a rank-slice of `layers` layers."""

    def close(self, world_size: int) -> None:
        """Stop the gangs of one world size, if they run."""

    def output(self) -> list[tuple[str, str]]:
        """What ranks wrote since last asked: (section title, text)."""

    def problem(self) -> str | None:
        """What is wrong with a run as a whole, of which all perf tests were begun; None if nothing is."""

    def ended(self) -> None:
        """Hear that the run came to its end."""
