"""The shipped sessions of each host gated against those of other hosts, as if that host had not recorded.

python plugin/benchmarks/replay_sessions.py; exit code 1 if a promise is missed.

Nothing is simulated: what was measured on the cards of one host is a run, what other hosts recorded is its baseline,
and the gate judges it with its own functions, the kernels' common shift and the steps included. Nothing changed between
the hosts, so metrics are to pass and none to regress. Then each metric is made slower, one at a time: that run is to be
NO-GO, and to name this metric and no other that was measured. The noise that ships was derived from these sessions too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Final

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Baseline, StoredMetric
from pytest_decodegate.baseline.selection import Selection
from pytest_decodegate.gate.bands import LOOKS
from pytest_decodegate.gate.decision import Answer, Decision, decide_all, is_together
from pytest_decodegate.gate.materiality import weighed
from pytest_decodegate.gate.own_cards import cards_of_sessions
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.text.quantity import format_band, format_percent
from pytest_decodegate.gate.verdict import Judgement, Verdict, judge
from pytest_decodegate.machine.cards import cards_of
from pytest_decodegate.metric import Measurement, Replicate
from pytest_decodegate.profile.ledger import Time, parts
from pytest_decodegate.profile.step_weights import step_weights
from pytest_decodegate.profile.whole_steps import TOKENS, step_name, step_of
from pytest_decodegate.session.run_level import run_level

BASELINES: Final = Path(__file__).parents[2] / "baselines"

LEAST_PASS: Final = 0.98
"""Share of the metrics that are to PASS on hosts that did not record."""

SLOWER_BY: Final = 1.5
"""Times its band in force, of the one metric that is made slower."""

LEAST_FOUND: Final = 0.95
"""Share of these runs that are to be NO-GO for that metric alone."""

Cards = frozenset[str]


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric as one host measured it, and what other hosts stored of it."""

    measurement: Measurement
    selection: Selection

    def judged(self, slower: float = 0.0) -> Judgement:
        """The judgement where all of its processes take longer by this fraction."""
        replicates = tuple(
            Replicate.known(each.samples, each.facts, each.value * (1 + slower)) for each in self.measurement.replicates
        )
        return judge(replace(self.measurement, replicates=replicates), self.selection, looks=LOOKS)


@dataclass(frozen=True, slots=True)
class Replay:
    """What the gate says of the sessions of one host, beside those of some others.

    measured: what can be judged. metrics: judgements of that. together: of what these say together.
    """

    host: Cards
    others: int
    measured: tuple[Measured, ...]
    metrics: tuple[Judgement, ...]
    together: tuple[Judgement, ...]
    decision: Decision

    def finds(self, index: int) -> bool:
        """Whether one metric that is slower by SLOWER_BY is what the run is NO-GO for, and it alone."""
        slower = self.measured[index].judged(SLOWER_BY * self.metrics[index].metric.tolerance)
        _, _, decision = _answered([*self.metrics[:index], slower, *self.metrics[index + 1 :]])
        blamed = {name for ground in decision.grounds if ground.blocks for name in ground.names}
        named = {name for name in blamed if not is_together(name)}
        return decision.answer is Answer.NO_GO and named == {slower.name}

    def __str__(self) -> str:
        passed = sum(each.verdict is Verdict.PASS for each in self.metrics)
        wider = sum(each.other_cards is not None and each.other_cards.is_wider for each in self.metrics)
        joint = "; ".join(map(_said, self.together))
        return (
            f"{min(self.host)[:12]} beside {self.others}: {self.decision.answer}, {passed} of {len(self.metrics)} "
            f"PASS, {wider} in wider bands; {joint}"
        )


def replays(baselines: Path = BASELINES) -> Iterator[Replay]:
    """Each host beside each choice of the others: one of them, and all."""
    files = [load(path) for path in sorted(baselines.glob("*/*.json"))]
    known = hosts(files)
    for host in sorted(known, key=min):
        others = [other for other in known if other is not host]
        for count in sorted({1, len(others)}):
            for chosen in combinations(others, count):
                if found := replay(files, host, chosen):
                    yield found


