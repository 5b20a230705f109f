"""Servers of two stacks: the order of starts, what one serves, what a budget allows, and whose fault a failure is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.errors import ServerError, ServerHung
from pytest_decodegate.gate.evidence import quality
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.text.advice import advice
from pytest_decodegate.gate.verdict import Judgement, Verdict
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.measure.answers import NoLogprobs
from pytest_decodegate.measure.paired_source import SIDES, SideName, StackFailed
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.measure.window import Load
from pytest_decodegate.metric import Json, Level, Metric, Replicate
from pytest_decodegate.reference.protocol import Interrupted
from pytest_decodegate.reference.servers_in_turn import EARLY_PAIRS, LEAST_PAIRS, Budget, Servers, ServersInTurn

ONE, EIGHT = (Metric.of(f"tpot[c={streams}]", "serving") for streams in (1, 8))
LOADS = {metric.name: Load(streams, 4, 4, 8) for metric, streams in ((ONE, 1), (EIGHT, 8))}
ALONE = {ONE.name: LOADS[ONE.name]}
NOTHING = Contrast()
MODEL = "a slice of 42 layers"
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


class Failing(Fake):
    """A source that raises."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(Taken("window"))
        self.error = error

    def take(self, count: int) -> Taken:
        raise self.error


@dataclass(frozen=True)
class Running:
    """A server: its side, and on which cards it runs."""

    side: SideName
    cards: str = "all"
    start_seconds: float = 60.0
    compiled: bool = False
    given_facts: Mapping[str, Json] = field(default_factory=lambda: {"model": MODEL})


@dataclass
class Host:
    """Two stacks whose servers take 20 ms a token, times `slower` on the candidate, with a scatter between windows.

    A window takes a minute; the first on a server, where it `rehearses`, no time, and 30 ms a token. fails: (side,
    which start of it) that does not come up. fails_at: metrics whose windows fail, and with what. order: windows and
    rehearsals. second_card: how much slower that is.
    """

    slower: float = 1.0
    scatter: float = 0.001
    fails: tuple[str, int] = ("", 0)
    answers: dict[SideName, quality.GreedyAnswer] = field(default_factory=lambda: {"base": SURE, "candidate": SURE})
    broken: list[Finding] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    starts: list[SideName] = field(default_factory=list)
    windows: list[tuple[str, str]] = field(default_factory=list)
    without_logprobs: tuple[str, ...] = ()
    length: dict[SideName, int] = field(default_factory=lambda: {"base": 512, "candidate": 512})
    caches: dict[SideName, str] = field(default_factory=dict)
    fails_at: dict[str, ServerError] = field(default_factory=dict)
    second_card: float = 1.0
    gone: set[int] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    first: int = LEAST_PAIRS
    windows_of: dict[str, list[float]] = field(default_factory=dict)
    backends: dict[SideName, str] = field(default_factory=dict)
    compiles_first: bool = False
    most: int = 24
    start_minutes: float = 0.0
    stopped_at: int = 0
    rehearses: bool = True
    rehearsed: list[Any] = field(default_factory=list)
    order: list[tuple[str, str]] = field(default_factory=list)

    def start(self, side: SideName) -> Any:
        self.starts.append(side)
        if self.fails == (side, self.starts.count(side)):
            raise ServerError("the server ended while starting")

        return Running(side, compiled=self.compiles_first and self.starts.count(side) == 1)

    def both(self, swapped: bool) -> Mapping[SideName, Any]:
        self.starts += SIDES
        cards = ("1", "0") if swapped else ("0", "1")
        return {side: Running(side, card) for side, card in zip(SIDES, cards, strict=True)}

    @property
    def minutes(self) -> int:
        return len(self.windows)

    def window(self, name: str, server: Any, load: Load) -> Fake:
        assert load == LOADS[name]
        if error := self.fails_at.get(name):
            return Failing(error)

        if self.rehearses and not any(server is known for known in self.rehearsed):
            self.rehearsed.append(server)
            self.order.append((server.side, "rehearsal"))
            return Fake(Taken("window", (Replicate((0.03,)),), broken=tuple(self.broken)))

        self.order.append((server.side, name))
        self.windows.append((server.side, name))
        if len(self.windows) == self.stopped_at:
            raise KeyboardInterrupt

        factor = self.slower if server.side == "candidate" else 1.0
        factor *= self.second_card if server.cards == "1" else 1.0
        if server.side == "candidate" and (levels := self.windows_of.get(name)):
            factor *= levels.pop(0)
        value = 0.02 * factor * (1 + self.scatter * (self.minutes % 3))
        contract: dict[str, Json] = {"max_model_len": self.length[server.side], "model": MODEL}
        if backend := self.backends.get(server.side):
            contract["backend"] = backend

        facts: dict[str, Json] = {}
        if state := self.caches.get(server.side):
            facts = {"server": {"start_seconds": {"whole": 30.0}, "compile_caches": {"vllm": {"state": state}}}}

        return Fake(Taken("window", (Replicate((value,)),), contract, facts, broken=tuple(self.broken)))

    def questions(self, server: Any) -> Any:
        self.asked.append(server.side)
        if server.side in self.without_logprobs:
            return Failing(NoLogprobs("the server answers without logprobs"))

        passes = [quality.to_json([self.answers[server.side]] * 8) for _ in range(2)]
        return Fake(Taken("window", tuple(Replicate((100.0,), {"answers": one}) for one in passes)))

    def why_gone(self, server: Any) -> ServerError | None:
        return ServerError("the server ended between two metrics") if id(server) in self.gone else None

    def servers(self) -> Servers:
        return Servers(self.start, self.window, self.questions, self.why_gone, clock=self.clock)

    def clock(self) -> float:
        return 60.0 * (self.minutes + self.start_minutes * len(self.starts))

    def in_turn(
        self,
        loads: Mapping[str, Load] = ALONE,
        budget_minutes: float = 1000,
        contrast: Contrast = NOTHING,
        servers: Servers | None = None,
    ) -> ServersInTurn:
        budget = Budget(self.first, self.most, 60 * budget_minutes)
        return ServersInTurn(servers or self.servers(), contrast, budget, loads, self.said.append)

    def judgement(self, **how: Any) -> Judgement:
        in_turn = self.in_turn(**how)
        in_turn.candidate()
        return in_turn.judgement(ONE, LOADS[ONE.name])


