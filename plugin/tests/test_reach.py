"""What can touch a metric: every field that a provenance can hold, every way of measuring, and the shipped files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest
from fake_nvml import FakeGpu, FakeNvml
from hypothesis import given
from hypothesis import strategies as st
from stack_baselines import H200, put, session

from pytest_decodegate.baseline.reader import load
from pytest_decodegate.baseline.schema import Baseline, StoredMetric
from pytest_decodegate.baseline.selection import Selection, choose, contrast
from pytest_decodegate.baseline.store import Store
from pytest_decodegate.compare.pairs import Compared, compare_baselines
from pytest_decodegate.compare.standing import Terms
from pytest_decodegate.gate.pairs import Contrast, Side, judge_pairs
from pytest_decodegate.gate.result import Result
from pytest_decodegate.gate.text.explain import explain
from pytest_decodegate.gate.verdict import Verdict, judge
from pytest_decodegate.machine import provenance as origin
from pytest_decodegate.machine import stack
from pytest_decodegate.machine.fingerprint import machine, provenance
from pytest_decodegate.machine.provenance import COMPONENTS, Difference, Provenance, differences
from pytest_decodegate.machine.reach import (
    AHEAD_SINCE,
    EVERY,
    HOST,
    REACHES,
    REPLAYED,
    VISIBLE,
    Link,
    harmless,
    reach,
    slowest_link,
    touches,
    way_of,
)
from pytest_decodegate.metric import Json, Kind, Measurement, Metric
from pytest_decodegate.report import terminal
from pytest_decodegate.report.comparison_text import Terminal, text
from pytest_decodegate.serving.said import settings_said
from pytest_decodegate.session.forecast import Planned, forecast
from pytest_decodegate.workloads.versions import CLIENT_CLOCK, CLOCKS, clock_fields

SHIPPED = Path(__file__).parents[2] / "baselines"
GRAPH: Mapping[str, Json] = {**clock_fields("cuda_event"), "mode": "graph"}
EAGER: Mapping[str, Json] = {**clock_fields("cuda_event"), "mode": "eager"}


def metric(kind: Kind, contract: Mapping[str, Json] = GRAPH) -> Metric:
    return Metric("some", "s", kind, 0.02, contract)


def link_of(*machines: Mapping[str, Json]) -> Link:
    """The slowest link of what ranks of these machines run on."""
    return slowest_link(*(Provenance(machine, {}, {}) for machine in machines))


KERNEL, COLLECTIVE = metric("kernel"), metric("collective")
METRICS = [
    *(metric(kind, contract) for kind in ("kernel", "collective") for contract in (GRAPH, EAGER)),
    metric("cpu", clock_fields("perf_counter")),
    metric("serving", clock_fields(CLIENT_CLOCK)),
    metric("quality", {}),
]


def differing(*names: str) -> list[Difference]:
    return [Difference(name, 1, 2, declarable=False) for name in names]


def free(name: str, some: Metric, link: Link = "NVLink") -> bool:
    return bool(harmless(differing(name), some, link))


def known_fields(folder: Path) -> Iterator[str]:
    """Every field that a provenance can hold, as the code that fills it in names them."""
    conf = folder / "nccl.conf"
    conf.write_text("")
    (folder / ".nccl.conf").write_text("")
    named = dict.fromkeys(stack._NCCL_FILES, str(conf))
    plugin = folder / "libnccl-net.so"
    plugin.write_text("")
    maps = f"7f0-7f1 r-xp 0 00:00 1 {plugin}\n"
    (folder / "etc").mkdir()
    (folder / "etc" / "nccl.conf").write_text("")
    facts = {
        **dict.fromkeys(("python", "torch", "cuda", *stack._DISTRIBUTIONS), "1"),
        **stack.nccl_facts([str(conf)], version_of=lambda path: "2.28.9"),
        **stack.nccl_settings(maps, named, folder, folder),
        "flag:max-num-seqs": 8,
    }
    assert {*stack._NCCL_FILES.values(), "nccl_system_conf_sha256", "nccl_plugins"} <= facts.keys()
    environ = dict.fromkeys((*origin._NAMES, *(f"{prefix}ANYTHING" for prefix in origin._PREFIXES)), "1")
    environ |= {"NCCL_VERSION": "2.28.3-1", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_IMAGE_TAG": "v1", VISIBLE[4:]: "0,1"}
    here = replace(machine(environ, FakeNvml(FakeGpu(1), FakeGpu(2))), nodes=2)
    whole = provenance(here, facts, environ)
    yield from (each.field for each in differences(Provenance({}, {}, {}), whole))
    yield from (*COMPONENTS, "machine_class", "gpus", "gpus[1].uuid", "vbios")
    for path in sorted(SHIPPED.glob("*/*.json")):
        yield from (each.field for each in differences(Provenance({}, {}, {}), load(path).provenance))


@pytest.fixture
def fields(tmp_path: Path) -> list[str]:
    return list(dict.fromkeys(known_fields(tmp_path)))


def test_every_field_that_a_provenance_can_hold_has_a_line_with_a_reason(fields: Sequence[str]) -> None:
    """A new field fails here until somebody says what it can touch; meanwhile it touches everything."""
    assert len(fields) > 70
    assert [name for name in fields if reach(name) is None] == []
    assert all(len(line.reason) > 20 for line in REACHES)


def test_no_line_of_the_table_is_dead(fields: Sequence[str]) -> None:
    used = {line.pattern for name in fields if (line := reach(name))}
    assert used == {line.pattern for line in REACHES}


links = st.sampled_from(get_args(Link))
names = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=12)


@given(names.map("{}".format) | names.map("env:{}".format), st.sampled_from(METRICS), links)
def test_a_field_that_the_table_does_not_know_touches_everything(name: str, some: Metric, link: Link) -> None:
    if reach(name) is None:
        assert not free(name, some, link)


contracts = st.dictionaries(
    st.sampled_from(("clock", "clock_version", "mode", "world_size", "other")),
    st.sampled_from(("cuda_event", "graph", "eager", "perf_counter", 1, 2, 3, None, True)),
)


@given(contracts, st.sampled_from(("kernel", "collective")), links)
def test_ranks_whose_way_of_measuring_is_not_known_are_touched_by_everything(
    contract: Mapping[str, Json], kind: Kind, link: Link
) -> None:
    some = metric(kind, contract)
    known = contract.get("clock") == "cuda_event" and contract.get("mode") in ("graph", "eager")
    if not known or "clock_version" not in contract:
        assert way_of(some, link) is None
        found = harmless(differing("cores", "link", VISIBLE, "env:NCCL_VERSION", "stranger"), some, link)
        assert [each.field for each in found] == [VISIBLE, "env:NCCL_VERSION"], "what touches nothing at all"


def test_the_host_touches_graphs_while_it_was_not_kept_ahead() -> None:
    old = metric("kernel", {**GRAPH, "clock_version": AHEAD_SINCE - 1})
    assert not free("cores", old)
    assert CLOCKS["cuda_event"] >= AHEAD_SINCE


HOST_FIELDS = (
    "cores",
    "cpu_quota_cores",
    "governor",
    "transparent_hugepages",
    "kernel",
    "python",
    "env:OMP_NUM_THREADS",
)


@pytest.mark.parametrize("name", HOST_FIELDS)
def test_the_host_touches_what_it_launches_times_or_serves_and_no_graph(name: str) -> None:
    assert [free(name, some) for some in METRICS] == [True, False, True, False, False, False, False]


@pytest.mark.parametrize("name", ["cpu", "cpu_family_model_stepping", "numa_nodes"])
def test_the_processor_touches_what_passes_through_it_over_pcie(name: str) -> None:
    assert free(name, KERNEL, "PCIe")
    assert free(name, COLLECTIVE, "NVLink")
    assert not free(name, COLLECTIVE, "PCIe")
    assert not free(name, metric("serving"))


def test_the_host_carries_the_data_of_collectives_over_a_network() -> None:
    assert not free("cores", COLLECTIVE, "network")
    assert not free("env:OMP_NUM_THREADS", COLLECTIVE, "network")
    assert free("cores", KERNEL, "network")
    nvlink: Mapping[str, Json] = {"link": "NVLink"}
    assert link_of(nvlink, nvlink) == "NVLink"
    assert link_of(nvlink, {}) == link_of(nvlink, {"link": "PCIe-SYS"}) == "PCIe"
    assert link_of(nvlink, {**nvlink, "nodes": 2}) == "network"


@pytest.mark.parametrize(
    "name", ["link", "gpus[1].nvlinks_active", "driver_p2p", "nodes", "nccl", "nccl_sha256", "env:NCCL_PROTO"]
)
def test_links_and_nccl_touch_what_several_cards_do_together(name: str) -> None:
    assert [free(name, some) for some in METRICS] == [True, True, False, False, False, False, False]
    assert not free(name, metric("kernel", {**GRAPH, "world_size": 2}))
    assert [free(name, some, "none") for some in METRICS if some.kind in ("serving", "quality")] == [True, True]


def test_one_card_has_no_link() -> None:
    one: Mapping[str, Json] = {"gpus": [{"name": "H200", "nvlinks_active": 18}], "link": None}
    alone: Mapping[str, Json] = {"gpus": [{"name": "H200", "nvlinks_active": 0}], "link": None}
    assert link_of(one, alone) == "none"
    assert link_of(one, {"gpus": [{}, {}], "link": "NVLink"}) == "PCIe"
    assert link_of(one, {"gpus": []}) == link_of({}, {}) == "PCIe"
    assert link_of(one, {**one, "nodes": 2}) == "network"


@pytest.mark.parametrize(
    ("said", "link"),
    [
        ({}, "PCIe"),
        ({"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}, "none"),
        ({"tensor_parallel": 1}, "PCIe"),
        ({"tensor_parallel": 2, "pipeline_parallel": 1, "data_parallel": 1}, "PCIe"),
    ],
)
def test_one_visible_card_is_all_that_an_attached_server_has_only_where_it_says_so(
    said: Mapping[str, Json], link: Link
) -> None:
    """Its ranks may be on cards that pytest does not see: NCCL and links can touch it, unless it says that it has one
    rank.
    """
    one: Mapping[str, Json] = {"gpus": [{"name": "H200"}], "link": None}
    launched = Provenance(one, {"vllm": "0.26.0"}, {})
    attached = Provenance(one, {"vllm": "0.26.0", **settings_said(said)}, {})
    assert slowest_link(launched, launched) == "none"
    assert slowest_link(attached, attached) == slowest_link(launched, attached) == link
    assert free("nccl", metric("serving"), link) is (link == "none")


@pytest.mark.parametrize("name", ["cores", "env:VLLM_USE_V2_MODEL_RUNNER", "vllm", "flag:max-num-seqs", "model"])
def test_a_server_on_one_card_is_touched_by_its_host_and_by_what_it_is_told(name: str) -> None:
    served = [some for some in METRICS if some.kind in ("serving", "quality")]
    assert [free(name, some, "none") for some in served] == [False, False]


@pytest.mark.parametrize(
    "name", ["gpus[0].power_limit_w", "gpus[1].uuid", "driver", "vbios[0]", "torch", "vllm", "cuda_cublas"]
)
def test_the_card_its_driver_and_the_kernels_touch_everything(name: str) -> None:
    assert not any(free(name, some) for some in METRICS)


@pytest.mark.parametrize("some", METRICS)
def test_a_label_of_the_container_touches_nothing(some: Metric) -> None:
    assert free("env:NCCL_VERSION", some)
    assert not free("env:NCCL_VERSIONS", metric("collective"))


@pytest.mark.parametrize("some", METRICS)
@pytest.mark.parametrize(
    "cards", ["gpus[1].name", "gpus[0].pci_device_id", "gpus", "machine_class", "gpus[2].memory_gib"]
)
def test_which_cards_are_visible_is_harmless_only_where_as_many_of_the_same_kind_are(some: Metric, cards: str) -> None:
    assert free(VISIBLE, some)
    assert VISIBLE not in [each.field for each in harmless(differing(VISIBLE, cards), some, "PCIe")]
    assert VISIBLE in [each.field for each in harmless(differing(VISIBLE, "gpus[0].power_limit_w"), some, "PCIe")]


def test_what_touches_is_never_wider_than_the_table() -> None:
    for line in REACHES:
        assert line.touches <= EVERY
    assert REPLAYED | HOST == EVERY
    assert not touches("cores", "kernel, replayed")


# --- where it decides


def as_of_today(file: Baseline) -> Baseline:
    """A shipped file with the clock's version of today: what it will be when it is recorded again."""
    metrics = {}
    for name, stored in file.metrics.items():
        clock = str(stored.metric.contract["clock"])
        current = replace(stored.metric, contract={**stored.metric.contract, **clock_fields(clock)})
        metrics[name] = replace(stored, metric=current)

    return replace(file, metrics=metrics)


