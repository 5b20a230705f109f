"""How noisy each class of metrics was where it was recorded: recorded sessions give gate/stats/noise.json.

The sessions are those of the shipped baselines, and older ones that left these (data/noise_spreads.json).

python plugin/benchmarks/derive_noise.py          prints what is derived; exit code 1 if the shipped file differs
python plugin/benchmarks/derive_noise.py --write  writes it
python plugin/benchmarks/derive_noise.py --add BASELINE HOST TIMING   adds the sessions of a stored baseline to the data

A line of the data is one session of one metric: host (cards that were measured), timing (sessions with the same letter
were timed by the same code, so that only noise differs), the level in seconds, and how many processes scattered by how
much (null where that is not known). Of a shipped baseline the file is the timing: its sessions have one contract.
Sessions of different timing are never put beside each other: the gate would refuse to. Of a metric that was timed in
several ways the newest counts. How sessions differ is asked of what is timed as today, and of older timings only where
a class has too little of that. Kernels that stream memory are a class of their own, since cards differ in how fast
their memory is: a line that does not know whether its metric does (streams is null) goes by what ships of that metric.

How servers differ from start to start is read from the answers of upgrades that started some: a stack started several
times in one of them is a set of starts, whatever the other stack was.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from scipy.special import betaln
from scipy.stats import chi2

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.gate.own_cards import stored_memory_share, streams_memory
from pytest_decodegate.gate.stats import recorded as shipped
from pytest_decodegate.gate.stats.noise import Variance, process_prior, session_variance
from pytest_decodegate.gate.stats.recorded import SAME_CARDS, Mode, NoiseClass, Recorded, noise_class
from pytest_decodegate.gate.verdict import session_logs
from pytest_decodegate.metric import Kind, Level, Metric, literal_brackets

DATA = Path(__file__).with_name("data") / "noise_spreads.json"
BASELINES = Path(__file__).parents[2] / "baselines"
DRIFTED = Path(__file__).parents[1] / "tests" / "data" / "drifted_contracts.json"
"""What the code times in another way today; test_recorded_contracts.py holds it to be complete."""

UPGRADES = [
    Path(__file__).parents[1] / "tests" / "data" / "upgrades" / f"{name}.json"
    for name in ("h200_same_servers", "h200_servers_slower_by_5_percent")
]
"""Answers of `decodegate upgrade` on servers. Not among them: what the host paces, as --enforce-eager, and the upgrade
of vLLM whose first windows were slower and counted: none does since.
"""

CHANGED_SINCE = ", changed since"
"""Ends the timing of those."""
SHIPPED = Path(shipped.__file__).with_name("noise.json")

LEAST_METRICS = 8
"""With fewer metrics in a class nothing is derived from it."""

LEAST_PAIRS = 30
"""With fewer metrics in two sessions nothing is known of tails."""

LEAST_ALIKE, MOST_ALIKE = 2.5, 50.0
"""Ends of the degrees of freedom that the session noise of a class may have: a root mean square needs more than two,
and from fifty on metrics are as good as alike."""

WIDEST_ALIKE = 0.05
"""Band of a metric that is evidence of how much its class differs between sessions. One that needs a wider one differs
for a reason of its own: argmax runs in 5 % less on one card of four, and no other kernel differs by half of that."""

USUAL_DF, USUAL_FACTOR = 4.0, 2.0
"""How alike metrics are in session noise before there are data: a dozen of them say next to nothing of tails."""

ASSUMED: Mapping[str, tuple[float, float, float]] = {
    "kernel": (0.002, 1.5, 0.003),
    "collective": (0.010, 2.0, 0.006),
    "serving": (0.005, 1.0, 0.003),
    "cpu": (0.05, 2.0, 0.05),
    "quality": (0.01, 2.0, 0.01),
}
"""By kind, for classes of which there are no data: sd and df between processes, sd between sessions."""

SERVER_STARTS = "/".join(NoiseClass("serving", "host", "server")[:3])
"""The class of servers that are started for each replicate."""

OWN_CARD = (
    "kernel",
    0.0015,
    "assumed: 83 kernels, gated on their card minutes after they were recorded, differed by \
0.09 % in the middle and by 0.44 % at nine of ten, most of it by processes; days apart nobody has recorded",
)
"""Kind, sd between sessions of the same cards, and where it comes from."""


@dataclass(frozen=True, slots=True)
class Line:
    """One session of one metric. level: geometric mean of its process values, in seconds. sd: of their logs.

    streams: whether the metric streams memory; None where nobody noted which share of it the metric reached.
    """

    host: str
    timing: str
    metric: str
    kind: Kind
    mode: Mode
    replicate: Level
    level: float
    processes: int
    sd: float | None
    band: float
    streams: bool | None = None

    @property
    def noise_class(self) -> NoiseClass:
        """Of the metric."""
        return NoiseClass(self.kind, self.mode, self.replicate, streams=bool(self.streams))


@dataclass(frozen=True, slots=True)
class Starts:
    """A stack whose servers were started several times in turn with those of another; logs of a metric, one a start."""

    cards: str
    logs: tuple[float, ...]


class SessionLaw(NamedTuple):
    """Of the scaled inverse chi-square distribution of the metrics' session variances: its scale as an sd, and its df.

    heaviest: scale and df of the heaviest tails that the data do not refuse (95 %, by profile likelihood).
    """

    scale: float
    df: float
    heaviest: tuple[float, float]

    @property
    def sd(self) -> float:
        """Root mean square over metrics."""
        return self.scale * math.sqrt(self.df / (self.df - 2))


def lines(path: Path = DATA, baselines: Path = BASELINES) -> list[Line]:
    """The recorded data, oldest first: those of `path`, then what `baselines` hold beyond them."""
    young = list(shipped_lines(baselines))
    streams = {line.metric: line.streams for line in young}
    old = [_known_to_stream(Line(**fields), streams) for fields in json.loads(path.read_text())]
    known: dict[str, list[Line]] = defaultdict(list)
    for line in old:
        known[line.metric].append(line)

    return [*old, *(line for line in young if not any(_is_one(line, each) for each in known[line.metric]))]


def _known_to_stream(line: Line, streams: Mapping[str, bool | None]) -> Line:
    """The line, which knows whether its metric streams memory if that is known of what ships, by `streams`."""
    return line if line.streams is not None else replace(line, streams=streams.get(line.metric))


def _is_one(line: Line, other: Line) -> bool:
    """Whether these are one session: files keep six digits of each process."""
    is_level = math.isclose(line.level, other.level, rel_tol=2e-6)
    return is_level and (other.sd is None or math.isclose(line.sd or 0.0, other.sd, rel_tol=0.01))


def shipped_lines(baselines: Path) -> Iterator[Line]:
    """The sessions of the baselines in a folder; files in the order of their numbers, which is that of time."""
    for path in sorted(baselines.glob("*/*.json"), key=lambda path: (path.name, path.parent.name)):
        gone = {name for name, stored in load(path).metrics.items() if has_drifted(path.parent.name, stored.metric)}
        for line in of_baseline(path, "", f"{path.parent.name}/{path.name}"):
            yield replace(line, timing=line.timing + CHANGED_SINCE) if line.metric in gone else line


def has_drifted(folder: str, metric: Metric) -> bool:
    """Whether the code times a shipped metric in another way today."""
    return any(
        fnmatchcase(folder, each["files"])
        and fnmatchcase(metric.name, literal_brackets(each["metrics"]))
        and metric.contract.get(each["field"]) == each["stored"]
        for each in _drifted()
    )


@cache
def _drifted() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DRIFTED.read_text())
    return found


def of_baseline(path: Path, host: str, timing: str) -> Iterator[Line]:
    """The sessions of a stored baseline, all of its metrics that are times."""
    for stored in load(path).metrics.values():
        metric, found = stored.metric, noise_class(stored.metric, stored.level)
        if metric.better != "lower" or stored.level == "published" or metric.kind == "quality":
            continue
        streams = streams_memory(stored) if stored_memory_share(stored) is not None else None
        for session, logs in zip(stored.current, session_logs(stored), strict=True):
            spread = stdev(logs) if len(logs) > 1 else None
            level = math.exp(fmean(logs))
            where = host or f"session {session.id}"
            yield Line(where, timing, metric.name, *found[:3], level, len(logs), spread, metric.tolerance, streams)


def newest(some: Iterable[Line]) -> list[Line]:
    """Of each metric the lines of its newest timing; `some` are in order of time."""
    found: dict[str, list[Line]] = {}
    for line in some:
        known = found.setdefault(line.metric, [])
        if known and known[0].timing != line.timing:
            known.clear()
        known.append(line)

    return [line for each in found.values() for line in each]


def process_variances(some: Sequence[Line]) -> list[Variance]:
    """Between the processes of each session whose scatter is known."""
    return [Variance(line.sd**2, line.processes - 1.0) for line in some if line.sd is not None]


def session_means(some: Sequence[Line], typical: float) -> list[tuple[Variance, float]]:
    """Of each metric that one timing code measured on several hosts: variance of its levels, and the processes' share.

    typical: variance between processes where a line does not know its own.
    """
    groups: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in some:
        groups[line.metric, line.timing].append(line)

    found = []
    for group in groups.values():
        if len(group) > 1:
            own = [line.sd**2 if line.sd is not None else typical for line in group]
            shares = [value / line.processes for value, line in zip(own, group, strict=True)]
            squares = stdev([math.log(line.level) for line in group]) ** 2
            found.append((Variance(squares, len(group) - 1.0), fmean(shares)))

    return found


def session_law(means: Sequence[tuple[Variance, float]]) -> SessionLaw:
    """How much metrics differ between sessions and how alike they are in that, by likelihood over both.

    means: as of `session_means`. The df leans on what is usual (a log-normal prior): a few dozen metrics outweigh it.
    """
    grid = np.geomspace(LEAST_ALIKE, MOST_ALIKE, 100)
    fits = [(math.sqrt(session_variance(means, df)), float(df)) for df in grid]
    likely = np.array([_log_likelihood(means, scale**2, df) for scale, df in fits])
    prior = np.array([(math.log(df / USUAL_DF) / math.log(USUAL_FACTOR)) ** 2 / 2 for df in grid])
    best = int(np.argmax(likely - prior))
    near = likely > likely.max() - chi2(1).ppf(0.9) / 2  # one-sided
    return SessionLaw(*fits[best], fits[int(np.argmax(near))])


def _log_likelihood(means: Sequence[tuple[Variance, float]], v: float, df: float) -> float:
    """Of variances of session means, each of which follows F around the session variance and the processes' share."""
    total = 0.0
    for (value, own), share in means:
        x = own * max(value, 1e-20) / (df * (v + share))
        total += own / 2 * math.log(x) - (own + df) / 2 * math.log1p(x) - float(betaln(own / 2, df / 2))

    return total


