"""Files that are huge, deep, half-written or hostile, and several writers at once: nothing is lost or hangs."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stack_baselines import H200, QUIET, baseline, measured, run_of, session
from stored import kept
from strategies import baselines as any_baselines
from writers import at_once

from pytest_decodegate.baseline import decoding
from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.decoding import MOST_DEPTH
from pytest_decodegate.baseline.edits import Pruning, accept, prune
from pytest_decodegate.baseline.reader import MOST_BYTES, load, parse
from pytest_decodegate.baseline.samples import sidecar
from pytest_decodegate.baseline.schema import Baseline, LogEntry
from pytest_decodegate.baseline.store import Store, path_component
from pytest_decodegate.errors import BadInput
from pytest_decodegate.printable import printable


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "baselines", lock_seconds=30)


def put(store: Store, one: Baseline) -> Path:
    path = store.root / H200 / one.path.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(replace(one, path=path)))
    return path


def drop(name: str) -> Callable[[Baseline], tuple[Baseline, str]]:
    return lambda one: prune(one, Pruning(sessions=(name,)))


@pytest.mark.parametrize("version", [0, 1, 2, 4, "3", None, True, 3.5, [], -1])
def test_unknown_versions_are_refused_not_guessed_at(version: Any) -> None:
    document = json.loads(dumps(baseline(1, session(1))))
    document["decodegate"]["schema"] = version

    with pytest.raises(BadInput, match=r"/decodegate/schema: version .* is not 3"):
        parse(Path("b.json"), json.dumps(document).encode())


@pytest.mark.parametrize("benchmarks", [None, {}, [1], [{}], [{"extra_info": 3}], [{"extra_info": {}}]])
def test_damaged_benchmarks_are_refused_by_pointer(benchmarks: Any) -> None:
    document = json.loads(dumps(baseline(1, session(1))))
    document["benchmarks"] = benchmarks

    with pytest.raises(BadInput, match=r"b\.json: /benchmarks"):
        parse(Path("b.json"), json.dumps(document).encode())


instants = st.datetimes().map(lambda moment: moment.isoformat() + "+00:00")
shown = st.text().map(printable)  # as every text is once it was read
entries = st.builds(LogEntry, instants, shown, shown, shown)


@settings(max_examples=40, deadline=None)
@given(one=any_baselines(), log=st.lists(entries, max_size=3).map(tuple), draw=st.data())
def test_log_and_accepted_level_come_back_equal(one: Baseline, log: tuple[LogEntry, ...], draw: st.DataObject) -> None:
    metrics = {
        name: replace(stored, accepted=draw.draw(st.sampled_from([None, *(one.id for one in stored.sessions)])))
        for name, stored in one.metrics.items()
    }
    written = replace(one, metrics=metrics, log=log)

    assert parse(written.path, dumps(written)) == kept(written)


def test_an_accepted_session_that_is_not_there_is_refused() -> None:
    document = json.loads(dumps(baseline(1, session(1))))
    document["decodegate"]["metrics"]["gemm"]["accepted"] = "s9"

    with pytest.raises(BadInput, match="/decodegate/metrics/gemm/accepted: 's9' is the id of no session"):
        parse(Path("b.json"), json.dumps(document).encode())


def test_a_log_entry_without_a_time_is_refused() -> None:
    document = json.loads(dumps(replace(baseline(1, session(1)), log=(LogEntry("now", "a", "b", "c"),))))

    with pytest.raises(BadInput, match="/decodegate/log/0/when: 'now' is no ISO 8601 time"):
        parse(Path("b.json"), json.dumps(document).encode())


def refused(path: Path, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load(path)


@pytest.fixture
def no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing would take minutes or all memory, so it must not begin."""

    def parsed(content: bytes) -> None:
        raise AssertionError(f"{len(content)} bytes were parsed")

    monkeypatch.setattr(decoding, "decode", parsed)


@pytest.mark.usefixtures("no_parser")
def test_a_file_of_100_mb_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as stream:
        stream.write(b"[" + b"1," * 1000)
        stream.truncate(100_000_000)

    refused(path, f"huge.json: larger than {MOST_BYTES // 2**20} MiB, which no baseline may be")


@pytest.mark.usefixtures("no_parser")
def test_no_more_is_read_than_a_baseline_may_have(tmp_path: Path) -> None:
    path = tmp_path / "sparse.json"
    with path.open("wb") as stream:
        stream.truncate(2**40)  # a terabyte of nothing

    refused(path, r"sparse\.json: larger than 90 MiB")


OPEN_OBJECTS = (
    ("decodegate", "provenance", "stack"),
    ("decodegate", "metrics", "gemm", "contract"),
    ("decodegate", "sessions", "s1", "telemetry"),
    ("benchmarks", 0, "extra_info", "telemetry"),
    ("benchmarks", 0, "extra_info", "facts", 0),
)
"""Where the format leaves keys and values open."""


