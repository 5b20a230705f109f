"""Fenced blocks of README and docs/: each command is run by CI (readme.py), or is named with the reason why not."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
import readme
import yaml
from readme import Block, blocks, console, why_not_run

BLOCKS = [(page, block) for page in readme.PAGES for block in blocks(page.read_text(encoding="utf-8"))]
CI = (readme.ROOT / ".ci" / "run").read_text(encoding="utf-8")


def environments(pattern: str, text: str) -> set[str]:
    """The environments of tox that `pattern` finds in `text`, several joined by commas."""
    return {name for names in re.findall(pattern, text) for name in names.split(",")}


OF_CI = environments(r"tox\" run -e (\S+)", CI)
COMMANDS = [command for _, block in BLOCKS if block.language == "console" for command in block.commands]


def test_a_block_is_read_with_its_commands() -> None:
    text = "a\n```console\n$ one   # why\nsaid\n$ two \\\n    --three\n```\n```\nx\n```\n"
    assert list(blocks(text)) == [
        Block(2, "console", ("$ one   # why", "said", "$ two \\", "    --three")),
        Block(8, "", ("x",)),
    ]
    assert console(text)[0].commands == ("one   # why", "two --three")
    with pytest.raises(ValueError, match="opens on line 2 is never closed"):
        list(blocks("\n```python\n"))


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page.name}:{block.line}" for page, block in BLOCKS])
def test_each_block_is_commands_that_somebody_answers_for_or_code_that_can_be_read(page: Path, block: Block) -> None:
    text = "\n".join(block.lines)
    match block.language:
        case "console":
            assert block.commands
            assert all(line.startswith(("$ ", "    ")) for line in block.lines), (
                "printed output grows old: leave it out"
            )
        case "python":
            compile(text, f"{page.name}:{block.line}", "exec")
        case "ini":
            configparser.RawConfigParser().read_string(text)
        case "yaml":
            assert yaml.safe_load(text)
        case language:
            assert language == "", "a block of commands is called console"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("pytest -m perf", None),
        ("pip install -e .                             # brings neither torch nor vllm: yours stay as they are", None),
        ("pytest -m perf    # not ssh, tox or ...", None),
        ("pip install vllm==...    # the upgrade", "the reader puts a version there"),
        ("pytest -m perf --perf-nnodes=2 --perf-node-start='ssh node1 {command}'", "it needs other hosts"),
        ("decodegate upgrade --candidate this", "it needs a GPU, or takes minutes"),
        ("decodegate compare OLD.json NEW.json", "paths, servers and files are the reader's own"),
        ("python -m pip install tox && tox -e perf", "CI runs these environments of tox themselves (.ci/run)"),
    ],
)
def test_the_rule_says_what_is_run(command: str, reason: str | None) -> None:
    assert why_not_run(command) == reason


def test_the_quick_start_of_a_gpu_host_is_run() -> None:
    run = [command.partition(" #")[0].strip() for command in COMMANDS if why_not_run(command) is None]
    assert "pip install -e ." in run
    assert "pytest -m perf" in run
    assert "pytest -m perf --perf-record" in run


def test_what_is_left_to_tox_is_run_by_ci() -> None:
    named = {name for command in COMMANDS for name in environments(r"tox -e ([\w,]+)", command)}
    assert named >= {"perf", "tests"}
    assert named - {"upgrade"} <= OF_CI, ".ci/run does not run what a page tells a reader to run"


def test_ci_runs_the_rest() -> None:
    assert {"readme", "docs"} <= OF_CI
    tox = (readme.ROOT / "tox.ini").read_text(encoding="utf-8")
    assert "commands = python plugin/tests/readme.py" in tox.partition("[testenv:readme]")[2].partition("[")[0]
    assert "commands = mkdocs build --strict" in tox.partition("[testenv:docs]")[2].partition("\n[")[0]
