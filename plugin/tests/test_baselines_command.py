"""`decodegate baselines`: what is stored, what it can resolve, and edits that keep their reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stack_baselines import COLLECTIVE, GEMM, H200, baseline, both, measured, put, run_of, session

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.edits import Pruning, merge, prune
from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.samples import sidecar
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.cli import main
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.stats.noise import Spread, class_noise
from pytest_decodegate.gate.stats.recorded import noise_class
from pytest_decodegate.gate.stats.rules import RARELY, compare, foresee, narrowest_band, worse_logs
from pytest_decodegate.gate.verdict import Verdict, judge
from pytest_decodegate.metric import Metric

Run = Callable[..., str]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "baselines"


@pytest.fixture
def decodegate(root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one `decodegate baselines` command; its output, or its error where `code` is not 0."""

    def run(*words: str | Path, code: int = 0) -> str:
        assert main(["baselines", *map(str, words)]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def test_a_collective_at_several_world_sizes_is_listed_as_a_curve(root: Path, decodegate: Run) -> None:
    one = baseline(1, session(1))
    metrics = {
        name: StoredMetric(
            replace(
                COLLECTIVE,
                name=name,
                contract={"collective": "allreduce", "bytes": 14_336, "world_size": size},
            ),
            (session(1),),
        )
        for size in (2, 8)
        for name in [f"allreduce_graph[world={size}]"]
    }
    put(root, replace(one, metrics=metrics))
    said = decodegate()
    assert "  collectives against the world size:\n    collective       world size  per call " in said
    assert "    allreduce_graph  2 " in said.partition("against the world size")[2]


def ids(path: Path, metric: str = "gemm") -> list[str]:
    return [one.id for one in load(path).metrics[metric].sessions]


def test_the_list_shows_sessions_spread_and_what_can_be_resolved(root: Path, decodegate: Run) -> None:
    put(root, both(session(1), session(2), session(3)))
    put(root, baseline(2, session(4), nccl="2.28.9"))
    said = decodegate("--baselines", root)

    first, second = said.split("\n\n")
    assert "0001_stack.json: stack, last recorded 2026-01-04T08:00" in first
    header, gemm, allreduce = first.splitlines()[1:4]
    assert header.split("  ")[0:2] == ["", "metric"]
    assert gemm.split()[:11] == ["gemm", "10.0", "us", "3", "15", "0.13", "%", "0.19", "%", "2", "%"]
    assert header.split()[-4:] == ["band", "can", "keep", "finds"]
    assert allreduce.split()[0] == "allreduce[n=14336]"
    assert "0.30 % (assumed)" in second


def test_what_it_surely_finds_is_half_a_width_beyond_the_band_of_a_run_to_come(root: Path, decodegate: Run) -> None:
    stored = baseline(1, session(1), session(2))
    put(root, stored)
    logs = [worse_logs(one.values, "lower") for one in stored.metrics["gemm"].sessions]
    # A run as noisy as the sessions leaves the noise as it is, but for its own degrees of freedom.
    gemm = stored.metrics["gemm"]
    run = compare(logs[0], logs, [], noise_class(gemm.metric, gemm.level), 2)

    shown = float(decodegate("--replicates", 5).splitlines()[2].split()[-2])
    half = (run.hi - run.lo) / 2
    assert shown == pytest.approx(100 * (0.02 + half), rel=0.05)


def test_a_band_that_it_can_keep_is_proposed(root: Path, decodegate: Run) -> None:
    wide = baseline(1, session(1), session(2), metric=replace(GEMM, tolerance=0.15))
    put(root, wide)
    said = decodegate()
    row = said.splitlines()[2]
    band, loose = row.split()[-5], row.split()[-3]
    assert (row.split()[-7], loose) == ("15", "~")
    gemm = wide.metrics["gemm"]
    logs = [worse_logs(one.values, "lower") for one in gemm.sessions]
    fitted = class_noise([Spread.of(logs)], noise_class(gemm.metric, gemm.level))
    keeps = narrowest_band(foresee([5], logs, fitted, 2), RARELY)
    assert 100 * keeps <= float(band) < 100 * keeps + 1
    assert "~ could keep a narrower band: set it in the test, then here with `decodegate baselines band FILE" in said

    path = root / H200 / "0001_stack.json"
    decodegate("band", path, "--metric", "gemm", "--to", f"{band}%", "--why", "as its test now has it")
    assert "~" not in decodegate()


def test_more_replicates_resolve_more(root: Path, decodegate: Run) -> None:
    noisy = Session("s1", "2026-01-01T08:00:00+00:00", "gang", session(1).replicates)
    spread = tuple(replace(one, samples=(one.samples[0] * (1 + i / 20),)) for i, one in enumerate(noisy.replicates))
    put(root, baseline(1, replace(noisy, replicates=spread)))

    few, many = (decodegate("--replicates", n) for n in (2, 30))
    assert "! gemm: the band cannot be shown to hold with 2 replicates, even when nothing changed" in few
    assert float(few.splitlines()[2].split()[-3]) > float(many.splitlines()[2].split()[-3])


def test_published_figures_are_listed_as_such(root: Path, decodegate: Run) -> None:
    point = Session("p", "1970-01-01T00:00:00+00:00", "published", (), {}, 1e-5)
    put(root, replace(baseline(1, point), published="a paper"))
    head, _, row = decodegate().splitlines()

    assert head.endswith("0001_stack.json: published: a paper")
    assert row.split()[2:] == ["us", "1", "1", "-", "-", "2", "%", "-", "the", "band", "alone"]


def test_answers_are_listed_by_their_band_alone(root: Path, decodegate: Run) -> None:
    """They are right or wrong by a rule of their own: what times keep, find, or are judged in on other cards is none
    of theirs.
    """
    answers = Metric("answers", "s", "quality", 0.02, {})
    put(root, baseline(1, session(1, 1.0, uuids=("a",)), session(2, 1.3, uuids=("b",)), metric=answers))
    _, _, row, *more = decodegate().splitlines()
    assert row.split()[-6:] == ["-", "2", "%", "-", "wrong", "answers"]
    assert more == []


def test_nothing_stored_is_said(root: Path, decodegate: Run) -> None:
    assert decodegate() == "baselines: no stored baselines\n"


def test_prune_drops_sessions_and_keeps_why_in_the_file(root: Path, decodegate: Run) -> None:
    path = put(root, both(session(1), session(2), session(3)))
    said = decodegate("prune", path, "--session", "s2", "--why", "a fan had failed", "--who", "Ada")

    assert said == f"{path}: pruned 1 session(s) of gemm, 1 session(s) of allreduce[n=14336]\n"
    assert ids(path) == ["s1", "s3"]
    (entry,) = load(path).log
    assert (entry.who, entry.why) == ("Ada", "a fan had failed")
    assert entry.what.startswith("pruned 1 session(s) of gemm")
    assert "Ada: pruned 1 session(s) of gemm, 1 session(s) of allreduce[n=14336] (a fan had failed)" in decodegate()


@pytest.mark.parametrize(
    ("words", "gemm", "allreduce"),
    [
        (["--before", "2026-01-03"], ["s2", "s3"], ["s2", "s3"]),
        (["--before", "2026-01-03T08:00:00+00:00"], ["s2", "s3"], ["s2", "s3"]),
        (["--metric", "gemm", "--session", "s1", "--session", "s3"], ["s2"], ["s1", "s2", "s3"]),
        (["--metric", "allreduce[*"], ["s1", "s2", "s3"], None),
    ],
)
def test_prune_takes_what_matches(
    root: Path, decodegate: Run, words: list[str], gemm: list[str], allreduce: list[str] | None
) -> None:
    path = put(root, both(session(1), session(2), session(3)))
    decodegate("prune", path, "--why", "x", *words)

    assert ids(path) == gemm
    assert allreduce is None or ids(path, COLLECTIVE.name) == allreduce
    assert (COLLECTIVE.name in load(path).metrics) == (allreduce is not None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prune", "FILE"], "prune: say what to drop with --session, --before or --metric"),
        (
            ["prune", "FILE", "--session", "s9"],
            "no session matches, so nothing was pruned; it holds the metrics gemm and",
        ),
        (["prune", "FILE", "--metric", "*"], "nothing would be left; delete the file instead, with a commit that says"),
        (["prune", "FILE", "--session", "s1", "--why", " "], "--why: a reason is kept in the file, and an empty one"),
        (["accept", "FILE", "--metric", "gem"], "no metric 'gem'; it holds the metrics gemm"),
        (["accept", "FILE", "--metric", "gemm", "--since", "s9"], "no metric 'gemm' with a session 's9'"),
        (["merge", "FILE", "FILE"], "cannot be merged with itself"),
        (["merge", "FILE", "nowhere.json"], "nowhere.json: cannot be read: No such file"),
        (["accept", "nowhere/x/0001_a.json", "--metric", "*"], "0001_a.json: is not a file; `decodegate baselines`"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_and_changes_nothing(
    root: Path, decodegate: Run, words: Sequence[str], said: str
) -> None:
    path = put(root, baseline(1, session(1)))
    before = path.read_bytes()
    filled = [str(path) if word == "FILE" else word for word in words]
    assert said in decodegate(filled[0], "--why", "x", *filled[1:], code=3)
    assert path.read_bytes() == before
    assert not (root.parent / "nowhere").exists()


def test_an_edit_without_a_reason_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["baselines", "prune", str(put(root, baseline(1, session(1)))), "--session", "s1"])

    assert "the following arguments are required: --why" in capsys.readouterr().err


def test_without_who_the_author_is_named_all_the_same(root: Path, decodegate: Run) -> None:
    path = put(root, baseline(1, session(1), session(2)))
    decodegate("prune", path, "--session", "s2", "--why", "x")

    assert load(path).log[0].who.strip()


def test_an_accepted_level_gates_and_the_old_one_stays_as_history(root: Path, decodegate: Run) -> None:
    path = put(root, baseline(1, session(1), session(2), session(3, value=1.2e-5)))
    store = Store(root)
    run = measured(1.2e-5)
    assert judge(run, store.select(H200, run_of(), (), "gemm")).verdict != Verdict.PASS

    said = decodegate("accept", path, "--metric", "gem*", "--why", "the new cooling is slower, agreed in the review")

    assert said == f"{path}: accepted the level of gemm since s3\n"
    judgement = judge(run, store.select(H200, run_of(), (), "gemm"))
    assert (judgement.verdict, judgement.basis.sessions) == (Verdict.PASS, 1)
    assert ids(path) == ["s1", "s2", "s3"]
    assert "1 of 3" in decodegate()

    store.record(run_of(), H200, "stack", run, "s4")
    assert judge(run, store.select(H200, run_of(), (), "gemm")).basis.sessions == 2


def test_accept_can_name_where_the_level_began(root: Path, decodegate: Run) -> None:
    path = put(root, baseline(1, session(1), session(2), session(3)))
    decodegate("accept", path, "--metric", "*", "--since", "s2", "--why", "x")

    assert [one.id for one in load(path).metrics["gemm"].current] == ["s2", "s3"]


def test_pruning_never_brings_an_old_level_back(root: Path, decodegate: Run) -> None:
    path = put(root, baseline(1, session(1), session(2), session(3)))
    decodegate("accept", path, "--metric", "*", "--since", "s2", "--why", "x")

    decodegate("prune", path, "--session", "s2", "--why", "x")
    assert [one.id for one in load(path).metrics["gemm"].current] == ["s3"]
    assert "would fall back to sessions from before its accepted level" in decodegate(
        "prune", path, "--session", "s3", "--why", "x", code=3
    )


def test_merge_joins_two_files_of_one_stack_and_removes_the_second(root: Path, decodegate: Run) -> None:
    target = put(root, baseline(1, session(1), session(3)))
    source = put(root, replace(both(session(2), session(3)), path=Path("0002_stack.json")))
    said = decodegate("merge", target, source, "--why", "recorded on two branches")

    assert said == f"{target}: merged 3 session(s) from 0002_stack.json\n"
    assert ids(target) == ["s1", "s2", "s3"]
    assert ids(target, COLLECTIVE.name) == ["s2", "s3"]
    assert not source.exists()


def test_a_source_from_elsewhere_stays(root: Path, decodegate: Run, tmp_path: Path) -> None:
    target = put(root, baseline(1, session(1)))
    source = tmp_path / "mailed.json"
    source.write_bytes(dumps(replace(baseline(7, session(2)), path=source)))
    decodegate("merge", target, source, "--why", "x")

    assert ids(target) == ["s1", "s2"]
    assert source.exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (baseline(2, session(2), nccl="2.29"), "another stack than 0001_stack.json (nccl: 2.28.3 -> 2.29)"),
        (replace(baseline(2, session(2)), machine_class="H100-x8"), "recorded on H100-x8; baselines never cross"),
        (baseline(2, session(2), metric=replace(GEMM, unit="B/s")), "'gemm' measures something else there"),
        (baseline(2, session(1, value=9e-5)), "session 's1' of 'gemm' has other numbers there"),
    ],
)
def test_what_does_not_belong_together_is_not_merged(root: Path, decodegate: Run, source: Baseline, said: str) -> None:
    target, other = put(root, baseline(1, session(1))), put(root, source)
    before = target.read_bytes(), other.read_bytes()

    assert said in decodegate("merge", target, other, "--why", "x", code=3)
    assert (target.read_bytes(), other.read_bytes()) == before