def with_junk(place: tuple[str | int, ...], opening: str, depth: int, closing: str) -> bytes:
    document = json.loads(dumps(baseline(1, session(1))))
    document["benchmarks"][0]["extra_info"] |= {"telemetry": {}, "facts": [{} for _ in QUIET]}
    found = document
    for key in place:
        found = found[key]

    found["deep"] = "JUNK"
    return json.dumps(document).replace('"JUNK"', opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize("place", OPEN_OBJECTS, ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 500, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_junk_is_refused(
    tmp_path: Path, place: tuple[str | int, ...], depth: int, opening: str, closing: str
) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(with_junk(place, opening, depth, closing))

    refused(path, f"nested more than {MOST_DEPTH} levels deep|not JSON, perhaps cut short")


@pytest.mark.parametrize("depth", [500, 900, 100_000])
def test_deep_junk_in_what_others_wrote_does_not_crash(depth: int) -> None:
    junk = with_junk(("machine_info",), "[", depth, "]")
    try:
        parse(Path("b.json"), junk)
    except BadInput as error:
        assert "not JSON" in str(error) or "/decodegate/digest" in str(error)  # noqa: PT017 - not a crash


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")

    refused(tmp_path / "pipe.json", "not a regular file")


@given(text=st.text(max_size=300))
def test_names_never_become_paths(text: str) -> None:
    safe = path_component(text)

    assert Path(safe).name == safe
    assert 0 < len(safe.encode()) <= 100
    assert not safe.startswith(".")
    assert path_component(safe) == safe


@pytest.mark.parametrize("hostile", ["../../etc", "/etc/passwd", "..", "a\x00b", "con\nfuse"])
def test_hostile_names_in_a_file_stay_text(store: Store, tmp_path: Path, hostile: str) -> None:
    path = put(store, replace(baseline(1, replace(session(1), id=hostile), session(2)), label=hostile))
    named = printable(hostile)  # as the file shows it, and as it is asked for
    store.edit(path, lambda one: accept(one, "*", named), who=hostile, why=hostile)
    store.edit(path, drop(named), who=hostile, why=hostile)
    store.record(run_of(), H200, hostile, measured(), hostile)

    assert sorted(one.name for one in store.root.iterdir()) == [f".{H200}.lock", ".gitignore", H200]
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name, sidecar(path).name]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["baselines"]


def failing(code: int) -> Callable[..., None]:
    """Stands in for a system call that fails with `code`."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("os.fsync", errno.ENOSPC, "No space left on device"),
        ("pathlib.Path.replace", errno.EACCES, "Permission denied"),
        ("pathlib.Path.open", errno.EROFS, "Read-only file system"),
    ],
)
@pytest.mark.parametrize("act", ["prune", "merge"])
def test_an_edit_that_cannot_be_written_leaves_the_files_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, code: int, said: str, act: str
) -> None:
    target = put(store, baseline(1, session(1), session(2)))
    source = put(store, baseline(2, session(3)))
    before = target.read_bytes(), source.read_bytes()
    opened = Path.open

    def open_to_read(self: Path, mode: str = "r", **more: Any) -> Any:
        return opened(self, mode, **more) if "r" in mode else failing(code)()

    monkeypatch.setattr(call, open_to_read if call.endswith("open") else failing(code))
    with pytest.raises(BadInput, match=f"cannot be written: {said}"):
        if act == "prune":
            store.edit(target, drop("s1"), who="a", why="b")
        else:
            store.merge(target, source, who="a", why="b")

    monkeypatch.undo()
    assert (target.read_bytes(), source.read_bytes()) == before
    assert sorted(one.name for one in target.parent.iterdir()) == [target.name, source.name]


WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from dataclasses import replace
from pytest_decodegate.baseline.edits import Pruning, accept, prune
from pytest_decodegate.baseline.store import Store
from stack_baselines import GEMM, H200, measured, run_of


act, name = sys.argv[1:]
path = Path("baselines") / H200 / "0001_stack.json"
store = Store(Path("baselines"), lock_seconds=60)
if act == "kill":
    Path.unlink = lambda *_, **__: os._exit(9)  # killed after the target was written, before the source is removed

print("ready", flush=True)
sys.stdin.read(1)
if act == "kill":
    store.merge(path, path.with_name("0002_stack.json"), who="a", why="b")
for number in range(6):
    if act == "record":
        store.record(run_of(), H200, "stack", measured(metric=replace(GEMM, name=f"{{name}}_{{number}}")), name)
    elif act == "prune":
        store.edit(path, lambda stored: prune(stored, Pruning(sessions=(f"s{{number}}",))), who=name, why="x")
    elif act == "accept":
        store.edit(path, lambda stored: accept(stored, "gemm", "s9"), who=name, why="x")
"""


def writer(act: str, name: str) -> subprocess.Popen[str]:
    code = WRITER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, act, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_recording_pruning_and_accepting_at_once_lose_nothing(store: Store) -> None:
    path = put(store, baseline(1, *map(session, range(10))))
    writers = [writer(act, act) for act in ("record", "prune", "accept")]
    at_once(writers)

    assert [one.returncode for one in writers] == [0, 0, 0]
    whole = load(path)
    assert [one.id for one in whole.metrics["gemm"].sessions] == ["s6", "s7", "s8", "s9"]
    assert [one.id for one in whole.metrics["gemm"].current] == ["s9"]
    assert sorted(whole.metrics) == ["gemm", *(f"record_{number}" for number in range(6))]
    assert sorted(entry.who for entry in whole.log) == ["accept"] * 6 + ["prune"] * 6


def test_a_merge_that_was_killed_half_way_can_be_repeated(store: Store) -> None:
    target = put(store, baseline(1, session(1)))
    source = put(store, baseline(2, session(2)))
    killed = writer("kill", "x")
    killed.communicate("x", timeout=60)

    assert killed.returncode == 9
    assert source.exists()
    assert [one.id for one in load(target).metrics["gemm"].sessions] == ["s1", "s2"]
    store.merge(target, source, who="a", why="again")
    assert [one.id for one in load(target).metrics["gemm"].sessions] == ["s1", "s2"]
    assert not source.exists()
