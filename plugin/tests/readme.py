"""The console blocks of README and docs/, run as a new user would: `python plugin/tests/readme.py`, with a bare Python.

Each command runs as it is printed, in a fresh copy of this tree and an environment that holds torch, as the environment
of a host does, and what `pip install -e .` brings: no extras, no test tools. What a block leaves out is said with the
reason. Then the same suite under other versions of pytest and pytest-benchmark, and what works without torch.
Exit status: 0 all well, 1 otherwise.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
"""What is read for commands, README first."""

NOT_RUN = (
    (re.compile(r"\.\.\."), "the reader puts a version there"),
    (re.compile(r"\b(ssh|srun|--perf-nnodes)\b"), "it needs other hosts"),
    (re.compile(r"\btox\b"), "CI runs these environments of tox themselves (.ci/run)"),
    (
        re.compile(r"/venvs/|/models/|https?://|\b(OLD|NEW|FILE|before|result)(\.json)?\b"),
        "paths, servers and files are the reader's own",
    ),
    (re.compile(r"\b(upgrade|selftest)\b|--launch\b"), "it needs a GPU, or takes minutes"),
    (re.compile(r"--perf-record=all|--perf-budget|--perf-only"), "the stand-in of one metric would not do for it"),
)
"""The rule: a command is run unless it matches one of these, and then for that reason. It is parsed all the same."""

STATUSES = {"decodegate doctor": (0, 1), "decodegate compare": (0, 1, 2), "decodegate ledger": (0, 1)}
"""Exit statuses of commands that have something to say of the host or the files; all others must exit with 0."""

STAND_IN = "-k 'expert_mlp_cpu and not 8 and not 64' --perf-replicates=3 --perf-report=report"
"""PYTEST_ADDOPTS of each command: one metric that a CPU can measure. The commands stay as they are printed."""

GATED = frozenset({"PASS", "IMPROVED", "REGRESSED", "INCONCLUSIVE"})
"""What a gate may say of a shared CPU: that the commands run is tested here, not that CI's machine is steady."""

MADE_UP = """
import pytest
from pytest_decodegate.measure.source import Taken
from pytest_decodegate.metric import Metric, Replicate


class Source:
    level = "process"

    def take(self, count):
        replicates = tuple(Replicate((80.0, 81.0, 82.0, 80.5 + number)) for number in range(count))
        return Taken("process", replicates, {"clock": "made up"})


@pytest.mark.perf
def test_made_up(perf):
    perf.gate(Metric.of("made_up", "cpu"), Source())
"""
"""A perf test whose times are made up: the stack is read in a real rank, and the verdict is the same on any machine."""

VERSIONS = tuple((bench, pytest) for bench in ("5.1.*", "5.2.*", "5.3.*") for pytest in ("9.0.*", ""))
"""Of pytest-benchmark and pytest; "" is the newest."""

SECONDS = 600
"""For any one command: far more than the slowest takes, so that CI ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: the line of its page on which it opens (from 1), its language, and its lines."""

    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        """What follows each "$ ", continued lines joined; other lines are output."""
        text = re.sub(r"\\\n\s*", "", "\n".join(self.lines))
        return tuple(line[2:] for line in text.splitlines() if line.startswith("$ "))


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block of a Markdown text; raises ValueError for one that is never closed."""
    opened: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("```"):
            if opened:
                opened = Block(opened.line, opened.language, (*opened.lines, line))
        elif opened:
            yield opened
            opened = None
        else:
            opened = Block(number, line[3:].strip(), ())

    if opened:
        raise ValueError(f"the block that opens on line {opened.line} is never closed")


def console(text: str) -> list[Block]:
    """The blocks of commands."""
    return [block for block in blocks(text) if block.language == "console"]


def why_not_run(command: str) -> str | None:
    """Why CI does not run a command, by the first rule of NOT_RUN that it matches; None for one that it runs."""
    return next((reason for pattern, reason in NOT_RUN if pattern.search(command.partition(" #")[0])), None)


class Failed(Exception):
    """A command did not do what its page says."""


class Environment:
    """A fresh environment of this Python's version; `folder` is where its commands run."""

    def __init__(self, path: Path, folder: Path, **variables: str) -> None:
        self._folder = folder
        self._bin = path / "bin"
        subprocess.run([sys.executable, "-m", "venv", path], check=True)
        self._variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_", "TOX_"))},
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "",  # torch's CPU build must not be tried on a GPU
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **variables,
        }

    def run(self, command: str, statuses: Sequence[int] = (0,), wanted: str = "") -> str:
        """Run a shell command, say what it took, and return what it printed; raises Failed for another exit status, or
        without `wanted` (a regular expression) in what it printed.
        """
        print(f"$ {command}", flush=True)
        started = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
        print(f"  exit status {done.returncode} after {time.monotonic() - started:.1f} s", flush=True)
        if done.returncode not in statuses or not re.search(wanted, done.stdout):
            ending = "\n".join(done.stdout.splitlines()[-60:])
            raise Failed(
                f"{command}: exit status {done.returncode}, not {statuses} with {wanted!r}; it said:\n{ending}"
            )

        return done.stdout

    def verdicts(self) -> list[str]:
        """The verdicts written since last asked."""
        report = self._folder / "report" / "results.jsonl"
        rows = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        report.unlink(missing_ok=True)
        return [row["verdict"] for row in rows if "verdict" in row]

    def measure(self, command: str) -> None:
        """Run a perf run of the one stand-in; raises Failed unless its metric was recorded, or measured and gated."""
        self.run(command, statuses=(0, 1))
        expected = {"NO_BASELINE", *GATED} if "--perf-record" in command else GATED
        if len(found := self.verdicts()) != 1 or found[0] not in expected:
            raise Failed(f"{command}: its verdicts are {found}, not one of {sorted(expected)}")
        print(f"  {found[0]}", flush=True)

    def packages(self) -> set[str]:
        """The names of what is installed."""
        listed = self.run("python -m pip list --format=json").splitlines()
        return {package["name"].lower() for line in listed if line.startswith("[") for package in json.loads(line)}


