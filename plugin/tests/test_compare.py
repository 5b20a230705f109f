"""Two stored baselines: verdicts, refusals, what confounds, what is missing; and the same said in every format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import CLASS, GPUS, MACHINE, MOE, NOISY, RATE, STACK, baseline, stored

from pytest_decodegate.baseline.schema import Baseline
from pytest_decodegate.compare.pairs import BaselinePair, Compared, compare_baselines, compare_groups
from pytest_decodegate.compare.sides import BaselineSet
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.text.advice import advice
from pytest_decodegate.gate.verdict import Numbers, Verdict
from pytest_decodegate.machine.provenance import parse_declared
from pytest_decodegate.metric import Json, Metric
from pytest_decodegate.report.comparison import answer, sections
from pytest_decodegate.report.comparison_json import document
from pytest_decodegate.report.comparison_text import MOST_EXPLAINED, Terminal, text
from pytest_decodegate.report.content import of_comparison
from pytest_decodegate.report.escape import escaped
from pytest_decodegate.report.html import page
from pytest_decodegate.report.markdown import markdown

BASE = baseline(stored(MOE, 40e-6), stored(RATE, 80.0))
AGAIN = baseline(stored(MOE, 40e-6), stored(RATE, 80.0))
NEW_STACK: Mapping[str, Json] = {**STACK, "driver": "580.95", "nccl": "2.28.9"}


def pair(base: Baseline, new: Baseline, change: str = "", allow: Sequence[str] = ()) -> BaselinePair:
    declared = parse_declared(change) if change else frozenset()
    return compare_baselines(base, new, Terms(declared, frozenset(allow)))


def one_pair(base: Baseline, new: Baseline, change: str = "", allow: Sequence[str] = ()) -> Compared:
    return Compared((pair(base, new, change, allow),), ())


def verdicts(some: BaselinePair) -> dict[str, str]:
    return {judgement.metric.name: str(judgement.verdict) for judgement in some.judgements}


@pytest.mark.parametrize(
    ("moe", "rate", "expected", "status"),
    [
        (40.1e-6, 79.9, ("PASS", "PASS"), 0),
        (42.0e-6, 79.9, ("REGRESSED", "PASS"), 1),
        (40.1e-6, 72.0, ("PASS", "REGRESSED"), 1),
        (36.0e-6, 88.0, ("IMPROVED", "IMPROVED"), 0),
    ],
)
def test_verdicts_per_metric_and_one_status(moe: float, rate: float, expected: tuple[str, str], status: int) -> None:
    compared = one_pair(BASE, baseline(stored(MOE, moe), stored(RATE, rate)))

    assert tuple(verdicts(compared.pairs[0]).values()) == expected
    assert compared.status == status


def test_the_change_is_that_of_the_value_so_a_rate_that_falls_is_worse() -> None:
    moe, rate = pair(BASE, baseline(stored(MOE, 42e-6), stored(RATE, 76.0))).judgements

    for judgement, expected in ((moe, 0.05), (rate, 76 / 80 - 1)):
        assert judgement.numbers.change == pytest.approx(expected, abs=1e-6)
        assert judgement.numbers.lo is not None
        assert judgement.numbers.hi is not None
        assert judgement.numbers.lo < expected < judgement.numbers.hi
    assert [rate.numbers.base, rate.numbers.measured] == pytest.approx([80.0, 76.0], rel=1e-3)


def test_sessions_on_both_sides_narrow_the_interval() -> None:
    def width(base: int, new: int) -> float:
        (judgement,) = pair(
            baseline(stored(MOE, 40e-6, sessions=base)), baseline(stored(MOE, 40e-6, sessions=new))
        ).judgements
        assert (judgement.basis.sessions, judgement.basis.new_sessions) == (base, new)
        assert judgement.numbers.lo is not None
        assert judgement.numbers.hi is not None
        return judgement.numbers.hi - judgement.numbers.lo

    assert width(1, 1) > width(5, 1) == pytest.approx(width(1, 5))
    assert width(5, 1) > width(5, 5)


def test_noise_makes_it_inconclusive_and_says_how_many_sessions_settle_it() -> None:
    compared = one_pair(BASE, baseline(stored(MOE, 40.2e-6, factors=NOISY), stored(RATE, 80.0)))

    assert compared.status == 2
    assert verdicts(compared.pairs[0])[MOE.name] == "INCONCLUSIVE"
    assert "sessions on each side would have settled it" in " ".join(advice(compared.pairs[0].judgements[0]))


def test_an_undeclared_change_confounds_but_shows_its_numbers() -> None:
    new = baseline(stored(MOE, 44e-6), stored(RATE, 80.0), stack=NEW_STACK)
    judgement = pair(BASE, new, "driver").judgements[0]

    assert judgement.verdict is Verdict.CONFOUNDED
    assert judgement.numbers.change == pytest.approx(0.1, abs=1e-6)
    assert judgement.reasons == ("nccl: 2.28.3 -> 2.28.9",)
    assert advice(judgement) == ("if that is the change under test, declare it: --change nccl",)
    assert one_pair(BASE, new, "driver").status == 2
    assert pair(BASE, new, "driver,nccl").judgements[0].verdict is Verdict.REGRESSED


HALF_POWER: Mapping[str, Json] = {**MACHINE, "gpus": [{**dict(gpu), "power_limit_w": 350} for gpu in GPUS]}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("allow", "verdict"),
    [
        ((), "CONFOUNDED"),
        (("gpus[0].power_limit_w",), "CONFOUNDED"),
        (("gpus[0].power_limit_w", "gpus[1].power_limit_w"), "PASS"),
        (("gpus.power_limit_w",), "PASS"),
        (("machine_class",), "PASS"),
        (("link",), "CONFOUNDED"),
    ],
)
def test_what_must_match_can_be_allowed_one_by_one(allow: Sequence[str], verdict: str) -> None:
    new = baseline(stored(MOE, 40e-6), stored(RATE, 80.0), machine=HALF_POWER)

    assert set(verdicts(pair(BASE, new, allow=allow)).values()) == {verdict}


OTHER_CLASS = "NVIDIA-H100-x2-NVLink"


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (baseline(stored(MOE, 50e-6), machine_class=OTHER_CLASS), "machine_class"),
        (baseline(stored(MOE, 50e-6), machine_class=f"{CLASS}-x"), "machine_class"),
        (baseline(stored(replace(MOE, contract={**MOE.contract, "clock": "cpu"}), 50e-6)), "contract.clock"),
        (baseline(stored(replace(MOE, contract={**MOE.contract, "shard": [7168, 512]}), 50e-6)), "contract.shard"),
        (baseline(stored(replace(MOE, contract={**MOE.contract, "formula": "v2"}), 50e-6)), "contract.formula"),
        (baseline(stored(replace(MOE, kind="cpu"), 60e-6)), "kind"),
        (baseline(stored(MOE, 50e-6, level="process")), "level"),
    ],
)
def test_another_measurement_is_refused_and_says_why(new: Baseline, field: str) -> None:
    (refused,) = pair(BASE, new).judgements

    assert refused.verdict is Verdict.CONFOUNDED
    assert refused.reasons[0].startswith(f"{field}: ")
    assert f"--allow {field}" in advice(refused)[0]

    allowed = pair(BASE, new, allow=[field])
    assert verdicts(allowed) == {MOE.name: "REGRESSED"}
    assert replace(allowed.judgements[0].numbers, p_worse=None) == refused.numbers, "shown all the same, not judged"
    assert allowed.allowed == {field}


def test_units_are_never_mixed() -> None:
    (judgement,) = pair(BASE, baseline(stored(replace(MOE, unit="B/s"), 1e9)), allow=["unit"]).judgements

    assert judgement.verdict is Verdict.CONFOUNDED
    assert judgement.numbers == Numbers(judgement.numbers.measured)
    assert "--allow" not in advice(judgement)[0]


def test_metrics_of_one_side_are_listed_and_fail() -> None:
    compared = one_pair(BASE, baseline(stored(MOE, 40e-6), stored(replace(RATE, name="other"), 1.0)))

    assert (compared.pairs[0].only_base, compared.pairs[0].only_new) == ((RATE.name,), ("other",))
    assert compared.status == 2
    for said in (text(compared, Terminal()), page(of_comparison(compared))):
        assert f"only in the reference: {RATE.name}" in said
        assert "only in the new file: other" in said


def test_wrong_answers_are_as_bad_as_a_regression() -> None:
    one = pair(BASE, AGAIN)
    wrong = replace(one.judgements[0], verdict=Verdict.WRONG_RESULT)

    assert Compared((replace(one, judgements=(wrong,)),), ()).status == 1


def test_nothing_compared_is_no_pass() -> None:
    assert one_pair(baseline(), baseline()).status == 2
    assert answer(one_pair(baseline(), baseline())).startswith("nothing was compared")


def test_the_new_band_holds_and_its_change_is_shown() -> None:
    new = baseline(stored(replace(MOE, tolerance=0.2), 44e-6), stored(RATE, 79.9), stack=NEW_STACK)
    compared = one_pair(BASE, new, "driver,nccl")
    moe, rate = compared.pairs[0].judgements

    assert moe.verdict is Verdict.PASS
    assert moe.changed[2:] == ("band: 2 % -> 20 % (the new one holds)",)
    assert rate.changed == moe.changed[:2]
    assert sections(compared)[0].notes[2:3] == (f"band: 2 % -> 20 % (the new one holds): {MOE.name}",)


def test_a_published_side_is_compared_by_its_band_alone() -> None:
    published = baseline(stored(replace(MOE, contract={}), 40e-6), machine={}, stack={}, published="a paper")
    new = baseline(stored(MOE, 42e-6), machine_class=f"{CLASS}-x")

    there, back = pair(published, new), pair(new, published)

    assert verdicts(there) == {MOE.name: "REGRESSED"}
    assert verdicts(back) == {MOE.name: "IMPROVED"}
    assert there.judgements[0].numbers.lo is None
    assert {one.standing for one in there.found} == {"not published"}


def side(name: str, *baselines: Baseline) -> BaselineSet:
    return BaselineSet(name, baselines)


def test_sides_meet_by_machine_class_in_the_asked_order() -> None:
    moe = stored(MOE, 40e-6)
    h100 = [baseline(moe, path=f"h100/{n}.json", machine_class=OTHER_CLASS) for n in range(3)]
    h200 = [baseline(moe, path=f"h200/{n}.json") for n in range(3)]
    group = [side("a", h100[0], h200[0]), side("b", h200[1], h100[1]), side("c", h200[2])]

    compared = compare_groups([group], Terms())

    assert [(str(one.base.path), str(one.new.path)) for one in compared.pairs] == [
        ("h200/0.json", "h200/1.json"),
        ("h200/0.json", "h200/2.json"),
        ("h100/0.json", "h100/1.json"),
    ]
    assert [(str(one.baseline.path), one.missing_in) for one in compared.alone] == [("h100/0.json", "c")]
    assert compared.status == 2


@given(
    values=st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=4),
    factors=st.lists(st.floats(0.8, 1.25), min_size=2, max_size=4),
)
def test_swapping_the_files_turns_the_change(values: list[float], factors: list[float]) -> None:
    metrics = [Metric(f"m{n}", "s", "kernel", 0.02) for n in range(len(values))]
    old = baseline(*(stored(one, value) for one, value in zip(metrics, values, strict=True)))
    new = baseline(*(stored(one, value, factors=factors) for one, value in zip(metrics, values, strict=True)))

    for there, back in zip(pair(old, new).judgements, pair(new, old).judgements, strict=True):
        assert there.numbers.change is not None
        assert back.numbers.change is not None
        assert (1 + there.numbers.change) * (1 + back.numbers.change) == pytest.approx(1)
        assert there.numbers.standard_error == pytest.approx(back.numbers.standard_error)


def test_differences_of_all_gpus_are_one_line() -> None:
    new = baseline(stored(MOE, 40.1e-6), machine=HALF_POWER, stack=NEW_STACK)
    (section,) = sections(one_pair(baseline(stored(MOE, 40e-6)), new, "driver"))

    assert section.notes == (
        "gpus.power_limit_w: 700 -> 350, 2 times (neither declared nor allowed)",
        "driver: 575.57 -> 580.95 (declared)",
        "nccl: 2.28.3 -> 2.28.9 (neither declared nor allowed)",
    )


def test_a_recording_beside_itself_is_not_judged_and_said_to_show_nothing() -> None:
    compared = one_pair(BASE, baseline(BASE.metrics[MOE.name], stored(RATE, 79.9)))
    (section,) = sections(compared)

    assert section.notes[1] == f"the same sessions on both sides, which show nothing and are not judged: {MOE.name}"
    assert [judgement.name for judgement in section.judgements] == [RATE.name]
    assert compared.status == 0
    assert answer(compared) == "1 PASS, 1 the same recording on both sides, which shows nothing: all passed"


@pytest.mark.parametrize("label", ["vllm", "edited since"])
def test_a_file_beside_itself_shows_nothing_and_does_not_pass(label: str) -> None:
    compared = one_pair(BASE, replace(BASE, label=label, path=Path("0002_copy.json")))

    assert (compared.status, compared.pairs[0].judgements) == (2, ())
    assert answer(compared) == (
        "2 the same recording on both sides, which shows nothing: not everything could be shown to pass"
    )
    assert json.loads(document(compared))["pairs"][0]["same_recording"] == [MOE.name, RATE.name]


def test_a_further_session_makes_it_another_recording() -> None:
    before = BASE.metrics[MOE.name]
    more = replace(before, sessions=(*before.sessions, *stored(MOE, 40e-6).sessions))
    assert one_pair(BASE, baseline(more, BASE.metrics[RATE.name])).pairs[0].same == (RATE.name,)


def test_one_stored_session_is_said_beside_a_pass() -> None:
    (section,) = sections(one_pair(BASE, baseline(stored(MOE, 40.01e-6), stored(RATE, 79.9))))
    said = "one baseline session cannot show how much sessions differ; "
    counted = [re.search(r"\((\d+) metrics?\)$", note) for note in section.notes if said in note]
    assert sum(int(found[1]) for found in counted if found) == 2

    old, new = (baseline(stored(MOE, 40e-6, sessions=3), stored(RATE, 80.0, sessions=3)) for _ in range(2))
    assert not [note for note in sections(one_pair(old, new))[0].notes if said in note]


def test_one_regression_of_two_needs_no_second_thought() -> None:
    (section,) = sections(one_pair(BASE, baseline(stored(MOE, 44e-6), stored(RATE, 79.9))))

    assert "1 of 2 metrics regressed; 1 of them hold when all 2 are looked at together (Holm, 2.5 % one-sided)" in (
        section.notes
    )


def test_of_many_metrics_some_regress_by_chance_and_it_is_said() -> None:
    metrics = [Metric(f"m{n}", "s", "kernel", 0.02) for n in range(300)]
    base = baseline(*(stored(one, 1e-3) for one in metrics))
    new = baseline(*(stored(one, 1e-3 * {0: 1.0205, 1: 1.5}.get(n, 1.0)) for n, one in enumerate(metrics)))

    compared = one_pair(base, new)
    note = sections(compared)[0].notes[-1]

    assert compared.status == 1
    assert note.startswith("2 of 300 metrics regressed; 1 of them hold when all 300 are looked at together")
    assert "the rest may be chance: record another session" in note


def test_the_terminal_explains_some_and_says_that_there_are_more() -> None:
    metrics = [Metric(f"m{n}", "s", "kernel", 0.02) for n in range(MOST_EXPLAINED + 5)]
    compared = one_pair(
        baseline(*(stored(one, 1e-3) for one in metrics)), baseline(*(stored(one, 2e-3) for one in metrics))
    )

    said = text(compared, Terminal())

    assert said.count(": REGRESSED: ") == MOST_EXPLAINED
    assert all(f"\n{one.name} " in said for one in metrics)
    assert f"more than {MOST_EXPLAINED} did not pass" in said
    assert page(of_comparison(compared)).count(">REGRESSED</td>") == 2 * len(metrics), "in their card, and in the table"


def test_colour_only_when_asked() -> None:
    compared = one_pair(BASE, AGAIN)

    assert "\033[32m" in text(compared, Terminal(colour=True))
    assert "\033" not in text(compared, Terminal())


def test_a_rate_that_falls_to_a_fifth_reads_minus_81_percent() -> None:
    slower = one_pair(baseline(stored(RATE, 80.0)), baseline(stored(RATE, 80.0 / 5.328)))

    said = text(slower, Terminal())

    assert verdicts(slower.pairs[0]) == {RATE.name: "REGRESSED"}
    assert "-81.2 %" in said
    assert "(- is worse)" in said
    assert "+432" not in said + markdown(of_comparison(slower)) + page(of_comparison(slower)) + document(slower)


LONG = [
    replace(MOE, name=f"allreduce_custom_graph[bytes=14336,world=8,type=bfloat16,calls=127,m={m}]") for m in (1, 16)
]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_table_fits_the_terminal_and_says_what_it_left_out(width: int) -> None:
    base, new = (baseline(*(stored(metric, value) for metric in LONG)) for value in (40e-6, 40.1e-6))
    compared = one_pair(base, new)

    lines = text(compared, Terminal(width=width)).splitlines()
    rows = [line for line in lines if line.startswith("allreduce_") and "PASS" in line]

    assert max(map(len, rows)) <= width
    assert [row.split()[0].endswith(f"m={m}]") for row, m in zip(rows, (1, 16), strict=True)] == [True, True]
    assert all("+0.25 %" in row and " .. " in row for row in rows)
    assert (f"({width} columns: without reference, band, sessions;" in "\n".join(lines)) == (width == 80)
    assert all(metric.name in document(compared) for metric in LONG)
    assert escaped("allreduce_custom_graph: bytes=14336,world=8,") in markdown(of_comparison(compared))


def test_metrics_on_one_side_are_counted_unless_names_are_asked_for() -> None:
    compared = one_pair(BASE, baseline(stored(MOE, 40e-6)))

    assert "only in the reference: 1 metric(s), which -v names" in text(compared, Terminal(names=False))
    assert f"only in the reference: {RATE.name}" in text(compared, Terminal())
    assert escaped(RATE.name) in markdown(of_comparison(compared))


def test_json_says_everything_in_native_units() -> None:
    new = baseline(stored(MOE, 42e-6), stored(RATE, 80.0), stack=NEW_STACK, path="0002_new.json")
    content = json.loads(document(one_pair(BASE, new, "driver")), parse_constant=pytest.fail)

    (found,) = content["pairs"]
    assert content["status"] == 2
    assert (found["reference"]["file"], found["new"]["file"]) == ("0001_base.json", "0002_new.json")
    assert found["differences"] == [
        {"field": "driver", "standing": "declared", "reference": "575.57", "new": "580.95"},
        {"field": "nccl", "standing": "undeclared", "reference": "2.28.3", "new": "2.28.9"},
    ]
    moe, rate = found["metrics"]
    assert (moe["metric"], moe["verdict"], moe["unit"], moe["better"]) == (MOE.name, "CONFOUNDED", "s", "lower")
    assert moe["change"] == pytest.approx(0.05, abs=1e-6)
    assert moe["changed"] == ["driver: 575.57 -> 580.95 (declared)"]
    assert (moe["judged"], moe["p_worse"]) == (False, None), "nobody may weigh it with others"
    assert rate["measured"] == pytest.approx(80.0, rel=1e-3)


EVIL = "</td><script>alert(1)</script>|`x`[a](b)\x1b[31m\u202e\n# title"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.scripts = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        assert not {name for name, _ in attrs} & {"src", "onclick"}
        assert all(value and value.startswith("#") for name, value in attrs if name == "href")
        self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        self.text += data


def evil() -> Compared:
    moe = replace(MOE, contract={**MOE.contract, EVIL: EVIL})
    new = baseline(stored(moe, 42e-6), stack={**STACK, "nccl": EVIL}, path=f"x/{EVIL}", machine_class=EVIL)
    return one_pair(BASE, new)


def test_html_is_one_file_in_which_nothing_of_a_file_is_markup() -> None:
    parser = Tags()
    parser.feed(page(of_comparison(evil())))

    assert parser.scripts == 1, "its own"
    assert not parser.names & {"link", "img", "iframe"}
    assert "</td><script>alert(1)</script>" in parser.text
    assert "\x1b" not in parser.text


def test_markdown_has_no_markup_of_a_file() -> None:
    said = markdown(of_comparison(evil()))

    assert "<script" not in said
    assert "`x`" not in said
    assert "[a](b)" not in said
    assert not any(line.startswith("# title") for line in said.splitlines())
    table = [line for line in said.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {7}


def test_the_terminal_gets_no_control_characters_of_a_file() -> None:
    assert all(character.isprintable() or character == "\n" for character in text(evil(), Terminal()))
