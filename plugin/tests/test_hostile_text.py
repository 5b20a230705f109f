"""What a stranger writes into a file, a log, a server's answer or a rank's output moves no cursor, commands no CI
runner and is no live mention or link in Markdown: every input, and every report of it.
"""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign import DETAILED, PLAIN, benchmark_json, changed, nccl_json
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedServer, event, streaming, token
from stored import CLASS, MOE, RATE, baseline, sealed, stored

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.cli import main
from pytest_decodegate.errors import BadInput, DecodegateError, ServerError
from pytest_decodegate.gang import logs, protocol
from pytest_decodegate.gang.connection import Connection, Keys
from pytest_decodegate.gang.listener import Admitted
from pytest_decodegate.gang.protocol import Hello, Note, Reply
from pytest_decodegate.gang.rank import Rank
from pytest_decodegate.machine.nccl_log import read_nccl_log
from pytest_decodegate.machine.provenance import redact
from pytest_decodegate.printable import printable, printable_lines
from pytest_decodegate.report.escape import escaped
from pytest_decodegate.serving import log_facts
from pytest_decodegate.serving.pages import read_pages
from pytest_decodegate.serving.server import attach
from pytest_decodegate.settings.stack import Stack

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 a\r\n::error file=x::owned\n##[error]owned\n  ::add-mask::x\u2028::warning::y "
    "@team/owners #123 https://evil.example www.evil.example <img src=x> | `x` [a](b) \u202eabc\u200b"
)
"""Escapes, lines, commands of CI runners, mentions, links, markup, and characters that reorder or hide."""


def assert_harmless(text: str) -> None:
    unseen = {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n", "\t"}
    assert not unseen
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())
    assert "##[" not in text


@given(st.text() | st.text("\x1b[]m:#\r\n\t 0;a"))
def test_nothing_live_is_left_in_a_text(text: str) -> None:
    assert_harmless(printable(text))
    assert_harmless(printable_lines(text))
    assert "\n" not in printable(text)
    assert printable(printable(text)) == printable(text)
    assert printable_lines(printable_lines(text)) == printable_lines(text)


@given(st.text(st.characters(categories=("L", "N", "P", "Zs"), exclude_characters=":#")))
def test_what_can_be_seen_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("function", [printable, printable_lines, escaped])
@pytest.mark.parametrize("piece", ["\x1b[", "\n", " ", ":", "\r", "##", "\x1b[1;", "@", "https:"])
def test_the_time_grows_with_the_text(function: Callable[[str], str], piece: str) -> None:
    assert_linear(function, piece)


@pytest.mark.parametrize("kind", [BadInput, ServerError])
def test_errors(kind: type[DecodegateError]) -> None:
    assert_harmless(str(kind(f"it said\n{HOSTILE}")))


MARKS = re.compile(r"[@#](?=\w)|(?i:https?://|www\.)")


@given(st.text() | st.sampled_from([HOSTILE, "a@b.c", "http://x", "HTTPS://x", "www.x", "#1", "@a", "mailto:x"]))
def test_markdown_has_no_live_mention_and_no_link(text: str) -> None:
    shown = escaped(text)
    assert not MARKS.search(shown)
    assert "<" not in shown
    assert not re.search(r"(?<!\\)[`*_|\[\]]", shown)
    assert_harmless(shown.replace("\u200b", ""))


FREE = {"label", "machine_class", "who", "what", "why"}
OPEN = {"stack", "machine", "telemetry", "facts", "contract"}


def poisoned(value: Any, free: set[str]) -> Any:
    """A document with HOSTILE as every text under the names `free`, and as key and value wherever keys are open."""
    if isinstance(value, list):
        return [poisoned(inner, free) for inner in value]
    if not isinstance(value, dict):
        return value

    found: dict[str, Any] = {
        key: HOSTILE if key in free and isinstance(inner, str) else poisoned(inner, free)
        for key, inner in value.items()
    }
    for key in OPEN & found.keys():
        if isinstance(found[key], dict):
            found[key] = {**found[key], HOSTILE: HOSTILE}

    return found


def baseline_file(path: Path, factor: float, free: set[str] = FREE) -> Path:
    """A stored baseline that says HOSTILE wherever a text is free; its log has a line."""
    written = json.loads(dumps(baseline(stored(MOE, 40e-6 * factor, sessions=2), stored(RATE, 80.0 / factor))))
    written["decodegate"]["log"] = [{"when": "2026-01-02T00:00:00+00:00", "who": "x", "what": "x", "why": "x"}]
    # What differs between two files is quoted, and confounds.
    written["decodegate"]["provenance"]["stack"]["vllm"] = f"{HOSTILE}{factor}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sealed(poisoned(written, free)))
    return path


