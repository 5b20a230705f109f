"""The answers of the servers of two stacks: asked once of each, before the clock, and compared with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..cause import Finding
from ..gate.evidence import quality
from ..measure.answers import NoLogprobs
from ..measure.paired_source import SIDES, SideName, StackFailed, blamed
from ..metric import DEFAULT_TOLERANCE

if TYPE_CHECKING:
    from ..measure.answers import AnswerSource
    from ..measure.source import Taken
    from ..serving.server import Server

PASSES = 2
"""Over the prompts, on the first server of each stack: with two it is known how far one server agrees with itself."""


class AnswersOfBoth:
    """What the first server of each stack answered. source: of the answers of a server.

    notes: what a reader should know of the comparison.
    """

    def __init__(self, source: Callable[[Server], AnswerSource]) -> None:
        self._source = source
        self._answers: dict[SideName, Taken] = {}
        self._without: dict[SideName, NoLogprobs] = {}
        self._wrong: dict[SideName, str] = {}
        self._failure: StackFailed | None = None
        self.notes: tuple[Finding, ...] = ()

    def ask(self, side: SideName, server: Server) -> None:
        """Ask a server, unless one of its stack was asked before; with the second of both, they are compared.

        Raises StackFailed if a server fails, or if the candidate alone gives no logprobs.
        """
        if self._failure:
            raise self._failure
        if side in self._answers or side in self._without:
            return
        with blamed(side):
            self._note(side, server)
        if self._answers.keys() | self._without.keys() == set(SIDES) and not self.are_wrong:
            self._compare()

    def wrong(self, side: SideName) -> str | None:
        """How the answers of a side are wrong; None while they are not known to be."""
        return self._wrong.get(side)

    @property
    def are_wrong(self) -> bool:
        """Whether nothing is worth timing, since a side answers wrongly."""
        return bool(self._wrong)

    def _note(self, side: SideName, server: Server) -> None:
        try:
            answers = self._source(server).take(PASSES)
        except NoLogprobs as error:
            self._without[side] = error
            return

        self._answers[side] = answers
        if answers.wrong is not None:
            self._wrong[side] = answers.wrong

    def _compare(self) -> None:
        """The candidate is wrong if it answers otherwise than the base, by more than the base differs from itself."""
        if self._without:
            self._note_not_compared()
            return

        base, candidate = (self._answers[side] for side in SIDES)
        exact = candidate.contract.get("batch_invariant") is True
        passes = quality.passes(base.replicates), quality.passes(candidate.replicates)
        found = quality.compare(*passes, tolerance=DEFAULT_TOLERANCE["quality"], exact=exact)
        if found.wrong is not None:
            self._wrong["candidate"] = found.wrong

    def _note_not_compared(self) -> None:
        """What the base cannot do either is no fault of the candidate; what it alone cannot do any more is."""
        if "base" not in self._without:
            self._failure = StackFailed("candidate", self._without["candidate"])
            raise self._failure

        lacking = " and ".join(f"the {side}" for side in SIDES if side in self._without)
        self.notes = (Finding(f"the answers were not compared: {lacking} answers without logprobs"),)