def test_recording_with_another_band_is_logged(root: Path) -> None:
    store = Store(root)
    store.record(run_of(), H200, "stack", measured(), "s1")
    path = store.record(run_of(), H200, "stack", measured(metric=replace(GEMM, tolerance=0.1)), "s2")
    store.record(run_of(), H200, "stack", measured(metric=replace(GEMM, tolerance=0.1)), "s3")

    (entry,) = load(path).log
    assert (entry.who, entry.what) == ("pytest --perf-record", "band of gemm: 2.000% -> 10.000%")
    assert entry.why == "recorded so in session s2"


some_days = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(sorted)


@given(left=some_days, right=some_days)
def test_merging_is_a_union_and_can_be_repeated(left: list[int], right: list[int]) -> None:
    target, source = baseline(1, *map(session, left)), baseline(2, *map(session, right))
    merged, _ = merge(target, source)
    again, _ = merge(merged, source)

    assert [one.id for one in merged.metrics["gemm"].sessions] == [f"s{day}" for day in sorted({*left, *right})]
    assert again == merged


some_gone = st.sets(st.integers(0, 9), min_size=1)


def accepted_since(days: list[int], since: int) -> Baseline:
    """A file with a session for each of `days`, whose level was accepted with one of them."""
    sessions = tuple(map(session, days))
    return replace(baseline(1), metrics={"gemm": StoredMetric(GEMM, sessions, f"s{since}")})


