"""Files of other tools as one baseline: which tool wrote each, and what all of them say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..baseline.schema import Baseline, StoredMetric
from ..errors import BadInput
from ..machine.provenance import Provenance
from ..metric import Json, Kind
from . import nccl_tests, pytest_benchmark, vllm_bench
from .found import Found, Source, document

UNKNOWN: Final = "unknown"
"""Where nobody says what it was."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the user says about files that do not say it.

    stack: versions and settings, which go before what the files say. client_version: see `vllm_bench.read`.
    kind: of pytest-benchmark's metrics.
    """

    machine_class: str = UNKNOWN
    label: str = ""
    stack: Mapping[str, Json] = field(default_factory=dict)
    client_version: str | None = None
    kind: Kind = "cpu"


def read(source: Source, told: Told) -> Found:
    """What a file says; raises BadInput if it is of no known tool, or naming the field that is wrong."""
    try:
        return _read(source, told)
    except BadInput as error:
        # What makes no metric is refused by Metric, which does not know the file.
        raise error if str(error).startswith(str(source.path)) else BadInput(f"{source.path}: {error}") from None


def _read(source: Source, told: Told) -> Found:
    fields = document(source)
    if fields is None and nccl_tests.is_table(source.content.decode(errors="replace")):
        return nccl_tests.read_table(source)
    if fields and vllm_bench.is_vllm_bench(fields):
        return vllm_bench.read(source, fields, client_version=told.client_version)
    if fields and nccl_tests.is_nccl_tests(fields):
        return nccl_tests.read_json(source, fields)
    if fields and pytest_benchmark.is_pytest_benchmark(fields):
        return pytest_benchmark.read(source, fields, kind=told.kind)

    what = f"JSON with {', '.join(fields.values)}" if fields else "neither a JSON object nor a table of nccl-tests"
    raise BadInput(
        f"{source.path}: of no known tool ({what:.120}); known are `vllm bench serve --save-result`, nccl-tests (-J or "
        "its printed table) and pytest-benchmark"
    )


def joined(sources: Sequence[Source], told: Told) -> Baseline:
    """One baseline of all files, which must be of one stack; its path is only a name until it is stored.

    Raises BadInput if they contradict each other, or if some have samples and others single figures.
    """
    founds = [read(source, told) for source in sources]
    stored: dict[str, StoredMetric] = {}
    for source, found in zip(sources, founds, strict=True):
        for metric, session in found.sessions:
            one = StoredMetric(metric, (session,))
            stored[metric.name] = _with(stored[metric.name], one, source.path) if metric.name in stored else one

    levels = {(session.level == "published") for one in stored.values() for session in one.sessions}
    if len(levels) > 1:
        raise BadInput("some of the files have samples and others single figures: import them one after the other")

    tools = " and ".join(dict.fromkeys(found.tool for found in founds))
    names = ", ".join(source.path.name for source in sources)
    return Baseline(
        path=Path(tools),
        machine_class=told.machine_class,
        label=told.label or tools,
        provenance=_provenance(founds, sources, told),
        metrics=stored,
        published=f"{tools}: {names}" if True in levels else "",
    )


def _with(first: StoredMetric, second: StoredMetric, path: Path) -> StoredMetric:
    """The sessions of both; raises BadInput if they are not of one measurement."""
    base, new = first.metric.identity, second.metric.identity
    for name in sorted(base.keys() | new.keys()):
        if base.get(name) != new.get(name):
            raise BadInput(
                f"{path}: metric {first.metric.name!r}: field {name!r} is {new.get(name)!r}, in another file "
                f"{base.get(name)!r}: these are two measurements, import them one after the other"
            )

    if second.sessions[0].id in [one.id for one in first.sessions]:
        raise BadInput(f"{path}: is given twice, or under two names")

    sessions = (*first.sessions, *second.sessions)
    return StoredMetric(first.metric, tuple(sorted(sessions, key=lambda one: one.instant)))


def _provenance(founds: Sequence[Found], sources: Sequence[Source], told: Told) -> Provenance:
    machine: dict[str, Json] = {}
    stack: dict[str, Json] = {}
    for found, source in zip(founds, sources, strict=True):
        for known, said in ((machine, found.machine), (stack, {**found.stack, **told.stack})):
            for name, value in said.items():
                if known.setdefault(name, value) != value:
                    raise BadInput(
                        f"{source.path}: field {name!r} is {value!r}, in another file {known[name]!r}: a baseline is "
                        "of one stack on one machine"
                    )

    return Provenance(machine, {"nccl": UNKNOWN, "driver": UNKNOWN, **stack}, {})
