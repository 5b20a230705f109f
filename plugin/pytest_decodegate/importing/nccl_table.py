"""The table that nccl-tests and rccl-tests print, in the middle of whatever log it stands.

Formats: src/util.cu and src/common.cu of NVIDIA/nccl-tests up to 2.19.6, src/common.cu of ROCm/rccl-tests. The line
"# Collective test starting" came in June 2025 (dafb704), root and redop in every table with 2.13 (51af557).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..errors import BadInput
from .found import Found, SourceFile, instant
from .nccl_run import DATE, IN, OUT, RCCL, Row, TableRun, collective_of, found, nccl_version
from .nccl_text import Line, lines
from .nccl_world import Printed, RankLine, Rates

_STARTING = re.compile(r"# Collective test starting: (\S+)")
_CONCLUDED = re.compile(r"# Collective test concluded: (\S+)")
_VERSIONS = re.compile(r"# (?P<client>[nr]ccl-tests) version \S+ [nr]ccl-headers=\d+ [nr]ccl-library=(?P<library>\d+)")
_NCCL = re.compile(r"^\s*NCCL version (\d[\w.]*)")
_RCCL = re.compile(r"^\s*RCCL version\s*:\s*(\S+)")
_ROCM = re.compile(r"^\s*ROCm version\s*:\s*(\S+)")
_SETTINGS = re.compile(
    r"# nThread (?P<threads>\d+) nGpus (?P<gpus>\d+) .*?\biters: \d+ iters: (?P<iterations>\d+)"
    r"(?: agg iters: (?P<aggregated>\d+))?(?: validation: \d+)?(?: graph: (?P<graph>\d+))?"
    r"(?: unalign: (?P<unalign>\d+))?"
)
_RANK = re.compile(
    r"#\s+Rank\s+(?P<number>\d+)(?:\s+Group\s+(?P<group>\d+))?\s+Pid\s+(?P<pid>\d+) on\s+(?P<host>\S+) device\s+\d+ "
    r"\[[^\]]*\]\s*(?P<name>.*)"
)
_RANK_PART = re.compile(r"#\s+Rank\b|\bRank\s+\d+\s+(?:Group|Pid)\b|\bPid\s+\d+ on\s|\bdevice\s+\d+ \[[0-9a-fx:]+\]")
_BANNER = re.compile(r"out-of-place|in-place")
_OUTCOME = re.compile(r"# (?:Out of bounds values|Avg bus bandwidth)\s*:\s*\S+\s*(?P<okay>OK|FAILED)?\s*$")
_FAILURE = re.compile(r"^# error: |: Test (?:NCCL |CUDA |HIP |MPI )?failure |: Test timeout ")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\b")
_REST = re.compile(r"\s+(?:(?:-?\d[\d.e+:-]*|N/A)\s*)+")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*$")

_LEAD: Final = ("size", "count", "type", "redop", "root")
_TIMED: Final = ("time", "algbw", "busbw")
_WRONG: Final = ("#wrong", "error", "errors")  # the last two below 2.13: the largest deviation, "*" if it is too large
_PER_ITERATION: Final = ("i_min", "i_max", "i_p99", "i_cv%")  # of -I 1
_NULL_BODY = " " * 32  # what is printed in place of the half that a replay has not (writeBenchMarkLineNullBody)


def is_table(text: str) -> bool:
    """Whether a text is what this tool prints."""
    return any(mark in text for mark in ("# nThread ", "# Collective test starting: ")) or bool(
        re.search(r"#\s+size\s+count\s+type\b.*\balgbw\s+busbw", text)
    )


def read_table(source: SourceFile, *, collective: str = "") -> Found:
    """Times of every size of all tables in a log; raises BadInput naming file, line and value.

    collective: what a table is of that does not say it.
    """
    path = str(source.path)
    runs = list(_tables(path, lines(path, source.content.decode(errors="replace"))))
    unnamed = [run for run in runs if not run.program]
    if unnamed and not collective:
        raise BadInput(
            f"{unnamed[0].where}: no line '# Collective test starting: NAME' above it, which nccl-tests prints since "
            "June 2025: say which collective it was, for example --collective all_reduce"
        )
    if len(unnamed) > 1:
        raise BadInput(
            f"{unnamed[1].where}: a second table without the name of its collective: split the file, so that "
            "--collective can name each"
        )

    for run in runs:
        run.program = run.program or collective
        if collective and collective_of(run) != collective.removesuffix("_perf"):
            raise BadInput(f"{run.where}: is of {run.program!r}, but --collective says {collective!r}")

    return found(source, runs)


def _tables(path: str, text: Sequence[Line]) -> Iterator[TableRun]:
    """The tables of a log, each with the lines that belong to it."""
    run = TableRun(f"{path}, line 1")
    queue = list(reversed(text))
    while queue:
        line = queue.pop()
        where = f"{path}, line {line.number}"
        if _begins(run, line.text):
            if _holds(run):
                yield run

            # The version stands above the name, and NCCL's own above the settings.
            run = TableRun(where) if _holds(run) else TableRun(where, client=run.client, stack=run.stack)

        if match := _CONCLUDED.search(line.text):
            _refuse_other_end(run, where, match[1])
        elif _is_row(run, line.text):
            run.rows.extend(_rows(run, where, _whole(run, where, line.text, queue)))
        else:
            _take(run, where, line.text)

    if _holds(run):
        yield run


def _begins(run: TableRun, line: str) -> bool:
    """Whether a line is the first of another table; version, name and settings come in this order, if at all."""
    if _VERSIONS.search(line) or _STARTING.search(line):
        return True

    return bool(_SETTINGS.search(line)) and (_started(run) or not run.program)


def _holds(run: TableRun) -> bool:
    return bool(run.program) or _started(run)


def _started(run: TableRun) -> bool:
    return bool(run.settings or run.columns or run.rows)


def _refuse_other_end(run: TableRun, where: str, program: str) -> None:
    if run.program and run.program != program:
        raise BadInput(
            f"{where}: {program!r} concluded, but {run.program!r} had started: two logs are mixed here, split them"
        )


def _take(run: TableRun, where: str, line: str) -> None:
    """What a line that is no row says of its table; raises BadInput if it says that the run failed."""
    outcome = _OUTCOME.search(line)
    run.closed = run.closed or outcome is not None
    if (outcome and outcome["okay"] == "FAILED") or _FAILURE.search(line):
        raise BadInput(f"{where}: {line.strip()!r}: the run failed")

    if match := _STARTING.search(line):
        run.program = match[1]
    elif match := _SETTINGS.search(line):
        run.settings = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    elif not run.columns and _RANK_PART.search(line):
        _take_rank(run, where, line.strip())
    elif line.lstrip().startswith("#"):
        _take_title(run, where, line)
    else:
        _take_version(run, line)


def _take_rank(run: TableRun, where: str, line: str) -> None:
    """A line of the device report; raises BadInput if it is cut, or one is missing or there already."""
    match = _RANK.search(line)
    if match is None and line.endswith("..."):  # of a process whose lines are longer than MAX_LINE
        run.shortened = True
        return
    if match is None:
        raise BadInput(f"{where}: {line!r}: the line of a rank is cut")

    number, before = int(match["number"]), len(run.ranks)
    if number < before:
        raise BadInput(f"{where}: {line!r}: rank {number} is there already: two tables are mixed here")
    if number > before and not run.shortened:
        raise BadInput(f"{where}: {line!r}: the line of rank {before} is missing above it")

    run.ranks.append(RankLine(match["host"], match["pid"], match["group"] or "0", match["name"].strip()))


def _take_title(run: TableRun, where: str, line: str) -> None:
    run.blocking = run.blocking or "# Blocking Enabled" in line
    if match := _VERSIONS.search(line):
        run.client = match["client"]
        run.stack["nccl"] = f"{'RCCL ' if run.client == RCCL else ''}{nccl_version(int(match['library']))}"
    elif (words := line.replace("#wrong", " #wrong ").lstrip(" #").split())[:2] == ["size", "count"]:
        run.columns = _columns(where, words)
    elif (found := _BANNER.findall(line)) and not run.columns:
        run.places = tuple(OUT if half == "out-of-place" else IN for half in found)


def _take_version(run: TableRun, line: str) -> None:
    if match := _NCCL.search(line):
        run.stack.setdefault("nccl", match[1])
    elif match := _RCCL.search(line):
        run.stack.setdefault("nccl", f"RCCL {match[1]}")
    elif match := _ROCM.search(line):
        run.stack.setdefault("cuda", f"ROCm {match[1]}")
    elif "rccl-tests: Version" in line:
        run.client = RCCL


def _columns(where: str, words: Sequence[str]) -> tuple[str, ...]:
    """The titles of a table; raises BadInput for one whose numbers would be taken for something else."""
    if "cputime" in words:
        raise BadInput(f"{where}: column 'cputime': run without -C: the CPU time of a collective is not its duration")

    known = {*_LEAD, *_TIMED, *_WRONG, *_PER_ITERATION, "timestamp"}
    if strange := [word for word in words if word not in known]:
        raise BadInput(f"{where}: column {strange[0]!r} is unknown; known are {', '.join(sorted(known))}")
    if missing := [word for word in ("type", *_TIMED) if word not in words]:
        raise BadInput(f"{where}: no column {missing[0]!r}: {' '.join(words)!r:.120} are no titles of nccl-tests")

    return tuple(words)


def _is_row(run: TableRun, line: str) -> bool:
    if not run.columns or run.closed:
        return bool(_ROW.match(line)) and len(line.split()) >= len(_LEAD) + 4

    return bool(_ROW.match(line) or _REST.fullmatch(line))


def _whole(run: TableRun, where: str, line: str, queue: list[Line]) -> str:
    """A row with the lines that it goes on in: srun and NCCL's warnings end a line in the middle of one."""
    if not run.columns:
        raise BadInput(f"{where}: {line.strip()!r:.80} stands under no titles ('# size count type ...'): {_UNSURE}")

    tokens = _tokens(run)
    while len(line.split()) < tokens and _gap(run, line) is None and queue:
        following = next((index for index in range(len(queue) - 1, -1, -1) if queue[index].text.strip()), None)
        if following is None or not _REST.fullmatch(queue[following].text):
            break

        line += queue[following].text
        del queue[following:]

    return line


