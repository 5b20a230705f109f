"""`decodegate baselines`: what is stored and what it can resolve; edits of it, each with a reason that is logged."""

from __future__ import annotations

import argparse
import getpass
import json
import math
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..gate.text.quantity import format_band, format_percent, format_value

if TYPE_CHECKING:
    from ..baseline.schema import Baseline, StoredMetric
    from ..baseline.store import Edit, Store
    from ..metric import Json

HEADER = ("metric", "value", "sessions", "processes", "spread", "sessions differ by", "band", "can keep", "finds")

BLIND = " !"
"""Marks a metric whose band is narrower than what can be resolved."""

LOOSE = " ~"
"""Marks a metric whose band is WIDE times as wide as one that it can keep, or more: it hides slowdowns."""

ELSEWHERE = " ^"
"""Marks the band in force on cards that did not record."""

WIDE = 1.5


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser("baselines", help="list stored baselines and what they can resolve; edit them")
    parser.add_argument("--baselines", type=Path, default=Path("baselines"), help="folder of stored baselines")
    parser.add_argument("--machine", metavar="CLASS", help="machine class (default: all that are stored)")
    parser.add_argument(
        "--replicates", type=_count, default=5, metavar="N", help="replicates of the run to come (default: 5)"
    )
    parser.set_defaults(run=_list)
    edits = parser.add_subparsers(metavar="EDIT")
    _add_prune(edits)
    _add_merge(edits)
    _add_accept(edits)
    _add_move(edits)
    _add_band(edits)
    _add_contract(edits)
    _edit(edits, "reseal", "accept a file that was edited by hand", _reseal)
    _edit(edits, "rewrite", "rewrite a file of the schema before this one", _rewrite)


def _add_prune(edits: Any) -> None:
    parser = _edit(edits, "prune", "drop sessions, and metrics that are left without any", _prune)
    parser.add_argument("--session", action="append", default=[], metavar="ID", help="drop this session (repeatable)")
    parser.add_argument("--before", type=_instant, metavar="DATE", help="drop what was recorded before, ISO 8601")
    parser.add_argument("--metric", metavar="PATTERN", help="only in these metrics (default: all)")


def _add_merge(edits: Any) -> None:
    parser = _edit(edits, "merge", "add the sessions of other files of the same stack", _merge)
    parser.add_argument("sources", type=Path, nargs="+", metavar="SOURCE", help="file to merge; removed if beside FILE")


def _add_accept(edits: Any) -> None:
    parser = _edit(edits, "accept", "accept a new level: older sessions stay, and gate no more", _accept)
    parser.add_argument("--metric", required=True, metavar="PATTERN", help="metrics to accept, '*' for all")
    parser.add_argument("--since", metavar="ID", help="first session of the new level (default: the newest)")


def _add_move(edits: Any) -> None:
    parser = _edit(
        edits, "move", "move metrics to the machine class of what they ran on: a card, the server's ...", _move
    )
    parser.add_argument("--metric", default="*", metavar="PATTERN", help="only these metrics (default: all)")
    parser.add_argument("--gpus", type=_gpus, metavar="N", help="GPUs that they ran on, where the file does not say")


def _add_band(edits: Any) -> None:
    parser = _edit(edits, "band", "set the band of stored metrics, as their test now has it", _band)
    _add_patterns(parser)
    parser.add_argument("--to", type=_percentage, required=True, metavar="PERCENT", help="the new band, as '3%%'")


def _add_contract(edits: Any) -> None:
    parser = _edit(edits, "contract", "add what was true of stored metrics to their contracts", _contract)
    _add_patterns(parser)
    parser.add_argument(
        "--set",
        dest="fields",
        type=_field,
        action="append",
        required=True,
        metavar="NAME=JSON",
        help="a field that their contracts lack, such as clock_version=2 (repeatable)",
    )


def _add_patterns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metric", action="append", required=True, metavar="PATTERN", help="metrics to change (repeatable)"
    )