def sessions_of(days: set[int]) -> Pruning:
    return Pruning(sessions=tuple(f"s{day}" for day in days))


@given(days=some_days, gone=some_gone, place=st.integers(0, 4))
def test_pruning_takes_exactly_what_was_named(days: list[int], gone: set[int], place: int) -> None:
    since = days[place % len(days)]
    kept = [day for day in days if day not in gone]
    current = [day for day in kept if day >= since]
    assume(kept != days and current)
    after, _ = prune(accepted_since(days, since), sessions_of(gone))
    assert [one.id for one in after.metrics["gemm"].sessions] == [f"s{day}" for day in kept]
    assert [one.id for one in after.metrics["gemm"].current] == [f"s{day}" for day in current]


@given(days=some_days, gone=some_gone)
def test_pruning_what_is_not_there_is_refused(days: list[int], gone: set[int]) -> None:
    assume(gone.isdisjoint(days))
    with pytest.raises(BadInput, match="no session matches"):
        prune(accepted_since(days, days[0]), sessions_of(gone))


@given(days=some_days, place=st.integers(1, 4))
def test_pruning_all_of_the_accepted_level_is_refused(days: list[int], place: int) -> None:
    assume(place < len(days))
    gone = set(days[place:])
    with pytest.raises(BadInput, match="would fall back to sessions from before its accepted level"):
        prune(accepted_since(days, days[place]), sessions_of(gone))