_UNSURE: Final = "what its columns mean is not known"


def _tokens(run: TableRun) -> int:
    """How many words a row has; a timestamp is a date and a time."""
    return len(run.columns) + ("timestamp" in run.columns)


def _gap(run: TableRun, line: str) -> int | None:
    """Where the half begins that a replay prints alone; None in a row of two halves, and in one that is cut."""
    columns = run.columns
    if columns.count("time") != 2:
        return None

    lead, words = columns.index("time"), list(re.finditer(r"\S+", line))
    left_out = columns.index("time", lead + 1) - lead
    if len(words) != _tokens(run) - left_out:
        return None

    return words[lead].start() if line[words[lead - 1].end() :].startswith(_NULL_BODY) else None


def _rows(run: TableRun, where: str, line: str) -> Iterator[Row]:
    columns, words, places = run.columns, line.split(), run.places
    half_count = columns.count("time")
    if not places and half_count == 2:
        places = (OUT, IN)
    if _gap(run, line) is not None:
        second = columns.index("time", columns.index("time") + 1)
        columns, places = (*columns[: columns.index("time")], *columns[second:]), (IN,)
    if len(words) != len(columns) + ("timestamp" in columns) or len(places) != columns.count("time"):
        raise BadInput(
            f"{where}: {line.strip()!r:.120} has {len(words)} of {_tokens(run)} columns: the row is cut, or "
            "something else was printed into it"
        )

    if run.recorded == "" and (match := _TIMESTAMP.search(line)) and (date := instant(match[1], DATE)):
        run.recorded = date.isoformat(timespec="seconds")

    cells = list(zip(columns, words, strict=False))
    size = _whole_number(where, "size", dict(cells)["size"])
    if size:
        lead = dict(cells[: columns.index("time")])
        starts = [index for index, column in enumerate(columns) if column == "time"]
        for place, start in zip(places, starts, strict=True):
            yield _row(where, place, lead, dict(reversed(cells[start : start + 4])))