def server_starts(answers: Iterable[Path] = UPGRADES) -> Iterator[Starts]:
    """The sets of starts in answers of upgrades, two for each TPOT."""
    for answer in answers:
        for metric in json.loads(answer.read_text())["metrics"]:
            cards = " and ".join(gpu["gpu"] for gpu in metric["gpus"])
            for is_base in (True, False):
                values = [each["value"] for each in metric["processes"] if each["is_base"] is is_base]
                yield Starts(cards, tuple(map(math.log, values)))


def derived(some: Sequence[Line], starts: Sequence[Starts]) -> dict[str, Recorded]:
    """What noise.json should hold: each class with enough data, and the kinds, which stand in for all others.

    starts: of servers. They tell how much these differ, and of a host or two not how alike metrics are in that.
    """
    classes: dict[NoiseClass, list[Line]] = defaultdict(list)
    for line in some:
        classes[line.noise_class].append(line)

    table = {kind: _assumed(*numbers) for kind, numbers in ASSUMED.items()}
    kind, session_sd, source = OWN_CARD
    table[kind + SAME_CARDS] = structs.replace(table[kind], session_sd=session_sd, session_source=source)
    for each, members in classes.items():
        if len(process_variances(newest(members))) >= LEAST_METRICS:
            table[each.names[0]] = _recorded(members, table[each.kind])

    table[SERVER_STARTS] = structs.replace(table["serving"], **_of_starts(starts))
    return table