def test_servers_start_in_the_order_a_b_b_a_and_each_pair_is_two_fresh_ones() -> None:
    host = Host()
    judgement = host.judgement()
    assert (judgement.verdict, judgement.basis.replicates, judgement.basis.level) == (Verdict.PASS, 3, "server")
    assert host.starts == ["candidate", "base", "base", "candidate", "candidate", "base"]
    assert judgement.notes[0].startswith("3 pairs of server starts in 6 min; a slowdown of 4.")
    assert judgement.notes[0].endswith("% would have been found")


def test_one_start_serves_all_metrics_of_the_run() -> None:
    host = Host(scatter=0.0001)
    in_turn = host.in_turn(LOADS)
    in_turn.candidate()
    first = in_turn.judgement(ONE, LOADS[ONE.name])
    taken = len(host.windows)
    second = in_turn.judgement(EIGHT, LOADS[EIGHT.name])
    assert (first.verdict, second.verdict) == (Verdict.PASS, Verdict.PASS)
    assert (len(host.starts), len(host.windows), taken) == (6, 12, 12), "not one start for the second metric"
    assert host.windows[:4] == [(side, name) for side in ("candidate", "base") for name in LOADS]
    assert host.asked == ["candidate", "base"]
    assert second.notes[0].startswith("3 pairs of server starts that earlier metrics were measured on")
    assert in_turn.candidate() is in_turn.candidate()
    assert len(host.starts) == 6, "asking for the candidate starts none once there was one"