FILES = [path for path in sorted(SHIPPED.glob("*/*.json")) if "published" not in path.name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name[:4]}")
def test_shipped_files_gate_graphs_on_a_host_with_other_cores_and_keep_the_rest_confounded(path: Path) -> None:
    file = as_of_today(load(path))
    stored = file.provenance
    host = replace(
        stored,
        machine={**stored.machine, "cores": 7},
        stack={**stored.stack, VISIBLE: "4,5,6,7", "env:NCCL_VERSION": "2.29.1-1"},
    )
    for name, known in file.metrics.items():
        selection = contrast(file, host, (), name)
        found = {each.field for each in selection.undeclared}
        if known.metric.contract.get("mode") == "graph":
            assert (found, selection.fit) == (set(), "same"), name
            assert {each.field for each in selection.harmless} == {"cores", VISIBLE, "env:NCCL_VERSION"}
        else:
            assert (found, selection.fit) == ({"cores"}, "confounded"), name


STACK: Mapping[str, Json] = {"driver": "580", "nccl": "2.28.9", VISIBLE: "0"}
CARD: list[Json] = [{"name": "H200", "nvlinks_active": 18}]
BASE = Provenance({"gpus": CARD, "link": None, "cores": 64}, STACK, {})
ELSEWHERE = Provenance({"gpus": CARD, "link": None, "cores": 32}, {**STACK, VISIBLE: "3"}, {})
GEMM = Metric("gemm", "s", "kernel", 0.02, GRAPH)
LAUNCHED = Metric("gemm_eager", "s", "kernel", 0.02, EAGER)