def _row(where: str, place: str, lead: Mapping[str, str], half: Mapping[str, str]) -> Row:
    time = _printed(where, "time", half.get("time", ""))
    if time.value <= 0:
        raise BadInput(f"{where}: column 'time' is {half['time']!r}: microseconds above zero are needed")

    _refuse_wrong(where, half)
    size = int(lead["size"])
    rates = Rates(size, time, *(_printed(where, name, half.get(name, "")) for name in ("algbw", "busbw")))
    root = lead.get("root", "-1")
    if not re.fullmatch(r"-?\d+", root):
        raise BadInput(f"{where}: column 'root' is {root!r}: a rank is needed, or -1")

    return Row(where, size, lead["type"], lead.get("redop", "none"), root, place, time.value / 1e6, rates)


def _refuse_wrong(where: str, half: Mapping[str, str]) -> None:
    name = next((name for name in _WRONG if name in half), None)
    if name is None or half[name] == "N/A":  # without validation (-c 0), and where a collective has no check
        return

    value = half[name]
    # Below 2.13 the column is a deviation, which floats have; an asterisk follows one that is too large.
    right = _NUMBER.fullmatch(value) and (name != "#wrong" or float(value) == 0)
    if not right:
        raise BadInput(f"{where}: column {name!r} is {value!r}: the collective gave wrong data")


MOST_DIGITS: Final = 18
"""Of a number in a table: no message has more bytes, and no time more microseconds."""

_NUMBER = re.compile(r"\d{1,18}(?:\.(?P<decimals>\d{1,18}))?(?:e(?P<power>[+-]?\d{1,2}))?")


def _printed(where: str, name: str, text: str) -> Printed:
    """A number with the half of its last digit; 2.5e+07 is one (getFloatStr of util.cu)."""
    if not (match := _NUMBER.fullmatch(text)):
        raise BadInput(f"{where}: column {name!r} is {text!r:.80}: a number is needed")

    decimals = len(match["decimals"] or "")
    return Printed(float(text), 0.5 * 10.0 ** (int(match["power"] or 0) - decimals))


def _whole_number(where: str, name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise BadInput(f"{where}: column {name!r} is {text!r:.80}: a whole number is needed")

    return int(text)
