"""nccl-tests (all_reduce_perf and its sisters): the JSON of -J and the table on stdout, means over iterations.

Both from src/util.cu of nccl-tests 2.19.6; tables of older versions lack the line with the versions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from ..baseline.schema import Session
from ..errors import BadInput
from ..machine.provenance import redact
from ..metric import Json, Metric
from ..printable import printable_lines
from .found import Fields, Found, Source, instant

TOOL: Final = "nccl-tests"
_PROGRAM = re.compile(r"# Collective test starting: (\S+)")
_VERSIONS = re.compile(r"# nccl-tests version (\S{1,40}) nccl-headers=\d{1,9} nccl-library=(\d{1,9})\b")
_SETTINGS = re.compile(
    r"# nThread .{0,300} iters: (\d{1,9}) agg iters: (\d{1,9}) validation: \d{1,9} graph: (\d{1,9})\b"
)
_RANK = re.compile(r"#[ \t]+Rank[ \t]+\d{1,9} .{0,300}\] (.+)")
_ROW = re.compile(r"\s+(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\w+)\s+(-?\d+)((?:\s+\S+){4,})\s*")
_MOST_DIGITS = 18
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class _Row:
    """One time in seconds, and what it is the time of."""

    bytes: int
    dtype: str
    op: str
    root: str
    place: str
    seconds: float


def is_nccl_tests(fields: Fields) -> bool:
    """Whether a JSON file is of this tool."""
    return {"nccl_version", "results", "config"} <= fields.values.keys()


def is_table(text: str) -> bool:
    """Whether a text is what this tool prints."""
    return "# nThread" in text and _RANK.search(text) is not None


def read_json(source: Source, fields: Fields) -> Found:
    """Times of every size of a -J file; raises BadInput naming file, field and value."""
    config = fields.object("config")
    devices = [device.text("device_info") for device in config.objects("devices")]
    args = fields.values.get("args")
    if not isinstance(args, list) or not args:
        raise fields.wrong("args", "the command line is needed: it names the collective")

    contract: dict[str, Json] = {
        "iterations": config.values.get("iterations"),
        "aggregated_iterations": config.values.get("aggregated_iterations"),
        "graph": bool(config.values.get("graph")),
    }
    rows = [row for result in fields.objects("results") for row in _json_rows(result)]
    recorded = instant(str(fields.values.get("start_time")), "%Y-%m-%d %H:%M:%S") or source.recorded
    nccl = _nccl_version(round(fields.number("nccl_version")))
    where = _Where(source, PurePath(str(args[0])).name, tuple(devices), {"nccl": nccl, **_environment(fields)})
    return _found(where, rows, contract, recorded.isoformat(timespec="seconds"))


def read_table(source: Source) -> Found:
    """Times of every size of a printed table; raises BadInput naming file, line and value."""
    path, text = str(source.path), printable_lines(source.content.decode(errors="replace"))
    program, settings = _PROGRAM.search(text), _SETTINGS.search(text)
    if program is None:
        raise BadInput(f"{path}: no line '# Collective test starting: NAME': the table does not say which collective")

    versions = _VERSIONS.search(text)
    contract: dict[str, Json] = {}
    if settings:
        iterations, aggregated, graph = map(int, settings.groups())
        contract = {"iterations": iterations, "aggregated_iterations": aggregated, "graph": graph > 0}

    lines = enumerate(text.splitlines(), start=1)
    rows = [row for number, line in lines for row in _table_rows(f"{path}, line {number}", line)]
    stack: dict[str, Json] = {"nccl": _nccl_version(int(versions[2]))} if versions else {}
    where = _Where(source, PurePath(program[1]).name, tuple(_RANK.findall(text)), stack)
    return _found(where, rows, contract, source.recorded.isoformat(timespec="seconds"))


@dataclass(frozen=True, slots=True)
class _Where:
    """What ran where."""

    source: Source
    program: str
    devices: Sequence[str]
    stack: Mapping[str, Json]


def _found(where: _Where, rows: Sequence[_Row], contract: Mapping[str, Json], recorded: str) -> Found:
    if not rows:
        raise BadInput(f"{where.source.path}: no results; was the run cut short?")

    sessions: dict[str, tuple[Metric, Session]] = {}
    collective = where.program.removesuffix("_perf")
    clock = "host, mean over iterations"
    for row in rows:
        metric = Metric.of(_name(collective, row, len(where.devices)), "collective")
        identity = {"clock": clock, "formula": "nccl_tests_time_v1", "client": TOOL, **contract}
        metric = replace(metric, contract=identity)
        if metric.name in sessions:
            raise BadInput(f"{where.source.path}: {metric.name!r} occurs twice; give a file of one cycle (without -N)")

        session = Session(where.source.session_id, recorded, "published", (), point=row.seconds)
        sessions[metric.name] = (metric, session)

    machine: dict[str, Json] = {"gpus": [{"name": name.strip()} for name in where.devices]}
    return Found(TOOL, tuple(sessions.values()), machine, where.stack)


def _name(collective: str, row: _Row, world: int) -> str:
    what = [f"bytes={row.bytes}", f"type={row.dtype}", f"world={world}"]
    what += [f"op={row.op}"] if row.op != "none" else []
    what += [f"root={row.root}"] if row.root != "-1" else []
    place = "_in_place" if row.place == "in_place" else ""
    return f"nccl_tests_{collective}{place}[{','.join(what)}]".lower()


def _json_rows(result: Fields) -> Iterator[_Row]:
    for place in ("out_of_place", "in_place"):
        if result.values.get(place) is None:
            continue

        timed = result.object(place)
        if "cpu_time" in timed.values:
            raise timed.wrong("cpu_time", "run without -C: the CPU time of a collective is not its duration")
        if timed.values.get("nwrong"):
            raise timed.wrong("nwrong", "the collective gave wrong data")

        yield _Row(
            bytes=round(result.number("size")),
            dtype=result.text("type"),
            op=result.text("redop"),
            root=str(result.values.get("root", "-1")).strip(),
            place=place,
            seconds=timed.number("time") / 1e6,
        )


def _table_rows(where: str, line: str) -> Iterator[_Row]:
    if not (match := _ROW.fullmatch(line)):
        return

    size, _, dtype, op, root, rest = match.groups()
    if len(size) > _MOST_DIGITS:
        raise BadInput(f"{where}: column 'size' is {size[:20]!r}...: no message has that many bytes")

    for place, (time, _, _, wrong) in _halves(rest.split()):
        if not _NUMBER.fullmatch(time) or not 0 < float(time) < math.inf:
            raise BadInput(f"{where}: column 'time' is {time!r}: microseconds above zero are needed")
        if wrong != "N/A" and not (_NUMBER.fullmatch(wrong) and float(wrong) == 0):
            raise BadInput(f"{where}: column '#wrong' is {wrong!r}: the collective gave wrong data")

        yield _Row(int(size), dtype, op, root, place, float(time) / 1e6)


def _halves(columns: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """(place, its time, two bandwidths and errors); -I puts four columns behind each half, a replay has one half."""
    if len(columns) < 8:
        yield "in_place", columns[:4]
    else:
        half = 8 if len(columns) >= 16 else 4
        yield "out_of_place", columns[:4]
        yield "in_place", columns[half : half + 4]


def _environment(fields: Fields) -> dict[str, Json]:
    """The variables that can move a number: the file holds all of them, secrets too."""
    said = fields.values.get("env")
    pairs = (str(one).partition("=") for one in said) if isinstance(said, list) else ()
    return {f"env:{name}": value for name, value in redact({name: value for name, _, value in pairs}).items()}


def _nccl_version(code: int) -> str:
    """22809 is 2.28.9, as NCCL_VERSION_CODE has it since 2.9."""
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
