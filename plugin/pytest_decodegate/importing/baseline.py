"""Files of other tools as one baseline: which tool wrote each, and what all of them say together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ..baseline.schema import Baseline, Session, StoredMetric
from ..errors import BadInput
from ..machine.provenance import UNKNOWN, Provenance
from ..metric import Json, Kind, Metric
from . import aiperf, guidellm, nccl_json, nccl_table, pytest_benchmark, sglang_bench, vllm_bench
from .found import Fields, Found, SourceFile, documents, joined_cards

READ: Final = (
    "`vllm bench serve` (--save-result, --append-result or a sweep), sglang.bench_serving, aiperf's "
    "profile_export_aiperf.json, guidellm's benchmarks.json, nccl-tests (-J or its printed table) and pytest-benchmark"
)
"""What can be imported, as an error lists it."""

_NOT_READ: Final[Mapping[str, frozenset[str]]] = {
    "`vllm bench latency`": frozenset({"avg_latency", "latencies", "percentiles"}),
    "`vllm bench throughput`": frozenset({"elapsed_time", "num_requests", "tokens_per_second"}),
    "`vllm bench serve` in PyTorch's benchmark format (give the file beside it, without .pytorch)": frozenset(
        {"benchmark", "model", "metric"}
    ),
    "an embedding or reranking run of `vllm bench serve`, which makes no tokens": frozenset(
        {"input_sequence_throughput", "total_input_sequences"}
    ),
    "aiperf's records of requests (give profile_export_aiperf.json)": frozenset({"metadata", "metrics", "error"}),
    "sglang.bench_one_batch": frozenset({"run_name", "batch_size", "prefill_latency"}),
    "llama-bench": frozenset({"build_commit", "n_prompt", "n_gen", "avg_ts"}),
    "LLMPerf": frozenset({"results_inter_token_latency_s_quantiles_p50"}),
    "GenAI-Perf or Perf Analyzer": frozenset({"experiments", "service_kind"}),
}
"""Tools that are known and not read -> keys by which their files are known."""


@dataclass(frozen=True, slots=True)
class UserFacts:
    """What the user says about files that do not say it.

    stack: versions and settings; a file that says something else is refused. client_version: see `vllm_bench.read`.
    kind: of pytest-benchmark's metrics. collective: of tables of nccl-tests that do not name theirs.
    """

    machine_class: str = UNKNOWN
    label: str = ""
    stack: Mapping[str, Json] = field(default_factory=dict)
    client_version: str | None = None
    kind: Kind = "cpu"
    collective: str = ""


def read(source: SourceFile, user: UserFacts) -> list[Found]:
    """What a file says, one for each result in it; raises BadInput naming its tool, or the field that is wrong."""
    try:
        return _read(source, user)
    except BadInput as error:
        # What makes no metric is refused by Metric, which does not know the file.
        raise error if str(error).startswith(str(source.path)) else BadInput(f"{source.path}: {error}") from None


def _read(source: SourceFile, user: UserFacts) -> list[Found]:
    # First, as a log may begin like a list: with the tag of a process, "[1,0]<stdout>:".
    if not source.content.lstrip().startswith(b"{") and nccl_table.is_table(source.content.decode(errors="replace")):
        return [nccl_table.read_table(source, collective=user.collective)]
    if objects := documents(source):
        return list(_read_objects(source, objects, user))

    raise BadInput(f"{source.path}: of no known tool (neither JSON nor a table of nccl-tests); known are {READ}")


def _read_objects(source: SourceFile, objects: Sequence[Fields], user: UserFacts) -> Iterator[Found]:
    for number, fields in enumerate(objects, start=1):
        try:
            yield _read_object(source, fields, user, number)
        except BadInput as error:
            rest = f"; without this result the other {len(objects) - 1} can be tried" if len(objects) > 1 else ""
            raise BadInput(f"{error}{rest}") from None


def _read_object(source: SourceFile, fields: Fields, user: UserFacts, number: int) -> Found:
    if sglang_bench.is_sglang_bench(fields):
        return sglang_bench.read(source, fields, number=number)
    if vllm_bench.is_vllm_bench(fields):
        return vllm_bench.read(source, fields, number=number, client_version=user.client_version)
    if aiperf.is_aiperf(fields):
        return aiperf.read(source, fields, number=number)
    if guidellm.is_guidellm(fields):
        return guidellm.read(source, fields, number=number)
    if nccl_json.is_nccl_tests(fields):
        return nccl_json.read_json(source, fields, number=number)
    if pytest_benchmark.is_pytest_benchmark(fields):
        return pytest_benchmark.read(source, fields, kind=user.kind)

    for tool, keys in _NOT_READ.items():
        if keys <= fields.values.keys():
            raise BadInput(f"{fields.where}: is of {tool}, which is not read; known are {READ}")

    raise BadInput(f"{fields.where}: of no known tool (JSON with {', '.join(fields.values):.120}); known are {READ}")


def joined(sources: Sequence[SourceFile], user: UserFacts) -> Baseline:
    """One baseline of all files, which must be of one stack; its path is only a name until it is stored.

    Raises BadInput if they contradict each other, or if some have samples and others single figures.
    """
    founds = [(source, found) for source in sources for found in read(source, user)]
    stored: dict[str, StoredMetric] = {}
    for source, metric, session in _told_apart(list(_sessions(founds))):
        new = StoredMetric(metric, (session,))
        stored[metric.name] = _with(stored[metric.name], new, source.path) if metric.name in stored else new

    levels = {(session.level == "published") for metric in stored.values() for session in metric.sessions}
    if len(levels) > 1:
        raise BadInput("some of the files have samples and others single figures: import them one after the other")

    tools = " and ".join(dict.fromkeys(found.tool for _, found in founds))
    names = ", ".join(source.path.name for source in sources)
    return Baseline(
        path=Path(tools),
        machine_class=user.machine_class,
        label=user.label or tools,
        provenance=_provenance(founds, user),
        metrics=stored,
        published=f"{tools}: {names}" if True in levels else "",
    )


def _sessions(founds: Sequence[tuple[SourceFile, Found]]) -> Iterator[tuple[SourceFile, Metric, Session]]:
    for source, found in founds:
        for metric, session in found.sessions:
            yield source, metric, session


def _told_apart(sessions: Sequence[tuple[SourceFile, Metric, Session]]) -> Iterator[tuple[SourceFile, Metric, Session]]:
    """Results of several loads under one name, as in a sweep, named by what differs: "tpot[c=8,output_tokens=128]".

    Two tools, formulas or models under one name are left alone; `_with` refuses them.
    """
    contracts: dict[str, list[Mapping[str, Json]]] = {}
    for _, metric, _ in sessions:
        contracts.setdefault(metric.name, []).append(metric.contract)

    for source, metric, session in sessions:
        others, own = contracts[metric.name], metric.contract
        differing = [name for name in own if any(name in other and other[name] != own[name] for other in others)]
        if metric.kind == "serving" and differing and not _NEVER_APART & set(differing):
            load = ",".join(f"{name}={_slug(own[name])}" for name in differing)
            metric = replace(metric, name=f"{metric.name.removesuffix(']')},{load}]")

        yield source, metric, session


_NEVER_APART: Final = frozenset({"clock", "client", "formula", "model"})


def _slug(value: Json) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "_", str(value).lower())


def _with(first: StoredMetric, second: StoredMetric, path: Path) -> StoredMetric:
    """The sessions of both; raises BadInput if they are not of one measurement."""
    base, new = first.metric.identity, second.metric.identity
    for name in sorted(base.keys() | new.keys()):
        if base.get(name) != new.get(name):
            raise BadInput(
                f"{path}: metric {first.metric.name!r}: field {name!r} is {new.get(name)!r}, in another result "
                f"{base.get(name)!r}: these are two measurements, import them one after the other"
            )

    if second.sessions[0].id in [session.id for session in first.sessions]:
        raise BadInput(f"{path}: is given twice, or under two names")

    sessions = (*first.sessions, *second.sessions)
    return StoredMetric(first.metric, tuple(sorted(sessions, key=lambda session: session.instant)))


def _provenance(founds: Sequence[tuple[SourceFile, Found]], user: UserFacts) -> Provenance:
    machine: dict[str, Json] = {}
    stack: dict[str, Json] = {}
    for source, found in founds:
        for known, said in ((machine, found.machine), (stack, found.stack)):
            for name, value in said.items():
                known[name] = _agreed(source.path, name, value, known.get(name, value))

        for name, value in user.stack.items():
            if found.stack.get(name, value) != value:
                raise BadInput(
                    f"{source.path}: field {name!r} is {found.stack[name]!r}, but --stack says {value!r}: leave "
                    "it out, or import another file"
                )

    return Provenance(machine, {"nccl": UNKNOWN, "driver": UNKNOWN, **stack, **user.stack}, {})


def _agreed(path: Path, name: str, value: Json, known: Json) -> Json:
    """What both results say; of cards that of the larger run."""
    if name == "gpus" and isinstance(value, list) and isinstance(known, list):
        return joined_cards(str(path), known, value)
    if known != value:
        raise BadInput(
            f"{path}: field {name!r} is {value!r}, in another file {known!r}: a baseline is of one stack on one machine"
        )

    return known
