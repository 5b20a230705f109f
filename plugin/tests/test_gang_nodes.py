"""Two nodes, both on this machine: two torchruns that meet over loopback, ranks that connect by TCP.

One gang serves the first tests; the death of a rank is the last of them, since it ends the gang.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import gang_tasks
import pytest

from pytest_decodegate.errors import BadInput, RankDied, RankHung
from pytest_decodegate.gang import protocol
from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.gang.options import Nodes, on_node
from pytest_decodegate.measure.bench import Bench
from pytest_decodegate.process import processes

TAG = "GANG_TEST_TAG"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def tag() -> str:
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def log_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gangs")


@pytest.fixture(scope="module")
def gang(log_root: Path, tag: str) -> Iterator[Gang]:
    # One start command appends the program, the other one quotes it for a shell, as ssh needs it.
    nodes = Nodes(("env NODE=a", "sh -c {command}"), f"127.0.0.1:{free_port()}", "127.0.0.1")
    secret = {"HF_TOKEN": "it's a secret"}
    options = GangOptions(log_root=log_root, env={TAG: tag, **secret}, start_seconds=90.0, nodes=nodes)
    with Gang(2, options, name="nodes") as gang:
        yield gang

    assert processes.tagged(TAG, tag) == []


def test_ranks_of_two_nodes_work_together_and_say_who_they_are(gang: Gang, log_root: Path) -> None:
    assert gang.run(gang_tasks.allreduce_of_ranks) == [3.0, 3.0]
    assert gang.run(gang_tasks.my_rank) == [0, 1]
    assert {(hello.host, hello.local_rank) for hello in gang.hellos.values()} == {(socket.gethostname(), 0)}
    found = gang.run(gang_tasks.environment)
    assert sum(environment.get("NODE") == "a" for environment in found) == 1
    assert not Path(found[0][protocol.KEY_FILE]).exists()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", found[0][protocol.ADDRESS])
    assert list(log_root.glob("nodes-*/node[01]/torchrun.log"))


def test_variables_reach_the_ranks_of_a_node_without_a_trace(gang: Gang, tag: str, log_root: Path) -> None:
    assert {found["HF_TOKEN"] for found in gang.run(gang_tasks.environment)} == {"it's a secret"}
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes.tagged(TAG, tag)]
    assert len(commands) >= 6
    assert not any(b"secret" in command for command in commands)
    assert not list(log_root.glob("nodes-*/node*/start.sh"))


def test_the_death_of_a_rank_on_one_node_is_named_and_ends_both(gang: Gang, tag: str) -> None:
    with pytest.raises(RankDied, match=r"rank 1 of nodes \(pid \d+\) died \(SIGKILL\) in die\(\)"):
        gang.run(gang_tasks.die, 1, signal.SIGKILL)

    assert processes.tagged(TAG, tag) == []


def test_a_rank_on_another_host_is_asked_for_its_stack_over_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = uuid.uuid4().hex
    monkeypatch.setattr("pytest_decodegate.gang.rank.SYSTEM", "another system")  # so that no signal can be sent
    nodes = Nodes(("", ""), f"127.0.0.1:{free_port()}", "127.0.0.1")
    options = GangOptions(log_root=tmp_path, env={TAG: tag}, start_seconds=90.0, nodes=nodes)
    with Gang(2, options, name="remote") as gang:
        with pytest.raises(RankHung) as caught:
            gang.run(gang_tasks.sleep_on, 1, deadline_seconds=1.0)

        assert processes.tagged(TAG, tag) == []

    text = str(caught.value)
    assert re.search(r"--- stack of rank 1 ---\n.*\n.*in sleep_on\b", text)
    assert re.search(r"--- stack of rank 0 ---\n.*\n.*in barrier\n", text)


@pytest.mark.parametrize(
    ("start", "command"),
    [
        ("", ["python", "a b"]),
        ("srun -N1 -w node1", ["srun", "-N1", "-w", "node1", "python", "a b"]),
        ("ssh node1 {command}", ["ssh", "node1", "python 'a b'"]),
        ("ssh node1 'cd /work && {command}'", ["ssh", "node1", "cd /work && python 'a b'"]),
    ],
)
def test_a_start_command_takes_the_program_as_words_or_as_one_quoted_word(start: str, command: list[str]) -> None:
    assert on_node(start, ["python", "a b"]) == command


@pytest.mark.parametrize("endpoint", ["node0", "node0:", ":29400", "node0:http"])
def test_a_rendezvous_endpoint_without_host_or_port_is_refused(endpoint: str) -> None:
    with pytest.raises(BadInput, match=re.escape(repr(endpoint))):
        Nodes(("",), endpoint, "127.0.0.1")


@pytest.mark.parametrize(("ranks", "starts"), [(3, 2), (1, 2)])
def test_a_world_size_that_nodes_cannot_share_is_refused(tmp_path: Path, ranks: int, starts: int) -> None:
    options = GangOptions(log_root=tmp_path, nodes=Nodes(("",) * starts, "node0:1", os.uname().nodename))
    with pytest.raises(BadInput, match=f"world size {ranks} cannot be shared out over {starts} node"):
        Gang(ranks, options, name="uneven")


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_world_size_that_is_no_number_of_ranks_is_refused(tmp_path: Path, ranks: int) -> None:
    options = GangOptions(log_root=tmp_path)
    message = f"^world size {ranks} is not a number of ranks; give at least 1$"
    with pytest.raises(BadInput, match=message):
        Gang(ranks, options, name="none")
    with pytest.raises(BadInput, match=message):
        Bench(ranks, options, progress=print)
