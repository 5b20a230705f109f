"""Servers of two stacks beside each other: real processes that start together, on which cards, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from children import is_running
from scripted_gangs import Said
from scripted_vllm import options

from pytest_decodegate.errors import ServerError
from pytest_decodegate.machine.gpus import Gpu
from pytest_decodegate.measure.paired_source import SIDES, SideName, StackFailed
from pytest_decodegate.resources.beside import ServersBeside
from pytest_decodegate.resources.server import Room, ServerUnderTest
from pytest_decodegate.serving.server import Starting, begin
from pytest_decodegate.settings.settings import Settings
from pytest_decodegate.settings.stack import Stack

STACKS: dict[SideName, Stack] = {"base": Stack(), "candidate": Stack(env=(("A", "1"),))}

MEET = """
import pathlib
here = pathlib.Path("{folder}")
(here / "{side}").write_text("up")
while not all((here / side).exists() for side in ("base", "candidate")):
    time.sleep(0.01)  # two that start one after the other would wait for ever
serve()
"""


@dataclass
class Machine:
    """Two cards, held by at most one holder at a time."""

    fingerprint: Any = field(
        default_factory=lambda: SimpleNamespace(gpus=[SimpleNamespace(index=0), SimpleNamespace(index=1)])
    )
    holder: object = None
    leave: Callable[[], None] | None = None

    @property
    def lease(self) -> Machine:
        return self

    def take(self, holder: object, leave: Callable[[], None]) -> None:
        self.release()
        self.holder, self.leave = holder, leave

    def release(self, holder: object = None) -> None:
        if self.leave is not None and holder in (None, self.holder):
            leave, self.leave, self.holder = self.leave, None, None
            leave()


@dataclass
class Launcher:
    """Stands for ServerUnderTest: starts a script for each side."""

    tmp_path: Path
    script: str = MEET
    fails: str = ""
    begun: list[tuple[SideName, tuple[int, ...]]] = field(default_factory=list)
    shared_by: int = 0
    rooms: int = 0

    def cards(self, stack: Stack) -> int:
        return 1

    def make_room(self) -> None:
        self.rooms += 1

    def begin(self, stack: Stack, cards: Sequence[Any], *, servers: int) -> Starting:
        self.shared_by = servers
        side: SideName = "base" if stack == STACKS["base"] else "candidate"
        self.begun.append((side, tuple(card.index for card in cards)))
        folder = self.tmp_path / f"{side}{len(self.begun)}"
        folder.mkdir()
        failing = "print('no such flag'); sys.exit(3)" if self.fails == side else "pass"
        script = f"{failing}\n" + self.script.format(folder=self.tmp_path, side=side)
        return begin(options(folder, script))


@dataclass
class Fixture:
    launcher: Launcher
    machine: Machine
    said: list[str]
    beside: ServersBeside


@pytest.fixture(params=["apart"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Fixture:
    launcher, machine = Launcher(tmp_path), Machine()
    said: list[str] = []
    progress: Any = SimpleNamespace(tick=Said().tick, say=said.append)
    hardware: Any = machine
    servers: Any = launcher
    return Fixture(launcher, machine, said, ServersBeside(servers, STACKS, request.param, hardware, progress))


def test_both_start_together_and_change_cards(made: Fixture, tmp_path: Path) -> None:
    first = made.beside.start(False)
    assert set(first) == set(SIDES)
    assert made.launcher.begun == [("base", (0,)), ("candidate", (1,))]
    pids = [server.process.pid for server in first.values() if server.process]
    assert all(map(is_running, pids))
    assert all(server.start_seconds and server.start_seconds > 0 for server in first.values())
    assert [text.partition(":")[0] for text in sorted(made.said)] == ["base", "candidate"]
    for side in SIDES:
        (tmp_path / side).unlink()

    made.beside.start(True)
    assert made.launcher.begun[2:] == [("candidate", (0,)), ("base", (1,))]
    assert made.launcher.shared_by == 1
    assert made.beside.notes == ("two servers ran at a time, on cards that they exchanged from pair to pair",)
    assert not any(map(is_running, pids)), "the first two have left before the next came"
    assert made.machine.holder is made.beside
    made.machine.release()
    assert made.beside.output() == []


def test_one_that_does_not_start_is_blamed_and_the_other_stopped(made: Fixture) -> None:
    made.launcher.fails = "candidate"
    with pytest.raises(StackFailed, match="exit code 3") as raised:
        made.beside.start(False)

    assert raised.value.side == "candidate"
    assert isinstance(raised.value.error, ServerError)
    assert made.machine.holder is None, "the other has left the machine"


@pytest.mark.parametrize("made", ["shared"], indirect=True)
def test_both_share_the_first_cards_and_begin_in_turn(made: Fixture, tmp_path: Path) -> None:
    made.launcher.script = "serve()"
    for swapped in (False, True):
        made.beside.start(swapped)

    assert made.launcher.begun == [("base", (0,)), ("candidate", (0,)), ("candidate", (0,)), ("base", (0,))]
    assert made.launcher.shared_by == 2, "each has half of the memory"
    (shared,) = made.beside.notes
    assert shared.startswith("two servers shared the same cards, each with half of the memory")
    made.machine.release()


def test_an_interrupt_while_they_start_leaves_none_behind(made: Fixture) -> None:
    begun: list[Starting] = []

    def interrupted(stack: Stack, cards: Sequence[Any], *, servers: int) -> Starting:
        if begun:
            raise KeyboardInterrupt
        begun.append(begin(options(made.launcher.tmp_path, "time.sleep(600)")))
        return begun[0]

    made.launcher.begin = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.beside.start(False)

    assert not is_running(begun[0].process.pid)


class Given(SimpleNamespace):
    """Settings of which only the server's command line is set."""

    launched = Settings.launched
    gpus_of_server = Settings.gpus_of_server


