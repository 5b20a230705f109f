"""A profile of the decode step in the course of a session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..measure.capture import capture
from ..profile import documents, truth
from ..profile.reading import read_profile
from ..profile.step_profile import StepProfile
from ..report import profile as report
from ..workloads.kimi import KIMI_K25

if TYPE_CHECKING:
    from ..measure.source import Progress
    from ..resources.server import ServerUnderTest


@dataclass(frozen=True, slots=True)
class SessionProfile:
    """A profile with its table as text, and what shows that it is not what the model must show."""

    profile: StepProfile
    lines: tuple[str, ...]
    problems: tuple[str, ...]


def profile_server(servers: ServerUnderTest, streams: int, progress: Progress) -> SessionProfile:
    """Profile the decode step of a server with a profiler at `streams` streams. Raises DecodegateError."""
    layers = servers.layers
    server, traces = servers.profiled()
    profile = read_profile(capture(server, traces, streams=streams, on_wait=progress.tick)).profile
    kept = traces / f"profile_of_{streams}.json"
    documents.write(kept, documents.dumps(profile))
    progress.say(f"profile of the decode step: {kept}")
    counts = truth.expected(replace(KIMI_K25, layers=layers), len(profile.ranks)) if layers else None
    unknown = [f"no rule knows {kernel.name!r}: {100 * kernel.share:.1f} %" for kernel in truth.unknown(profile)]
    return SessionProfile(profile, (*report.text(profile), *unknown), tuple(truth.problems(profile, counts)))