def hosts(files: Iterable[Baseline]) -> list[Cards]:
    """The cards of each host that recorded what others did, too: what one session ran on is in one host."""
    found: list[Cards] = []
    for stored in (stored for file in files for stored in file.metrics.values()):
        known = cards_of_sessions(stored) - {frozenset()}
        for cards in known if len(known) > 1 else ():
            near = [host for host in found if host & cards]
            found = [host for host in found if host not in near] + [cards.union(*near)]

    return found


def replay(files: Sequence[Baseline], host: Cards, others: Sequence[Cards]) -> Replay | None:
    """The sessions of `host` as a run beside those of `others`; None where they have no metric in common."""
    measured = [each for file in files for each in _measured(file, host, others)]
    judged = [(each, judgement) for each in measured if (judgement := each.judged()).verdict.judged]
    if not judged:
        return None

    answered = _answered([judgement for _, judgement in judged])
    return Replay(host, len(others), tuple(each for each, _ in judged), *answered)


def _answered(judged: Sequence[Judgement]) -> tuple[tuple[Judgement, ...], tuple[Judgement, ...], Decision]:
    """The judgements weighed by what they mean for the step, those of what they say together, and the answer to all."""
    weights = step_weights({each.name: Time(each.numbers.measured or 0.0) for each in judged}, 1)
    results = [Result("replay", weighed(each, weights)) for each in judged]
    together = [each for each in run_level(results, lambda _, band: band) if isinstance(each, Result)]
    together += [Result("replay", step) for step in _steps({each.name: each.judgement for each in results})]
    metrics, joint = (tuple(each.judgement for each in some) for some in (results, together))
    return metrics, joint, decide_all([*results, *together])


def _steps(judged: Mapping[str, Judgement]) -> Iterator[Judgement]:
    """The steps of one rank, as far as their parts were recorded on several hosts."""
    for tokens in TOKENS:
        known = [part for part in parts(1, tokens) if part.metric in judged]
        if known:
            yield step_of(step_name(1, tokens), known, judged)


def _measured(file: Baseline, host: Cards, others: Sequence[Cards]) -> Iterator[Measured]:
    elsewhere = frozenset[str]().union(*others)
    base = {name: kept for name, stored in file.metrics.items() if (kept := _on(stored, elsewhere))}
    for name in base:
        if (here := _on(file.metrics[name], host)) is not None:
            session = here.current[-1]
            cards = cards_of(session.telemetry)
            yield Measured(
                Measurement(here.metric, session.replicates, session.level, session.telemetry),
                Selection(file.path.parent, replace(file, metrics=base), cards=cards),
            )


def _on(stored: StoredMetric, cards: Cards) -> StoredMetric | None:
    """`stored` with what ran on some of `cards`; None without a session."""
    sessions = tuple(each for each in stored.current if cards_of(each.telemetry) & cards)
    return replace(stored, sessions=sessions, accepted=None) if sessions else None


def _said(judgement: Judgement) -> str:
    numbers = judgement.numbers
    ends = ", ".join(format_percent(end) for end in (numbers.change, numbers.lo, numbers.hi) if end is not None)
    return f"{judgement.name} {judgement.verdict} {ends} in {format_band(judgement.metric.tolerance)}"


def main() -> int:
    """See the module's docstring."""
    found = list(replays())
    for each in found:
        print(each)
        for judgement in each.metrics:
            if judgement.verdict is not Verdict.PASS:
                print(f"  {_said(judgement)}")

    metrics = [judgement for each in found for judgement in (*each.metrics, *each.together)]
    passed = sum(judgement.verdict is Verdict.PASS for judgement in metrics) / len(metrics)
    regressed = sum(judgement.verdict is Verdict.REGRESSED for judgement in metrics)
    print(f"PASS {100 * passed:.1f} % of {len(metrics)}, {regressed} REGRESSED; targets: {100 * LEAST_PASS:g} %, none")
    runs = [each.finds(index) for each in found for index in range(len(each.metrics))]
    share = sum(runs) / len(runs)
    print(
        f"one metric slower by {SLOWER_BY} bands: NO-GO naming it alone in {100 * share:.1f} % of {len(runs)} runs; "
        f"target {100 * LEAST_FOUND:g} %"
    )
    return int(passed < LEAST_PASS or regressed > 0 or share < LEAST_FOUND)


if __name__ == "__main__":
    sys.exit(main())
