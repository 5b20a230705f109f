"""The quality canary of a session: a server's answers are judged before its speed, and once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..gate.verdict import Judgement, Verdict, judge
from ..metric import Metric

if TYPE_CHECKING:
    from ..measure.source import Progress
    from ..resources.sources import Sources
    from ..serving.server import Server
    from ..settings.settings import Settings
    from .loaded import ProvenanceReader
    from .recorder import Recorder


class Canary:
    """What the answers of this session's servers are worth beside the baseline's."""

    def __init__(
        self,
        settings: Settings,
        recorder: Recorder,
        sources: Sources,
        provenances: ProvenanceReader,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._sources = sources
        self._provenances = provenances
        self._progress = progress
        self._judged: list[Judgement] = []

    def metric(self, server: Server) -> Metric:
        """The metric that holds a server's answers."""
        metric = Metric.of("quality_cpu" if server.stand_in else "quality", "quality", unit="%")
        return replace(metric, tolerance=self._settings.tolerance(metric.name, metric.tolerance))

    def keep(self, judgement: Judgement) -> None:
        """Remember a judgement of answers, so that they are not asked for again."""
        self._judged.append(judgement)

    def problem(self, server: Server) -> str | None:
        """How a server's answers are wrong; None if they are not, or where no baseline holds any.

        Asks the server unless its answers have been judged.
        """
        judgement = self._known(server) or self._ask(server)
        if judgement is None or judgement.verdict is not Verdict.WRONG_RESULT:
            return None

        return f"its answers are wrong, so its speed is not looked at: {'; '.join(judgement.reasons)}"

    def _known(self, server: Server) -> Judgement | None:
        identity = self.metric(server).name, self._sources.answers(server).contract
        return next((known for known in self._judged if (known.metric.name, known.metric.contract) == identity), None)

    def _ask(self, server: Server) -> Judgement | None:
        metric = self.metric(server)
        selection = self._recorder.select(metric.name, self._provenances.of(server))
        if selection.baseline is None or metric.name not in selection.baseline.metrics:
            return None

        self._progress.tick(f"{metric.name}: asking for greedy answers")
        taken = self._sources.answers(server).take(self._settings.replicates)
        judgement = judge(taken.measurement(metric), selection, wrong=taken.wrong)
        self.keep(judgement)
        return judgement
