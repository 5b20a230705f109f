"""The pages: whole, escaped, readable in both themes, and in a real browser without errors or sideways scrolling."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import changed, result
from stored import CLASS, MOE, STACK, baseline, stored, write

from pytest_decodegate.cause import Cause, Finding
from pytest_decodegate.cli import main
from pytest_decodegate.compare.pairs import Compared, compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.pairs import Contrast
from pytest_decodegate.gate.result import Ended, Failed, ProcessSpread, Result, Stacks
from pytest_decodegate.gate.run import Run
from pytest_decodegate.gate.verdict import StepShare
from pytest_decodegate.machine.provenance import Difference
from pytest_decodegate.metric import Json
from pytest_decodegate.profile.ledger import parts
from pytest_decodegate.report.charts import KNEE, charts, knee
from pytest_decodegate.report.content import RunFacts, of_comparison, of_run
from pytest_decodegate.report.html import page
from pytest_decodegate.report.svg import MOST_TICKS, forest, ticks

PASS = result("gemm[m=8]", "PASS", change=0.012, lo=-0.004, hi=0.016, base=2e-5, measured=2.02e-5, p_worse=0.2)
SLOWER = changed(
    PASS,
    name="marlin_moe[m=8]",
    verdict="REGRESSED",
    change=0.041,
    lo=0.038,
    hi=0.044,
    p_worse=1e-9,
    step=StepShare("decode_step[tp=2,m=8]", 0.004, 0.006),
)
CRASHED = Failed("perf_tests/test_x.py::test_x", Finding("RankDied: rank 0 died", Cause.CRASH))
EVIL = "</td></svg><script>alert(1)</script><img src=x onerror=alert(1)>'\"{{7*7}}\x1b[31m\u202e\n# x"
NCCL = Difference("nccl", "2.28.3", EVIL, declarable=True)
STACKS = Stacks("this", EVIL, CLASS, Contrast((NCCL,)))
END = Ended(None, 90.0)
VOID = {"meta", "input", "br", "wbr"}


def gpu(mhz: float, temperature: float, **reasons: float) -> Json:
    return {
        "sm_clock_mhz": {"median": mhz},
        "temperature_c": {"max": temperature},
        "reasons": dict[str, Json](reasons),
        "limited_s": {},
    }


def named(name: str, value: float, **contract: Json) -> Result:
    from dataclasses import replace

    made = changed(PASS, name=name, measured=value, base=value * 0.97)
    metric = replace(made.judgement.metric, contract=contract)
    processes = tuple(ProcessSpread(n < 3, value * (1 + n / 100), value, value * 1.1, 9) for n in range(6))
    return replace(
        made,
        judgement=replace(made.judgement, metric=metric),
        processes=processes,
        gpus=(gpu(1900 + len(name), 40 + len(name)), gpu(1800, 50, sw_power_cap=0.5)),
    )


def everything() -> list[Any]:
    tpots = [named(f"tpot[c={c}]", 0.008 * (1 + c / 10)) for c in (1, 2, 4, 8, 16, 32)]
    sizes = [
        named(f"allreduce_graph[m={m},world={w}]", 7e-6 * w, collective="allreduce", bytes=14336 * m, world_size=w)
        for m, w in product((1, 8), (2, 4))
    ]
    step = [named(name, 1e-5) for name in dict.fromkeys(part.metric for part in parts(2, 8))]
    return [PASS, SLOWER, CRASHED, STACKS, *tpots, *sizes, *step, named("decode_step[tp=2,m=8]", 1e-2), END]


def shown(*outcomes: object, **about: Any) -> str:
    said = Run()
    for outcome in outcomes:
        said.add(outcome)

    return page(of_run(said, RunFacts(("pytest", "-m", "perf"), CLASS, **about)))


class Tree(HTMLParser):
    """Checks that tags nest, and keeps what is needed to judge the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


