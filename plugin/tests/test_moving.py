"""`decodegate baselines move`: metrics go to the class of what they ran on, nothing is lost, and both files say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fake_nvml import BLACKWELL
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_host import host

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.moving import Moving, divide
from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Baseline, LogEntry, Session, StoredMetric
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.cli import main
from pytest_decodegate.errors import BadInput
from pytest_decodegate.machine.fingerprint import Fingerprint, provenance
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Kind, Level, Metric, Replicate

SHIPPED = Path(__file__).parents[2] / "baselines"
FOUR = host(4)
X4 = "NVIDIA-H200-x4-NVLink"
STACK: Mapping[str, Json] = {"torch": "2.11", "nccl": "2.28.9"}


def of(seen: Fingerprint) -> Provenance:
    return provenance(seen, STACK, {})


def stored(
    name: str,
    kind: Kind = "kernel",
    level: Level = "gang",
    server: Json = None,
    days: Iterable[int] = (1,),
    **contract: Json,
) -> StoredMetric:
    """A metric as a run of all cards of FOUR recorded it."""
    telemetry = {**of(FOUR).telemetry, **({"server": server} if server else {})}
    replicates = (Replicate((1e-5, 1.1e-5)), Replicate((1.2e-5,)))
    sessions = (Session(f"s{day}", f"2026-01-{day:02d}T00:00:00+00:00", level, replicates, telemetry) for day in days)
    return StoredMetric(Metric(name, "s", kind, 0.05, contract), tuple(sessions))


def put(root: Path, *metrics: StoredMetric, machine_class: str = X4, whole: Fingerprint = FOUR) -> Path:
    """Write a file as it was recorded when one folder held all metrics of a host."""
    path = root / machine_class / "0009_stack.json"
    log = (LogEntry("2026-01-01T00:00:00+00:00", "ann", "merged something", "two runs"),)
    one = Baseline(
        path,
        machine_class,
        "stack",
        replace(of(whole), telemetry={}),
        {each.metric.name: each for each in metrics},
        log,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(one))
    return path


def files(root: Path) -> list[Baseline]:
    return [load(path) for path in sorted(root.glob("*/*.json"))]


def sessions(baselines: Iterable[Baseline]) -> Counter[tuple[str, str, tuple[float, ...]]]:
    """Metric, session and values of everything that is stored, counted."""
    return Counter(
        (name, session.id, session.values)
        for each in baselines
        for name, metric in each.metrics.items()
        for session in metric.sessions
    )


GEMM = stored("gemm")
WORK = {
    "gemm": (GEMM, "NVIDIA-H200-x1"),
    "sum[world=2]": (stored("sum[world=2]", "collective", world_size=2), "NVIDIA-H200-x2-NVLink"),
    "sum[world=4]": (stored("sum[world=4]", "collective", world_size=4), X4),
    "tpot[c=1]": (stored("tpot[c=1]", "serving", "window", {"tensor_parallel": 2}), "NVIDIA-H200-x2-NVLink"),
    "quality": (stored("quality", "quality", "window", {"tensor_parallel": 4}, days=(1, 2)), X4),
}


@settings(max_examples=25)
@given(names=st.sets(st.sampled_from(sorted(WORK)), min_size=1), before=st.sets(st.sampled_from(sorted(WORK))))
def test_every_metric_lies_with_what_it_ran_on_and_nothing_is_lost(names: set[str], before: set[str]) -> None:
    """before: metrics that a host of the right size has recorded already, in another session."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for name in sorted(before):
            metric, own = WORK[name]
            part = next(part for part in FOUR.parts if part.machine_class == own)
            later = replace(metric, sessions=tuple(replace(each, id=f"later-{each.id}") for each in metric.sessions))
            Store(root).add(Baseline(Path("new"), own, f"{name[:3]}", replace(of(part), telemetry={}), {name: later}))

        path = put(root, *(WORK[name][0] for name in sorted(names)))
        there = sessions(files(root))
        if any(WORK[name][1] != X4 for name in names):
            Store(root).move(path, Moving(), who="ann", why="homes")
        else:
            with pytest.raises(BadInput, match="nothing moves"):
                Store(root).move(path, Moving(), who="ann", why="homes")

        assert sessions(files(root)) == there
        for each in files(root):
            assert {WORK[name][1] for name in each.metrics} == {each.machine_class}


def test_what_moved_gates_a_host_of_one_card(tmp_path: Path) -> None:
    put(tmp_path, GEMM, WORK["sum[world=4]"][0])
    assert main(["baselines", "move", str(tmp_path / X4 / "0009_stack.json"), "--why=homes", "--who=ann"]) == 0
    one = host(1)
    found = Store(tmp_path).select(one.machine_class, of(one), frozenset(), "gemm")
    assert found.baseline is not None
    assert (found.fit, found.baseline.path.name) == ("same", "0001_stack.json")
    assert found.baseline.metrics["gemm"].sessions[0].values == pytest.approx(GEMM.sessions[0].values, rel=1e-5)


