"""A run of nccl-tests or rccl-tests, from its table or its JSON: what becomes of its times.

All times are means over iterations; of what, src/common.cu says (NVIDIA/nccl-tests 2.19.6, ROCm/rccl-tests).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final

from ..baseline.schema import Session
from ..errors import BadInput
from ..metric import Json, Metric
from .found import Found, SourceFile, joined_cards
from .nccl_world import FACTORS, RankLine, Rates, world

TOOL: Final = "nccl-tests"
RCCL: Final = "rccl-tests"
OUT: Final = "out_of_place"
IN: Final = "in_place"

DATE: Final = "%Y-%m-%d %H:%M:%S"
"""How both write a time: local, without an offset (TIME_STRING_FORMAT of util.cu)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One time in seconds, and what it is the time of. where: its place in the file."""

    where: str
    bytes: int
    dtype: str
    op: str
    root: str
    place: str
    seconds: float
    rates: Rates


@dataclass(slots=True)
class TableRun:
    """One run of one program, as a table or a JSON file holds it."""

    where: str
    program: str = ""
    settings: Mapping[str, int] = field(default_factory=dict)
    blocking: bool = False
    ranks: list[RankLine] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    client: str = TOOL
    recorded: str = ""
    stack: dict[str, Json] = field(default_factory=dict)
    # Of a table: the halves that its banner names, and the titles of its columns.
    places: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    shortened: bool = False  # not every rank has a line
    closed: bool = False  # its footer was printed


def nccl_version(code: int) -> str:
    """22809 is 2.28.9, as NCCL_VERSION_CODE has it since 2.9."""
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def found(source: SourceFile, runs: Sequence[TableRun], *, first: int = 1, one_rank_a_process: bool = False) -> Found:
    """All times of the runs of one file; raises BadInput where they contradict themselves or each other.

    first: number of the first run in the file. one_rank_a_process: see `world`.
    """
    if not runs:
        raise BadInput(f"{source.path}: no results; was the run cut short?")

    sessions: list[tuple[Metric, Session]] = []
    gpus: list[Json] = []
    stack: dict[str, Json] = {}
    for number, run in enumerate(runs, start=first):
        if not run.rows:
            raise BadInput(f"{run.where}: no results; was the run cut short?")

        size = _world(run, one_rank_a_process=one_rank_a_process)
        sessions.extend(_sessions(run, size, source.element_id(number)))
        gpus = joined_cards(run.where, gpus, _cards(run, size))
        for name, value in run.stack.items():
            if stack.setdefault(name, value) != value:
                known = stack[name]
                raise BadInput(f"{run.where}: {name} is {value!r}, in an earlier table {known!r}: split the file")

    return Found(runs[0].client, tuple(sessions), {"gpus": gpus}, stack)


def _sessions(run: TableRun, size: int, session_id: str) -> Iterator[tuple[Metric, Session]]:
    contract = _contract(run)
    places: dict[str, str] = {}
    for row in run.rows:
        metric = Metric.of(_name(collective_of(run), row, size), "collective")
        if metric.name in places:
            raise BadInput(
                f"{row.where}: {metric.name!r} occurs twice, first in {places[metric.name]}; give a file of one cycle "
                "(without -N), or larger steps if two sizes were rounded to one"
            )

        places[metric.name] = row.where.rpartition(", ")[2]
        session = Session(session_id, run.recorded, "published", (), point=row.seconds)
        yield replace(metric, contract=contract), session


def _contract(run: TableRun) -> dict[str, Json]:
    said = run.settings
    groups = len({rank.group for rank in run.ranks})
    contract: dict[str, Json] = {
        "clock": "host, mean over iterations",
        "formula": "nccl_tests_time_v1",
        "client": run.client,
    }
    if "iterations" in said:
        contract |= {"iterations": said["iterations"], "aggregated_iterations": said.get("aggregated", 1)}
        contract["graph"] = said.get("graph", 0) > 0
    if said.get("unalign"):
        contract["unalign"] = said["unalign"]
    if run.blocking:
        contract["blocking"] = True
    if groups > 1:  # NCCL_TESTS_SPLIT: so many collectives ran beside each other
        contract["groups"] = groups

    return contract


def collective_of(run: TableRun) -> str:
    """all_reduce of ./build/all_reduce_perf, all_reduce_perf_mpi (NAME_SUFFIX) and all_reduce_perf.exe."""
    name = re.sub(r"_perf(_\w+)?(\.exe)?$", "", PurePath(run.program.replace("\\", "/")).name)
    if name not in FACTORS:
        raise BadInput(
            f"{run.where}: collective {name!r} ({run.program!r}) is unknown, so its bandwidths cannot be checked; "
            f"known are {', '.join(FACTORS)}"
        )

    return name


def _world(run: TableRun, *, one_rank_a_process: bool) -> int:
    threads, gpus = run.settings.get("threads", 0), run.settings.get("gpus", 0)
    rates = [(row.where, row.rates) for row in run.rows]
    return world(
        run.where,
        collective_of(run),
        run.ranks,
        rates,
        ranks_a_process=threads * gpus,
        one_rank_a_process=one_rank_a_process,
    )


def _cards(run: TableRun, size: int) -> list[Json]:
    """The card of each rank. -J names the first of each process only, whose other cards are taken to be its like."""
    own = [rank.device for rank in run.ranks if rank.group == run.ranks[0].group]
    each = size // len(own) if len(set(own)) == 1 and size % len(own) == 0 else 1
    listed: list[Json] = [{"name": name or None} for name in own for _ in range(each)]
    unnamed: list[Json] = [{"name": None} for _ in range(size - len(listed))]
    return [*listed, *unnamed][:size]


def _name(collective: str, row: Row, size: int) -> str:
    what = [f"bytes={row.bytes}", f"type={row.dtype}", f"world={size}"]
    what += [f"op={row.op}"] if row.op != "none" else []
    what += [f"root={row.root}"] if row.root != "-1" else []
    place = "_in_place" if row.place == IN else ""
    return f"nccl_tests_{collective}{place}[{','.join(what)}]".lower()