def _of_starts(starts: Sequence[Starts]) -> dict[str, float | str]:
    """The noise between starts, all sets together, and where it comes from."""
    squares = sum((len(each.logs) - 1) * stdev(each.logs) ** 2 for each in starts)
    sd = math.sqrt(squares / sum(len(each.logs) - 1 for each in starts))
    count, cards = sum(len(each.logs) for each in starts), sorted({each.cards for each in starts})
    source = f"{count} starts in {len(starts)} sets of one TPOT each, on {', '.join(cards)}; how alike is assumed"
    return {"process_sd": _rounded(sd), "process_source": source}


def _assumed(process_sd: float, process_df: float, session_sd: float) -> Recorded:
    sources = "assumed: nobody has recorded it", "assumed: as for its kind"
    return Recorded(process_sd, process_df, session_sd, USUAL_DF, *sources)


def class_means(members: Sequence[Line], *, ever: bool = False) -> list[tuple[Variance, float]]:
    """`session_means` of a class, where a line that does not know its scatter has the typical one.

    Of what is timed as today if that is enough; ever: of whatever was timed in one way on several hosts. Metrics with a
    band of more than WIDEST_ALIKE are left out.
    """
    typical = process_prior(process_variances(newest(members)), None).value
    members = [line for line in members if line.band <= WIDEST_ALIKE]
    today = session_means([line for line in members if line.timing.endswith(".json")], typical)
    return session_means(members, typical) if ever or len(today) < LEAST_PAIRS else today


