"""README and docs/: short enough, no broken link, no option that does not exist, nothing generated that is stale."""

from __future__ import annotations

import configparser
import html
import re
import runpy
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import readme
import yaml
from readme import ROOT, blocks, console
from recorded_upgrades import SLOWED, recorded_run

from pytest_decodegate import cli
from pytest_decodegate.errors import BadInput
from pytest_decodegate.gate.decision import Answer
from pytest_decodegate.gate.verdict import Verdict
from pytest_decodegate.settings.settings import read_settings
from pytest_decodegate.settings.values import tolerance_lines

DOCS = ROOT / "docs"
PAGES = (*readme.PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")))
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS[readme.README]

MOST_WORDS = 1100
"""Of README, so that it is read in ten minutes."""


def tool(name: str) -> dict[str, object]:
    """The names of a script in docs/tools."""
    return runpy.run_path(str(DOCS / "tools" / name))


def test_readme_is_read_in_ten_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS, "move it to a page of docs/"


# What is generated.


def test_generated_pages_are_as_the_code_is() -> None:
    pages = tool("generated_pages.py")["PAGES"]
    assert isinstance(pages, dict)
    assert set(pages) == {"options.md", "doctor.md"}
    for name, page in pages.items():
        assert page() == TEXTS[DOCS / name], "run: python docs/tools/generated_pages.py"


def drawn(name: str) -> list[str]:
    """The lines of text in a picture of a terminal, without its title."""
    svg = (DOCS / "pictures" / name).read_text(encoding="utf-8")
    rows: dict[float, str] = {}
    for attributes, text in re.findall(r"<text ([^>]*clip-path[^>]*)>(.*?)</text>", svg):
        (y,) = re.findall(r'\by="([\d.]+)"', attributes)
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text).replace("\N{NO-BREAK SPACE}", " ")

    return [line for _, row in sorted(rows.items()) if (line := row.rstrip())]


def test_the_picture_of_readme_is_what_a_run_prints() -> None:
    lines = tool("screen_picture.py")["lines"]
    assert callable(lines)
    assert recorded_run(SLOWED).decision.answer is Answer.NO_GO
    assert drawn("no-go.svg") == [line for line, _ in lines() if line], "run: python docs/tools/screen_picture.py"


def test_the_pictures_of_the_method_are_drawn_from_what_is_recorded() -> None:
    descriptions = tool("method_pictures.py")["descriptions"]
    assert callable(descriptions)
    for name, data in descriptions().items():
        (drawn_from,) = re.findall(r"<dc:description>(.*?)</dc:description>", (DOCS / "pictures" / name).read_text())
        assert html.unescape(drawn_from) == data, "run: tox -e pictures"


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda picture: picture.name)
def test_a_picture_fetches_nothing(picture: Path) -> None:
    svg = picture.read_text(encoding="utf-8")
    assert not re.search(r"""(url\(|href=)["']?(https?:)?//|@import|<script""", svg)


def test_the_answer_that_readme_explains_is_in_its_picture() -> None:
    (answer,) = (block for block in blocks(README) if block.language == "")
    assert {line.rstrip() for line in answer.lines} <= set(drawn("no-go.svg"))


# Links.


