"""The quality canary of a session: a server's answers are judged before its speed, and once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..gate.verdict import Judgement, Verdict, judge
from ..metric import Measurement, Metric

if TYPE_CHECKING:
    from ..measure.answers import AnswerSource
    from ..serving.server import Server
    from ..session.session import Suite


class Answers:
    """What the answers of this session's servers are worth beside the baseline's."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._asked: list[Judgement] = []

    def metric(self, server: Server) -> Metric:
        """The metric that holds a server's answers."""
        metric = Metric.of("quality_cpu" if server.stand_in else "quality", "quality", unit="%")
        return replace(metric, tolerance=self._suite.settings.tolerance(metric.name, metric.tolerance))

    def source(self, server: Server) -> AnswerSource:
        """Passes over the prompts that suit the server: the user's, texts, or token ids."""
        from ..measure.answers import AnswerSource, prompts_for

        return AnswerSource(server, prompts_for(server, self._suite.settings.quality_prompts))

    def problem(self, server: Server) -> str | None:
        """How a server's answers are wrong; None if they are not, or where no baseline holds any.

        Asks the server unless its quality test, or an earlier call, has judged it.
        """
        metric, source = self.metric(server), self.source(server)
        known = [*self._asked, *(result.judgement for result in self._suite.results)]
        mine = (one for one in known if (one.metric.name, one.metric.contract) == (metric.name, source.contract))
        judgement = next(mine, None) or self._ask(server, metric, source)
        if judgement is None or judgement.verdict is not Verdict.WRONG_RESULT:
            return None

        return f"its answers are wrong, so its speed is not looked at: {'; '.join(judgement.reasons)}"

    def _ask(self, server: Server, metric: Metric, source: AnswerSource) -> Judgement | None:
        suite = self._suite
        selection = suite.recorder.select(metric.name, suite.provenance_of(server))
        if selection.baseline is None or metric.name not in selection.baseline.metrics:
            return None

        suite.progress.tick(f"{metric.name}: asking for greedy answers")
        replicates = tuple(source.take(suite.settings.replicates))
        measurement = Measurement(replace(metric, contract=source.contract), replicates, source.level)
        judgement = judge(measurement, selection, wrong=source.wrong)
        self._asked.append(judgement)
        return judgement
