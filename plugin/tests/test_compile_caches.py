"""Compile caches around a start: counted before it and after, kept with the numbers, and told beside the baseline's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import scripted_gangs
from homeless import without_a_home
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.gang.controller import Gang, GangOptions
from pytest_decodegate.gate.evidence.starts import Start, start_notes, start_of, starts_in_turn
from pytest_decodegate.metric import Json
from pytest_decodegate.process.compile_caches import CompileCache, CompileCaches, entries, folders


def test_the_folders_are_those_that_the_variables_name() -> None:
    given: Mapping[str, str] = {
        "VLLM_CACHE_ROOT": "/v",
        "TRITON_CACHE_DIR": "/t",
        "TORCHINDUCTOR_CACHE_DIR": "/i",
        "CUDA_CACHE_PATH": "/c",
    }
    assert [str(path) for path in folders(given).values()] == ["/v/torch_compile_cache", "/t", "/i", "/c"]
    usual = folders({"HOME": "/home/me", "TMPDIR": "/scratch"})
    assert str(usual["vllm"]) == "/home/me/.cache/vllm/torch_compile_cache"
    assert str(usual["triton"]) == "/home/me/.triton/cache"
    assert str(usual["inductor"]).startswith("/scratch/torchinductor_")
    assert str(usual["cuda"]) == "/home/me/.nv/ComputeCache"
    assert str(folders({"HOME": "/h", "XDG_CACHE_HOME": "/x"})["vllm"]) == "/x/vllm/torch_compile_cache"


def test_a_user_without_a_home_has_caches_that_nobody_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_home(monkeypatch)
    assert {entries(folder) for name, folder in folders({}).items() if name != "inductor"} == {None}


def filled(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


def test_entries_are_counted_with_those_of_their_folders(tmp_path: Path) -> None:
    assert entries(tmp_path / "none") is None
    assert entries(tmp_path) == 0
    filled(tmp_path, "a/1", "a/2/deeper", "b")
    (tmp_path / "index").touch()
    assert entries(tmp_path) == 5


def test_a_start_is_cold_if_it_had_to_add_something_whatever_lay_there(tmp_path: Path) -> None:
    """As after an upgrade: entries of the old version are still there, and none of them fits."""
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    root = tmp_path / ".cache" / "vllm" / "torch_compile_cache"
    filled(root, "0a1b2c/rank_0_0")
    filled(tmp_path / "triton", "KERNEL")
    caches = CompileCaches(environ)
    filled(root, "3d4e5f/rank_0_0")
    assert caches.since() == {
        "vllm": CompileCache(2, 2),
        "triton": CompileCache(1, 0),
        "inductor": CompileCache(None, 0),
        "cuda": CompileCache(None, 0),
    }
    assert caches.facts() == {
        "vllm": {"state": "cold", "entries": 2, "added": 2},
        "triton": {"state": "warm", "entries": 1, "added": 0},
    }
    assert CompileCaches(environ).facts()["vllm"] == {"state": "warm", "entries": 4, "added": 0}


@given(st.none() | st.integers(0, 9), st.integers(0, 9))
def test_each_cache_has_one_state(before: int | None, added: int) -> None:
    state = CompileCache(before, added).state
    assert (state == "cold") == (added > 0)
    assert (state == "absent") == (not before and not added)


def facts(seconds: float | None = None, **states: str) -> dict[str, Json]:
    caches: dict[str, Json] = {name: {"state": state, "entries": 3, "added": 0} for name, state in states.items()}
    start: dict[str, Json] = {} if seconds is None else {"start_seconds": {"whole": seconds, "weights": 1.0}}
    return {"compile_caches": caches, **start}


def server(seconds: float, **states: str) -> Start | None:
    return start_of({"server": facts(seconds, **states)})


def notes(new: Start | None, base: Start | None) -> list[str]:
    return [str(note) for note in start_notes(new, base)]


def test_starts_with_equal_caches_are_told_side_by_side() -> None:
    found = notes(server(42.4, vllm="warm"), server(40, vllm="warm"))
    warm = "with warm compile caches (vllm)"
    assert found == [f"the server started in 42 s {warm}; in the baseline in 40 s {warm}"]


def test_a_cold_start_is_not_compared_with_a_warm_one() -> None:
    (found,) = notes(server(95, vllm="cold", cuda="warm"), server(40, vllm="warm"))
    assert found.startswith(
        "the server started in 95 s with cold compile caches (vllm); in the baseline in 40 s with warm"
    )
    assert found.endswith("an upgrade empties these caches, so the two starts are not compared")


def test_a_start_that_nothing_is_known_to_compare_with_is_told_alone() -> None:
    for base in (None, start_of(facts(vllm="warm"))):
        assert notes(server(95, vllm="cold"), base) == ["the server started in 95 s with cold compile caches (vllm)"]


@pytest.mark.parametrize("known", [{}, {"server": "unknown"}, {"server": {}}, {"compile_caches": None}])
def test_what_nobody_recorded_is_no_start(known: dict[str, Json]) -> None:
    assert start_of(known) is None
    assert notes(start_of(known), server(40, vllm="warm")) == []


def test_starts_without_a_compile_cache_are_nobodys_concern() -> None:
    assert notes(server(20), server(19)) == []
    assert list(starts_in_turn({"base": [Start(20.0, (), ())], "candidate": [Start(19.0, (), ())]})) == []


def test_ranks_are_told_apart_by_their_caches() -> None:
    cold, warm = start_of(facts(triton="cold")), start_of(facts(triton="warm"))
    assert notes(warm, warm) == []
    (found,) = notes(cold, warm)
    assert found.startswith("the ranks ran with cold compile caches (triton), the baseline's with warm compile caches")


def test_both_stacks_of_an_upgrade_are_told() -> None:
    base, candidate = server(40, vllm="warm"), server(95, vllm="cold")
    assert base
    assert candidate
    (note,) = starts_in_turn({"base": [base], "candidate": [candidate, base]})
    assert str(note) == (
        "starts of the servers: base 40 s with warm compile caches (vllm); candidate 95 s with cold compile caches "
        "(vllm), 40 s with warm compile caches (vllm): only starts with warm caches say something of each other"
    )


SCRIPT = """#!/bin/sh
mkdir -p "$TRITON_CACHE_DIR/KERNEL"
exec sleep 600
"""


def test_a_gang_counts_from_before_its_start(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(SCRIPT)
    python.chmod(0o755)
    variables = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    gang = Gang(1, GangOptions(log_root=tmp_path / "logs", python=str(python), env=variables), name="g")
    assert gang.compile_caches == {}
    gang.spawn()
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "triton" / "KERNEL").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

        assert gang.compile_caches["triton"] == {"state": "cold", "entries": None, "added": 1}
    finally:
        gang.close()


def test_the_facts_of_ranks_hold_the_caches() -> None:
    caches = {"triton": {"state": "warm", "entries": 7, "added": 0}}
    gang = scripted_gangs.ScriptedGang("a", [], compile_caches=caches)
    with scripted_gangs.source(scripted_gangs.ScriptedBench(gang)) as measured:
        assert measured.take(1).facts["compile_caches"] == caches


TESTS = """
    import os

    import pytest
    from pytest_decodegate.machine.provenance import Provenance
    from pytest_decodegate.measure.source import Taken
    from pytest_decodegate.metric import Metric, Replicate


    class Source:
        level = "server"

        def take(self, count):
            state = os.environ["CACHE"]
            server = {"start_seconds": {"whole": {"cold": 95.0, "warm": 40.0}[state]},
                      "compile_caches": {"vllm": {"state": state, "entries": 3, "added": 0}}}
            replicates = tuple(Replicate((1 + i / 1000, 1.001 + i / 1000)) for i in range(count))
            return Taken("server", replicates, facts={"server": server})


    @pytest.mark.perf
    def test_tpot(perf):
        perf.gate(Metric.of("tpot", "serving"), Source(), lambda: Provenance({"cpu": "made up", "cores": 2}, {}, {}))
"""


def test_a_run_says_that_its_start_was_cold_and_the_recorded_one_warm(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(TESTS)
    monkeypatch.setenv("CACHE", "warm")
    monkeypatch.setenv("COLUMNS", "400")
    pytester.runpytest_subprocess("-m", "perf", "--perf-record").assert_outcomes(passed=1)
    monkeypatch.setenv("CACHE", "cold")
    result = pytester.runpytest_subprocess("-v", "-m", "perf", "--perf-replicates=5")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*tpot: the server started in 95 s with cold *; in the baseline in 40 s with warm *so the two *not compared"]
    )
