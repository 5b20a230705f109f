"""Files of pytest-benchmark: samples of one process where they were saved, else single figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from ..baseline.schema import Session
from ..metric import Kind, Metric, Replicate
from .found import Fields, Found, SourceFile

TOOL: Final = "pytest-benchmark"
_UNSAFE = re.compile(r"[^a-z0-9_.=,/\[\]-]+")


def is_pytest_benchmark(fields: Fields) -> bool:
    """Whether a JSON file is of this tool."""
    return {"machine_info", "benchmarks", "datetime"} <= fields.values.keys()


def read(source: SourceFile, fields: Fields, *, kind: Kind) -> Found:
    """The time of every benchmark, as `kind`; raises BadInput naming file, field and value."""
    if "decodegate" in fields.values:
        raise fields.wrong("decodegate", "it is a baseline already; `decodegate compare` and --perf-baseline read it")

    recorded = _recorded(fields)
    benchmarks = fields.objects("benchmarks")
    if not benchmarks:
        raise fields.wrong("benchmarks", "nothing was measured")

    # A file is published as a whole or not at all: one benchmark without samples makes figures of all.
    sampled = all(entry.object("stats").values.get("data") for entry in benchmarks)
    sessions = _sessions(benchmarks, kind, (source.element_id(1), recorded), sampled=sampled)
    return Found(TOOL, tuple(sessions), dict(_machine(fields)), dict(_stack(fields)))


def _sessions(
    benchmarks: list[Fields], kind: Kind, recording: tuple[str, str], *, sampled: bool
) -> Iterator[tuple[Metric, Session]]:
    """recording: id and time of the sessions."""
    names: set[str] = set()
    for entry in benchmarks:
        name = _UNSAFE.sub("_", entry.text("fullname").lower().replace("::", "/")).lstrip("_.=,/[]-")
        if not name or name in names:
            raise entry.wrong("fullname", f"as a metric it is {name!r}, which is empty or there already")

        names.add(name)
        contract = {"clock": str(_option(entry, "timer")), "formula": "pytest_benchmark_v1", "client": TOOL}
        band = Metric.of(name, kind).tolerance
        yield Metric(name, "s", kind, band, dict(contract)), _session(recording, entry.object("stats"), sampled=sampled)


def _session(recording: tuple[str, str], stats: Fields, *, sampled: bool) -> Session:
    if not sampled:
        return Session(*recording, "published", (), point=stats.number("median"))

    samples = tuple(stats.numbers("data"))
    if 0 in samples:
        raise stats.wrong("data", "a time of zero is below the timer's resolution")

    return Session(*recording, "process", (Replicate(samples),))


def _option(entry: Fields, name: str) -> object:
    options = entry.values.get("options")
    return options.get(name, "unknown") if isinstance(options, dict) else "unknown"


def _recorded(fields: Fields) -> str:
    text = fields.text("datetime")
    try:
        return datetime.fromisoformat(text).astimezone().isoformat(timespec="seconds")
    except ValueError:
        raise fields.wrong("datetime", "an ISO 8601 time is needed") from None


def _machine(fields: Fields) -> Iterator[tuple[str, str]]:
    """The processor of utils.get_machine_info of pytest-benchmark: py-cpuinfo's, which may have found none."""
    brand = fields.object("machine_info").inner("cpu").values.get("brand_raw")
    if isinstance(brand, str) and brand:
        yield "cpu", brand


def _stack(fields: Fields) -> Iterator[tuple[str, str]]:
    """Python and the release of the operating system, by the names under which a recording has them."""
    said = fields.object("machine_info").values
    implementation = said.get("python_implementation")
    for ours, name in (("python", "python_version"), ("kernel", "release")):
        if isinstance(value := said.get(name), str) and value:
            other = ours == "python" and implementation not in (None, "CPython")
            yield ours, f"{implementation} {value}" if other else value