@pytest.mark.parametrize("beside", [False, True])
def test_the_first_window_after_a_start_does_not_count(beside: bool) -> None:
    host = Host(scatter=0.0)
    servers = replace(host.servers(), both=host.both if beside else None)
    judgement = host.judgement(loads=LOADS, servers=servers)
    assert judgement.verdict is Verdict.PASS
    assert judgement.numbers.measured == pytest.approx(0.02)
    assert len(host.rehearsed) == len(host.starts) == 6
    assert "candidate: tpot[c=1] 30.0 ms in a first window, which does not count" in host.said
    both = [("candidate", "rehearsal"), ("base", "rehearsal")]
    alone = [("candidate", "rehearsal"), *(("candidate", name) for name in LOADS), ("base", "rehearsal")]
    assert host.order[: len(alone)] == alone if not beside else host.order[:2] == both


@pytest.mark.parametrize(("slower", "said"), [(1.12, "12.0 % slower"), (0.9, "10.0 % faster"), (1.001, "")])
def test_who_was_measured_first_is_told_where_that_is_what_scatters(slower: float, said: str) -> None:
    host = Host(scatter=0.0001, most=6)

    def window(name: str, server: Any, load: Load) -> Fake:
        before = len(host.windows)
        given = host.window(name, server, load)
        if len(host.windows) == before or before % 2:
            return given  # a rehearsal, or the second of its pair

        (replicate,) = given.taken.replicates
        return Fake(replace(given.taken, replicates=(Replicate((replicate.value * slower,)),)))

    judgement = host.judgement(servers=replace(host.servers(), window=window, both=host.both))
    told = (
        f"whichever side was measured first in a pair was {said}: that part of the scatter is no matter of the stacks"
    )
    assert [note for note in judgement.notes if "measured first" in note] == ([told] if said else [])
    assert judgement.verdict is (Verdict.INCONCLUSIVE if said else Verdict.PASS)


def test_servers_that_ran_before_need_no_rehearsal() -> None:
    host = Host(first=6, rehearses=False)
    host.judgement(servers=replace(host.servers(), level="window"))
    assert len(host.windows) == 12


def test_a_metric_that_is_open_goes_on_alone() -> None:
    host = Host(scatter=0.05)
    in_turn = host.in_turn(LOADS, budget_minutes=26)
    first = in_turn.judgement(ONE, LOADS[ONE.name])
    assert first.basis.replicates > LEAST_PAIRS
    host.scatter = 0.0
    alone = len(host.windows)
    in_turn.judgement(EIGHT, LOADS[EIGHT.name])
    assert {name for _, name in host.windows[alone:]} <= {EIGHT.name}


def test_a_metric_that_no_test_declared_has_pairs_of_its_own() -> None:
    host = Host()
    in_turn = host.in_turn(ALONE)
    in_turn.judgement(ONE, LOADS[ONE.name])
    assert in_turn.judgement(EIGHT, LOADS[EIGHT.name]).basis.replicates == 3
    assert len(host.starts) == 12


def test_servers_beside_each_other_start_together_and_change_cards_with_every_pair() -> None:
    """The second card is 4 % slower: in one order that would be the candidate, and a NO-GO."""
    host = Host(second_card=1.04, scatter=0.0001)
    judgement = host.judgement(loads=LOADS, servers=replace(host.servers(), both=host.both))
    assert judgement.verdict is not Verdict.REGRESSED
    assert judgement.basis.replicates > LEAST_PAIRS
    assert host.starts == [*SIDES] * judgement.basis.replicates
    assert host.windows[:8] == [
        *[("candidate", ONE.name), ("base", ONE.name), ("base", EIGHT.name), ("candidate", EIGHT.name)],
        *[("base", ONE.name), ("candidate", ONE.name), ("candidate", EIGHT.name), ("base", EIGHT.name)],
    ]
    plan, *_ = host.said
    assert plan.startswith("at least 3 pairs = 3 starts of two servers beside each other of about 1.0 min: 3 min and ")


def test_a_slower_server_beside_the_other_is_found() -> None:
    host = Host(slower=1.05, second_card=1.002)
    judgement = host.judgement(servers=replace(host.servers(), both=host.both))
    assert judgement.verdict is Verdict.REGRESSED
    assert judgement.numbers.change == pytest.approx(0.05, abs=0.01)


