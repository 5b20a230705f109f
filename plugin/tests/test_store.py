"""The folder of baselines: numbering, merging, selection, and files that stay whole whatever happens."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from recordings import GEMM, H200, OLD, measured
from writers import at_once

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.samples import sidecar
from pytest_decodegate.baseline.selection import contrast
from pytest_decodegate.baseline.store import Store, path_component
from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Measurement, Metric

NEW = replace(OLD, stack={**OLD.stack, "nccl": "2.28.9"})
NEWER = replace(OLD, stack={"nccl": "2.29.0", "torch": "2.13"})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    return Store(tmp_path / "baselines", lock_seconds=5)


ONCE = measured()


def record(store: Store, provenance: Provenance, measurement: Measurement = ONCE, session: str = "s1") -> Path:
    return store.record(provenance, H200, "vllm 0.26", measurement, session)


def names(store: Store) -> list[str]:
    return [path.name for path in store.files(H200)]


def test_the_first_recording_makes_number_one(store: Store) -> None:
    baseline = load(path := record(store, OLD))

    assert path == store.root / H200 / "0001_vllm-0.26.json"
    assert (baseline.machine_class, baseline.label) == (H200, "vllm 0.26")
    assert baseline.provenance == replace(OLD, telemetry={})
    (session,) = baseline.metrics["gemm"].sessions
    assert (session.id, session.level, session.values) == ("s1", "process", (1.005e-5, 1.02e-5))
    assert session.telemetry == {"temperature_c": 40}


GRAPH = Metric("gemm", "s", "kernel", 0.02, {"clock": "cuda_event", "clock_version": 9, "mode": "graph"})
OTHER_HOST = replace(OLD, machine={**OLD.machine, "cores": 16})


def test_sessions_of_two_hosts_stand_in_one_row_where_the_metric_feels_no_difference(store: Store) -> None:
    first = record(store, OLD, measured(GRAPH))
    assert record(store, OTHER_HOST, measured(GRAPH), "s2") == first
    one, two = load(first).metrics["gemm"].sessions
    assert "unlike_file" not in one.telemetry
    assert two.telemetry["unlike_file"] == ["cores: absent -> 16"]
    assert load(first).provenance.machine == OLD.machine


def test_what_can_touch_the_metric_makes_another_file(store: Store) -> None:
    served = replace(GRAPH, kind="serving")
    first = record(store, OLD, measured(served))
    assert record(store, OTHER_HOST, measured(served), "s2") != first
    assert record(store, replace(OTHER_HOST, stack={**OLD.stack, "driver": "590"}), measured(GRAPH), "s3") != first


def test_files_of_two_hosts_merge_where_no_metric_feels_the_difference(store: Store) -> None:
    first = record(store, OLD, measured(GRAPH))
    served = record(store, OTHER_HOST, measured(replace(GRAPH, kind="serving")), "s2")
    other = record(Store(store.root.with_name("elsewhere")), OTHER_HOST, measured(GRAPH), "s3")
    store.merge(first, other, who="ann", why="two hosts")
    assert [session.id for session in load(first).metrics["gemm"].sessions] == ["s1", "s3"]
    with pytest.raises(BadInput, match=r"another stack than .* \(cores: absent -> 16\)"):
        store.merge(first, served, who="ann", why="two hosts")


def test_the_same_stack_gains_a_session(store: Store) -> None:
    first = record(store, OLD)
    second = record(store, replace(OLD, telemetry={"temperature_c": 70}), measured(value=2e-5), "s2")

    assert first == second
    sessions = load(first).metrics["gemm"].sessions
    assert [session.id for session in sessions] == ["s1", "s2"]
    assert [session.telemetry["temperature_c"] for session in sessions] == [40, 70]


def test_another_stack_gets_the_next_number(store: Store) -> None:
    record(store, OLD)
    (store.root / H200 / "0041_hand-made.json").write_bytes((store.root / H200 / "0001_vllm-0.26.json").read_bytes())
    record(store, NEW)

    assert names(store) == ["0001_vllm-0.26.json", "0041_hand-made.json", "0042_vllm-0.26.json"]


def test_a_metric_recorded_twice_in_a_session_keeps_the_later_value(store: Store) -> None:
    record(store, OLD, measured(), "s1")
    record(store, OLD, measured(value=2e-5), "s2")
    path = record(store, OLD, measured(value=3e-5), "s1")

    sessions = load(path).metrics["gemm"].sessions
    assert [(session.id, session.values[1]) for session in sessions] == [("s1", 3.06e-5), ("s2", 2.04e-5)]


@pytest.mark.parametrize(
    "metric",
    [replace(GEMM, unit="B/s"), replace(GEMM, kind="cpu"), replace(GEMM, contract={"clock": "perf_counter"})],
)
def test_what_measures_something_else_starts_anew(store: Store, metric: Metric) -> None:
    record(store, OLD)
    stored = load(record(store, OLD, measured(metric), "s2")).metrics["gemm"]

    assert stored.metric == metric
    assert [session.id for session in stored.sessions] == ["s2"]


def test_a_new_band_keeps_the_sessions(store: Store) -> None:
    record(store, OLD)
    stored = load(record(store, OLD, measured(replace(GEMM, tolerance=0.1)), "s2")).metrics["gemm"]

    assert stored.metric.tolerance == 0.1
    assert len(stored.sessions) == 2


def test_nothing_recorded_selects_nothing(store: Store) -> None:
    selection = store.select(H200, OLD, ())

    assert (selection.baseline, selection.differences, selection.folder) == (None, (), store.root / H200)


def test_the_same_stack_is_selected_before_newer_files(store: Store) -> None:
    path = record(store, OLD)
    record(store, NEW)

    assert store.select(H200, OLD, ()).baseline == load(path)


def test_then_the_newest_that_differs_only_as_declared(store: Store) -> None:
    record(store, OLD)
    declared = record(store, NEW)
    record(store, NEWER)
    run = replace(OLD, stack={**OLD.stack, "nccl": "2.30.0"})

    selection = store.select(H200, run, {"nccl"})

    assert selection.baseline == load(declared)
    assert [str(one) for one in selection.differences] == ["nccl: 2.28.9 -> 2.30.0"]
    assert selection.undeclared == ()


def test_then_the_newest_with_what_confounds_it(store: Store) -> None:
    record(store, OLD)
    newest = record(store, NEWER)
    run = replace(OLD, stack={"nccl": "2.30.0", "torch": "2.14"})

    selection = store.select(H200, run, {"nccl"})

    assert selection.baseline == load(newest)
    assert [str(one) for one in selection.undeclared] == ["torch: 2.13 -> 2.14"]


def test_machine_classes_do_not_see_each_other(store: Store) -> None:
    path = record(store, OLD)

    assert store.select("NVIDIA-H100-x8", OLD, ()).baseline is None
    foreign = store.root / "NVIDIA-H100-x8" / path.name
    foreign.parent.mkdir()
    path.rename(foreign)

    with pytest.raises(BadInput, match="/decodegate/machine_class: 'NVIDIA-H200-x2-NVLink' lies in the folder of anot"):
        store.select("NVIDIA-H100-x8", OLD, ())


def test_a_chosen_file_is_compared_whatever_it_is(store: Store) -> None:
    selection = contrast(load(record(store, OLD)), NEW, ())

    assert [str(one) for one in selection.undeclared] == ["nccl: 2.28.3 -> 2.28.9"]


def test_other_files_are_not_ours(store: Store) -> None:
    folder = record(store, OLD).parent
    for name in ("README.md", "notes.json", ".0002_x.json.tmp", "12_short.json"):
        (folder / name).write_text("not ours")

    assert store.select(H200, OLD, ()).baseline is not None


def test_an_invalid_file_is_refused_and_not_touched(store: Store) -> None:
    path = record(store, OLD)
    path.write_text(path.read_text().replace('"schema": 3', '"schema": 9'))
    before = path.read_bytes()

    with pytest.raises(BadInput, match="/decodegate/schema: version 9"):
        store.select(H200, OLD, ())
    with pytest.raises(BadInput, match="/decodegate/schema: version 9"):
        record(store, NEW)
    assert path.read_bytes() == before
    assert names(store) == [path.name]


@pytest.mark.parametrize("text", ["../../etc/passwd", "/abs", "..", "?", ".hidden", "a\x00b", "x/../y", "ü" * 300])
def test_names_never_become_paths(store: Store, text: str) -> None:
    safe = path_component(text)
    path = store.record(OLD, text, text, measured(), text)

    assert safe == Path(safe).name.lstrip(".")
    assert path.resolve().parent.parent == store.root.resolve()
    assert store.select(text, OLD, ()).baseline == load(path)


def test_what_could_not_be_read_is_not_written(store: Store) -> None:
    with pytest.raises(BadInput, match="metric 'gemm': no replicate was measured"):
        record(store, OLD, Measurement(GEMM, (), "process"))
    with pytest.raises(BadInput, match="/benchmarks/0/extra_info/session: "):
        record(store, OLD, session="")

    assert names(store) == []


def failing(code: int) -> Callable[..., None]:
    """Stands in for a system call that fails with `code`."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_full_disk_leaves_the_old_file_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record(store, OLD)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))

    with pytest.raises(BadInput, match=r"0001_vllm-0\.26\.json: cannot be written: No space left on device; not"):
        record(store, OLD, session="s2")

    assert path.read_bytes() == before
    assert sorted(child.name for child in path.parent.iterdir()) == [path.name, sidecar(path).name]