@pytest.mark.parametrize("form", ["terminal", "markdown", "html", "json"])
def test_baselines_compared_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(baseline_file(tmp_path / f"{number}.json", factor)) for number, factor in enumerate((1.0, 1.2))]
    for options in ([], ["--change", "vllm"]):
        main(["compare", *files, "--format", form, *options])
        said = capsys.readouterr()
        assert "owned" in said.out
        assert_harmless(said.err)
        assert_harmless(said.out.replace("\u200b", "") if form == "markdown" else said.out)
        if form == "markdown":
            assert not MARKS.search(said.out)
        if form == "html":
            assert "<img" not in said.out


def test_baselines_listed_and_told_over_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The class decides the folder; everything else is the file's.
    for number in (1, 2):
        baseline_file(tmp_path / CLASS / f"000{number}_a.json", number, FREE - {"machine_class"})
    for command in (["baselines"], ["history", MOE.name], ["history", MOE.name, "--format", "json"]):
        assert main([*command, "--baselines", str(tmp_path)]) == 0
        said = capsys.readouterr()
        assert_harmless(said.out + said.err)

    page = tmp_path / "h.html"
    assert main(["history", "*", "--baselines", str(tmp_path), "-o", str(page)]) == 0
    assert_harmless(page.read_text())
    assert "<img" not in page.read_text()


def test_a_comparison_written_as_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(baseline_file(tmp_path / f"{number}.json", factor)) for number, factor in enumerate((1.0, 1.2))]
    assert main(["compare", *files, "--report", str(tmp_path / "r")]) == 2
    for path in (tmp_path / "r").iterdir():
        text = path.read_text()
        assert "owned" in text
        assert_harmless(text.replace("\u200b", "") if path.suffix == ".md" else text)


def test_a_baseline_that_is_refused_is_quoted_harmlessly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = baseline_file(tmp_path / "good.json", 1.0)
    for place in ("name", "unit", "key", "schema"):
        document = json.loads(good.read_text())
        benchmark = document["benchmarks"][0]
        {
            "name": benchmark,
            "unit": next(iter(document["decodegate"]["metrics"].values())),
            "key": document["decodegate"],
            "schema": document["decodegate"],
        }[place][HOSTILE if place == "key" else place] = HOSTILE
        bad = tmp_path / f"{place}.json"
        bad.write_text(json.dumps(document))
        assert main(["compare", str(good), str(bad)]) == 3
        said = capsys.readouterr().err
        assert place == "key" or "owned" in said
        assert_harmless(said)


def poisoned_texts(content: bytes) -> Iterator[bytes]:
    """The JSON file with HOSTILE behind one of its texts, for each of them."""

    def walk(value: Any) -> Iterator[Any]:
        if isinstance(value, str):
            yield value + HOSTILE
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from ({**value, key: other} for other in walk(inner))
        elif isinstance(value, list):
            for index, inner in enumerate(value[:2]):
                yield from ([*value[:index], other, *value[index + 1 :]] for other in walk(inner))

    return (json.dumps(other).encode() for other in walk(json.loads(content)))


@pytest.mark.parametrize(
    "content", [PLAIN, changed(DETAILED, backend="vllm"), nccl_json(), benchmark_json(with_data=True)], ids=len
)
def test_files_of_other_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    imported = 0
    for number, other in enumerate(poisoned_texts(content)):
        file, out = tmp_path / f"{number}.json", tmp_path / f"out{number}"
        file.write_bytes(other)
        if main(["import", str(file), "--out", str(out), "--label", HOSTILE]) == 0:
            imported += 1
            assert main(["baselines", "--baselines", str(out)]) == 0

        said = capsys.readouterr()
        assert_harmless(said.out + said.err)

    assert imported


def test_a_log_of_a_server() -> None:
    log = f"INFO Initializing a V1 LLM engine (v0.26\x1b[2J\u2028) with config: dtype=torch.bfloat16\n{HOSTILE}"
    for line in log_facts.lines(log):
        assert_harmless(line)
    assert_harmless(log_facts.headline(log))
    assert_harmless(json.dumps(log_facts.read_facts(log), ensure_ascii=False))


def test_a_log_of_nccl() -> None:
    line = "host:1:2 [0] NCCL INFO AllReduce [Symmetric]: 14336 Bytes -> Kernel k\x1b[2J\x07::x nchannels 1 "
    (issued,) = read_nccl_log(line).issued
    assert_harmless(issued.protocol)
    assert "\\x07" in issued.protocol


