"""Two stacks without processes: how many pairs are measured, on which gangs, and what the ranks' stacks make of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import gang_tasks
import pytest
from scripted_gangs import PLAN, Said, ScriptedGang, Watched

from pytest_decodegate.cause import Cause
from pytest_decodegate.errors import DecodegateError, GangError, RankDied, ServerError
from pytest_decodegate.gang.options import GangOptions
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.verdict import Basis, Judgement, Verdict
from pytest_decodegate.machine.fingerprint import machine
from pytest_decodegate.machine.stack import probe, variables
from pytest_decodegate.measure.paired_source import StackFailed
from pytest_decodegate.measure.window import Load
from pytest_decodegate.metric import Metric
from pytest_decodegate.reference.contrasts import Contrasts
from pytest_decodegate.reference.protocol import GangWork, Judged, ServerWork
from pytest_decodegate.reference.ranks_in_turn import RanksInTurn
from pytest_decodegate.reference.two_stacks import TwoStacks
from pytest_decodegate.resources.hardware import Hardware
from pytest_decodegate.resources.sources import Sources
from pytest_decodegate.session import outcomes
from pytest_decodegate.settings.stack import Stack
from pytest_decodegate.workloads.runtime import rank

METRIC = Metric.of("gemm[m=8]", "kernel")
INVALID = Judgement(METRIC, Verdict.INVALID, Basis("server"))
SAME: dict[str, Any] = {"python": "3.11.9", "torch": "2.11.0", "executable": "/p"}
OTHER = {**SAME, "torch": "2.12.0", "executable": "/q"}


@dataclass(eq=False)
class Gang(ScriptedGang):
    """A scripted gang that also says what it has loaded, and dies in its samples if it is told to."""

    facts: dict[str, Any] = field(default_factory=dict)
    dies: bool = False

    def run(self, function: object, *args: Any, deadline_seconds: float) -> list[Any]:
        if function is probe:
            return [self.facts] * 2
        if function is variables:
            return [dict.fromkeys(args[0])] * 2
        if function is rank.take_samples and self.dies:
            raise RankDied(f"{self.name} died")
        if function is rank.take_samples:  # equal samples would be a clock that stands still
            taken = [[value * (1 + 1e-4 * n) for n in range(args[1])] for value in self.samples]
            return [rank.Samples(seconds, [None] * args[1], [False] * args[1]) for seconds in taken]

        return super().run(function, *args, deadline_seconds=deadline_seconds)


@dataclass
class Bench:
    """Fresh gangs each time after it was closed; the n-th is slower by `scatter` times how n is odd."""

    side: str
    log: list[str]
    facts: dict[str, Any]
    level_us: float = 10.0
    scatter: float = 0.0
    dies_at: int = 0
    no_start: str | None = None
    started: int = 0
    alive: list[Gang] = field(default_factory=list)

    def gangs(self, count: int) -> list[Gang]:
        if self.no_start:
            raise RankDied(self.no_start)
        while len(self.alive) < count:
            self.alive.append(self._new())

        return self.alive[:count]

    def _new(self) -> Gang:
        self.started += 1
        seconds = 1e-6 * self.level_us * (1 + self.scatter * (self.started % 2) + 1e-4 * self.started)
        name, dies = f"{self.side}{self.started}", self.started == self.dies_at
        return Gang(name, self.log, samples=(seconds, seconds), facts=self.facts, dies=dies)

    def dismiss(self) -> None:
        return None

    def close(self) -> None:
        self.log.append(f"closed {len(self.alive)} of {self.side}")
        self.alive.clear()


@dataclass
class Host:
    """Two stacks on this machine. benches: of base and candidate. said: its outcomes. told: its progress."""

    benches: dict[str, Bench]
    settings: dict[str, Any] = field(default_factory=dict)
    servers: Any = None
    said: list[Any] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hardware: Any = Hardware(machine, never)

    def new_bench(self, world_size: int, stack: Stack, name: str) -> Any:
        return self.benches[name.rstrip("-")]

    def two_stacks(self, candidate: Stack | None = None) -> TwoStacks:
        known = {"replicates": 2, "max_replicates": 8, "start_seconds": 1.0, "change": frozenset(), "import_path": ()}
        known |= self.settings
        settings: Any = SimpleNamespace(**known, launched=lambda stack: None)
        progress: Any = SimpleNamespace(tick=Said().tick, say=self.told.append)
        self.hardware.watch = Watched
        sources = Sources(self.hardware, progress, lambda: 1.0, settings)
        stacks = (Stack(), candidate or Stack(python="/q"))
        contrasts = Contrasts(stacks, settings, self.hardware, progress, self.announce)
        gangs: Any = self
        return TwoStacks(
            settings,
            self.hardware,
            self.servers,
            sources,
            progress,
            contrasts=contrasts,
            ranks=RanksInTurn(
                settings, self.hardware, gangs, sources, progress, contrasts, lambda: 1, lambda judgement: judgement
            ),
            attached=None,
            leftovers=tuple,
            metrics=lambda: 1,
            loads=dict,
        )

    def announce(self, outcome: object) -> None:
        self.said.append(outcome)


@pytest.fixture
def log() -> list[str]:
    return []


def never() -> GangOptions:
    raise AssertionError("nothing is to be started")


REPORT: Any = SimpleNamespace(nodeid="t.py::test")
WORK = GangWork(METRIC, gang_tasks.nothing, {}, world_size=2, plan=PLAN)


def judged(log: list[str], facts: dict[str, Any] = OTHER, settings: Any = None, **candidate: Any) -> Judgement:
    benches = {"base": Bench("base", log, SAME), "candidate": Bench("candidate", log, facts, **candidate)}
    judged = Host(benches, settings or {}).two_stacks().measure(WORK)
    assert len(judged.replicates) == judged.judgement.basis.replicates
    return judged.judgement


@pytest.mark.parametrize(("level_us", "verdict"), [(10.0, Verdict.PASS), (11.0, Verdict.REGRESSED)])
def test_a_verdict_that_is_clear_takes_the_first_look_only(log: list[str], level_us: float, verdict: Verdict) -> None:
    judgement = judged(log, level_us=level_us)
    assert (judgement.verdict, judgement.basis.replicates, judgement.basis.looks) == (verdict, 2, 3)
    assert judgement.changed == ("torch: 2.11.0 -> 2.12.0",)
    assert not any(line.startswith("closed") for line in log)


def test_an_open_verdict_takes_fresh_gangs_for_every_wave_up_to_the_cap(log: list[str]) -> None:
    judgement = judged(log, scatter=0.1)
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.INCONCLUSIVE, 8)
    assert [line for line in log if line.startswith("closed")] == ["closed 2 of base", "closed 2 of candidate"] * 3


def test_two_pythons_with_the_same_packages_compare_nothing_and_are_not_measured_on(log: list[str]) -> None:
    judgement = judged(log, SAME, scatter=0.1)
    assert (judgement.verdict, judgement.basis.replicates) == (Verdict.INVALID, 2)
    assert judgement.reasons[0].startswith("the two Pythons run the same stack")


def test_more_than_what_was_asked_for_confounds_unless_it_is_declared(log: list[str]) -> None:
    driver = {**OTHER, "libfoo": "2"}
    judgement = judged(log, driver)
    assert judgement.verdict is Verdict.CONFOUNDED
    assert judgement.reasons == ("libfoo: absent -> 2",)


def test_what_the_base_gave_in_earlier_waves_is_kept_when_the_candidate_dies(log: list[str]) -> None:
    benches = {"base": Bench("base", log, SAME), "candidate": Bench("candidate", log, OTHER, scatter=0.1, dies_at=4)}
    host = Host(benches)
    both = host.two_stacks()
    with pytest.raises(StackFailed) as raised:
        both.measure(WORK)

    assert (raised.value.side, len(raised.value.base)) == ("candidate", 3)


def test_a_candidate_that_cannot_start_is_told_with_what_the_base_measures_alone(log: list[str]) -> None:
    benches = {"base": Bench("base", log, SAME), "candidate": Bench("candidate", log, OTHER, no_start="no torch")}
    host = Host(benches)
    both = host.two_stacks()
    with pytest.raises(StackFailed) as raised:
        both.measure(WORK)

    failed = outcomes.failed(REPORT, (METRIC, raised.value), advisory=False)
    assert host.told == ["gemm[m=8]: the candidate failed; the base measured 10.0 us"]
    assert (failed.name, failed.side, failed.error) == ("gemm[m=8]", "candidate", "RankDied: no torch")
    assert failed.error.cause is Cause.CRASH
    assert failed.base == pytest.approx(1e-5, rel=0.01)


def test_a_machine_that_cannot_be_had_is_no_stacks_fault_but_names_its_metric(log: list[str]) -> None:
    benches = {side: Bench(side, log, SAME) for side in ("base", "candidate")}
    host = Host(benches)

    def refuse(*_: object) -> None:
        raise GangError("memory did not come back")

    host.hardware.take = refuse
    both = host.two_stacks()
    with pytest.raises(DecodegateError, match="memory did not come back") as raised:
        both.measure(WORK)

    failed = outcomes.failed(REPORT, (METRIC, raised.value), advisory=False)
    assert (failed.name, failed.side) == ("gemm[m=8]", "")
    assert failed.error == "GangError: memory did not come back"


def test_the_end_says_what_was_to_be_compared(log: list[str]) -> None:
    host = Host({})
    host.two_stacks().ended()
    (stacks,) = host.said
    assert (stacks.base, stacks.candidate) == ("this", "python=/q")


def contrasts_of(*stacks: Stack) -> Contrasts:
    settings: Any = SimpleNamespace(launched=lambda stack: ("--model", "m"), change=frozenset())
    progress: Any = SimpleNamespace(say=lambda text: None)
    base, candidate = stacks
    return Contrasts((base, candidate), settings, Hardware(machine, never), progress, lambda outcome: None)


@pytest.mark.parametrize("name", ["compilation-config.pass_config", "hf-token"])
def test_flags_that_differ_are_a_change_even_where_both_are_hidden(name: str) -> None:
    stacks = [Stack(flags=((name, value),)) for value in ('{"fuse_norm_quant":false}', '{"fuse_norm_quant":true}')]
    contrasts = contrasts_of(*stacks)
    contrasts.known[1] = Contrast()
    whole = contrasts.of_what_serves
    assert [difference.field for difference in whole.differences] == [f"flag:{name}"]
    assert whole.changed
    assert ("fuse" in str(whole.differences[0])) is (name != "hf-token")

    same = contrasts_of(stacks[0], stacks[0])
    same.known[1] = Contrast()
    assert not same.of_what_serves.changed


class Told:
    """A launched server whose log is read; `log` is what it says."""

    def __init__(self, log: str) -> None:
        self.log, self.reads = log, 0
        self.process = SimpleNamespace(log=self._read)

    def facts(self) -> dict[str, Any]:
        return {}

    def _read(self) -> str:
        self.reads += 1
        return self.log


def test_a_flag_of_one_side_needs_a_server_of_the_other_that_says_what_it_runs() -> None:
    contrasts = contrasts_of(Stack(flags=(("max-num-seqs", "64"),)), Stack())
    base, silent = Told("non-default args: {'max_num_seqs': 64}"), Told("INFO vLLM")
    for _ in range(3):
        contrasts.read_back("base", cast("Any", base))
    assert base.reads == 1, "what a side runs is read once"
    with pytest.raises(ServerError, match="--max-num-seqs cannot be seen: its log has no line 'non-default args'"):
        contrasts.read_back("candidate", cast("Any", silent))


@pytest.mark.parametrize(("pattern", "is_reached"), [("gemm*", True), ("gem", False)])
def test_a_slowdown_counts_as_seen_only_if_it_reached_what_was_measured(
    log: list[str], pattern: str, is_reached: bool
) -> None:
    host = Host({side: Bench(side, log, SAME) for side in ("base", "candidate")})
    both = host.two_stacks(Stack(env=(("DECODEGATE_SLOWDOWN", f"{pattern}=5%"),)))
    both.measure(WORK)
    told = both.problem()
    assert told is None if is_reached else told is not None and "metrics measured: gemm[m=8]; " in told


def test_a_metric_of_servers_is_reached_by_what_slows_servers_down(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: Any = SimpleNamespace(
        judgement=lambda metric, load: INVALID, judged=Judged, candidate=lambda: cast("Any", "a server")
    )
    monkeypatch.setattr("pytest_decodegate.reference.two_stacks.ServersInTurn", lambda *_: judged)
    benches = {side: Bench(side, log, SAME) for side in ("base", "candidate")}
    servers = SimpleNamespace(fresh=lambda stack: None, room=lambda stacks: None)
    both = Host(benches, {"budget_seconds": 1.0}, servers).two_stacks(Stack(env=(("DECODEGATE_SLOWDOWN", "tpot*=5%"),)))
    candidate, load = both.server(), Load(1, 4, 4, 2)
    assert both.problem() is not None
    both.measure_tpot(ServerWork(Metric.of("tpot[c=1]", "serving"), candidate, load))
    assert both.problem() is None