def _recorded(members: Sequence[Line], assumed: Recorded) -> Recorded:
    variances = process_variances(newest(members))
    process = process_prior(variances, None)
    means = class_means(members)
    enough = len(means) >= LEAST_METRICS
    law = session_law(means) if enough else None
    hosts = sorted({line.host for line in newest(members)})
    return Recorded(
        process_sd=_rounded(math.sqrt(process.value)),
        process_df=_rounded(process.df),
        session_sd=_rounded(law.sd) if law else assumed.session_sd,
        session_df=_rounded(law.df) if law else assumed.session_df,
        process_source=f"{len(variances)} sessions of one metric each, on {', '.join(hosts)}",
        session_source=(
            f"{len(means)} metrics in two sessions or more, timed by the same code"
            if enough
            else "assumed: no class of its kind has two sessions that were timed by the same code"
        ),
    )


def _rounded(number: float) -> float:
    """Two digits: more are not known."""
    return float(f"{number:.2g}")


def main(arguments: Sequence[str]) -> int:
    """See the module's docstring."""
    if arguments[:1] == ["--add"]:
        path, host, timing = arguments[1:]
        kept = [*lines(), *of_baseline(Path(path), host, timing)]
        DATA.write_text("[\n" + ",\n".join(json.dumps(asdict(line)) for line in kept) + "\n]\n")
        return 0

    text = (
        json.dumps({name: _fields(each) for name, each in derived(lines(), list(server_starts())).items()}, indent=1)
        + "\n"
    )
    print(text, end="")
    if arguments[:1] == ["--write"]:
        SHIPPED.write_text(text)

    return int(SHIPPED.read_text() != text)


def _fields(one: Recorded) -> dict[str, float | str]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