@given(st.text() | st.just(EVIL), st.text() | st.just(EVIL))
def test_no_text_is_markup_and_every_page_is_whole(text: str, other: str) -> None:
    failed = Failed(f"t.py::{text}", Finding(other, Cause.CRASH))
    noted = changed(PASS, notes=(Finding(text),))
    tree = Tree(shown(failed, noted, STACKS, END))
    found = [tag for tag, _ in tree.tags]
    assert found.count("script") == 1
    assert not set(found) & {"img", "link", "iframe", "object", "base", "form", "foreignobject"}
    assert "\x1b" not in tree.text
    assert "\u202e" not in tree.text
    assert "{{7*7}}" in tree.text, "a template in a text is a text"


def test_the_page_needs_nothing_else_and_has_all_its_parts() -> None:
    whole = shown(*everything())
    tree = Tree(whole)
    assert not re.search(r"https?://|@import|url\(", whole.replace("http://www.w3.org/2000/svg", ""))
    captions = [attrs["aria-label"] for tag, attrs in tree.tags if tag == "section"]
    assert captions == ["What does not pass", "What differs", "Charts", "Metrics", "Repeat"]
    for said in (
        *("NO-GO", "a slowdown of a kernel by", "marlin_moe[m=8]", "+0.40 % of decode_step[tp=2,m=8]", "RankDied"),
        *("tpot[c]: time per token against concurrency", "allreduce against size", "allreduce against world size"),
        *("SM clock along the run", "temperature along the run", "decode_step[tp=2,m=8]: kernel time by category"),
        *("Next", "knee at 8 streams", "the clock was limited beside"),
    ):
        assert said in tree.text, said


def test_pictures_have_names_and_tables_have_roles_and_labels() -> None:
    tree = Tree(shown(*everything()))
    for tag, attrs in tree.tags:
        if tag == "svg":
            assert attrs.get("aria-hidden") == "true" or (attrs.get("role") == "img" and attrs.get("aria-label"))
        if tag == "td":
            assert attrs.get("role") == "cell", "display: block takes the table's own roles away"
            assert attrs.get("data-label")
    assert ("html", {"lang": "en"}) in tree.tags
    ids = [attrs["id"] for _, attrs in tree.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"] for tag, attrs in tree.tags if tag == "a"} <= {f"#{each}" for each in ids}
    levels = [int(tag[1]) for tag, _ in tree.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), "no level of heading is left out"


def test_of_several_tries_the_card_shows_the_one_that_does_not_pass() -> None:
    again = changed(SLOWER, verdict="PASS", change=0.001, lo=-0.01, hi=0.01)
    whole = shown(SLOWER, again, END)
    card = whole[whole.index("<article") : whole.index("</article>")]
    assert 'data-verdict="REGRESSED"' in card
    assert 'data-verdict="PASS"' not in card


def test_what_passes_is_folded_and_what_does_not_is_open() -> None:
    tree = Tree(shown(PASS, SLOWER, END))
    folds = [("open" in attrs) for tag, attrs in tree.tags if tag == "details" and attrs.get("class") == "family"]
    assert folds == [True, False]


# --- contrast, as WCAG 2.2 has it

THEMES = ("light", "dark")
TEXTS = {"ink": ("paper", "panel", "good-tint", "bad-tint", "open-tint"), "soft": ("paper", "panel")}
TEXTS |= {"link": ("paper",), **{tone: ("paper", "panel", f"{tone}-tint") for tone in ("good", "bad", "open")}}
CARDS = ("good-tint", "bad-tint", "open-tint")


def variables(theme: str) -> dict[str, str]:
    css = re.search(r"<style>(.*?)</style>", shown(PASS, END), re.S)
    assert css
    roots = re.findall(r":root \{(.*?)\}", css[1], re.S)
    assert len(roots) == 2
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", roots[0]))
    return found if theme == "light" else {**found, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", roots[1]))}


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#187a35", "#ffffff") == pytest.approx(5.4, abs=0.1)


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_has_a_contrast_of_4_5(theme: str) -> None:
    colours = variables(theme)
    # Verdicts of any tone and soft labels stand in the tables of cards of any tone.
    wanted = [(text, ground) for text, grounds in TEXTS.items() for ground in grounds]
    wanted += list(product(("good", "bad", "open", "soft"), CARDS))
    low = {pair: contrast(*(colours[name] for name in pair)) for pair in wanted}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 4.5} == {}


@pytest.mark.parametrize("theme", THEMES)
def test_every_line_of_a_chart_has_a_contrast_of_3(theme: str) -> None:
    colours = variables(theme)
    assert min(contrast(colours[f"c{n}"], colours["paper"]) for n in range(6)) >= 3


def test_all_colours_of_texts_are_the_variables_that_are_tested() -> None:
    css = re.search(r"<style>(.*?)</style>", shown(PASS, END), re.S)
    assert css
    used = set(re.findall(r"(?<![-\w])(?:color|fill): var\(--([\w-]+)\)", css[1]))
    assert used - {f"c{n}" for n in range(6)} - {"band"} <= TEXTS.keys()
    assert not re.search(r"(?<![-\w])color: #", css[1])


# --- pictures


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert len(found) <= MOST_TICKS
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in found)


