"""A metric over its sessions: change points, the newest session, the stack change that coincides, and the plot."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_baselines import GEMM, H200, baseline, put, session

from pytest_decodegate.baseline.history import series
from pytest_decodegate.baseline.schema import StoredMetric
from pytest_decodegate.cli import main
from pytest_decodegate.gate.stats.changepoints import LEAST_HISTORY, change_points, newest, step
from pytest_decodegate.report.plot import HEIGHT, WIDTH, plot


def noisy(seed: int, levels: Sequence[float], sd: float = 0.006) -> list[float]:
    draw = random.Random(seed)
    return [level + draw.gauss(0, sd) for level in levels]


def test_a_step_is_found_where_it_is() -> None:
    values = noisy(1, [0.0] * 12 + [0.05] * 8)

    assert change_points(values) == [12]
    assert step(values, [12], 12) == pytest.approx(0.05, abs=0.01)


def test_two_opposite_steps_do_not_hide_each_other() -> None:
    assert change_points(noisy(2, [0.0] * 15 + [0.05] * 15 + [0.0] * 15)) == [15, 30]


def test_a_slow_release_that_was_soon_repaired_is_found() -> None:
    levels = [0.0] * 8 + [0.05] * 5 + [0.0] * 8

    assert sum(change_points(noisy(seed, levels)) == [8, 13] for seed in range(50)) >= 45


def test_a_step_far_back_in_a_long_series_is_found() -> None:
    assert change_points(noisy(3, [0.0] * 180 + [0.03] * 40)) == [180]


def test_a_spike_is_no_change_of_level() -> None:
    assert change_points([0.0, 0.001, 0.0, 0.001, 0.3, 0.0, 0.001, 0.0]) == []


def test_a_change_below_what_matters_is_none() -> None:
    assert change_points(noisy(4, [0.0] * 20 + [0.008] * 20, sd=0.0005)) == []


def test_levels_without_any_noise_are_found_exactly() -> None:
    assert change_points([0.0] * 5 + [0.1] * 5 + [0.0] * 5) == [5, 10]


def test_neighbours_that_overlapping_windows_propose_leave_no_level_of_one_session() -> None:
    """With this seed they do, and the spurious one would take the true one's place."""
    levels = [0.0] * 24 + [0.05] * 26 + [0.02] * 25 + [0.06] * 25

    assert change_points(noisy(528, levels, sd=0.02)) == [23, 50, 73]


def test_quiet_series_show_no_change_point() -> None:
    found = sum(bool(change_points(noisy(seed, [0.0] * 40))) for seed in range(200))

    assert found <= 6  # 2 of 300 were seen; so many of 200 would be a broken rule


@pytest.mark.parametrize(("percent", "sessions", "least"), [(2, 5, 75), (3, 3, 90), (5, 2, 90)])
def test_what_the_rule_finds_within_two_sessions(percent: int, sessions: int, least: int) -> None:
    """As the real Otava does in facts/statistics.md, section 5."""
    change = math.log1p(percent / 100)
    series = (noisy(seed, [0.0] * 30 + [change] * sessions, sd=0.008) for seed in range(100))

    assert sum(any(abs(point - 30) <= 2 for point in change_points(one)) for one in series) >= least


logs = st.lists(st.floats(-1, 1), max_size=30)


@given(values=logs, shift=st.floats(-3, 3))
def test_only_differences_matter(values: list[float], shift: float) -> None:
    rounded = [round(value, 3) for value in values]
    shifted = [value + round(shift, 3) for value in rounded]

    assert change_points(rounded) == sorted(set(change_points(rounded)))
    assert all(2 <= point <= len(values) - 2 for point in change_points(rounded))
    assert change_points(shifted) == change_points(rounded) or len(set(rounded)) < len(rounded)


def test_the_newest_session_is_held_against_those_since_the_last_change() -> None:
    level = [0.1, 0.101, 0.099, 0.1005, 0.0995]
    as_expected, unexpected = newest([0.0] * 9 + level + [0.1], 9), newest([0.0] * 9 + level + [0.15], 9)

    assert as_expected is not None
    assert unexpected is not None
    assert (as_expected.unexpected, unexpected.unexpected) == (False, True)
    assert unexpected.history == 5
    assert newest(level[:LEAST_HISTORY], 0) is None


def test_points_are_in_the_order_of_time_over_all_files() -> None:
    files = [baseline(1, session(1), session(5)), baseline(2, session(3), nccl="2.28.9")]
    (one,) = series(files, "gemm")

    assert [point.session.id for point in one.points] == ["s1", "s3", "s5"]
    assert one.coincides(1) == ("nccl: 2.28.3 -> 2.28.9",)


def test_a_name_that_stood_for_two_things_has_two_histories() -> None:
    changed = replace(GEMM, contract={"clock": "perf_counter"})
    found = series([baseline(1, session(1)), baseline(2, session(2), metric=changed)], "gemm")

    assert [[point.session.id for point in one.points] for one in found] == [["s1"], ["s2"]]


def test_a_stack_change_nearby_is_named_with_its_distance() -> None:
    files = [baseline(1, *map(session, range(5))), baseline(2, *map(session, range(5, 9)), driver="590")]
    (one,) = series(files, "gemm")

    assert one.coincides(4) == ("driver: 580 -> 590 (1 session later)",)
    assert one.coincides(7) == ("driver: 580 -> 590 (2 sessions earlier)",)
    assert one.coincides(8) == ()


