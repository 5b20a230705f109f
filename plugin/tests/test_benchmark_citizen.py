"""pytest-benchmark and its readers beside us: they read what we write, and we run in one session with its own tests."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from stack_baselines import GEMM, H200, baseline, both, measured, put, run_of, session

from pytest_decodegate.baseline.condensed import rounded
from pytest_decodegate.baseline.edits import Pruning, accept, prune
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.report.benchmark import OUTPUTS, wanted

SHIPPED = Path(__file__).parents[2] / "baselines"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file for each way in which we write one: recorded, pruned, accepted, merged."""
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "baselines")
    store.record(run_of(), H200, "recorded", measured(), "s1")
    store.record(run_of(nccl="2.29"), H200, "rate", measured(80.0, replace(GEMM, name="tpot", unit="tok/s")), "s1")
    folder = store.folder(H200)
    pruned = put(store.root, replace(both(session(1), session(2)), path=Path("0004_pruned.json")))
    store.edit(pruned, lambda one: prune(one, Pruning(sessions=("s1",))), who="a", why="b")
    accepted = put(store.root, replace(baseline(5, session(1), session(2, 2e-5)), path=Path("0005_accepted.json")))
    store.edit(accepted, lambda one: accept(one, "*", None), who="a", why="b")
    merged = put(store.root, replace(baseline(6, session(1)), path=Path("0006_merged.json")))
    store.merge(merged, put(store.root, replace(baseline(7, session(2)), path=Path("0007_x.json"))), who="a", why="b")
    return folder


def test_pytest_benchmark_compares_every_file_we_write(folder: Path) -> None:
    files = sorted(path.name for path in folder.glob("*.json"))
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *files, "--columns=median,stddev,ops,rounds,iqr"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)

    assert len(files) == 5
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(\S+) \((\d{4})_\w+\) ", done.stdout, re.MULTILINE)
    assert {number for _, number in shown} == {name[:4] for name in files}
    assert ("gemm", "0005") in shown
    assert ("allreduce[n=14336]", "0004") in shown


