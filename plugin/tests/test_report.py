"""What people read: the line of each verdict, the table, the counts, the JSON line, the JUnit properties."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results import result

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.run import Run
from pytest_decodegate.gate.text.explain import not_covered
from pytest_decodegate.gate.verdict import Basis, Judgement, Numbers, Verdict
from pytest_decodegate.metric import Json, Metric
from pytest_decodegate.report import lines, terminal
from pytest_decodegate.report.screen import About
from pytest_decodegate.report.table import table
from pytest_decodegate.session.launches import Launches

MEASURED = Numbers(78e-6)
COMPARED = Numbers(78e-6, 70e-6, 0.114, 0.09, 0.14, 0.95)


def against(name: str, file: str, *choice: str, noise: float = 0.002) -> Result:
    found = result(Verdict.PASS, numbers=COMPARED)
    basis = replace(found.judgement.basis, baseline=Path(file), choice=choice, sessions=1, session_noise=noise)
    metric = replace(found.judgement.metric, name=name)
    return replace(found, judgement=replace(found.judgement, metric=metric, basis=basis))


def test_a_reason_for_a_baseline_is_one_line_with_the_metrics_that_it_is_for() -> None:
    alike = [against(f"gemm[m={number}]", "H200/3_x.json", "the only one", "newer: 4_x.json") for number in range(60)]
    assert terminal.chosen(alike) == ["against H200/3_x.json: the only one; newer: 4_x.json"]
    names = [f"gemm[m={number}]" for number in range(5)]
    others = [against("rope", "H200/3_x.json", "the last of 2"), against("topk", "H200/4_x.json", "the last of 2")]
    assert terminal.chosen([*alike, *others]) == [
        f"against H200/3_x.json: the only one; newer: 4_x.json ({', '.join(names)} and 55 more)",
        "against H200/3_x.json: the last of 2 (rope)",
        "against H200/4_x.json: the last of 2 (topk)",
    ]


def test_what_one_session_cannot_show_is_one_line_whatever_is_taken_instead() -> None:
    noises = (0.0012, 0.0057, 0.002, 0.002)
    results = [against(f"gemm[m={number}]", "x/1.json", noise=noise) for number, noise in enumerate(noises)]
    (line,) = not_covered(each.judgement for each in results)
    assert line.startswith("one baseline session cannot show how much sessions differ; 0.12 % to 0.57 % is taken until")
    assert line.endswith(") (4 metrics)")
    (line,) = not_covered(each.judgement for each in results[2:])
    assert "; 0.20 % is taken until then (" in line


def test_the_line_of_a_regression_says_how_much_and_how_sure() -> None:
    said = lines.verdict_line(result(Verdict.REGRESSED, numbers=COMPARED))
    assert said.startswith("allreduce[world=8]: REGRESSED: ")
    assert "+11.4 % [+9.0 %, +14.0 %]" in said


def test_the_line_of_a_recording_names_the_file() -> None:
    said = lines.verdict_line(result(Verdict.NO_BASELINE, recorded=Path("baselines/x/0001_a.json")))
    assert said.endswith("; recorded in 0001_a.json")


def test_row_of_a_comparison() -> None:
    assert terminal.row(result(Verdict.REGRESSED, numbers=COMPARED)) == (
        "allreduce[world=8]",
        "REGRESSED",
        "78.0 us",
        "70.0 us",
        "+11.4 %",
        "+9.0 % .. +14.0 %",
        "5 %",
        "5 x gang",
    )


def test_the_row_of_what_is_only_shown_says_so() -> None:
    """Or an INVALID in a green run looks like a gate that let something through."""
    shown = replace(result(Verdict.INVALID), advisory=True)
    assert terminal.row(shown)[1] == "INVALID, advisory"
    assert terminal.row(replace(shown, recorded=Path("x")))[1] == "INVALID, advisory, recorded"


def test_row_of_what_was_not_compared_is_dashes_and_not_zeros() -> None:
    assert terminal.row(result(Verdict.INVALID))[3:6] == ("-", "-", "-")


@pytest.mark.parametrize("verdict", list(Verdict))
def test_recorded_results_pass_and_others_by_their_verdict(verdict: Verdict) -> None:
    assert result(verdict, recorded=Path("x")).passes
    assert result(verdict).passes == (verdict in (Verdict.PASS, Verdict.IMPROVED))


@given(st.lists(st.tuples(*[st.text("ab ", max_size=9)] * 3), min_size=1))
def test_columns_line_up(rows: list[tuple[str, ...]]) -> None:
    drawn = table(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for line, row in zip(drawn, rows, strict=True):
        assert line.ljust(sum(widths) + 4)[widths[0] + 2 :].startswith(row[1])


def test_world_sizes_and_what_ranks_cost_stand_beside_the_table() -> None:
    def collective(world_size: int, seconds: float, verdict: Verdict = Verdict.PASS) -> Result:
        contract: dict[str, Json] = {"collective": "allreduce", "bytes": 14_336, "world_size": world_size}
        metric = Metric(f"allreduce_graph[world={world_size}]", "s", "collective", 0.05, contract)
        return Result("test", Judgement(metric, verdict, Basis("gang", 5), Numbers(seconds)))

    launches = Launches(lambda *_: None)
    launches.ready(4, 5, 9.0)
    invalid = collective(8, 5e-3, Verdict.INVALID)
    served = replace(invalid, rates={"client_error": 0.0004})
    results = [collective(2, 7.3e-6), invalid, collective(4, 9.7e-6), served]
    summary = terminal.Summary(Run([*results]), "cpu", About(), launches.lines())
    told = list(terminal._beside(summary))
    assert told[0] == "collectives against the world size:"
    assert told[-2].startswith("the client reads a known TPOT up to +0.04 % off")
    assert told[-1] == "launch of 5 x 4 ranks: ready after 9.0 s"
    assert len(told) == 6


def test_json_line_is_strict_and_complete() -> None:
    line = lines.json_line(
        result(Verdict.REGRESSED, reasons=(Finding("why", Cause.DRIFT, "it"),), numbers=COMPARED), "session-1"
    )
    assert "\n" not in line
    told = json.loads(line)
    assert (told["session"], told["verdict"], told["better"], told["change"]) == (
        "session-1",
        "REGRESSED",
        "lower",
        0.114,
    )
    assert told["reasons"] == [{"cause": "drift", "about": "it", "text": "why"}]
    assert told["passes"] is False


def test_junit_properties_leave_out_what_is_not_known() -> None:
    names = [name for name, _ in lines.properties(result(Verdict.INVALID))]
    assert "perf.allreduce[world=8].verdict" in names
    assert not any("change" in name for name in names)