def test_pruning_by_date_leaves_what_has_none() -> None:
    pruning = Pruning(before=datetime(2026, 1, 9, tzinfo=UTC))
    assert pruning.takes(session(2))
    assert not pruning.takes(replace(session(2), recorded=""))


def test_band_sets_what_the_test_now_has_and_says_from_what(root: Path, decodegate: Run) -> None:
    path = put(root, both(session(1)))
    chosen = ("--metric", "gemm", "--metric", "allreduce*")
    said = decodegate("band", path, *chosen, "--to", "4%", "--why", "quiet", "--who", "A")
    assert said == f"{path}: band of 2 metric(s) (gemm, allreduce*): 2.000% and 5.000% -> 4.000%\n"
    stored = load(path)
    assert [one.metric.tolerance for one in stored.metrics.values()] == [0.04, 0.04]
    assert (stored.log[0].who, stored.log[0].why) == ("A", "quiet")
    again = decodegate("band", path, "--metric", "gemm", "--to", "4%", "--why", "x", code=3)
    assert "the band of gemm is 4.000% already" in again
    nothing = decodegate("band", path, "--metric", "gem", "--to", "4%", "--why", "x", code=3)
    assert "no metric 'gem'; it holds the metrics gemm" in nothing


def test_contract_adds_what_was_true_and_changes_nothing_that_was_said(root: Path, decodegate: Run) -> None:
    path = put(root, both(session(1)))
    words = ("--metric", "*", "--set", "clock_version=2", "--set", 'workload="gemm"', "--why", "x")
    said = decodegate("contract", path, *words)
    assert said == f"{path}: contract of 2 metric(s) (*): clock_version = 2, workload = 'gemm'\n"
    now = {"clock": "cuda_event", "clock_version": 2, "workload": "gemm"}
    assert [one.metric.contract for one in load(path).metrics.values()] == [now, now]

    before = path.read_bytes()
    refused = decodegate("contract", path, "--metric", "gemm", "--set", "clock_version=3", "--why", "x", code=3)
    assert "'gemm' was recorded with contract.clock_version 2, and no edit can make that 3; record it again" in refused
    assert path.read_bytes() == before