@pytest.mark.skipif(not find_spec("pygal"), reason="pytest-benchmark draws with pygal: pip install pygal pygaljs")
def test_pytest_benchmark_draws_every_file_we_write_and_ship(folder: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "drawn"
    # It draws the fastest of a group and leaves out the rest, so that ours would not be among those that ship.
    for name, files in (("ours", folder.glob("*.json")), ("shipped", SHIPPED.glob("*/*.json"))):
        paths, picture = map(str, sorted(files)), drawn / name
        command = [sys.executable, "-m", "pytest_benchmark", "compare", *paths, f"--histogram={picture}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr
        assert "Failed to load" not in done.stderr + done.stdout

    kinds = {f"shipped-{one}.svg" for one in ("kernel", "collective", "serving")}
    assert {path.name for path in drawn.glob("*.svg")} >= kinds
    assert "gemm" in (drawn / "ours-kernel.svg").read_text()


def no_constant(name: str) -> None:
    raise AssertionError(f"{name}: JSON.parse of JavaScript refuses it")


def github_action(text: str) -> list[Mapping[str, Any]]:
    """What github-action-benchmark 1.22 does with `tool: pytest` (src/extract.ts), JSON.parse included."""
    document = json.loads(text, parse_constant=no_constant)
    results: list[Mapping[str, Any]] = []
    for entry in document["benchmarks"]:
        stats = entry["stats"]
        mean = stats["mean"]
        unit, scale = ("sec", 1.0) if mean > 1 else ("msec", 1e3) if mean > 1e-3 else ("usec", 1e6)
        results.append(
            {
                "name": entry["fullname"],
                "value": stats["ops"],
                "unit": "iter/sec",
                "range": f"stddev: {stats['stddev']}",
                "extra": f"mean: {mean * scale} {unit}\nrounds: {stats['rounds']}",
            }
        )

    return results


def test_github_action_benchmark_reads_every_file_we_write(folder: Path) -> None:
    for path in folder.glob("*.json"):
        results = github_action(path.read_text())
        assert results
        for one in results:
            assert isinstance(one["name"], str)
            assert math.isfinite(one["value"])
            assert one["value"] > 0
            assert re.fullmatch(r"stddev: [\d.e-]+", one["range"])


THEIRS = Path(os.environ.get("GITHUB_ACTION_BENCHMARK", "not-set"), "dist", "src", "extract.js")
"""In a checkout of a release of benchmark-action/github-action-benchmark, which holds its modules too."""

EXTRACT = """
const {extractResult} = require(process.argv[1]);
const read = (path) => extractResult({tool: "pytest", outputFilePath: path});
Promise.all(process.argv.slice(2).map(read)).then((all) => console.log(JSON.stringify(all.map((one) => one.benches))));
"""


@pytest.mark.skipif(
    not (THEIRS.is_file() and shutil.which("node")),
    reason="their code is not on PyPI: set GITHUB_ACTION_BENCHMARK to a checkout of one of its releases, and have node",
)
def test_its_real_code_reads_what_the_test_above_says(folder: Path, tmp_path: Path) -> None:
    files = sorted([*folder.glob("*.json"), *SHIPPED.glob("*/*.json")])
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"head_commit": {"id": "c0ffee", "message": "", "url": "", "author": {}}}))

    done = subprocess.run(
        ["node", "-e", EXTRACT, str(THEIRS.absolute()), *map(str, files)],
        capture_output=True,
        text=True,
        env={**os.environ, "GITHUB_EVENT_PATH": str(event)},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for path, benches in zip(files, json.loads(done.stdout), strict=True):
        said = [{key: one[key] for key in ("name", "value", "unit")} for one in benches]
        assert said == [{key: one[key] for key in ("name", "value", "unit")} for one in github_action(path.read_text())]


def test_github_action_sees_a_slowdown_as_one(folder: Path) -> None:
    """It takes `ops` as bigger-is-better and alerts on previous / current."""
    store = Store(folder.parent)
    rate = replace(GEMM, name="rate", unit="tok/s")
    values = {}
    for label, slower in (("fast", 1.0), ("slow", 1.05)):
        run = run_of(vllm=label)
        store.record(run, H200, label, measured(1e-5 * slower), "s1")
        path = store.record(run, H200, label, measured(80 / slower, rate), "s1")
        values[label] = {one["name"]: one["value"] for one in github_action(path.read_text())}

    ratios = {name: values["fast"][name] / values["slow"][name] for name in ("gemm", "rate")}
    assert ratios == pytest.approx({"gemm": 1.05, "rate": 1.05}, rel=1e-4)


FILLED = {"columns": ["min", "max"], "verbose": True}
"""Defaults of pytest-benchmark: before 5.3 it fills --benchmark-columns itself; no value may be taken for a wish."""


def config_of(pytester: pytest.Pytester, *arguments: str) -> pytest.Config:
    """The configuration of a run in which every output has a value already, as if by default."""
    config = pytester.parseconfig(*arguments)
    for name, value in FILLED.items():
        setattr(config.option, f"benchmark_{name}", value)

    return config


def test_a_default_of_pytest_benchmark_is_nobodys_wish(pytester: pytest.Pytester) -> None:
    arguments = ("--benchmark-disable", "--benchmark-min-rounds=3", "-k", "benchmark-json")
    assert not wanted(config_of(pytester, *arguments))


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_is_asked_for_is_wanted(pytester: pytest.Pytester, name: str) -> None:
    values = {"json": ["=x.json"], "save": ["=x"], "columns": ["=min", " min"], "compare": ["", "=0001"]}
    for value in values.get(name, [""]):
        assert wanted(config_of(pytester, *f"--benchmark-{name}{value}".split(" ")))


@pytest.mark.parametrize("where", ["PYTEST_ADDOPTS", "addopts", "a file"])
def test_it_may_be_asked_for_wherever_pytest_takes_options_from(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wish = "--benchmark-columns=min,median"
    pytester.makefile(".txt", asked=wish)
    pytester.makeini(f"[pytest]\naddopts = {wish if where == 'addopts' else '-v'}\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", wish if where == "PYTEST_ADDOPTS" else "-v")
    assert wanted(config_of(pytester, *(["@asked.txt"] if where == "a file" else [])))


TESTS = """
    import pytest
    from pytest_decodegate.cause import Finding
    from pytest_decodegate.machine.provenance import Provenance
    from pytest_decodegate.metric import Metric, Replicate
    from pytest_decodegate.measure.source import Taken

    class Source:
        level = "process"

        def __init__(self, wrong=None, broken=()):
            self.wrong, self.broken = wrong, broken

        def take(self, count):
            replicates = tuple(Replicate((80.0, 81.0, 82.0, 80.5 + number)) for number in range(count))
            return Taken("process", replicates, {"clock": "made_up"}, wrong=self.wrong, broken=tuple(self.broken))

    def here():
        return Provenance({"cpu": "made up", "cores": 2}, {}, {})

    @pytest.mark.perf
    def test_speed(perf):
        perf.gate(Metric.of("made_up", "cpu", unit="tok/s"), Source(), here)

    @pytest.mark.perf
    def test_wrong(perf):
        perf.gate(Metric.of("wrong", "cpu"), Source(wrong="seven is not eight"), here)

    @pytest.mark.perf
    def test_broken(perf):
        perf.gate(Metric.of("broken", "cpu"), Source(broken=[Finding("a stranger on the GPU")]), here)

    def test_of_the_user(benchmark):
        assert benchmark(lambda: 7) == 7
"""

RUN = ("--perf", "--perf-record", "--benchmark-max-time=0.01")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TESTS)
    return pytester


def names(path: Path) -> list[str]:
    document = json.loads(path.read_text(), parse_constant=no_constant)
    return sorted(entry["fullname"].rpartition("::")[2] for entry in document["benchmarks"])


def test_perf_metrics_are_in_the_table_and_the_json_when_asked_for(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess(*RUN, "--benchmark-json=all.json")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.re_match_lines([r"test_of_the_user +\d"])
    result.stdout.re_match_lines([r"made_up +\d"])

    path = suite.path / "all.json"
    assert names(path) == ["made_up", "test_of_the_user"]
    (made_up,) = (one for one in json.loads(path.read_text())["benchmarks"] if one["name"] == "made_up")
    (stored,) = (suite.path / "baselines").glob("*/0001_*.json")
    (ours,) = json.loads(stored.read_text())["benchmarks"]
    assert rounded({name: value for name, value in made_up["stats"].items() if name != "data"}) == ours["stats"]
    assert made_up["stats"]["max"] == pytest.approx(1 / 80)
    assert made_up["options"] == {"timer": "made_up"}
    assert github_action(path.read_text())[0]["value"] > 0


def test_pytest_benchmark_can_compare_with_a_file_of_ours(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess(*RUN, "-k", "speed").assert_outcomes(passed=1, deselected=3)
    (stored,) = (suite.path / "baselines").glob("*/0001_*.json")
    storage = f"--benchmark-storage=file://{stored.parent.parent}"
    result = suite.runpytest_subprocess("--perf", "-k", "speed", storage, "--benchmark-compare=*/0001")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.re_match_lines([r"made_up \(NOW\) "])
    result.stdout.re_match_lines([r"made_up \(\S*0001_\S+\) "])


@pytest.mark.parametrize(
    "options",
    [(), ("-p", "no:benchmark"), ("--benchmark-disable", "--benchmark-json=all.json")],
    ids=["not asked for", "switched off", "disabled"],
)
def test_pytest_benchmark_is_never_needed(suite: pytest.Pytester, options: tuple[str, ...]) -> None:
    without = "no:benchmark" in options
    run = [word for word in RUN if not (without and "benchmark" in word)]
    result = suite.runpytest_subprocess(*run, *options, "-k", "speed or user")
    result.assert_outcomes(passed=1 if without else 2, errors=1 if without else 0, deselected=2)
    result.stdout.fnmatch_lines(["made_up: NO_BASELINE: *; recorded in 0001_*"])
    # Its table has a row of that name only if we put it there; our own says what became of it.
    assert not [line for line in result.outlines if re.match(r"made_up +\d", line)]
    assert not (suite.path / "all.json").exists() or "made_up" not in names(suite.path / "all.json")


def test_a_pytest_benchmark_that_has_changed_is_named_and_harms_nothing(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        import pytest

        @pytest.fixture(autouse=True)
        def without_a_list(request):
            session = request.config._benchmarksession
            kept = session.__dict__.pop("benchmarks")
            yield
            session.benchmarks = kept
        """
    )
    result = suite.runpytest_subprocess(*RUN, "--benchmark-columns=median", "-k", "speed")
    result.stdout.fnmatch_lines(["pytest-benchmark cannot show made_up: * (its session is private, and may change)"])
    result.stdout.fnmatch_lines(["made_up: NO_BASELINE: *; recorded in 0001_*"])
