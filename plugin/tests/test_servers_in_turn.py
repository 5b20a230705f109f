"""Servers of two stacks in turn: the order of starts, what a budget allows, and whose fault a failure is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.errors import ServerError
from pytest_decodegate.gate.evidence import quality
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.measure.answers import NoLogprobs
from pytest_decodegate.measure.paired_source import SideName, StackFailed
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.metric import Json, Level, Metric, Replicate
from pytest_decodegate.reference.servers_in_turn import Budget, Servers, ServersInTurn

TPOT = Metric.of("tpot[c=1]", "serving")
NOTHING = Contrast()
SURE: quality.GreedyAnswer = [{"a": -0.01, "b": -5.0}, {"c": -0.01, "d": -5.0}]
OTHER: quality.GreedyAnswer = [{"b": -0.01, "a": -5.0}, {"c": -0.01, "d": -5.0}]


@dataclass
class Fake:
    """A source of whatever it is given."""

    taken: Taken
    level: Level = "window"

    def take(self, count: int) -> Taken:
        assert len(self.taken.replicates) == count
        return self.taken


class Silent(Fake):
    """Answers of a server that gives no logprobs."""

    def take(self, count: int) -> Taken:
        raise NoLogprobs("the server answers without logprobs")


@dataclass
class Host:
    """Two stacks whose servers take 20 ms a token, times `slower` on the candidate, with a scatter between starts.

    A start and its window take a minute. fails: (side, which start of it) that does not come up.
    """

    slower: float = 1.0
    scatter: float = 0.001
    fails: tuple[str, int] = ("", 0)
    answers: dict[SideName, quality.GreedyAnswer] = field(default_factory=lambda: {"base": SURE, "candidate": SURE})
    broken: list[Finding] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    starts: list[SideName] = field(default_factory=list)
    minutes: int = 0
    without_logprobs: tuple[str, ...] = ()
    length: dict[SideName, int] = field(default_factory=lambda: {"base": 512, "candidate": 512})
    caches: dict[SideName, str] = field(default_factory=dict)

    def start(self, side: SideName) -> Any:
        self.starts.append(side)
        if self.fails == (side, self.starts.count(side)):
            raise ServerError("the server ended while starting")

        return side

    def window(self, server: Any) -> Fake:
        self.minutes += 1
        factor = self.slower if server == "candidate" else 1.0
        value = 0.02 * factor * (1 + self.scatter * (self.minutes % 3))
        contract: dict[str, Json] = {"max_model_len": self.length[server]}
        facts: dict[str, Json] = {}
        if state := self.caches.get(server):
            facts = {"server": {"start_seconds": {"whole": 30.0}, "compile_caches": {"vllm": {"state": state}}}}

        return Fake(Taken("window", (Replicate((value,)),), contract, facts, broken=tuple(self.broken)))

    def questions(self, server: Any) -> Any:
        self.asked.append(server)
        if server in self.without_logprobs:
            return Silent(Taken("window"))

        passes = [quality.to_json([self.answers[server]] * 8) for _ in range(2)]
        return Fake(Taken("window", tuple(Replicate((100.0,), {"answers": one}) for one in passes)))

    def servers(self) -> Servers:
        return Servers(self.start, self.window, self.questions, lambda: 60.0 * self.minutes)

    def judgement(
        self, budget_minutes: float = 1000, contrast: Contrast = NOTHING, servers: Servers | None = None
    ) -> Judgement:
        in_turn = ServersInTurn(servers or self.servers(), TPOT, contrast, Budget(6, 24, 60 * budget_minutes))
        return in_turn.judgement(self.start("candidate"))


def test_servers_start_in_the_order_a_b_b_a_and_each_pair_is_two_fresh_ones() -> None:
    host = Host()
    judgement = host.judgement()
    assert (judgement.verdict, judgement.basis.replicates, judgement.basis.level) == (Verdict.PASS, 6, "server")
    assert host.starts == ["candidate", "base", "base", "candidate"] * 3
    assert judgement.notes[0].startswith("6 pairs of server starts in 12 min; a slowdown of 3.")
    assert judgement.notes[0].endswith("% would have been found")


def test_windows_of_servers_that_are_not_restarted_are_told_as_such() -> None:
    host = Host()
    attached = replace(host.servers(), level="window", notes=(Finding("both servers ran before"),))
    judgement = host.judgement(servers=attached)
    assert (judgement.verdict, judgement.basis.replicates, judgement.basis.level) == (Verdict.PASS, 6, "window")
    assert judgement.notes[0].startswith("6 pairs of windows in 12 min; a slowdown of 3.")
    assert judgement.notes[1:] == ("both servers ran before",)


def test_the_starts_of_both_stacks_are_told_with_their_caches() -> None:
    host = Host(caches={"base": "warm", "candidate": "cold"})
    (note,) = (str(note) for note in host.judgement().notes if "starts of the servers" in note)
    assert note.count("30 s with warm compile caches (vllm)") == note.count("30 s with cold compile caches (vllm)") == 6
    assert note.index("base") < note.index("candidate")


def test_servers_of_another_length_are_another_measurement() -> None:
    judgement = Host(length={"base": 512, "candidate": 4096}).judgement()
    assert judgement.verdict is Verdict.CONFOUNDED
    assert "max_model_len: 512 -> 4096" in judgement.reasons[0]


@pytest.mark.parametrize(("slower", "verdict"), [(1.05, Verdict.REGRESSED), (0.9, Verdict.IMPROVED)])
def test_a_server_that_differs_is_found(slower: float, verdict: Verdict) -> None:
    assert Host(slower=slower).judgement().verdict is verdict


@pytest.mark.parametrize(("minutes", "pairs"), [(0.1, 2), (9, 4), (1000, 24)])
def test_the_budget_decides_how_often_an_open_verdict_is_measured(minutes: float, pairs: int) -> None:
    judgement = Host(scatter=0.2).judgement(minutes)
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.INCONCLUSIVE, pairs)


def test_each_stack_is_asked_once_and_before_it_is_timed() -> None:
    host = Host()
    host.judgement()
    assert host.asked == ["candidate", "base"]


def test_a_candidate_that_answers_otherwise_is_wrong_however_fast() -> None:
    host = Host(slower=0.5, answers={"base": SURE, "candidate": OTHER})
    judgement = host.judgement()
    assert judgement.verdict is Verdict.WRONG_RESULT
    assert "candidate: " in judgement.reasons[0]
    assert host.starts == ["candidate", "base"]


def test_a_broken_window_ends_it_and_so_does_a_stack_that_was_not_used() -> None:
    broken = Host(broken=[Finding("tokens are missing", Cause.WINDOW)])
    assert broken.judgement().verdict is Verdict.INVALID
    assert len(broken.starts) == 2
    unused = Host()
    assert unused.judgement(contrast=Contrast(unused=("not used",))).reasons == ("not used",)
    assert len(unused.starts) == 1


@pytest.mark.parametrize(("fails", "kept"), [(("candidate", 2), 2), (("base", 2), 1), (("base", 1), 0)])
def test_a_server_that_does_not_start_names_its_stack_and_keeps_what_the_base_gave(
    fails: tuple[str, int], kept: int
) -> None:
    with pytest.raises(StackFailed) as raised:
        Host(fails=fails).judgement()

    assert raised.value.side == fails[0]
    assert len(raised.value.base) == kept


@pytest.mark.parametrize(
    ("without", "who"), [(("base", "candidate"), "the base and the candidate"), (("base",), "the base")]
)
def test_answers_that_the_base_cannot_judge_either_are_a_note(without: tuple[str, ...], who: str) -> None:
    judgement = Host(without_logprobs=without).judgement()
    assert judgement.verdict is Verdict.PASS
    assert f"the answers were not compared: {who} answers without logprobs" in judgement.notes


def test_a_candidate_that_alone_lost_its_logprobs_is_blamed() -> None:
    with pytest.raises(StackFailed, match="the candidate failed: NoLogprobs") as raised:
        Host(without_logprobs=("candidate",)).judgement()

    assert raised.value.side == "candidate"


def test_servers_that_drift_apart_are_no_level() -> None:
    host = Host()
    attached = replace(host.servers(), level="window", window=lambda server: drifting(host, server))
    judgement = host.judgement(servers=attached)
    assert judgement.verdict is Verdict.INVALID
    assert any("the two servers drifted apart by" in reason for reason in judgement.reasons)


def drifting(host: Host, server: Any) -> Fake:
    """A window whose candidate takes 2 % longer each time."""
    host.minutes += 1
    value = 0.02 * (1.02**host.minutes if server == "candidate" else 1.0)
    return Fake(Taken("window", (Replicate((value,)),)))
