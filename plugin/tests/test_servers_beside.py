"""Servers of two stacks beside each other: real processes that start together, on which cards, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from scripted_gangs import Said
from scripted_vllm import options

from pytest_decodegate.errors import ServerError
from pytest_decodegate.measure.paired_source import SIDES, SideName, StackFailed
from pytest_decodegate.resources.beside import ServersBeside
from pytest_decodegate.resources.server import ServerUnderTest
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
    rooms: int = 0

    def cards(self, stack: Stack) -> int:
        return 1

    def make_room(self) -> None:
        self.rooms += 1

    def begin(self, stack: Stack, cards: Sequence[Any]) -> Starting:
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


@pytest.fixture
def made(tmp_path: Path) -> Fixture:
    launcher, machine = Launcher(tmp_path), Machine()
    said: list[str] = []
    progress: Any = SimpleNamespace(tick=Said().tick, say=said.append)
    hardware: Any = machine
    servers: Any = launcher
    return Fixture(launcher, machine, said, ServersBeside(servers, STACKS, hardware, progress))


def running(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def test_both_start_together_and_change_cards(made: Fixture, tmp_path: Path) -> None:
    first = made.beside.start(False)
    assert set(first) == set(SIDES)
    assert made.launcher.begun == [("base", (0,)), ("candidate", (1,))]
    pids = [server.process.pid for server in first.values() if server.process]
    assert all(map(running, pids))
    assert all(server.start_seconds and server.start_seconds > 0 for server in first.values())
    assert [text.partition(":")[0] for text in sorted(made.said)] == ["base", "candidate"]
    for side in SIDES:
        (tmp_path / side).unlink()

    made.beside.start(True)
    assert made.launcher.begun[2:] == [("base", (1,)), ("candidate", (0,))]
    assert not any(map(running, pids)), "the first two have left before the next came"
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
    with pytest.raises(StackFailed, match="failed before, and is not started again"):
        made.beside.start(True)

    assert len(made.launcher.begun) == 2


def test_an_interrupt_while_they_start_leaves_none_behind(made: Fixture) -> None:
    begun: list[Starting] = []

    def interrupted(stack: Stack, cards: Sequence[Any]) -> Starting:
        if begun:
            raise KeyboardInterrupt
        begun.append(begin(options(made.launcher.tmp_path, "time.sleep(600)")))
        return begun[0]

    made.launcher.begin = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.beside.start(False)

    assert not running(begun[0].process.pid)


class Given(SimpleNamespace):
    """Settings of which only the server's command line is set."""

    launched = Settings.launched
    gpus_of_server = Settings.gpus_of_server


@pytest.mark.parametrize(
    ("cards", "words", "fits"),
    [
        ([0, 1], ["m", "-tp", "1"], True),
        ([0, 1, 2, 3, 4, 5, 6, 7], ["m", "-tp", "4"], True),
        ([0, 1, 2, 3, 4, 5, 6, 7], ["m", "-tp", "8"], False),
        ([0, 1], ["m", "-tp", "1", "--port", "8000"], False),
        ([0, 0], ["m"], False),
        ([0, 1], None, False),
        ([], ["m"], False),
    ],
)
def test_servers_fit_beside_each_other_where_each_has_cards_of_its_own_and_a_port(
    cards: list[int], words: list[str] | None, fits: bool
) -> None:
    """Two instances of one card are one card; the suite's own rank-slice takes all that there are."""
    settings: Any = Given(serve=words, stack=Stack())
    gpus = [SimpleNamespace(index=index) for index in cards]
    hardware: Any = SimpleNamespace(fingerprint=SimpleNamespace(gpus=gpus))
    nothing: Any = None
    servers = ServerUnderTest(settings, hardware, nothing, before_start=lambda: None, folder=nothing)
    assert servers.fit_beside([Stack(), Stack()]) is fits