def room(
    cards: Sequence[str], words: list[str] | None, stack: Stack, *, memory_gib: int = 96, cores: int = 64
) -> Room | None:
    settings: Any = Given(serve=words, stack=Stack())
    gpus = [Gpu(0, uuid, "H200", "0:0", None, {"memory_gib": memory_gib}, {}) for uuid in cards]
    fingerprint = SimpleNamespace(gpus=gpus, host=SimpleNamespace(cores=cores))
    hardware: Any = SimpleNamespace(fingerprint=fingerprint)
    nothing: Any = None
    servers = ServerUnderTest(settings, hardware, nothing, before_start=lambda: None, folder=nothing)
    return servers.room([Stack(), stack])


@pytest.mark.parametrize(
    ("cards", "words", "found"),
    [
        (["GPU-a", "GPU-b"], ["m", "-tp", "1"], "apart"),
        (["GPU-a"] * 8, ["m", "-tp", "4"], "apart"),
        (["GPU-a"] * 8, ["m", "-tp", "8"], None),
        (["GPU-a", "GPU-b"], ["m", "-tp", "1", "--port", "8000"], None),
        (["MIG-a", "MIG-b"], ["m"], None),
        (["GPU-a", "GPU-b"], None, "shared"),
        (["MIG-a"], None, None),
        ([], ["m"], None),
        ([], None, None),
    ],
)
def test_servers_run_beside_each_other_where_there_are_cards_and_ports_for_both(
    cards: Sequence[str], words: list[str] | None, found: Room | None
) -> None:
    """No server can be put on an instance by a number; the suite's own rank-slice takes all cards, or half of each."""
    assert room(cards, words, Stack()) == found


@pytest.mark.parametrize(
    ("memory_gib", "cores", "stack", "found"),
    [
        (96, 6, Stack(), "shared"),
        (96, 5, Stack(), None),
        (48, 64, Stack(), None),  # 9 layers in each half
        (96, 64, Stack(flags=(("max-num-seqs", "64"),)), "shared"),
        (96, 64, Stack(flags=(("gpu-memory-utilization", "0.5"),)), None),
    ],
)
def test_a_card_is_shared_if_both_slices_say_something_there(
    memory_gib: int, cores: int, stack: Stack, found: Room | None
) -> None:
    assert room(["GPU-a"], None, stack, memory_gib=memory_gib, cores=cores) == found
