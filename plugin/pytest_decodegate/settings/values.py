"""Values of options, each checked by itself: raises BadInput naming the option, the value and what it may be."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlsplit

from ..errors import BadInput
from ..process.import_path import inherited
from ..workloads.runtime.slowdown import VARIABLE as SLOWDOWN

if TYPE_CHECKING:
    import pytest

    from ..gang.options import Nodes
    from .stack import Stack

Record = Literal["off", "missing", "gated", "all"]

AUTO = "auto"
"""The value of --perf-baseline that names its default: a stored stack is chosen. A file of this name is "./auto"."""

SAME = "same"
"""The value of --perf-base that names the stack under test itself: an A/A, in which nothing may move."""

PINS = ("attention", "moe")
"""What --perf-pin can name."""


def not_material(text: str) -> float | None:
    """The part of the decode step below which noise may hide a metric; "" leaves that to the gate."""
    from ..metric import parse_tolerance

    return parse_tolerance(text, "ini option perf_not_material") if text else None


def tolerance_lines(lines: list[str]) -> Iterator[tuple[str, float]]:
    """Patterns of metric names with their bands, from the lines of the ini option perf_tolerance."""
    from ..metric import parse_tolerance

    for line in lines:
        # Metric names may hold "=" (marlin_moe[m=8]), so the last one separates.
        pattern, equals, band = line.rpartition("=")
        if not (equals and pattern.strip()):
            raise BadInput(f"ini option perf_tolerance: line {line!r} is not of the form 'metric pattern = 3%'")

        yield pattern.strip(), parse_tolerance(band, f"ini option perf_tolerance: line {line!r}")


def stacks_of_command(config: pytest.Config) -> tuple[Stack, Stack] | None:
    """Base and candidate of a run that a command started; None of any other."""
    given: tuple[Stack, Stack] | None = config.hook.pytest_decodegate_stacks(config=config)
    return given


def stacks(config: pytest.Config, given: tuple[Stack, Stack] | None) -> tuple[Stack, Stack | None]:
    """The stack under test, and the one that it is measured against if there is one; `given` by a command, or None."""
    from .rank_python import check_ranks
    from .stack import parse_stack

    texts: list[str] = config.getoption("--perf-candidate") or []
    against: list[str] = config.getoption("--perf-base") or []
    if given and (texts or against):
        raise BadInput(
            f"--perf-candidate and --perf-base ({', '.join([*texts, *against])}): leave them out; the command that "
            "started this run says which two stacks it compares"
        )

    stack = given[1] if given else parse_stack(texts, "--perf-candidate")
    if not (given or against):
        _refuse_slowdown_of_nobody([stack])
        if stack.slowdowns and config.getoption("--perf-record") is not None:
            raise BadInput(
                f"--perf-record: {SLOWDOWN} of --perf-candidate slows metrics down on purpose, and what is recorded is "
                "what later runs are compared with; leave one of them out"
            )
        if stack.server:
            raise BadInput(f"--perf-candidate: server={stack.server} is for two stacks; alone it is --perf-server URL")
        if stack.python is not None or stack.vllm is not None:
            check_ranks(stack, "--perf-candidate", import_path(config))

        return stack, None

    for option in ("--perf-record", "--perf-baseline", "--perf-nnodes", "--perf-server", "--perf-server-restarts"):
        if config.getoption(option) is not None:
            raise BadInput(
                f"--perf-base and {option}: give one; both stacks are measured here and now (two running servers "
                "are --perf-candidate server=URL --perf-base server=URL)"
            )

    from .stack import check_servers

    same = against == [SAME]
    base = given[0] if given else stack if same else parse_stack(against, "--perf-base")
    _refuse_slowdown_of_nobody([stack, base])
    check_servers(base, stack, same=same, launches=config.getoption("--perf-launch") is not None)
    check_ranks(stack, "--perf-candidate", import_path(config))
    check_ranks(base, "--perf-base", import_path(config))
    return stack, base


def _refuse_slowdown_of_nobody(stacks: Sequence[Stack], environ: Mapping[str, str] = os.environ) -> None:
    """Raise BadInput for a slowdown in the environment of pytest itself that none of `stacks` carries.

    Ranks and servers get no variable of this plugin from there, so a run would pass and look as if it had missed it.
    """
    value = environ.get(SLOWDOWN)
    if value and not any(stack.slowdowns for stack in stacks):
        asked = shlex.quote(f"env:{SLOWDOWN}={value}")
        raise BadInput(
            f"{SLOWDOWN}={value} in the environment slows nothing down: ranks and servers get it from a stack only; "
            f"unset it, or give `--perf-candidate {asked}` (or `decodegate upgrade --candidate {asked}`)"
        )


def pins(text: str | None) -> dict[str, str]:
    """Backends by what they are pinned for, from --perf-pin."""
    found: dict[str, str] = {}
    for pin in text.split(",") if text is not None else ():
        name, equals, value = (part.strip() for part in pin.partition("="))
        if name not in PINS or not (equals and value):
            raise BadInput(f"--perf-pin: {pin!r} is not NAME=VALUE with a name out of {', '.join(PINS)}")

        found[name] = value

    return found


def change(text: str | None) -> frozenset[str]:
    """The declared change, from --perf-change; nothing without it."""
    if text is None:
        return frozenset()

    from ..machine.provenance import parse_declared

    return parse_declared(text)


def names(texts: list[str] | None) -> frozenset[str]:
    """Names joined by commas, of an option that may be repeated; nothing without it."""
    return frozenset(name.strip() for text in texts or () for name in text.split(",") if name.strip())


def nodes(config: pytest.Config) -> Nodes | None:
    """The nodes of each gang, None for this host alone; the options for several are all or none."""
    given = {
        name: config.getoption(name) for name in ("--perf-node-start", "--perf-rdzv-endpoint", "--perf-listen-host")
    }
    node_count = count(config, "--perf-nnodes", default=1, at_least=1)
    if node_count == 1 and not any(given.values()):
        return None
    if missing := [name for name, value in given.items() if not value]:
        raise BadInput(f"--perf-nnodes: {node_count} nodes also need {', '.join(missing)}")

    start = given["--perf-node-start"]
    if len(start) != node_count:
        raise BadInput(
            f"--perf-node-start: {len(start)} command(s) for --perf-nnodes={node_count}; give one for each node"
        )

    from ..gang.options import Nodes

    return Nodes(tuple(start), given["--perf-rdzv-endpoint"], given["--perf-listen-host"])


def record(text: str | None) -> Record:
    """The mode of --perf-record."""
    if text is None:
        return "off"
    for mode in get_args(Record):
        if text == mode:
            return mode  # type: ignore[no-any-return]

    # An option with an optional value takes the next word, which may have been meant as a path.
    raise BadInput(
        f"--perf-record: {text!r} is none of 'missing', 'gated', 'all'; write --perf-record=missing before a path"
    )


def count(config: pytest.Config, option: str, *, default: int, at_least: int) -> int:
    """A whole number of at least `at_least`."""
    text = config.getoption(option)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < at_least:
        raise BadInput(f"{option}: {text!r} is not a whole number of at least {at_least}")

    return int(text)


def seconds(config: pytest.Config, option: str, *, default: float) -> float:
    """A time in seconds, written without a unit."""
    text = config.getoption(option)
    if text is None:
        return default
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) == 0:
        raise BadInput(f"{option}: {text!r} is not a number of seconds above zero")

    return float(text)


def budget(config: pytest.Config, *, default: float) -> float:
    """The time of --perf-budget, else of its ini option, in seconds; each is written with its unit."""
    option, text = "--perf-budget", config.getoption("--perf-budget")
    if text is None:
        option, text = "ini option perf_budget", config.getini("perf_budget") or None
    if text is None:
        return default
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise BadInput(f"{option}: {text!r} is not a time above zero with its unit; write for example 30m, 90s or 2h")

    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def existing_file(text: str | None) -> Path | None:
    """The file of --perf-baseline, None where one is to be chosen."""
    if text is None or text == AUTO:
        return None
    if not (path := Path(text).absolute()).is_file():
        raise BadInput(
            f"--perf-baseline: {text!r} is not a file; give one of baselines/<machine class>/NNNN_*.json, or {AUTO!r}"
        )

    return path


def report_folder(text: str | None) -> Path | None:
    """The folder of --perf-report, which need not exist yet."""
    if text is None:
        return None

    folder = Path(text).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise BadInput(
            f"--perf-report: cannot write to {text!r}, because {str(there)!r} is no folder that can be written; "
            "give a folder, which is made if need be"
        )

    return folder


def check_writable(path: Path, option: str) -> None:
    """Refuse the value of `option` now, not after an hour of measuring; raises BadInput."""
    # Opening it would leave an empty file behind a run without verdicts.
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise BadInput(f"{option}: cannot write to {str(path)!r}; give a file in a folder that exists and is writable")


def url(text: str | None) -> str | None:
    """The address of --perf-server, without the last slash."""
    if text is None:
        return None
    if "@" in text.partition("://")[2].partition("/")[0]:
        # Not quoted: it would stand in the report.
        raise BadInput(
            "--perf-server: the URL holds a user or a password; leave them out, and give --perf-server-key-env"
        )
    if not _is_http(text):
        raise BadInput(f"--perf-server: {text!r} is not a URL such as http://127.0.0.1:8000")

    return text.rstrip("/")


def _is_http(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # read, because only that checks it
    except ValueError:
        return False

    return parts.scheme in ("http", "https") and bool(parts.hostname)


def key_env(name: str | None, server: str | None) -> str | None:
    """The variable that --perf-server-key-env names, which must be set."""
    if name is None:
        return None
    if server is None:
        raise BadInput("--perf-server-key-env: only an attached server asks for a key; give --perf-server URL too")
    if not os.environ.get(name):
        # Not quoted: whoever pastes the key itself here must not find it in a log.
        raise BadInput("--perf-server-key-env: no environment variable of this name is set; give a name, not the key")

    return name


def server_model(name: str | None, server: str | None) -> str | None:
    """The model that --perf-server-model names; None for the only one that is served."""
    if name is not None and server is None:
        raise BadInput(
            f"--perf-server-model: {name!r} is for an attached server; give --perf-server URL too, or name the model "
            "that is to be launched in --perf-launch"
        )

    return name


def restarts(config: pytest.Config, server: str | None) -> int | None:
    """How often --perf-server-restarts starts a server of ours; None for one start."""
    if config.getoption("--perf-server-restarts") is None:
        return None
    if server is not None:
        raise BadInput("--perf-server-restarts: an attached server is not ours to restart; launch it by --perf-launch")

    return count(config, "--perf-server-restarts", default=2, at_least=2)


def import_path(config: pytest.Config) -> tuple[str, ...]:
    """What pytest's ini option `pythonpath` and PYTHONPATH put on the path of this Python, in that order."""
    return (*map(str, config.getini("pythonpath")), *inherited())


