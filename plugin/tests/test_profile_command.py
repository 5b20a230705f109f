"""`decodegate profile`: what it prints and writes, and its exit status."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from traces import Invented

from pytest_decodegate import cli
from pytest_decodegate.errors import BadInput
from pytest_decodegate.profile import documents
from pytest_decodegate.profile.categories import Category
from pytest_decodegate.profile.reading import read_profile
from pytest_decodegate.profile.step_profile import StepProfile
from pytest_decodegate.report import profile as report

SLICE = [*map(str, traces.SLICE), "--layers", "8"]


def ranks(folder: Path, **fields: Any) -> list[str]:
    return [*map(str, traces.two_ranks(folder, **fields)), "--layers", "3"]


def test_the_table_that_operators_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *SLICE]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^AllReduce +0\.119 +10\.6 % +17 +7\.01$", out, re.MULTILINE)
    assert re.search(r"^MoE GEMM +0\.165 +14\.7 % +14 +11\.79$", out, re.MULTILINE)
    assert "waiting for a late rank, in no category: 1.995 ms" in out
    assert "297 of iterations with a prefill" in out
    assert err == ""


def test_counts_of_another_model_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *map(str, traces.SLICE)]) == 1
    err = capsys.readouterr().err
    assert "17 AllReduces a step, and 61 layers need 123" in err
    assert "17 fit --layers 8" in err
    assert cli.main(["profile", *map(str, traces.SLICE), "--any-model"]) == 0


def test_a_kernel_that_no_rule_knows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ranks(tmp_path, extra=(("a_kernel_of_the_future", 40.0), ("a_small_one", 0.5)))
    assert cli.main(["profile", *files]) == 0
    err = capsys.readouterr().err
    assert "no rule knows 'a_kernel_of_the_future', " in err
    assert "a_small_one" not in err
    rules = tmp_path / "mine.toml"
    rules.write_text('[[rule]]\ncategory = "gemm"\npattern = "of_the_future"\n')
    assert cli.main(["profile", *files, "--categories", str(rules)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the files of a profiler"),
        (["none.json"], "none.json: cannot be read"),
        ([*map(str, traces.SLICE), "--layers", "1"], "--layers 1: Kimi-K2.5 has 61"),
        ([str(traces.SLICE[0])], "rank(s) 1 have no file"),
    ],
)
def test_bad_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", *arguments]) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_a_partial_profile_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "markdown"):
        arguments = [str(traces.SLICE[0]), "--layers", "8", "--allow-missing-ranks", "--format", form]
        assert cli.main(["profile", *arguments]) == 0
        assert re.match(r"(### )?PARTIAL, without rank\(s\) 1: ", capsys.readouterr().out)


def test_json_comes_back_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "profile.json"
    assert cli.main(["profile", *SLICE, "--json", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    assert documents.read(path) == read_profile(traces.SLICE).profile


def test_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, picture = tmp_path / "before.json", tmp_path / "bars.svg"
    assert cli.main(["profile", *ranks(tmp_path), "--json", str(stored)]) == 0
    slower = ranks(tmp_path, allreduce_us=11.8)
    capsys.readouterr()
    assert cli.main(["profile", *slower, "--before", str(stored), "--svg", str(picture)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^AllReduce +0\.082 +0\.111 +\+0\.029 +7 +11\.71 -> 15\.83$", out, re.MULTILINE)
    assert re.search(r"^MoE GEMM +0\.048 +0\.048 +\+0\.000 +4 +12\.00$", out, re.MULTILINE)
    bars = dict(re.findall(r"^(before|after ) \|([A-Za-z ]+)\|", out, re.MULTILINE))
    assert bars["after "].count("A") > bars["before"].count("A")
    texts = [element.text for element in Xml.parse(picture).iter() if element.text]
    assert {"before", "after"} <= set(texts)


def test_traces_may_be_the_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    older.mkdir()
    newer.mkdir()
    before = ranks(older)[:2]
    assert cli.main(["profile", *ranks(newer, allreduce_us=6.0), "--before", *before]) == 0
    assert "-0.006" in capsys.readouterr().out


def test_the_slim_trace_is_the_median_step(tmp_path: Path) -> None:
    path = tmp_path / "slim.json"
    assert cli.main(["profile", *SLICE, "--slim", str(path)]) == 0
    events = json.loads(path.read_text())["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in work} == {0, 1}
    for rank in (0, 1):
        names = [event["cat"] for event in work if event["pid"] == rank]
        assert (names.count("AllReduce"), names.count("MoE GEMM")) == (17, 14)
    assert min(event["ts"] for event in work) == 0
    assert path.stat().st_size < 300_000


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "kernel<script>\x1b[31m|@someone ::error::x\n"
    files = ranks(tmp_path, extra=((name, 300.0),))
    for form in ("text", "markdown"):
        assert cli.main(["profile", *files, "--format", form, "--svg", str(tmp_path / "x.svg")]) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert "\n::error" not in out + err
    assert "<script>" not in out
    assert len({line.count("|") - line.count("\\|") for line in out.splitlines() if line.startswith("| kernel")}) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is no usable profile"),
        (b"[]", "is no profile of decodegate"),
        (b'{"format": "decodegate-profile-0"}', "no format 'decodegate-profile-1'"),
        (b'{"format": "decodegate-profile-1"}', "missing required field"),
    ],
)
def test_what_is_no_stored_profile(text: bytes, said: str) -> None:
    with pytest.raises(BadInput, match=r"^x\.json: ") as error:
        documents.loads(text, "x.json")
    assert said in str(error.value)


def test_a_stored_profile_with_a_wrong_value() -> None:
    document = json.loads(documents.dumps(read_profile(traces.SLICE).profile))
    document["categories"][3]["calls"] = "many"
    with pytest.raises(BadInput, match=r"categories\[3\]\.calls"):
        documents.loads(json.dumps(document).encode(), "x.json")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> StepProfile:
    path = traces.torch_trace(tmp_path_factory.mktemp("bars") / "rank0.json", Invented(world=1))
    return read_profile([path]).profile


@given(data=st.data())
def test_bars_are_as_long_as_their_time(profile: StepProfile, data: st.DataObject) -> None:
    times = data.draw(st.lists(st.floats(0, 10), min_size=len(Category), max_size=len(Category)).filter(any))
    other = _with(profile, times)
    drawn = report.bars({"one": other, "two": profile})[0]
    most = max(other.kernel_ms, profile.kernel_ms)
    assert len(re.findall(r"[A-Za-z]", drawn.split("|")[1])) == round(other.kernel_ms / most * 72)


def _with(profile: StepProfile, times: list[float]) -> StepProfile:
    from dataclasses import replace

    categories = tuple(replace(found, ms=ms) for found, ms in zip(profile.categories, times, strict=True))
    running = 0.0
    for ms in times:
        running += ms

    return replace(profile, categories=categories, kernel_ms=running)
