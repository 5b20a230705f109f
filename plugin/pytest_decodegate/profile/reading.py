"""Files of any profiler, told apart by their first bytes, as the traces of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, unreadable
from . import nsys_export, torch_trace
from .categories import Rules, built_in
from .ranks import SteadySteps, align
from .step_profile import StepProfile, step_profile
from .trace import RankTrace


@dataclass(frozen=True, slots=True)
class ReadProfile:
    """A profile and the steps that it is the mean of."""

    profile: StepProfile
    steady: SteadySteps


def read_traces(paths: Sequence[Path]) -> list[RankTrace]:
    """The traces in `paths`: files of torch.profiler, one a rank, or one SQLite export of nsys. Raises BadInput."""
    exports = [path for path in paths if begins(path, len(nsys_export.MAGIC)) == nsys_export.MAGIC]
    if not exports:
        return [torch_trace.read(path) for path in paths]
    if len(paths) > 1:
        raise BadInput(f"{exports[0]}: an nsys export holds all ranks of its host; give it alone")

    return nsys_export.read(exports[0])


def read_profile(
    paths: Sequence[Path], rules: Rules | None = None, *, streams: int | None = None, missing_allowed: bool = False
) -> ReadProfile:
    """The mean decode step in `paths`. Arguments and errors: as of ranks.align."""
    rules = rules or built_in()
    traces = read_traces(paths)
    steady = align(traces, rules, streams=streams, missing_allowed=missing_allowed)
    return ReadProfile(step_profile(steady, traces), steady)


def begins(path: Path, count: int) -> bytes:
    """The first `count` bytes of the file `path`; raises BadInput."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise unreadable(path, error) from error
