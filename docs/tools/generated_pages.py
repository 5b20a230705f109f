"""Writes the pages of options and of doctor's checks from the code: `python docs/tools/generated_pages.py`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pytest_decodegate.cli import _parser
from pytest_decodegate.fitness.table import CHECKS
from pytest_decodegate.settings import options

DOCS: Final = Path(__file__).parents[1]

OPTIONS: Final = """# All options

Written by `docs/tools/generated_pages.py` from the parsers; do not edit it here.

## Options of pytest

Each works on pytest's command line. An ini value of the same meaning stands in pytest's configuration
(`pytest.ini`, `pyproject.toml`); the command line is over it. Beside these, `-m perf` runs perf tests alone.

| option | ini | meaning |
| --- | --- | --- |
"""

INI: Final = """
## Ini values

| ini | type | meaning |
| --- | --- | --- |
"""

MARKERS: Final = """
## Markers

"""

COMMANDS: Final = """
## Commands

`decodegate COMMAND --help` says the same. Exit status 3 is bad input everywhere.
"""

COMMAND: Final = re.compile(r"(sudo|nvidia-smi|lspci|echo|df|ulimit|decodegate|pytest) ")
"""How what mends a fault begins where a shell can read it."""

DOCTOR: Final = """# Doctor: is this host fit to gate?

```console
$ decodegate doctor
$ decodegate doctor --python /venvs/serving/bin/python --format json
```

It changes nothing, loads the GPUs for two seconds (`--no-load` does not), and works without a GPU. Each check is OK,
WARN, FAIL or SKIP, with what was seen, what it costs a measurement, and what mends it. Exit status: 0 fit (a WARN does
not count), 1 with a FAIL.

`pytest -m perf` asks the early ones first: a FAIL ends the run before anything is started, unless `--perf-despite`
names it (`--perf-despite gpu-processes`, or `all`).

## The checks

Written by `docs/tools/generated_pages.py` from the table of checks; do not edit it here. `{gpus}` stands for the
numbers of the cards.

| check | early | what a fault costs | what mends it |
| --- | --- | --- | --- |
"""


class Seen:
    """Takes what add_options registers, in pytest's place; each an option's or ini value's name and keywords."""

    def __init__(self) -> None:
        self.options: list[tuple[str, dict[str, Any]]] = []
        self.ini: list[tuple[str, str, dict[str, Any]]] = []

    def getgroup(self, *_: str) -> Seen:
        """All options are of one group."""
        return self

    def addoption(self, name: str, **keywords: Any) -> None:
        """Take an option."""
        self.options.append((name, keywords))

    def addini(self, name: str, help: str, **keywords: Any) -> None:  # noqa: A002 - as pytest calls it
        """Take an ini value."""
        self.ini.append((name, help, keywords))


def options_page() -> str:
    """The page of all options, ini values, markers and commands."""
    seen = Seen()
    options.add_options(seen)  # type: ignore[arg-type]
    lines = [
        OPTIONS.rstrip(),
        *_options(seen),
        INI.rstrip(),
        *_ini(seen),
        MARKERS.rstrip(),
        "",
        *_markers(),
        COMMANDS.rstrip(),
    ]
    for name, command in _commands(_parser()):
        lines.extend(_command(name, command))

    return "\n".join(lines) + "\n"


def _options(seen: Seen) -> Iterator[str]:
    twins = {name for name, *_ in seen.ini}
    for name, keywords in seen.options:
        twin = name.removeprefix("--").replace("-", "_")
        value = keywords.get("metavar")
        shown = name if value is None else f"{name}[={value}]" if keywords.get("nargs") == "?" else f"{name} {value}"
        yield _row(_code(shown), _code(twin) if twin in twins else "", keywords["help"])


def _ini(seen: Seen) -> Iterator[str]:
    for name, help_, keywords in seen.ini:
        yield _row(_code(name), keywords.get("type", "string"), help_)


def _markers() -> Iterator[str]:
    for marker in options.MARKERS:
        signature, _, meaning = marker.partition("): ")
        yield f"- `@pytest.mark.{signature})`: {meaning}"


def _commands(
    parser: argparse.ArgumentParser, before: str = "decodegate"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and subcommand with the words that call it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield f"{before} {name}", child
                yield from _commands(child, f"{before} {name}")


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = [
        action
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]
    yield from ("", f"### {name}", "")
    if parser.description:
        yield from (parser.description, "")
    if actions:
        yield from ("| argument | meaning |", "| --- | --- |")
        yield from (_row(_argument(action), action.help or "") for action in actions)


def _argument(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ", ".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return _code(str(action.metavar or action.dest))

    shown = "" if action.nargs == 0 else f" {value if isinstance(value, str) else ' '.join(value)}"
    return ", ".join(_code(f"{option}{shown}") for option in action.option_strings)


def _code(text: str) -> str:
    return f"`{text}`"


def _row(*cells: str) -> str:
    """A row of a table, in which a bar would end a cell and `%%` is argparse's percent."""
    return f"| {' | '.join(cell.replace('%%', '%').replace('|', chr(92) + '|') for cell in cells)} |"


def doctor_page() -> str:
    """The page of what `decodegate doctor` looks at."""
    rows = (_row(_code(check.name), "yes" if check.early else "", check.cost, _mend(check.mend)) for check in CHECKS)
    return "\n".join([DOCTOR.rstrip(), *rows]) + "\n"


def _mend(text: str) -> str:
    """A command with what is to be known of it, or a sentence, which marks its commands itself."""
    command, _, note = text.partition("   # ")
    if not COMMAND.match(command):
        return text

    return f"{_code(command)}: {note}" if note else _code(command)


PAGES: Final = {"options.md": options_page, "doctor.md": doctor_page}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