@given(*[st.floats(-1, 10)] * 3, st.floats(0.001, 0.5), st.floats(0.002, 3))
def test_an_interval_beyond_the_edges_is_drawn_at_the_edge(
    low: float, change: float, high: float, band: float, widest: float
) -> None:
    drawn = str(forest((low, high), change, band, widest))
    assert all(0 <= float(x) <= 200 for x in re.findall(r' x[12]?="([^"]*)"', drawn))


def test_worse_is_to_the_right_for_rates_too() -> None:
    from dataclasses import replace

    rate = changed(PASS, name="rate", verdict="REGRESSED", change=-0.05, lo=-0.06, hi=-0.04)
    metric = replace(rate.judgement.metric, unit="tok/s")
    rate = replace(rate, judgement=replace(rate.judgement, metric=metric))
    points = re.findall(r'class="point" x1="([\d.]+)"', shown(rate, END))
    assert points
    assert all(float(x) > 100 for x in points)


@given(st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=8))
def test_beyond_the_knee_doubling_gives_less(tpots: list[float]) -> None:
    points = [(2.0**n, tpot) for n, tpot in enumerate(tpots)]
    at = knee(points)
    gains = {x: 2 * slow / slower for (x, slow), (_, slower) in pairwise(points)}
    assert at == next((x for x, gain in gains.items() if gain < KNEE), None)


def test_no_chart_is_drawn_of_what_was_not_measured_soundly() -> None:
    invalid = [changed(named(f"tpot[c={c}]", 0.01), verdict="INVALID", reasons=()) for c in (1, 2)]
    assert {chart.title for chart in charts(invalid)} == {"SM clock along the run", "temperature along the run"}