def test_windows_of_servers_that_are_not_restarted_are_told_as_such() -> None:
    host = Host(first=6, rehearses=False)
    attached = replace(host.servers(), level="window", notes=(Finding("both servers ran before"),))
    judgement = host.judgement(servers=attached)
    assert (judgement.verdict, judgement.basis.replicates, judgement.basis.level) == (Verdict.PASS, 6, "window")
    assert judgement.notes[0].startswith("6 pairs of windows in 12 min; a slowdown of 3.")
    assert judgement.notes[1:] == (f"served: {MODEL}", "both servers ran before")


def test_what_is_going_to_be_done_is_said_first() -> None:
    host = Host()
    host.in_turn(LOADS, budget_minutes=30).candidate()
    plan, served = host.said
    assert served == f"served: {MODEL}"
    assert plan.startswith(
        "at least 3 pairs = 6 starts of about 1.0 min: 6 min and their windows, of 30 (--perf-budget)"
    )
    assert "by the noise of other hosts these show +" in plan


def test_the_starts_of_both_stacks_are_told_with_their_caches() -> None:
    host = Host(caches={"base": "warm", "candidate": "cold"})
    (note,) = (str(note) for note in host.judgement(loads=LOADS).notes if "starts of the servers" in note)
    assert note.count("30 s with warm compile caches (vllm)") == note.count("30 s with cold compile caches (vllm)") == 3
    assert note.index("base") < note.index("candidate")


def test_servers_of_another_length_are_another_measurement() -> None:
    judgement = Host(length={"base": 512, "candidate": 4096}).judgement()
    assert judgement.verdict is Verdict.CONFOUNDED
    assert "max_model_len: 512 -> 4096" in judgement.reasons[0]


@pytest.mark.parametrize(("slower", "verdict"), [(1.05, Verdict.REGRESSED), (0.9, Verdict.IMPROVED)])
def test_a_server_that_differs_is_found(slower: float, verdict: Verdict) -> None:
    assert Host(slower=slower).judgement().verdict is verdict


def test_every_pair_is_said_as_soon_as_it_is_whole() -> None:
    host = Host(slower=1.05, scatter=0.0)
    host.judgement(loads=LOADS)
    pairs = [text for text in host.said if text.startswith("pair ")]
    assert pairs[0] == (
        "pair 1, base and candidate: tpot[c=1] 20.0 ms and 21.0 ms (+5.0 %), tpot[c=8] 20.0 ms and 21.0 ms (+5.0 %)"
    )
    assert [text.partition(",")[0] for text in pairs] == ["pair 1", "pair 2", "pair 3"]


def test_a_run_that_is_stopped_says_what_its_whole_pairs_say_and_proves_nothing() -> None:
    """Windows: one of each side for each of two metrics; the third pair is begun."""
    host = Host(slower=1.05, stopped_at=10)
    with pytest.raises(Interrupted) as stopped:
        host.judgement(loads=LOADS)

    judged = stopped.value.judged
    assert judged.judgement.verdict is Verdict.INCONCLUSIVE
    assert judged.judgement.reasons == ("the run was stopped after 2 pairs",)
    assert judged.judgement.notes[0].startswith("2 pairs of server starts in ")
    assert judged.judgement.numbers.change == pytest.approx(0.05, abs=0.01)
    assert len(judged.replicates) == len(judged.base) == 2


def test_of_one_pair_the_change_is_said_and_nothing_is_proven() -> None:
    host = Host(slower=1.05, stopped_at=6, scatter=0.0)
    with pytest.raises(Interrupted) as stopped:
        host.judgement(loads=LOADS)

    judgement = stopped.value.judged.judgement
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons == (
        "the run was stopped after 1 pair",
        "1 pair measured, 3 are the least that prove anything",
    )
    assert judgement.numbers.change == pytest.approx(0.05)
    (pair,) = (text for text in host.said if text.startswith("pair "))
    assert pair.startswith("pair 1, base and candidate: tpot[c=1] 20.0 ms and 21.0 ms (+5.0 %), tpot[c=8] ")


def test_what_is_whole_of_a_pair_that_is_stopped_is_said_too() -> None:
    host = Host(stopped_at=4, scatter=0.0)
    with pytest.raises(Interrupted):
        host.judgement(loads=LOADS)

    assert host.said[-1] == "pair 1, base and candidate: tpot[c=1] 20.0 ms and 20.0 ms (+0.00 %)"


