"""A baseline that was edited by hand is refused, whatever was edited; the command that accepts it leaves its trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stack_baselines import baseline, put, session
from stored import MOE, RATE, sealed, stored
from stored import baseline as two_metrics

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.reader import load, parse
from pytest_decodegate.cli import main
from pytest_decodegate.errors import BadInput

CONTENT = dumps(two_metrics(stored(MOE, 40e-6, sessions=2), stored(RATE, 80.0)))
PATH = Path("0001_a.json")


def leaves(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every value in `value` that holds no others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [way for key, item in inner for way in leaves(item, (*above, key))]
    yield from found or [above]


LEAVES = list(leaves(json.loads(CONTENT)))


def edited(way: tuple[str | int, ...], change: Any) -> bytes:
    """The file with `change` of what lies there."""
    document = json.loads(CONTENT)
    found = document
    for key in way[:-1]:
        found = found[key]

    found[way[-1]] = change(found[way[-1]])
    return json.dumps(document).encode()


def another(value: Any) -> Any:
    """A value of the same type, so that only the digest can tell."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value * 1.001 if isinstance(value, float) else value + 1

    return [*value, 1] if isinstance(value, list) else {**value, "x": 1} if isinstance(value, dict) else value + "x"


@settings(max_examples=200, deadline=None)
@given(way=st.sampled_from(LEAVES))
def test_no_value_of_a_file_can_be_changed_by_hand(way: tuple[str | int, ...]) -> None:
    with pytest.raises(BadInput, match=r"^0001_a\.json: /"):
        parse(PATH, edited(way, another))


@pytest.mark.parametrize(
    "way",
    [
        ("decodegate", "metrics", MOE.name, "tolerance"),
        ("benchmarks", 0, "extra_info", "values", 0),
        ("benchmarks", 2, "stats", "median"),
        ("decodegate", "provenance", "stack", "nccl"),
        ("commit_info", "dirty"),
    ],
)
def test_the_refusal_names_the_file_and_the_command(way: tuple[str | int, ...]) -> None:
    with pytest.raises(BadInput) as refused:
        parse(PATH, edited(way, another))

    said = str(refused.value)
    assert said.startswith("0001_a.json: /decodegate/digest: ")
    assert "edited by hand, or merged by git. Restore it from version control" in said
    assert "`decodegate baselines reseal 0001_a.json --why TEXT`" in said


def test_a_recording_that_was_removed_or_moved_shows() -> None:
    document = json.loads(CONTENT)
    first, second, *others = document["benchmarks"]
    for benchmarks in ([first, *others], [second, first, *others]):
        with pytest.raises(BadInput, match="/decodegate/digest"):
            parse(PATH, json.dumps({**document, "benchmarks": benchmarks}).encode())


@pytest.mark.parametrize("layout", [{"indent": 4}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_a_file_that_was_only_laid_out_anew_is_read(layout: dict[str, Any]) -> None:
    assert parse(PATH, json.dumps(json.loads(CONTENT), **layout).encode() + b"\r\n") == parse(PATH, CONTENT)


@pytest.fixture
def hand_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file whose band somebody has changed in an editor."""
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path / "baselines", baseline(1, session(1)))
    path.write_text(path.read_text().replace('"tolerance":0.02', '"tolerance":0.2'))
    return path


def test_reseal_accepts_an_edit_and_logs_why(hand_made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baselines"]) == 3
    assert f"baselines reseal baselines/{hand_made.parent.name}/{hand_made.name}" in capsys.readouterr().err

    assert main(["baselines", "reseal", str(hand_made), "--why", "a conflict in git", "--who", "Ada"]) == 0
    assert capsys.readouterr().out == f"{hand_made}: accepted what was edited by hand\n"
    accepted = load(hand_made)
    assert accepted.metrics["gemm"].metric.tolerance == 0.2
    (entry,) = accepted.log
    assert (entry.who, entry.what, entry.why) == ("Ada", "accepted what was edited by hand", "a conflict in git")


def test_reseal_changes_nothing_that_is_in_order_or_damaged(
    hand_made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(hand_made.read_text())
    hand_made.write_bytes(sealed(document))
    before = hand_made.read_bytes()
    assert main(["baselines", "reseal", str(hand_made), "--why", "x"]) == 3
    assert "its digest is that of its content, so there is nothing to accept" in capsys.readouterr().err
    assert hand_made.read_bytes() == before

    document["decodegate"]["metrics"]["gemm"]["tolerance"] = "wide"
    hand_made.write_text(json.dumps(document))
    assert main(["baselines", "reseal", str(hand_made), "--why", "x"]) == 3
    assert "/decodegate/metrics/gemm/tolerance: Expected `float`" in capsys.readouterr().err