def file(provenance: Provenance = BASE, number: int = 1, day: int = 1) -> Baseline:
    metrics = {some.name: StoredMetric(some, (session(day),)) for some in (GEMM, LAUNCHED)}
    return Baseline(Path(f"{number:04d}_x.json"), "NVIDIA-H200-x1", "x", provenance, metrics)


def measured(some: Metric) -> Measurement:
    return Measurement(some, session(1).replicates, "gang")


def test_a_run_passes_beside_what_cannot_touch_it_and_says_so() -> None:
    judgement = judge(measured(GEMM), contrast(file(), ELSEWHERE, (), GEMM.name))
    assert judgement.verdict is Verdict.PASS
    assert (judgement.differences, judgement.changed) == ((), ())
    said = explain(judgement)
    assert "differs and cannot touch it: cores: 64 -> 32 (the host is ahead of the device" in said
    assert f"differs and cannot touch it: {VISIBLE}: 0 -> 3 (which cards" in said

    launched = judge(measured(LAUNCHED), contrast(file(), ELSEWHERE, (), LAUNCHED.name))
    assert (launched.verdict, launched.reasons) == (Verdict.CONFOUNDED, ("cores: 64 -> 32",))
    assert [each.field for each in launched.harmless] == [VISIBLE]


def test_the_table_of_a_run_says_each_once_for_all_metrics() -> None:
    judgement = judge(measured(GEMM), contrast(file(), ELSEWHERE, (), GEMM.name))
    results = [
        Result("t.py::test", replace(judgement, metric=replace(GEMM, name=f"gemm{number}"))) for number in range(9)
    ]
    lines = terminal.untouched(results)
    assert len(lines) == 2
    assert lines[0].startswith("differs: cores: 64 -> 32: cannot touch gemm0, gemm1, gemm2, gemm3, gemm4 and 4 more (")