def test_both_files_say_who_moved_what_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path, *(metric for metric, _ in WORK.values()))
    assert main(["baselines", "move", str(path), "--why", " cards, not hosts ", "--who", "ann"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{path}: moved gemm to NVIDIA-H200-x1/0001_stack.json",
        f"{path}: moved 2 metrics (sum[world=2] ... tpot[c=1]) to NVIDIA-H200-x2-NVLink/0001_stack.json",
    ]
    new = load(tmp_path / "NVIDIA-H200-x1" / "0001_stack.json")
    first, last = new.log
    assert (first.what, last.what) == ("merged something", f"moved gemm here from {X4}/0009_stack.json")
    assert (last.who, last.why) == ("ann", "cards, not hosts")
    stayed = load(path)
    assert (stayed.log[-1].who, stayed.log[-1].why) == ("ann", "cards, not hosts")
    assert stayed.log[-1].what.startswith("moved gemm to NVIDIA-H200-x1/0001_stack.json; moved 2 metrics")


def test_a_part_has_the_facts_of_its_cards_only(tmp_path: Path) -> None:
    path = put(tmp_path, GEMM, WORK["sum[world=2]"][0])
    Store(tmp_path).move(path, Moving(), who="ann", why="homes")
    assert not path.exists()
    for gpus, machine_class in ((1, "NVIDIA-H200-x1"), (2, "NVIDIA-H200-x2-NVLink")):
        (new,) = [each for each in files(tmp_path) if each.machine_class == machine_class]
        assert new.provenance == replace(of(host(gpus)), telemetry={})
        (metric,) = new.metrics.values()
        cards: Any = metric.sessions[0].telemetry["gpus"]
        assert [card["uuid"] for card in cards] == [gpu.uuid for gpu in host(gpus).gpus]


def test_a_kill_between_the_two_files_loses_nothing_and_moving_again_doubles_nothing(tmp_path: Path) -> None:
    path = put(tmp_path, GEMM, WORK["sum[world=4]"][0])
    before, there = path.read_bytes(), sessions(files(tmp_path))
    Store(tmp_path).move(path, Moving(), who="ann", why="homes")
    path.write_bytes(before)  # as if the second file had not been written any more
    Store(tmp_path).move(path, Moving(), who="ann", why="homes")
    assert sessions(files(tmp_path)) == there


def test_what_feels_no_difference_joins_the_sessions_of_another_host(tmp_path: Path) -> None:
    moved = stored("gemm", clock="cuda_event", clock_version=9, mode="graph")
    fewer_cores = replace(of(host(1)), telemetry={}, machine={**of(host(1)).machine, "cores": 3})
    earlier = replace(moved, sessions=(replace(moved.sessions[0], id="s0"),))
    home = Store(tmp_path).add(Baseline(Path("new"), "NVIDIA-H200-x1", "stack", fewer_cores, {"gemm": earlier}))
    Store(tmp_path).move(put(tmp_path, moved), Moving(), who="ann", why="homes")
    (only,) = files(tmp_path)
    assert only.path == home
    first, second = only.metrics["gemm"].sessions
    assert "unlike_file" not in first.telemetry
    assert second.telemetry["unlike_file"] == [f"cores: 3 -> {FOUR.host.cores}"]


@pytest.mark.parametrize(
    "path", sorted(SHIPPED.glob("*/*.json")), ids=lambda path: f"{path.parent.name}/{path.name[:4]}"
)
def test_what_is_shipped_lies_with_what_it_ran_on(path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing moves$|none of them moves$"):
        divide(load(path), Moving())


def test_only_what_is_named_moves(tmp_path: Path) -> None:
    path = put(tmp_path, GEMM, stored("gemm[m=8]"))
    Store(tmp_path).move(path, Moving("gemm[m=8]"), who="ann", why="homes")
    assert set(load(path).metrics) == {"gemm"}


def test_the_gpus_of_a_metric_that_does_not_tell_are_the_users_word(tmp_path: Path) -> None:
    mute = stored("tpot[c=1]", "serving", "window")
    path = put(tmp_path, mute)
    with pytest.raises(BadInput, match=r"'tpot\[c=1\]': the file does not say how many GPUs .* --gpus, and --metric"):
        Store(tmp_path).move(path, Moving(), who="ann", why="homes")

    Store(tmp_path).move(path, Moving(gpus=2), who="ann", why="homes")
    assert [each.machine_class for each in files(tmp_path)] == ["NVIDIA-H200-x2-NVLink"]


def test_a_stand_in_of_a_gpu_host_belongs_to_its_cpu(tmp_path: Path) -> None:
    Store(tmp_path).move(put(tmp_path, stored("nap", "cpu")), Moving(), who="ann", why="homes")
    (new,) = files(tmp_path)
    assert new.machine_class == FOUR.part(0).machine_class
    assert "driver" not in new.provenance.stack


@pytest.mark.parametrize(
    ("moving", "said"),
    [
        (Moving("sum*"), "no metric 'sum\\*'; it holds gemm, tpot"),
        (Moving("tpot", gpus=8), "'tpot': ran on 8 GPUs, and its file's provenance does not have as many"),
        (Moving("tpot", gpus=3), r"ran on 3 of 4 GPUs, and the file tells only the slowest link of all \(PCIe-SYS\)"),
    ],
)
def test_what_cannot_move_is_refused_and_left_as_it_was(tmp_path: Path, moving: Moving, said: str) -> None:
    blackwells = host(4, BLACKWELL)
    path = put(
        tmp_path,
        GEMM,
        stored("tpot", "serving", "window"),
        machine_class=blackwells.machine_class,
        whole=blackwells,
    )
    before = path.read_bytes()
    with pytest.raises(BadInput, match=said):
        Store(tmp_path).move(path, moving, who="ann", why="homes")

    assert path.read_bytes() == before
    assert len(files(tmp_path)) == 1


def test_published_figures_stay_where_they_were_published() -> None:
    point = StoredMetric(GEMM.metric, (Session("p", "2026-01-01T00:00:00+00:00", "published", (), point=1e-5),))
    figures = Baseline(Path("0000_p.json"), X4, "p", of(FOUR), {"gemm": point}, published="a write-up")
    with pytest.raises(BadInput, match="published for a host as a whole, so none of them moves"):
        divide(figures, Moving())