def test_a_run_that_is_stopped_before_a_pair_is_whole_has_nothing_to_say() -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        Host(stopped_at=3).judgement(loads=LOADS)

    assert not isinstance(stopped.value, Interrupted)


def test_a_start_that_had_to_compile_is_no_price_of_the_next() -> None:
    """Both of the first pair take ten minutes, and are taken to take five then; windows cost what they cost."""
    host = Host(compiles_first=True, start_minutes=10)
    assert host.judgement(budget_minutes=34).basis.replicates == 2
    assert Host(compiles_first=True, start_minutes=10).judgement(budget_minutes=33).basis.replicates == 1
    assert Host(start_minutes=10).judgement(budget_minutes=43).basis.replicates == 1
    plan, *_ = host.said
    assert plan.startswith(
        "at least 3 pairs = 6 starts of about 0.5 min, twice as long for the first, which compiles: 4 min "
    )


@pytest.mark.parametrize(("minutes", "pairs"), [(5, 2), (9, 4), (1000, 24)])
def test_the_budget_decides_how_often_an_open_verdict_is_measured(minutes: float, pairs: int) -> None:
    judgement = Host(scatter=0.2).judgement(budget_minutes=minutes)
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.INCONCLUSIVE, pairs)


@pytest.mark.parametrize(("minutes", "pairs"), [(3, 1), (5, 2)])
@pytest.mark.parametrize("unit", ["s", "tok/s"])
def test_a_budget_that_is_spent_before_three_pairs_proves_nothing_and_says_what_was_seen(
    minutes: float, pairs: int, unit: str
) -> None:
    """Pairs take two minutes each, so three take six: a tenth more is asked for."""
    host = Host(scatter=0.0001)
    metric = replace(ONE, unit=unit)
    judgement = host.in_turn(budget_minutes=minutes).judgement(metric, LOADS[ONE.name])
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.INCONCLUSIVE, pairs)
    (few,) = judgement.reasons
    assert few == f"{pairs} pair{'s' * (pairs > 1)} measured, 3 are the least that prove anything"
    assert judgement.numbers.measured == pytest.approx(0.02, rel=0.01)
    assert judgement.numbers.base == pytest.approx(0.02, rel=0.01)
    assert judgement.numbers.change == pytest.approx(0, abs=0.01)
    assert judgement.settlement is not None
    assert judgement.settlement.seconds == pytest.approx(360)
    assert "3 pairs would have settled it: --perf-budget 7m" in advice(judgement)[0]
    if pairs == 1:
        assert judgement.settlement.tolerance is None
        assert len(advice(judgement)) == 1, "without an interval no band is known that would have passed"


def test_what_differs_undeclared_is_said_after_one_pair_too() -> None:
    """More time would end in the same."""
    judgement = Host(length={"base": 512, "candidate": 4096}).judgement(budget_minutes=3)
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.CONFOUNDED, 1)


def test_what_ran_instead_is_named_after_one_pair_too() -> None:
    """As --enforce-eager, whose pair took three minutes."""
    host = Host(slower=17.0, backends={"base": "graph FULL", "candidate": "graph NONE"})
    flag = Difference("flag:enforce-eager", None, True, declarable=True)
    judgement = host.judgement(budget_minutes=3, contrast=Contrast((flag,)))
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.INCONCLUSIVE, 1)
    assert judgement.numbers.change == pytest.approx(16.0, rel=0.01)
    assert any("graph FULL -> graph NONE" in note for note in judgement.notes)


def test_a_rule_that_one_pair_broke_is_no_matter_of_time() -> None:
    judgement = Host(broken=[Finding("tokens are missing", Cause.WINDOW)]).judgement(budget_minutes=3)
    assert judgement.verdict is Verdict.INVALID
    assert judgement.settlement is None