def test_pages_of_a_server() -> None:
    pages = {
        "/v1/models": json.dumps({"data": [{"id": HOSTILE, "owned_by": HOSTILE}]}),
        "/version": json.dumps({"version": HOSTILE}),
        "/server_info": json.dumps({"dtype": HOSTILE, "vllm_config": f"model='x', dtype=torch.{HOSTILE}"}),
        "/props": json.dumps({"build_info": HOSTILE}),
        "/metrics": f'vllm:cache_config_info{{cache_dtype="{printable(HOSTILE)}\x1b"}} 1\n',
    }
    facts = read_pages(pages.get, HOSTILE)
    assert {"version", "dtype"} <= facts.keys()
    for value in facts.values():
        assert_harmless(str(value))


@pytest.mark.parametrize("body", [HOSTILE, json.dumps({"data": [{"id": HOSTILE}, {"id": "b"}]})])
def test_an_answer_of_a_server_that_cannot_be_used(body: str) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(DecodegateError, match="owned") as caught:
            attach(f"http://127.0.0.1:{server.server_port}")

        thread.join(10)

    assert_harmless(str(caught.value))


PERF_TEST = """
    import pytest
    from pytest_decodegate.measure.window import Load
    from pytest_decodegate.metric import Metric

    @pytest.mark.perf
    def test_tpot(perf, server):
        perf.measure_tpot(Metric.of("tpot", "cpu"), server, Load(1, 4, 4, 2))
"""


def written_by(pytester: pytest.Pytester, names: list[str]) -> str:
    return "\n".join((pytester.path / name).read_text() for name in names)


def test_what_a_server_says_reaches_the_table_junit_and_the_report(
    pytester: pytest.Pytester, scripted: ScriptedServer
) -> None:
    scripted.completion = streaming([token(1), event({"error": {"message": HOSTILE}})])
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(PERF_TEST)
    files = ("--perf-report=r", "--junitxml=r.xml")
    result = pytester.runpytest_inprocess("-m", "perf", f"--perf-server={scripted.url}", *files)

    assert result.parseoutcomes() == {"failed": 1}
    others = ["r/results.jsonl", "r/results.csv", "r/summary.json", "r/metrics.prom", "r/report.html", "r.xml"]
    assert_harmless(result.stdout.str() + written_by(pytester, others))
    assert_harmless(written_by(pytester, ["r/report.md"]).replace("\u200b", ""))
    assert "<img" not in written_by(pytester, ["r/report.html"])
    assert "owned" in result.stdout.str()


def test_what_a_server_says_reaches_the_answer_of_an_upgrade(
    pytester: pytest.Pytester, scripted: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.completion = streaming([token(1), event({"error": {"message": HOSTILE}})])
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(PERF_TEST)
    other = ScriptedServer()
    other.completion = scripted.completion
    stacks = (f"--base=server={scripted.url}", f"--candidate=server={other.url}")
    try:
        assert main(["upgrade", *stacks, "--json=u.json", "--", ".", "-p", "no:cacheprovider"]) in (1, 2)
    finally:
        other.close()

    shown = capsys.readouterr()
    assert_harmless(shown.out + shown.err + written_by(pytester, ["u.json"]))
    assert "owned" in shown.out


def test_what_a_rank_says() -> None:
    ours, its = socket.socketpair()
    keys = Keys(b"a", b"b")
    sender = Connection(its, Keys(b"b", b"a"), blocking=True)
    hello = Hello(0, 0, 1, HOSTILE, "/logs", "python")
    rank = Rank(Admitted(hello, Connection(ours, keys, blocking=False)), "gang")
    for message in (Note(1, HOSTILE), Reply(1, skip=HOSTILE)):
        sender.send(protocol.dump(message))
        heard = rank.receive()
        assert_harmless(heard.text if isinstance(heard, Note) else heard.skip)
    rank.close()
    sender.close()


def test_what_a_rank_prints(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_text(f"{HOSTILE}\nHF_TOKEN=hf-mine")
    ((_, _, text),) = logs.output_since({0: str(tmp_path)}, {})
    assert_harmless(text)
    assert "owned" in text
    assert "hf-mine" not in text


def test_variables_and_stacks() -> None:
    assert_harmless("\n".join(map(str, redact({"NCCL_ALGO": HOSTILE}).values())))
    assert_harmless(str(Stack(env=(("NCCL_ALGO", HOSTILE),))))
    assert "hf-mine" not in str(Stack(env=(("HF_TOKEN", "hf-mine"),)))