def copy_of_the_tree(folder: Path) -> Path:
    """This tree as a clone would have it, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (source := ROOT / name).is_file():  # a deleted file is listed until that is committed
            (target := folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    return folder


def statuses(command: str) -> Sequence[int]:
    """Exit statuses with which a command did what it is for."""
    return next((known for start, known in STATUSES.items() if command.startswith(start)), (0,))


def run_pages(environment: Environment) -> None:
    """Run what README and docs/ print, and say what is not run and why."""
    for page in PAGES:
        for block in console(page.read_text(encoding="utf-8")):
            print(f"\n{page.relative_to(ROOT)}, line {block.line}")
            for command in block.commands:
                if reason := why_not_run(command):
                    print(f"not run: $ {command}\n  {reason}")
                elif re.match(r"pytest\b.*-m perf", command):
                    environment.measure(command)
                else:
                    environment.run(command, statuses(command))


def run_versions(environment: Environment, tree: Path) -> None:
    """Collect the suite, and record or gate a made-up metric, under each pair of VERSIONS."""
    (tree / "made_up").mkdir()
    (tree / "made_up" / "test_made_up.py").write_text(MADE_UP)
    gate = "PYTEST_ADDOPTS= pytest -m perf --perf-record -o perf_baselines=made_up made_up"
    expected = "RECORDED"
    for bench, pytest in VERSIONS:
        versions = f"pytest-benchmark=={bench} {f'pytest=={pytest}' if pytest else '--upgrade pytest'}"
        environment.run(f"python -m pip install -q {versions}")
        environment.run(
            "PYTEST_ADDOPTS= pytest -m perf --collect-only -q", wanted=r"(?m)^\d{3,}/\d{3,} tests collected"
        )
        said = environment.run(gate, wanted=rf"(?m)^answer: {expected}: 1 metric ")
        if "Legend" in said:
            raise Failed(f"{versions}: the table of pytest-benchmark was printed, and nobody asked for it")

        expected = "GO"


def run_without_torch(environment: Environment, tree: Path) -> None:
    """What the wheel can do in an empty folder where there is no torch."""
    print("\nthe wheel, without torch, in an empty folder")
    environment.run(f"python -m pip install -q {tree}")
    environment.run("decodegate --version", wanted=r"^decodegate \d")
    environment.run("python -m pytest_decodegate --version", wanted=r"^decodegate \d")
    suite = "--pyargs pytest_decodegate.perf_tests"
    environment.run(f"pytest -m perf --collect-only -q {suite}", wanted=r"(?m)^\d{3,}/\d{3,} tests collected")
    environment.run(f"pytest -p no:benchmark -q {suite}", statuses=(5,), wanted="run with: pytest -m perf")
    environment.run("decodegate doctor", statuses=(1,), wanted="FAIL  packages +torch in .*No module named 'torch'")
    stored = sorted((tree / "baselines").glob("NVIDIA-H200-*/*.json"))[0]
    itself = f"decodegate compare {shlex.quote(str(stored))} {shlex.quote(str(stored))}"
    environment.run(itself, statuses=(2,), wanted="the same recording on both sides")
    environment.run("decodegate upgrade --candidate this", statuses=(3,), wanted="no ranks can run under .* no torch")


def main() -> int:
    """Run all of it in a temporary folder; returns the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (torch,) = (line for line in extras["cpu"] if line.startswith("torch"))
    test_tools = {re.split("[<>=]", line)[0] for line in extras["test"]}
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        tree = copy_of_the_tree(Path(folder, "clone"))
        (empty := Path(folder, "empty")).mkdir()
        try:
            run_without_torch(Environment(Path(folder, "wheel"), empty), tree)
            host = Environment(Path(folder, "host"), tree, PYTEST_ADDOPTS=STAND_IN)
            print("\nthe environment of a host")
            host.run(f"python -m pip install -q {torch}")
            before = host.packages()  # a fresh environment may bring setuptools
            run_pages(host)
            if found := test_tools & (host.packages() - before):
                raise Failed(f"{sorted(found)} came with `pip install -e .`: this run proves nothing without them")
            run_versions(host, tree)
        except (Failed, subprocess.TimeoutExpired) as failure:
            print(failure, file=sys.stderr)
            return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