# --- in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBE = """<script>addEventListener("load", () => {
  const box = document.getElementById("find");
  if (box) { box.value = "marlin"; box.dispatchEvent(new Event("input")); }
  document.body.dataset.probe = JSON.stringify({
    scroll: document.documentElement.scrollWidth, inner: innerWidth,
    shown: document.querySelectorAll("details.family tbody tr:not([hidden])").length,
    drawn: [...document.querySelectorAll("svg.chart")].filter((each) => each.clientHeight > 20).length,
  });
});</script></body>"""


def in_browser(path: Path, width: int) -> tuple[dict[str, int], str]:
    """What the probe saw at this width, and what the page said on the console."""
    import json

    assert CHROMIUM is not None
    options = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=3000",
    )
    command = [CHROMIUM, *options, f"--user-data-dir={path.parent / 'profile'}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    (seen,) = re.findall(r'data-probe="([^"]*)"', done.stdout)
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(seen.replace("&quot;", '"')), console


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_chromium_nothing_scrolls_sideways_nothing_fails_and_the_filter_works(tmp_path: Path, width: int) -> None:
    long = changed(SLOWER, name=f"allreduce_custom_graph[bytes=14336,world=8,type=bfloat16,m={'1' * 80}]")
    path = tmp_path / "page.html"
    path.write_text(shown(*everything(), long).replace("</body>", PROBE), encoding="utf-8")
    seen, console = in_browser(path, width)
    assert console == ""
    assert seen["scroll"] <= seen["inner"]
    assert seen["shown"] == sum("marlin" in str(getattr(each, "name", "")) for each in everything())
    assert seen["drawn"] >= 6


# --- history


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixteen sessions of a metric that became slower with another NCCL, and as many of one that did not."""
    monkeypatch.chdir(tmp_path)
    other = changed_name("marlin_w2[m=8]")
    for number, (level, nccl) in enumerate(((40e-6, "2.28.3"), (44e-6, EVIL)), start=1):
        metrics = (stored(MOE, level, sessions=8), stored(other, 30e-6, sessions=8))
        found = baseline(*metrics, path=f"{CLASS}/{number:04d}_x.json", stack={**STACK, "nccl": nccl})
        write(tmp_path / "baselines", dated(found, number))

    return tmp_path


def changed_name(name: str) -> Any:
    from dataclasses import replace

    return replace(MOE, name=name)


def dated(found: Any, month: int) -> Any:
    from dataclasses import replace

    def moved(one: Any) -> Any:
        sessions = (
            replace(session, recorded=session.recorded.replace("2026-01", f"2026-{month:02d}"))
            for session in one.sessions
        )
        return replace(one, sessions=tuple(sessions))

    return replace(found, metrics={name: moved(one) for name, one in found.metrics.items()})


def test_the_history_page_has_what_the_pattern_names_and_what_changed_with_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "marlin_*", "-o", "h.html"]) == 0
    assert capsys.readouterr().out == "2 series written to h.html\n"
    tree = Tree((root / "h.html").read_text())
    assert "2 series, 1 change point(s)" in tree.text
    assert "+10.0 %, worse, at session s1." in tree.text
    assert "changed with it: nccl: 2.28.3 -> </td></svg><script>alert(1)" in tree.text
    assert tree.text.index("marlin_moe[m=8] on") < tree.text.index("marlin_w2[m=8] on"), "what changed comes first"
    assert [attrs["role"] for tag, attrs in tree.tags if tag == "svg"] == ["img", "img"]
    assert not {tag for tag, _ in tree.tags} & {"script", "img"}
    assert "decodegate history 'marlin_*' -o h.html" in tree.text


def test_a_pattern_is_one_in_every_form_and_brackets_are_themselves(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    assert main(["history", "*[m=8]", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["series"]
    assert [each["metric"] for each in found] == ["marlin_moe[m=8]", "marlin_w2[m=8]"]
    assert main(["history", "marlin_w2[m=8]"]) == 0
    assert capsys.readouterr().out.startswith("marlin_w2[m=8] on ")


@pytest.mark.parametrize(
    ("output", "said"), [("h.md", "name a file that ends in .html"), ("no/h.html", "No such file")]
)
def test_a_page_that_cannot_be_written_is_one_line(
    root: Path, capsys: pytest.CaptureFixture[str], output: str, said: str
) -> None:
    assert main(["history", "marlin_*", "-o", output]) == 3
    assert said in capsys.readouterr().err


def test_a_comparison_has_its_history_and_its_processes() -> None:
    base, new = baseline(stored(MOE, 40e-6, sessions=2)), baseline(stored(MOE, 48e-6, sessions=2), path="0002_n.json")
    compared = Compared((compare_baselines(base, new, Terms()),), ())
    tree = Tree(page(of_comparison(compared, ("decodegate", "compare", "a", "b"))))
    assert f"{MOE.name} over 4 sessions" in tree.text
    assert "5 processes beside 5 of the base" in tree.text
    assert "decodegate compare a b" in tree.text