def test_a_swapped_card_coincides_too() -> None:
    swap = baseline(1, session(1, uuids=["GPU-a", "GPU-b"]), session(2, uuids=["GPU-a", "GPU-c"]))
    (one,) = series([swap], "gemm")

    assert one.coincides(1) == ("gpus[1].uuid: GPU-b -> GPU-c",)


def test_a_rate_that_falls_gets_worse() -> None:
    rate = baseline(1, session(1, value=80.0), session(2, value=70.0), metric=replace(GEMM, unit="tok/s"))
    (one,) = series([rate], "gemm")

    assert one.levels[1] - one.levels[0] == pytest.approx(math.log(80 / 70))


@given(values=st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=3 * WIDTH))
def test_a_plot_shows_every_column_once(values: list[float]) -> None:
    lines = plot(values, "x" * len(values), "s", ())

    assert len(lines) == HEIGHT
    assert sum(line.partition("|")[2].count("x") for line in lines) == min(len(values), WIDTH)


def test_a_plot_of_one_level_has_no_axis_labels() -> None:
    assert plot([1.0, 1.0], "ab", "s", ())[HEIGHT // 2] == " |ab"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Eight sessions of one stack, six slower ones of the next."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "baselines"
    wobble = [1 + delta / 1000 for delta in (0, 4, -3, 2, -2, 1, 3, -4, 0, 2, -2, 1, -1, 3)]
    slow = [1e-5 * factor * (1.06 if day >= 8 else 1.0) for day, factor in enumerate(wobble)]
    put(root, baseline(1, *(session(day, slow[day]) for day in range(8))))
    put(root, baseline(2, *(session(day, slow[day]) for day in range(8, 14)), nccl="2.28.9"))
    return root


def history(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["history", *words]) == 0
    return capsys.readouterr().out


def test_the_command_shows_the_step_and_the_stack_that_came_with_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = history(capsys, "gemm").splitlines()

    assert lines[0] == f"gemm on {H200}: 14 session(s), 2 file(s); lower is better"
    assert lines[2].split()[:6] == ["a", "1", "2026-01-01", "08:00", "0001_stack.json", "s0"]
    assert lines[10].startswith(">b  9")
    index = next(index for index, line in enumerate(lines) if line.startswith("change point"))
    assert lines[index].startswith("change point at session 9 (s8): +6.0 %, worse")
    assert lines[index + 1] == "  coincides with nccl: 2.28.3 -> 2.28.9"
    assert lines[index + 2].startswith("newest session: +0.3")
    assert "as expected: within their 99 % interval" in lines[index + 2]


def test_the_command_gives_strict_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(history(capsys, "gemm", "--format", "json"), parse_constant=pytest.fail)

    (one,) = document["series"]
    assert len(one["sessions"]) == 14
    (change,) = one["change_points"]
    assert (change["session"], change["coincides"]) == ("s8", ["nccl: 2.28.3 -> 2.28.9"])
    assert change["change"] == pytest.approx(0.06, abs=0.005)
    assert one["newest"]["unexpected"] is False


@pytest.mark.parametrize(("recorded", "shown"), [("2025-04-14T16:54:01+00:00", "2025-04-14"), ("", "-")])
def test_a_published_figure_has_the_date_of_its_file_or_none(
    root: Path, capsys: pytest.CaptureFixture[str], recorded: str, shown: str
) -> None:
    point = replace(session(0, 1e-5), recorded=recorded, level="published", replicates=(), point=1e-5)
    put(root, replace(baseline(3, point), published="a paper"))

    row = next(line for line in history(capsys, "gemm").splitlines() if "0003_" in line)
    document = json.loads(history(capsys, "gemm", "--format", "json"), parse_constant=pytest.fail)

    assert row.split()[:3] == ["a", "1", shown]
    assert [one["sessions"][0]["recorded"] for one in document["series"] if one["level"] == "published"] == [
        recorded or None
    ]


def test_a_change_that_nothing_stored_explains_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "baselines", baseline(1, *(session(day, 1e-5 * (1 + (day > 4) / 10)) for day in range(10))))
    said = history(capsys, "gemm", "--machine", H200)

    assert "nothing stored differs there: look at the code under test" in said
    assert "no change point" not in said


def test_an_accepted_level_starts_the_window_anew(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored: Any = baseline(1, *(session(day) for day in range(8)))
    accepted = replace(stored, metrics={"gemm": StoredMetric(GEMM, stored.metrics["gemm"].sessions, "s5")})
    put(root, accepted)
    (root / H200 / "0002_stack.json").unlink()
    said = history(capsys, "gemm")

    assert ", accepted" in said
    assert f"fewer than {LEAST_HISTORY} before it on this level" in said


@pytest.mark.parametrize("words", [("gem",), ("gemm", "--machine", "H100-x8"), ("gemm", "--baselines", "nowhere")])
def test_an_unknown_metric_is_refused_and_near_names_are_told(
    root: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    assert main(["history", *words]) == 3
    said = capsys.readouterr().err
    assert f"no stored session of metric '{words[0]}'" in said
    assert said.rstrip().endswith("known: gemm" if words == ("gem",) else "known: none")