@pytest.mark.parametrize("words", [["band", "--to", "4"], ["contract", "--set", "clock=cuda_event"]], ids=str)
def test_a_band_or_field_that_is_none_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    path = put(root, baseline(1, session(1)))
    with pytest.raises(SystemExit):
        main(["baselines", words[0], str(path), "--metric", "*", "--why", "x", *words[1:]])

    said = capsys.readouterr().err
    assert "write for example '3%'" in said or "write clock_version=2" in said


OLD_FILE = Path(__file__).parent / "data" / "baseline_schema2.json"


def test_rewrite_takes_a_file_of_the_schema_before_once_and_logs_it(root: Path, decodegate: Run) -> None:
    path = root / "NVIDIA-H200-x1" / "0001_old.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(OLD_FILE.read_bytes())
    old = json.loads(OLD_FILE.read_text())["benchmarks"][0]
    assert "rewrite it once with `decodegate baselines rewrite FILE --why TEXT`" in decodegate(code=3)

    said = decodegate("rewrite", path, "--why", "an update", "--who", "Ada")
    assert said.startswith(f"{path}: rewritten from schema 2 to 3: samples in a sidecar, six digits; ")
    rewritten = load(path)
    (stored,) = rewritten.metrics.values()
    (only,) = stored.sessions
    (before,) = old["extra_info"]["sessions"]
    assert dict(stored.metric.contract) == old["extra_info"]["contract"]
    assert only.values == pytest.approx([one["value"] for one in before["replicates"]], rel=1e-5)
    assert (only.id, only.recorded, only.commit) == (before["id"], before["recorded"], {})
    assert (rewritten.log[-1].who, rewritten.log[-1].why) == ("Ada", "an update")
    (line,) = sidecar(path).read_text().splitlines()
    assert json.loads(line)["samples"] == [one["samples"] for one in before["replicates"]]

    content = path.read_bytes()
    assert "of schema 3, and only 2 is rewritten" in decodegate("rewrite", path, "--why", "x", code=3)
    assert path.read_bytes() == content


@pytest.mark.parametrize("damage", ["decodegate", "machine_info", "benchmarks"])
def test_rewrite_refuses_what_is_no_file_of_that_schema(root: Path, decodegate: Run, damage: str) -> None:
    path = root / "NVIDIA-H200-x1" / "0001_old.json"
    path.parent.mkdir(parents=True)
    document = json.loads(OLD_FILE.read_text())
    del document[damage]
    path.write_text(json.dumps(document))
    assert "0001_old.json: no baseline of schema 2: KeyError" in decodegate("rewrite", path, "--why", "x", code=3)
    assert json.loads(path.read_text()) == document