def test_more_pairs_are_asked_for_by_what_ended_them() -> None:
    by_time = Host(scatter=0.06).judgement(budget_minutes=9)
    assert by_time.settlement is not None
    assert "--perf-budget" in advice(by_time)[0]
    by_number = Host(scatter=0.06, most=4).judgement(budget_minutes=1000)
    assert by_number.settlement is not None
    assert by_number.settlement.seconds is None
    assert "--perf-max-replicates" in advice(by_number)[0]


def test_a_slowdown_that_two_pairs_show_stands() -> None:
    judgement = Host(scatter=0.0, slower=1.05).judgement(budget_minutes=5)
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.REGRESSED, 2)


@pytest.mark.parametrize(("slower", "pairs"), [(1.05, 3), (1.1, 3), (1.25, 2), (17.0, 2)])
def test_a_slowdown_beyond_doubt_needs_no_third_pair(slower: float, pairs: int) -> None:
    host = Host(scatter=0.0, slower=slower)
    in_turn = host.in_turn(LOADS)
    judgements = [in_turn.judgement(metric, LOADS[metric.name]) for metric in (ONE, EIGHT)]
    assert {judgement.verdict for judgement in judgements} == {Verdict.REGRESSED}
    assert [judgement.basis.replicates for judgement in judgements] == [pairs, pairs]
    assert len(host.starts) == 2 * pairs


def test_windows_cost_little_and_a_gain_is_never_beyond_doubt() -> None:
    faster = Host(scatter=0.0, slower=1 / 17).judgement()
    assert (faster.verdict, faster.basis.replicates) == (Verdict.IMPROVED, 3)
    host = Host(scatter=0.0, slower=17.0, first=6, rehearses=False)
    windows = host.judgement(servers=replace(host.servers(), level="window"))
    assert windows.basis.replicates == 6


def test_among_many_metrics_a_slowdown_must_be_larger_to_be_beyond_doubt() -> None:
    host = Host(scatter=0.0, slower=1.25)
    budget = Budget(LEAST_PAIRS, 24, 60_000, metrics=100)
    in_turn = ServersInTurn(host.servers(), NOTHING, budget, ALONE, host.said.append)
    assert in_turn.judgement(ONE, LOADS[ONE.name]).basis.replicates > EARLY_PAIRS


def test_each_stack_is_asked_once_and_before_it_is_timed() -> None:
    host = Host()
    host.judgement()
    assert host.asked == ["candidate", "base"]


def test_a_candidate_that_answers_otherwise_is_wrong_however_fast_in_all_metrics() -> None:
    host = Host(slower=0.5, answers={"base": SURE, "candidate": OTHER})
    in_turn = host.in_turn(LOADS)
    for metric in (ONE, EIGHT):
        judgement = in_turn.judgement(metric, LOADS[metric.name])
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
    host = Host(fails=fails)
    in_turn = host.in_turn()
    with pytest.raises(StackFailed) as raised:
        in_turn.judgement(ONE, LOADS[ONE.name])

    assert raised.value.side == fails[0]
    assert len(raised.value.base) == kept
    started = len(host.starts)
    with pytest.raises(StackFailed, match="ended while starting"):
        in_turn.judgement(EIGHT, LOADS[EIGHT.name])

    assert len(host.starts) == started, "each try would cost minutes"


def test_a_metric_whose_windows_fail_is_no_other_metrics_failure() -> None:
    host = Host(fails_at={EIGHT.name: ServerError("HTTP 500")})
    in_turn = host.in_turn(LOADS)
    assert in_turn.judgement(ONE, LOADS[ONE.name]).verdict is Verdict.PASS
    with pytest.raises(StackFailed, match="HTTP 500") as raised:
        in_turn.judgement(EIGHT, LOADS[EIGHT.name])

    assert raised.value.side == "base", "where both fail, the candidate is not to blame"


