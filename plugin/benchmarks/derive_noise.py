"""How noisy each class of metrics was where it was recorded: data/noise_spreads.json gives gate/stats/noise.json.

python plugin/benchmarks/derive_noise.py          prints what is derived; exit code 1 if the shipped file differs
python plugin/benchmarks/derive_noise.py --write  writes it
python plugin/benchmarks/derive_noise.py --add BASELINE HOST TIMING   adds the sessions of a stored baseline to the data

A line of the data is one session of one metric: host (cards that were measured), timing (sessions with the same letter
were timed by the same code, so that only noise differs), the level in seconds, and how many processes scattered by how
much (null where that is not known).
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.gate.stats import recorded as shipped
from pytest_decodegate.gate.stats.noise import Variance, process_prior, session_variance
from pytest_decodegate.gate.stats.recorded import Mode, NoiseClass, Recorded, noise_class
from pytest_decodegate.gate.verdict import session_logs
from pytest_decodegate.metric import Kind, Level

DATA = Path(__file__).with_name("data") / "noise_spreads.json"
SHIPPED = Path(shipped.__file__).with_name("noise.json")

LEAST_METRICS = 8
"""With fewer metrics in a class nothing is derived from it."""

ASSUMED: Mapping[str, tuple[float, float, float]] = {
    "kernel": (0.002, 1.5, 0.003),
    "collective": (0.010, 2.0, 0.006),
    "serving": (0.005, 1.0, 0.003),
    "cpu": (0.05, 2.0, 0.05),
    "quality": (0.01, 2.0, 0.01),
}
"""By kind, for classes of which there are no data: sd and df between processes, sd between sessions."""


@dataclass(frozen=True, slots=True)
class Line:
    """One session of one metric. level: geometric mean of its process values, in seconds. sd: of their logs."""

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

    @property
    def noise_class(self) -> NoiseClass:
        """Of the metric."""
        return NoiseClass(self.kind, self.mode, self.replicate)


def lines(path: Path = DATA) -> list[Line]:
    """The recorded data."""
    return [Line(**fields) for fields in json.loads(path.read_text())]


def of_baseline(path: Path, host: str, timing: str) -> Iterator[Line]:
    """The sessions of a stored baseline, all of its metrics that are times."""
    for stored in load(path).metrics.values():
        metric, found = stored.metric, noise_class(stored.metric, stored.level)
        for logs in session_logs(stored) if metric.better == "lower" and stored.level != "published" else []:
            spread = stdev(logs) if len(logs) > 1 else None
            level = math.exp(fmean(logs))
            yield Line(host, timing, metric.name, *found, level, len(logs), spread, metric.tolerance)


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


def derived(some: Sequence[Line]) -> dict[str, Recorded]:
    """What noise.json should hold: each class with enough data, and the kinds, which stand in for all others."""
    classes: dict[NoiseClass, list[Line]] = defaultdict(list)
    for line in some:
        classes[line.noise_class].append(line)

    table = {kind: _assumed(*numbers) for kind, numbers in ASSUMED.items()}
    for each, members in classes.items():
        if len(process_variances(members)) >= LEAST_METRICS:
            table["/".join(each)] = _recorded(members, ASSUMED[each[0]][2])

    return table


def _assumed(process_sd: float, process_df: float, session_sd: float) -> Recorded:
    return Recorded(process_sd, process_df, session_sd, "assumed: nobody has recorded it", "assumed: as for its kind")


def _recorded(members: Sequence[Line], assumed_session: float) -> Recorded:
    variances = process_variances(members)
    process = process_prior(variances, None)
    means = session_means(members, process.value)
    enough = len(means) >= LEAST_METRICS
    session = math.sqrt(session_variance(means, math.inf)) if enough else assumed_session
    hosts = sorted({line.host for line in members})
    return Recorded(
        process_sd=_rounded(math.sqrt(process.value)),
        process_df=_rounded(process.df),
        session_sd=_rounded(session),
        process_source=f"{len(variances)} sessions of one metric each, on {', '.join(hosts)}",
        session_source=(
            f"{len(means)} metrics on two hosts or more, timed by the same code"
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

    text = json.dumps({name: _fields(each) for name, each in derived(lines()).items()}, indent=1) + "\n"
    print(text, end="")
    if arguments[:1] == ["--write"]:
        SHIPPED.write_text(text)

    return int(SHIPPED.read_text() != text)


def _fields(one: Recorded) -> dict[str, float | str]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