def quality_prompts(text: str | None) -> tuple[str, ...]:
    """The prompts of --perf-quality-prompts; () for the built-in ones."""
    if text is None:
        return ()

    from .prompts import read_prompts

    return read_prompts(Path(text))


def serve(text: str | None, stacks: Sequence[Stack]) -> tuple[str, ...] | None:
    """The words of --perf-launch, which may leave the model to `stacks`."""
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--perf-launch: {text!r} cannot be split into arguments: {error}") from error

    from ..serving.command import read_command

    for stack in stacks:  # refused now rather than when the server is wanted
        read_command((*(("--model", stack.model) if stack.model else ()), *words))

    return tuple(words)


def check_flags(stacks: Sequence[Stack], server: str | None, words: Sequence[str], pins: Collection[str]) -> None:
    """Raise BadInput for flags or a model of `stacks` that no server can be given.

    server: of --perf-server. words: of --perf-launch. pins: of --perf-pin.
    """
    from ..serving.flags import clashes, given_flags

    for stack in stacks:
        given = ", ".join(stack.of_servers)
        if given and server is not None:
            raise BadInput(f"{given}: --perf-server {server} runs already, and cannot be given it; start it with it")
        if clash := clashes(dict(stack.flags), words):
            raise BadInput(f"--{clash[0]} is given by --perf-launch and by {given}; leave it out in --perf-launch")
        if stack.model and ("model" in given_flags(words) or (words and not words[0].startswith("-"))):
            raise BadInput(f"model={stack.model}: --perf-launch names a model, too; leave it out there")
        for pin in pins:
            if f"{pin}-backend" in dict(stack.flags):
                raise BadInput(f"--{pin}-backend is given by --perf-pin {pin} and by {given}; give it once")

    if words or server is not None:
        return
    if len({bool(stack.model) for stack in stacks}) > 1:
        raise BadInput("model= is given of one stack alone, and the suite's own model has no like; give it of both")
    if not stacks[0].model and len({dict(stack.flags).get("tensor-parallel-size") for stack in stacks}) > 1:
        raise BadInput(
            "tp= differs, and the suite's own rank-slice is another model at another tp; serve one of yours by model= "
            "or --perf-launch"
        )