def test_a_server_that_one_metric_ended_is_asked_nothing_more_and_others_go_on_with_the_next() -> None:
    """Eight streams kill the first candidate: one stream, whose turn comes after, has no pair of that start."""
    host = Host()
    loads = {EIGHT.name: LOADS[EIGHT.name], ONE.name: LOADS[ONE.name]}

    def window(name: str, server: Any, load: Load) -> Fake:
        if name == EIGHT.name and server.side == "candidate":
            host.gone.add(id(server))
            return Failing(ServerError("the server ended under load"))

        return host.window(name, server, load)

    in_turn = host.in_turn(loads, servers=replace(host.servers(), window=window))
    judgement = in_turn.judgement(ONE, LOADS[ONE.name])
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.PASS, 3)
    assert len(host.starts) == 8, "a pair more than three"
    with pytest.raises(StackFailed, match="ended under load") as raised:
        in_turn.judgement(EIGHT, LOADS[EIGHT.name])

    assert raised.value.side == "candidate"
    assert len(raised.value.base) == 1


def test_a_pair_that_failed_is_no_part_of_the_next_metric() -> None:
    """The candidate's fourth start fails for one stream; eight streams have their three whole pairs."""
    host = Host(scatter=0.0, fails=("candidate", 4))
    host.windows_of = {ONE.name: [1.0, 1.2, 0.8, 1.1]}
    in_turn = host.in_turn(LOADS)
    with pytest.raises(StackFailed, match="ended while starting"):
        in_turn.judgement(ONE, LOADS[ONE.name])

    judgement = in_turn.judgement(EIGHT, LOADS[EIGHT.name])
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.PASS, 3)


def test_a_server_that_ends_between_two_metrics_is_the_failure_of_the_next_one() -> None:
    host = Host(scatter=0.0001)

    def window(name: str, server: Any, load: Load) -> Fake:
        if name == ONE.name and server.side == "candidate" and any(server is known for known in host.rehearsed):
            host.gone.add(id(server))

        return host.window(name, server, load)

    in_turn = host.in_turn(LOADS, servers=replace(host.servers(), window=window))
    assert in_turn.judgement(ONE, LOADS[ONE.name]).verdict is Verdict.PASS
    with pytest.raises(StackFailed, match=r"the candidate failed: .*ended between two metrics"):
        in_turn.judgement(EIGHT, LOADS[EIGHT.name])


def test_a_server_that_hangs_ends_the_metric_at_hand_whoever_was_asked() -> None:
    host = Host(fails_at={EIGHT.name: ServerHung("silent for 900 s")})
    with pytest.raises(StackFailed, match="silent for 900 s"):
        host.judgement(loads=LOADS)

    assert len(host.starts) == 1


def test_a_first_candidate_that_left_the_machine_to_others_is_started_again() -> None:
    host = Host()
    in_turn = host.in_turn()
    host.gone.add(id(in_turn.candidate()))
    in_turn.judgement(ONE, LOADS[ONE.name])
    assert host.starts[:3] == ["candidate", "candidate", "base"]


@pytest.mark.parametrize(
    ("without", "who"), [(("base", "candidate"), "the base and the candidate"), (("base",), "the base")]
)
def test_answers_that_the_base_cannot_judge_either_are_a_note(without: tuple[str, ...], who: str) -> None:
    judgement = Host(without_logprobs=without).judgement()
    assert judgement.verdict is Verdict.PASS
    assert f"the answers were not compared: {who} answers without logprobs" in judgement.notes


def test_a_candidate_that_alone_lost_its_logprobs_is_blamed() -> None:
    in_turn = Host(without_logprobs=("candidate",)).in_turn(LOADS)
    for metric in (ONE, EIGHT):  # the second would pass with answers that nobody compared
        with pytest.raises(StackFailed, match="the candidate failed: NoLogprobs") as raised:
            in_turn.judgement(metric, LOADS[metric.name])

        assert raised.value.side == "candidate"


def test_servers_that_drift_apart_are_no_level() -> None:
    host = Host()
    attached = replace(host.servers(), level="window", window=lambda name, server, load: drifting(host, server))
    judgement = host.judgement(servers=attached)
    assert judgement.verdict is Verdict.INVALID
    assert any("the two servers drifted apart by" in reason for reason in judgement.reasons)


def drifting(host: Host, server: Any) -> Fake:
    """A window whose candidate takes 2 % longer each time."""
    host.windows.append((server.side, ONE.name))
    value = 0.02 * (1.02**host.minutes if server.side == "candidate" else 1.0)
    return Fake(Taken("window", (Replicate((value,)),)))