def test_a_read_only_folder_is_an_error_that_names_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", failing(errno.EROFS))

    with pytest.raises(BadInput, match=f"{H200}: cannot be written: Read-only file system; .* mend the permissions"):
        record(store, OLD)


WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from dataclasses import replace
from recordings import GEMM, H200, OLD, measured
from pytest_decodegate.baseline.store import Store

name, kill = sys.argv[1:]
if kill == "kill":
    Path.replace = lambda *_: os._exit(9)  # killed between writing the temporary file and the rename

print("ready", flush=True)
sys.stdin.read(1)
for number in range(8):
    metric = replace(GEMM, name=f"{{name}}_{{number}}")
    Store(Path("baselines"), lock_seconds=60).record(OLD, H200, "vllm 0.26", measured(metric), name)
"""


def writer(name: str, mode: str = "record") -> subprocess.Popen[str]:
    code = WRITER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, name, mode]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_kill_before_the_rename_leaves_the_old_file_whole(store: Store) -> None:
    path = record(store, OLD)
    before = path.read_bytes()
    killed = writer("killed", "kill")
    killed.communicate("x", timeout=60)

    assert killed.returncode == 9
    assert path.read_bytes() == before
    assert (path.parent / f".{path.name}.tmp").exists()
    # The lock died with its holder, and the next writer reuses the temporary file.
    record(store, OLD, session="s2")
    assert len(load(path).metrics["gemm"].sessions) == 2
    assert sorted(child.name for child in path.parent.iterdir()) == [path.name, sidecar(path).name]


def test_two_processes_recording_at_once_lose_nothing(store: Store) -> None:
    writers = [writer("a"), writer("b")]
    at_once(writers)

    assert [one.returncode for one in writers] == [0, 0]
    assert names(store) == ["0001_vllm-0.26.json"]
    recorded = load(store.files(H200)[0]).metrics
    assert sorted(recorded) == sorted(f"{name}_{number}" for name in "ab" for number in range(8))


def test_a_held_lock_is_a_clear_error(store: Store) -> None:
    store.root.mkdir()
    impatient = Store(store.root, lock_seconds=0.05)

    with (
        FileLock(store.root / f".{H200}.lock"),
        pytest.raises(BadInput, match=r"has been recording for 0\.05 s \(lock"),
    ):
        record(impatient, OLD)


def test_a_file_is_as_readable_as_any_other(store: Store) -> None:
    (plain := store.root.parent / "plain").touch()

    assert record(store, OLD).stat().st_mode == plain.stat().st_mode


def test_a_link_that_was_planted_at_the_temporary_name_does_not_have_its_target_overwritten(
    store: Store, tmp_path: Path
) -> None:
    path = record(store, OLD)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.with_name(f".{path.name}.tmp").symlink_to(victim)
    record(store, OLD, session="s2")
    assert victim.read_text() == "mine"
    assert len(load(path).metrics["gemm"].sessions) == 2
    assert not path.is_symlink()


def test_a_link_that_was_planted_at_the_lock_does_not_have_its_target_emptied(store: Store, tmp_path: Path) -> None:
    record(store, OLD)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    lock = store.root / f".{H200}.lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(victim)
    with pytest.raises(BadInput, match="cannot be written"):
        record(store, OLD, session="s2")

    assert victim.read_text() == "mine"


def test_a_class_folder_that_is_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.root.mkdir(parents=True)
    (store.root / H200).symlink_to(elsewhere)
    for act in (lambda: record(store, OLD), lambda: store.load_all(H200)):
        with pytest.raises(BadInput, match=rf"{H200}: is a link to {elsewhere}, .* not followed"):
            act()

    assert store.classes() == []
    assert list(elsewhere.iterdir()) == []


def test_a_baseline_that_is_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    path = record(store, OLD)
    moved = tmp_path / "moved.json"
    path.rename(moved)
    path.symlink_to(moved)
    before = moved.read_bytes()
    with pytest.raises(BadInput, match=r"is a link to .*moved\.json"):
        store.load_all(H200)
    with pytest.raises(BadInput, match=r"is a link to .*moved\.json"):
        record(store, OLD, session="s2")

    assert moved.read_bytes() == before