def test_a_declared_change_counts_even_where_it_cannot_touch() -> None:
    """Or an upgrade of the OS kernel would be gated against the newest file, which may be of after the upgrade."""
    after = replace(BASE, stack={**STACK, "kernel": "7"})
    old, new = replace(BASE, stack={**STACK, "kernel": "6"}), after
    chosen = choose(Path("x"), [file(old), file(new, 2, day=2)], after, ["kernel"], GEMM.name)
    assert (chosen.fit, chosen.baseline and chosen.baseline.path.name) == ("changed", "0001_x.json")
    assert choose(Path("x"), [file(old), file(new, 2, day=2)], after, [], GEMM.name).fit == "same"


def test_the_newest_file_gates_whatever_cannot_touch_the_metric() -> None:
    files = [file(ELSEWHERE), file(BASE, 2, day=2)]
    kernel = choose(Path("x"), files, ELSEWHERE, (), GEMM.name)
    launched = choose(Path("x"), files, ELSEWHERE, (), LAUNCHED.name)
    assert [each.baseline and each.baseline.path.name for each in (kernel, launched)] == ["0002_x.json", "0001_x.json"]


@pytest.mark.parametrize("seen", ["0", "1", "3"])
def test_which_card_is_visible_decides_neither_the_file_nor_the_reason_where_it_cannot_touch(seen: str) -> None:
    """Of a file without the metric it was held to touch: the reasons then hung on the card that recorded that file."""
    run = replace(BASE, stack={**STACK, VISIBLE: seen})
    other = file(replace(BASE, stack={**STACK, VISIBLE: "1"}), 2, day=2)
    lacks = replace(other, metrics={LAUNCHED.name: other.metrics[LAUNCHED.name]})
    chosen = choose(Path("x"), [file(), lacks], run, (), GEMM.name)
    assert (chosen.baseline and chosen.baseline.path.name, chosen.fit) == ("0001_x.json", "same")
    assert chosen.choice == ("the only one of this very stack", "newer, without this metric: 0002_x.json")

    # The older file differs, though not for this metric: one of this very stack that lacks it does not take its place.
    kernels = [replace(run, stack={**run.stack, "kernel": version}) for version in ("6", "7")]
    newer = replace(lacks, provenance=replace(kernels[1], stack={**kernels[1].stack, VISIBLE: "1"}))
    chosen = choose(Path("x"), [file(kernels[0]), newer], kernels[1], (), GEMM.name)
    assert (chosen.baseline and chosen.baseline.path.name, chosen.fit) == ("0001_x.json", "same")


