"""A run as what it said: its outcomes in the order they came, and the one answer to all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .decision import Decision, decide_all
from .result import Ended, Failed, Result, Skipped, Stacks


@dataclass(slots=True)
class Run:
    """A perf run: its outcomes in the order they came, which stacks it compared, and what was skipped and why.

    stacks: None where stored baselines were compared with. unfinished: why it did not come to its end. seconds: how
    long it took, where it came to its end.
    """

    outcomes: list[Result | Failed] = field(default_factory=list)
    stacks: Stacks | None = None
    skipped: list[Skipped] = field(default_factory=list)
    unfinished: str | None = "pytest did not come to its end"
    seconds: float | None = None

    def add(self, outcome: object) -> None:
        """Take what the run says, as it comes; what having ranks cost is no finding."""
        match outcome:
            case Result() | Failed():
                self.outcomes.append(outcome)
            case Skipped():
                self.skipped.append(outcome)
            case Stacks():
                self.stacks = outcome
            case Ended(unfinished, seconds):
                self.unfinished, self.seconds = unfinished, seconds

    @property
    def results(self) -> list[Result]:
        """What came to a verdict."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Result)]

    @property
    def decision(self) -> Decision:
        """The answer."""
        return decide_all(self.outcomes, self.unfinished, self.seconds)