def slugs(text: str) -> set[str]:
    """Anchors of the headings, as GitHub and mkdocs make them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[Path, str]]:
    """Each page and what it links to or shows, once."""
    for page, text in TEXTS.items():
        yield from ((page, target) for target in dict.fromkeys(re.findall(r"\]\(([^)\s]+)\)", text)))


@pytest.mark.parametrize(("page", "target"), [pytest.param(*link, id=f"{link[0].name}:{link[1]}") for link in links()])
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    assert "://" not in path, "links to other sites grow old, and nobody tests them"
    found = (page.parent / path).resolve() if path else page
    assert found.exists()
    if anchor:
        assert anchor in slugs(found.read_text(encoding="utf-8"))


def test_every_page_is_in_the_menu_and_reached_from_readme() -> None:
    menu = (DOCS / "tools" / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert f": {page.name}\n" in menu
        assert f"](docs/{page.name}" in README


def test_every_picture_is_shown() -> None:
    shown = {(page.parent / target).resolve() for page, target in links() if target.endswith(".svg")}
    assert shown == set((DOCS / "pictures").iterdir())


# Names.


def test_options_that_are_named_exist(pytestconfig: pytest.Config) -> None:
    known = set(re.findall(r"--perf[\w-]*", TEXTS[DOCS / "options.md"]))
    named = {name for page in readme.PAGES for name in re.findall(r"--perf[a-z-]*[a-z]", TEXTS[page])}
    assert named - known == set()
    inis = {name for page in readme.PAGES for name in re.findall(r"`(perf_[a-z_]+)`", TEXTS[page])} - {"perf_tests"}
    assert {"perf_tolerance", "perf_budget"} <= inis
    for name in inis:
        pytestconfig.getini(name)  # raises for a name that is not registered


@pytest.mark.parametrize("page", [readme.README, DOCS / "troubleshooting.md"], ids=lambda page: page.name)
def test_every_verdict_has_something_to_do(page: Path) -> None:
    assert set(re.findall(r"^\| ([A-Z_]+) \|", TEXTS[page], re.MULTILINE)) >= {str(verdict) for verdict in Verdict}


# Commands: what CI cannot run is parsed as it would be.

OURS = re.compile(r"(?:\S*/)?(pytest|decodegate)")


def of_yaml(text: str) -> Iterator[str]:
    """Commands in the jobs of a CI."""
    pending = [yaml.safe_load(text)]
    while pending:
        match pending.pop():
            case dict() as found:
                pending.extend(found.values())
            case list() as found:
                pending.extend(found)
            case str() as found if ".venv/bin/decodegate" in found:
                yield found


def commands() -> Iterator[tuple[str, str]]:
    for page in readme.PAGES:
        yield from ((page.name, command) for block in console(TEXTS[page]) for command in block.commands)
        for block in blocks(TEXTS[page]):
            if block.language == "yaml":
                yield from ((page.name, command) for command in of_yaml("\n".join(block.lines)))


def words(command: str) -> list[str]:
    """As bash reads them, from the first word that is ours; [] without one."""
    command = command.partition("tox ")[0] or "true"
    listed = subprocess.run(
        ["bash", "-c", f"set -f; printf '%s\\0' {command.rpartition(' && ')[2]}"],
        env={"CANDIDATE": "vllm=0.27.0", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[:-1]
    start = next((place for place, word in enumerate(listed) if OURS.fullmatch(word)), len(listed))
    return listed[start:]


PARSED = [
    pytest.param(command, id=f"{page}: {command}") for page, command in dict.fromkeys(commands()) if words(command)
]


def read_as_pytest(pytester: pytest.Pytester, arguments: Sequence[str]) -> None:
    """Raises for an option that is not known, or whose value is no value of it."""
    read_settings(pytester.parseconfig(*[each for each in arguments if not each.startswith("--basetemp")]))


@pytest.mark.parametrize("command", PARSED)
def test_a_command_is_parsed_as_it_would_be(
    command: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "named on a page")
    program, *arguments = words(command)
    if program.endswith("pytest"):
        read_as_pytest(pytester, arguments)
        return

    options = cli._parser().parse_args(arguments)
    read_as_pytest(pytester, getattr(options, "arguments", ()))


def test_baselines_that_commands_name_are_there() -> None:
    named = {word for _, command in commands() for word in words(command) if re.match(r"baselines/.*\.json", word)}
    assert named
    for word in named:
        assert list(ROOT.glob(word)), word


def test_a_command_that_is_wrong_is_refused(pytester: pytest.Pytester) -> None:
    with pytest.raises(pytest.UsageError):
        read_as_pytest(pytester, ["-m", "perf", "--perf-nothing"])
    with pytest.raises(BadInput, match="--perf-budget"):
        read_as_pytest(pytester, ["-m", "perf", "--perf-budget", "soon"])
    with pytest.raises(SystemExit):
        cli._parser().parse_args(["upgrade", "--candidates", "this"])


def test_an_ini_file_has_known_names_and_bands_that_can_be_read(pytestconfig: pytest.Config) -> None:
    files = [block for page in readme.PAGES for block in blocks(TEXTS[page]) if block.language == "ini"]
    assert files
    for block in files:
        parsed = configparser.RawConfigParser()
        parsed.read_string("\n".join(block.lines))
        for name in parsed["pytest"]:
            pytestconfig.getini(name)
        assert list(tolerance_lines(parsed["pytest"]["perf_tolerance"].split("\n")[1:]))
