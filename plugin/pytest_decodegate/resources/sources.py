"""Sources of replicates, wired to one session: who watches the machine, who is told, and how long a call may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..measure.answers import AnswerSource
    from ..measure.bench import Bench
    from ..measure.gang_source import GangSource
    from ..measure.sampling import Plan
    from ..measure.source import Progress
    from ..measure.sweep import SweepSource
    from ..measure.window import Load
    from ..measure.window_source import WindowSource
    from ..serving.server import Server
    from ..settings.settings import Settings
    from .hardware import Hardware


class Sources:
    """Makes sources. deadline: seconds for the next call on the ranks."""

    def __init__(
        self, hardware: Hardware, progress: Progress, deadline: Callable[[], float], settings: Settings
    ) -> None:
        self._hardware = hardware
        self._progress = progress
        self._deadline = deadline
        self._settings = settings
        self._rehearsed: Server | None = None

    def gangs(
        self, name: str, bench: Bench, workload: Callable[..., Any], params: Mapping[str, Any], plan: Plan
    ) -> GangSource:
        """Replicates of the metric `name` from the gangs of `bench`."""
        from ..measure.gang_source import GangSource

        return GangSource(
            name,
            bench,
            workload,
            dict(params),
            plan=plan,
            watch=self._hardware.watch,
            progress=self._progress,
            deadline=self._deadline,
        )

    def windows(self, name: str, server: Server, load: Load, *, wrong: str | None = None) -> WindowSource:
        """Replicates of the metric `name` from windows on `server`; wrong: how its answers are wrong, or None."""
        from ..measure.window_source import WindowSource

        watch = self._hardware.watch_attached if server.attached else self._hardware.watch
        return WindowSource(
            name,
            server,
            load,
            watch=watch,
            progress=self._progress,
            wrong=wrong,
            warm_up_seconds=self._settings.warm_up_seconds,
        )

    def rehearse(self, name: str, server: Server, load: Load) -> None:
        """A window on a server that was started, the first of its life, which does not count; see ServersInTurn."""
        if server.attached or server is self._rehearsed:
            return

        self._rehearsed = server
        self.windows(name, server, load).take(1)

    def sweep(self, name: str, server: Server, load: Load, *, most: int, wrong: str | None) -> SweepSource:
        """Replicates of the throughput where the plateau of `server` begins, of at most `most` streams."""
        from ..measure.sweep import SweepSource

        def at(load: Load) -> WindowSource:
            return self.windows(name, server, load)

        return SweepSource(
            name,
            server,
            load,
            most=most,
            at=at,
            progress=self._progress,
            wrong=wrong,
            warm_up_seconds=self._settings.warm_up_seconds,
        )

    def answers(self, server: Server) -> AnswerSource:
        """Passes over the prompts that suit `server`: the user's, texts, or token ids."""
        from ..measure.answers import AnswerSource, prompts_for

        return AnswerSource(server, prompts_for(server, self._settings.quality_prompts))