def test_two_stacks_are_confounded_only_by_what_can_touch_the_metric() -> None:
    python = Difference("python", "3.12.3", "3.12.4", declarable=True)
    nccl = Difference("nccl", "2.28.3", "2.28.9", declarable=True)
    differ = Contrast((nccl, python), (python,))
    kernel = judge_pairs(Side(measured(GEMM)), Side(measured(GEMM)), differ, 1)
    assert (kernel.verdict, kernel.harmless, kernel.changed) == (Verdict.PASS, (python,), (str(nccl),))
    launched = judge_pairs(Side(measured(LAUNCHED)), Side(measured(LAUNCHED)), differ, 1)
    assert (launched.verdict, launched.undeclared) == (Verdict.CONFOUNDED, (python,))


def test_compare_confounds_metric_by_metric_and_says_how_many_a_difference_can_touch() -> None:
    pair = compare_baselines(file(), file(ELSEWHERE, 2, day=2), Terms())
    assert [str(judgement.verdict) for judgement in pair.judgements] == ["PASS", "CONFOUNDED"]
    assert pair.judgements[1].reasons == ("cores: 64 -> 32",)
    said = text(Compared((pair,), ()), Terminal())
    assert "cores: 64 -> 32 (neither declared nor allowed; can touch 1 of 2 metrics: the host is ahead" in said
    assert f"{VISIBLE}: 0 -> 3 (neither declared nor allowed; can touch none of the metrics: which cards" in said
    allowed = compare_baselines(file(), file(ELSEWHERE, 2, day=2), Terms(allowed=frozenset({"cores"})))
    assert [str(judgement.verdict) for judgement in allowed.judgements] == ["PASS", "PASS"]
    assert allowed.allowed == {"cores"}


@dataclass(frozen=True)
class OneClass:
    """The baselines of one machine class; see session.forecast.StoredBaselines."""

    store: Store
    classes: tuple[str, ...] = (H200,)
    records: bool = False

    def stored(self) -> list[Baseline]:
        return self.store.load_all(H200)

    def select(self, metric: str, provenance: Provenance) -> Selection:
        return self.store.select(H200, provenance, frozenset(), metric)


def test_what_confounds_already_is_forecast_metric_by_metric(tmp_path: Path) -> None:
    put(tmp_path, replace(file(), machine_class=H200))
    said = list(forecast(Planned({GEMM.name: 1, LAUNCHED.name: 1}), OneClass(Store(tmp_path)), lambda _: ELSEWHERE))
    assert f"1 gated by {H200}/0001_x.json: the only one of this very stack" in said
    assert f"1 CONFOUNDED already by {H200}/0001_x.json: cores: 64 -> 32" in said
