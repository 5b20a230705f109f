"""Slowdowns that reach nothing: which they are, and that a run with one is no GO."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import pytest

from pytest_decodegate.errors import BadInput
from pytest_decodegate.reference.loaded import probe_loaded
from pytest_decodegate.reference.unreached import Measured, unreached
from pytest_decodegate.settings.settings import read_settings
from pytest_decodegate.settings.stack import Stack, parse_stack

GEMM, REDUCE = Measured("gemm[m=8]", 1), Measured("allreduce[world=2]", 2)
TPOT, OWN_TPOT = Measured("tpot[c=1]", 0), Measured("my_tpot", 0)


def slower(slowdown: str) -> Stack:
    return Stack(env=(("A", "1"), ("DECODEGATE_SLOWDOWN", slowdown)))


@pytest.mark.parametrize(
    ("slowdown", "missed"),
    [
        ("", None),
        ("gemm*=5%;allreduce[world=2]=1%@1;tpot*=3%", None),
        ("*=5%@0", None),
        ("gem=5%", "'gem'"),
        ("gemm*=5%;moe*=5%;mla*=2%@0", "'moe*' and 'mla*' in rank 0"),
        ("allreduce*=5%@2", "'allreduce*' in rank 2"),
        ("tpot*=5%@0", "'tpot*' in rank 0"),
        ("my_tpot=5%", "'my_tpot'"),
    ],
)
def test_a_slowdown_that_reaches_no_metric_is_named_with_what_was_measured(slowdown: str, missed: str | None) -> None:
    """Of servers, those that no slowdown of one metric can reach are not reached by its name either."""
    found = unreached((Stack(), slower(slowdown)), [GEMM, REDUCE, TPOT, OWN_TPOT])
    assert (found and found.split(" slowed nothing down, ")[0]) == (missed and f"DECODEGATE_SLOWDOWN: {missed}")
    if found:
        assert "; metrics measured: gemm[m=8], allreduce[world=2], tpot[c=1], my_tpot; " in found


def test_what_servers_alone_are_told_needs_a_server_that_is_measured() -> None:
    flag = parse_stack(["flag:--max-num-seqs=64"], "--base")
    found = unreached((Stack(), flag, flag), [GEMM])
    assert found is not None
    assert found.startswith("flag:--max-num-seqs=64: only servers are told that, and none was measured")
    assert unreached((Stack(), flag), [GEMM, TPOT]) is None
    assert unreached((Stack(), flag), [GEMM], asked=True) is None
    assert unreached((Stack(), slower("gemm*=5%")), [GEMM]) is None


def test_both_stacks_are_looked_at_and_the_same_miss_is_told_once() -> None:
    for pair in ((slower("a=1%"), Stack()), (Stack(), slower("a=1%")), (slower("a=1%"), slower("a=2%"))):
        found = unreached(pair, [GEMM])
        assert found is not None
        assert found.startswith("DECODEGATE_SLOWDOWN: 'a' slowed nothing down, ")


def test_what_is_no_slowdown_is_refused_with_the_stack() -> None:
    assert parse_stack(["env:DECODEGATE_SLOWDOWN=a=1%;b=2%@1"], "--base").env == (
        ("DECODEGATE_SLOWDOWN", "a=1%;b=2%@1"),
    )
    with pytest.raises(BadInput, match="DECODEGATE_SLOWDOWN: 'a=1' is not of the form"):
        parse_stack(["env:DECODEGATE_SLOWDOWN=a=1"], "--base")


@pytest.mark.parametrize("stacks", [(), ("--perf-base=this",), ("--perf-base=same",), ("--perf-candidate=env:A=1",)])
def test_a_slowdown_in_the_environment_that_no_stack_carries_is_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, stacks: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DECODEGATE_SLOWDOWN", "marlin*=3%")
    result = pytester.runpytest_inprocess("-m", "perf", *stacks)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    asked = "'env:DECODEGATE_SLOWDOWN=marlin*=3%'"
    told = "ERROR: DECODEGATE_SLOWDOWN=marlin*=3% in the environment slows nothing down: "
    (line,) = [line for line in result.errlines if line.startswith(told)]
    assert line.endswith(f"unset it, or give `--perf-candidate {asked}` (or `decodegate upgrade --candidate {asked}`)")


def test_a_slowdown_in_the_environment_disturbs_no_stack_that_carries_one_and_no_run_that_measures_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODEGATE_SLOWDOWN", "gemm=9%")
    carries = "--perf-candidate=env:DECODEGATE_SLOWDOWN=marlin*=3%"
    (slowdown,) = read_settings(pytester.parseconfigure(carries)).stack.slowdowns
    assert str(slowdown) == "marlin* by 3 %"
    assert probe_loaded(Stack(), ["DECODEGATE_SLOWDOWN"], import_path=()).env == {"DECODEGATE_SLOWDOWN": None}
    pytester.makepyfile("def test_plain(): pass")
    assert pytester.runpytest_inprocess().ret == pytest.ExitCode.OK


def test_what_is_slowed_down_on_purpose_is_never_recorded(pytester: pytest.Pytester) -> None:
    told = "--perf-record: DECODEGATE_SLOWDOWN of --perf-candidate slows metrics down"
    with pytest.raises(pytest.UsageError, match=told):
        pytester.parseconfigure("--perf-candidate=env:DECODEGATE_SLOWDOWN=marlin*=3%", "--perf-record=gated")


@pytest.mark.parametrize(("stop_early", "is_told"), [((), True), (("-x",), False)])
@pytest.mark.parametrize("against", [("--perf-base=this",), ()])
def test_the_end_of_a_run_says_so_if_every_test_was_begun(
    pytester: pytest.Pytester, against: tuple[str, ...], stop_early: tuple[str, ...], is_told: bool
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.perf
        def test_broken(perf):
            raise ValueError

        @pytest.mark.perf
        def test_skipped(perf):
            pytest.skip("needs eight GPUs")
        """
    )
    stacks = (*against, "--perf-candidate=env:DECODEGATE_SLOWDOWN=marlim*=5%")
    result = pytester.runpytest_inprocess("-m", "perf", *stacks, "--perf-report=report", *stop_early)
    *_, end, _ = map(json.loads, (pytester.path / "report/results.jsonl").read_text().splitlines())
    missed = "DECODEGATE_SLOWDOWN: 'marlim*' slowed nothing down, *; metrics measured: none; *"
    said = [line for line in result.outlines if line.startswith("open: DECODEGATE_SLOWDOWN: 'marlim*' slowed nothing")]
    assert bool(said) is is_told
    if is_told:
        assert fnmatchcase(end["unfinished"], missed)
    else:
        assert end["unfinished"].startswith("1 of the selected perf tests were never begun")