def _edit(edits: Any, name: str, help_text: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = edits.add_parser(name, help=help_text)
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of the store")
    parser.add_argument("--why", required=True, metavar="TEXT", help="the reason, kept in the file")
    parser.add_argument("--who", metavar="NAME", help="the author (default: git's user.name, else the login)")
    parser.set_defaults(run=run)
    return parser


def _list(options: argparse.Namespace) -> int:
    from ..baseline.store import Store

    store = Store(options.baselines)
    classes = [options.machine] if options.machine is not None else store.classes()
    baselines = [baseline for machine_class in classes for baseline in store.load_all(machine_class)]
    if not baselines:
        print(f"{store.folder(options.machine) if options.machine else store.root}: no stored baselines")
        return 0

    print("\n\n".join("\n".join(_lines(baseline, options.replicates)) for baseline in baselines))
    return 0


def _lines(baseline: Baseline, replicates: int) -> Iterator[str]:
    from ..report import scaling
    from ..report.table import table

    yield f"{baseline.path}: {_origin(baseline)}"
    metrics = list(baseline.metrics.values())
    rows = [_row(stored, [other for other in metrics if other is not stored], replicates) for stored in metrics]
    yield from (f"  {line}" for line in table([HEADER, *rows]))
    blind = [name for name, row in zip(baseline.metrics, rows, strict=True) if row[-1].endswith(BLIND)]
    if blind:
        yield (
            f"  ! {', '.join(blind)}: the band cannot be shown to hold with {replicates} replicates, even when nothing "
            "changed; record more sessions, or measure more replicates"
        )

    if any(row[-2].endswith(LOOSE) for row in rows):
        yield (
            "  ~ could keep a narrower band: set it in the test, then here with `decodegate baselines band FILE "
            "--metric PATTERN --to PERCENT --why TEXT`"
        )

    if any(ELSEWHERE in row[-3] for row in rows):
        yield "  ^ on cards that did not record, which differ from those that did; what it finds is found there"

    curves = scaling.curves(
        (name, stored.metric.contract, _middle(stored)) for name, stored in baseline.metrics.items()
    )
    yield from (f"  {line}" for line in scaling.scaling_table(curves))
    yield from (f"  {entry.when[:16]} {entry.who}: {entry.what} ({entry.why})" for entry in baseline.log)


def _origin(baseline: Baseline) -> str:
    if baseline.published:
        return f"published: {baseline.published}"

    if baseline.newest is None:
        return f"{baseline.label}, nothing recorded"

    return f"{baseline.label}, last recorded {baseline.newest.recorded[:16] or 'at an unknown time'}"


def _row(stored: StoredMetric, others: Sequence[StoredMetric], replicates: int) -> tuple[str, ...]:
    metric = stored.metric
    return (
        metric.name,
        format_value(_middle(stored), metric.unit),
        _of_all(len(stored.current), len(stored.sessions)),
        str(sum(len(session.values) for session in stored.current)),
        *_resolution(stored, others, replicates),
    )


def _middle(stored: StoredMetric) -> float:
    """The geometric mean of all processes that gate, in the metric's unit."""
    return math.exp(statistics.fmean(math.log(value) for session in stored.current for value in session.values))


def _resolution(stored: StoredMetric, others: Sequence[StoredMetric], replicates: int) -> tuple[str, ...]:
    """Spread of processes, difference between sessions, band, a band that it can keep, and what it surely finds."""
    from ..gate.bands import LOOKS, band_ahead, can_keep, foreseen
    from ..gate.stats.rules import surely_found
    from ..gate.verdict import session_logs

    metric = stored.metric
    band = format_band(metric.tolerance)
    if stored.level == "published":
        return "-", "-", band, "-", "the band alone"

    own = session_logs(stored)
    if metric.kind == "quality":
        return _spread(own), "-", band, "-", "wrong answers"

    unchanged = foreseen(stored, others, replicates, LOOKS)
    assumed = " (assumed)" if len(stored.current) == 1 else ""
    narrow = can_keep(stored, unchanged)
    ahead = band_ahead(stored, unchanged)
    finds = surely_found(ahead, math.expm1(unchanged.lo), math.expm1(unchanged.hi))
    return (
        _spread(own),
        format_percent(unchanged.noise.session_sd, signed=False) + assumed,
        band + (f", {format_band(ahead)}{ELSEWHERE}" if ahead > metric.tolerance else ""),
        format_band(narrow) + (LOOSE if metric.tolerance >= WIDE * narrow else ""),
        format_percent(finds, signed=False) + (BLIND if math.expm1(unchanged.hi) >= ahead else ""),
    )


def _spread(sessions: Sequence[Sequence[float]]) -> str:
    """Standard deviation between the processes of one session, pooled over sessions; "-" where each has only one."""
    df = sum(len(session) - 1 for session in sessions)
    squares = sum(statistics.variance(session) * (len(session) - 1) for session in sessions if len(session) > 1)
    return format_percent(math.sqrt(squares / df), signed=False) if df else "-"


def _of_all(current: int, all_of_them: int) -> str:
    return str(current) if current == all_of_them else f"{current} of {all_of_them}"


def _prune(options: argparse.Namespace) -> int:
    from ..baseline.edits import Pruning, prune

    if not (options.session or options.before or options.metric):
        raise BadInput("prune: say what to drop with --session, --before or --metric")

    pruning = Pruning(options.metric or "*", tuple(options.session), options.before)
    return _apply(options, lambda baseline: prune(baseline, pruning))


def _accept(options: argparse.Namespace) -> int:
    from ..baseline.edits import accept

    return _apply(options, lambda baseline: accept(baseline, options.metric, options.since))


def _merge(options: argparse.Namespace) -> int:
    store, by = _store(options), _signed(options)
    for source in options.sources:
        print(f"{options.file}: {store.merge(options.file.resolve(), source.resolve(), **by)}")

    return 0


def _move(options: argparse.Namespace) -> int:
    from ..baseline.moving import Moving

    moving = Moving(options.metric, options.gpus)
    for what in _store(options).move(options.file.resolve(), moving, **_signed(options)):
        print(f"{options.file}: {what}")

    return 0


def _band(options: argparse.Namespace) -> int:
    from ..baseline.edits import set_band

    return _apply(options, lambda baseline: set_band(baseline, options.metric, options.to))


def _contract(options: argparse.Namespace) -> int:
    from ..baseline.edits import set_contract

    return _apply(options, lambda baseline: set_contract(baseline, options.metric, dict(options.fields)))


def _reseal(options: argparse.Namespace) -> int:
    print(f"{options.file}: {_store(options).reseal(options.file.resolve(), **_signed(options))}")
    return 0


def _rewrite(options: argparse.Namespace) -> int:
    print(f"{options.file}: {_store(options).rewrite(options.file.resolve(), **_signed(options))}")
    return 0


def _apply(options: argparse.Namespace, edit: Edit) -> int:
    print(f"{options.file}: {_store(options).edit(options.file.resolve(), edit, **_signed(options))}")
    return 0


def _store(options: argparse.Namespace) -> Store:
    from ..baseline.store import Store

    return Store(options.file.resolve().parent.parent)


def _signed(options: argparse.Namespace) -> Mapping[str, str]:
    """Who and why, neither of them empty; raises BadInput for a reason that is none."""
    if not options.why.strip():
        raise BadInput("--why: a reason is kept in the file, and an empty one helps nobody who reads it later")

    return {"who": options.who or _author(), "why": options.why.strip()}


def _author() -> str:
    try:
        command = ["git", "config", "user.name"]
        asked = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        return asked.stdout.strip() or getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _percentage(text: str) -> float:
    from ..metric import parse_tolerance

    try:
        return parse_tolerance(text, "--to")
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _field(text: str) -> tuple[str, Json]:
    """A field of a contract as NAME=JSON."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=JSON; write clock_version=2, or workload='\"marlin\"' for a text"
        ) from None


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _gpus(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")

    return int(text)
