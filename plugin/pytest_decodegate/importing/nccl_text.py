"""The lines that nccl-tests printed, freed of what mpirun, srun, a terminal and NCCL's own log put between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import BadInput
from ..printable import printable_lines, without_colours

# Open MPI: "[1,0]<stdout>:" (--tag-output), since 5 "[prterun-host-123@1,0]<stdout>: "; between any two chunks that
# rank 0 flushed, so also inside of rows. SageMaker's has "mpirank:" and a host, "[1,mpirank:0,algo-1]<stdout>:".
_MPI_TAG: Final = re.compile(r"\[(?:[^\[\]\s@]+@)?\d+,(?:mpirank:)?(\d+)(?:,[\w.-]+)?\](?:<std(?:out|err|diag)>:?)")

# `srun -l` writes "0: ", MPICH and Intel MPI "[0] ", log collectors a timestamp or the name of a pod.
_PREFIX: Final = re.compile(r"^(?P<prefix>.*?)# (?:nThread \d+ nGpus \d+ |Collective test starting: )")
_RANK_LABEL: Final = re.compile(r"\s*\[?(\d+)[\]:]\s*")

# debug.cc of NCCL, ncclDebugLog: "[time] host:pid:tid [device] NCCL INFO text"; a warning has its source before NCCL.
_DEBUG: Final = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d[ T][\d:.]+\] )?(?P<host>[\w.-]+):\d+:\d+ \[\d+\] (?:\S+ )?NCCL (?:INFO|WARN|CALL|TRACE) "
)
_RANK_HOST: Final = re.compile(r"#\s+Rank\s+\d+ .* on\s+(\S+) device")
_NUMBER_BEFORE_A_NAME: Final = re.compile(r"-?\d+(?=[A-Za-z])")


@dataclass(frozen=True, slots=True)
class Line:
    """A line as nccl-tests printed it. number: where in the file it begins, from 1."""

    number: int
    text: str


def lines(path: str, text: str) -> list[Line]:
    """The lines of a log; those of NCCL_DEBUG are left out, and a row that they cut is whole again.

    Raises BadInput where several processes printed a table each, as `path` then holds several runs at a time.
    """
    raw = [printable_lines(without_colours(line.replace("\0", "").rstrip("\r"))) for line in text.split("\n")]
    _refuse_several(path, raw)
    prefixes = {_general(match["prefix"]) for line in raw if (match := _PREFIX.match(_MPI_TAG.sub("", line)))}
    plain = [_without_prefix(_MPI_TAG.sub("", line), prefixes - {""}) for line in raw]
    return list(_without_debug(plain))


def _refuse_several(path: str, raw: list[str]) -> None:
    ranks: set[int] = set()
    for line in raw:
        if table := _PREFIX.match(_MPI_TAG.sub("", line)):
            label = _MPI_TAG.search(line) or _RANK_LABEL.fullmatch(table["prefix"])
            ranks |= {int(label[1])} if label else set()

    if len(ranks) > 1:
        raise BadInput(
            f"{path}: processes {', '.join(map(str, sorted(ranks)))} each printed a table: this nccl-tests was built "
            "without MPI (MPI=1), so each process ran alone beside the others, and there is no collective of all"
        )


def _general(prefix: str) -> str:
    """A pattern of a prefix, whatever its numbers are: they are ranks and times."""
    return re.sub(r"\d+", r"\\d+", re.escape(prefix)) if prefix.strip() else ""


def _without_prefix(line: str, prefixes: set[str]) -> str:
    for pattern in prefixes:
        if match := re.match(pattern, line):
            rest = line[match.end() :]
            # srun labels each chunk that a task flushed: "0: ... sum -10:   85.70".
            label = match[0].strip()
            return re.sub(rf"{re.escape(label)}(?=\s)", "", rest) if _RANK_LABEL.fullmatch(match[0]) else rest

    return line


def _without_debug(plain: list[str]) -> Iterator[Line]:
    """A debug line ends with the newline that it brought, so what it cut goes on with the line after it."""
    hosts = _hosts(plain)
    cut, began = "", 0
    for number, line in enumerate(plain, start=1):
        if match := _DEBUG.search(line):
            head = line[: match.start()] + _before_host(line[: match.start()], match["host"], hosts)
            began = began or number if (cut + head).strip() else 0
            cut += head
        else:
            yield Line(began or number, cut + line)
            cut, began = "", 0

    if cut.strip():
        yield Line(began, cut)


def _hosts(plain: list[str]) -> list[str]:
    """Names of hosts, the longest first: in rank lines, and where a line of NCCL begins with one."""
    starts = (match["host"] for line in plain if (match := _DEBUG.match(line)))
    ranks = (match[1] for line in plain if (match := _RANK_HOST.search(line)))
    return sorted({*starts, *ranks}, key=len, reverse=True)


def _before_host(head: str, host: str, hosts: list[str]) -> str:
    """What of `host` belongs to the row before it: "-1node-1" is the root -1 and the host node-1."""
    if not head.strip():
        return ""
    for known in hosts:
        if host.endswith(known):
            return host.removesuffix(known)

    number = _NUMBER_BEFORE_A_NAME.match(host)
    return number[0] if number else ""
