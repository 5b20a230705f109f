"""What each field of a provenance can touch: one table, kept as data, with a reason for each line.

Only what can touch a metric confounds it; any other difference is a note. A field or a way of measuring that the table
does not know is on the safe side: it touches everything, and everything that touches anything touches it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ..metric import Metric
from .provenance import Difference, Provenance, differences

Way: TypeAlias = Literal[
    "kernel, replayed",
    "collective, replayed over NVLink",
    "collective, replayed over PCIe",
    "kernel, launched",
    "collective, launched",
    "stand-in",
    "serving",
    "serving, one card",
    "answers",
    "answers, one card",
]
"""How a metric is measured, by its kind, clock and mode, and for servers by whether their ranks have a link.

"replayed": of a graph, with the host ahead of the device, so that the device alone sets the time. "launched": call by
call by the host, which is in the time. "stand-in": on the cores of a host without a GPU.
"""

Link: TypeAlias = Literal["NVLink", "PCIe", "network", "none"]
"""What the cards of several ranks talk over; with several nodes it is a network, whatever joins the cards of one. One
card has none."""

REPLAYED: Final[frozenset[Way]] = frozenset(
    ("kernel, replayed", "collective, replayed over NVLink", "collective, replayed over PCIe")
)
SERVED: Final[frozenset[Way]] = frozenset(("serving", "serving, one card", "answers", "answers, one card"))
HOST: Final[frozenset[Way]] = frozenset(("kernel, launched", "collective, launched", "stand-in", *SERVED))
EVERY: Final[frozenset[Way]] = REPLAYED | HOST
SEVERAL_CARDS: Final[frozenset[Way]] = EVERY - {
    "kernel, replayed",
    "kernel, launched",
    "serving, one card",
    "answers, one card",
}
NOTHING: Final[frozenset[Way]] = frozenset()

AHEAD_SINCE: Final = 2
"""Version of the clock "cuda_event" since which the host is kept ahead of the device in graphs: before it, a slow host
could be late, and was in the time."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The ways of measuring that some fields of a provenance can touch, and why no others.

    pattern: a regular expression that matches the fields whole. reason: why they touch nothing else, or everything.
    """

    pattern: str
    touches: frozenset[Way]
    reason: str

    def covers(self, name: str) -> bool:
        """Whether this line is about the field `name`."""
        return re.fullmatch(self.pattern, name) is not None


VISIBLE: Final = "env:CUDA_VISIBLE_DEVICES"

REACHES: Final[tuple[Reach, ...]] = (
    # The cards and how they are connected.
    Reach(
        r"gpus\[\d+\]\.(nvlinks_active|pcie_gen_max|pcie_width_max)|link|nodes|driver_p2p",
        SEVERAL_CARDS,
        "what one card does alone stays in that card's memory and goes over no link",
    ),
    Reach(r"gpus(\[\d+\].*)?|machine_class", EVERY, "the card itself, or how it is set, sets the time"),
    Reach(
        VISIBLE,
        NOTHING,
        "which cards are used is no matter where as many of the same kind are, and these are compared themselves",
    ),
    Reach(r"vbios(\[\d+\])?|driver", EVERY, "they set clocks and power, and the driver compiles and launches kernels"),
    # The host.
    Reach(
        r"cores|cpu_quota_cores|governor|transparent_hugepages|kernel|python",
        HOST,
        "the host is ahead of the device, which replays a graph by itself",
    ),
    Reach(
        r"cpu|cpu_family_model_stepping|numa_nodes",
        frozenset((*HOST, "collective, replayed over PCIe")),
        "the host is ahead of the device; only what goes over PCIe passes through the processor's own fabric",
    ),
    # The software.
    Reach(
        r"nccl|nccl_(system_conf_|conf_|graph_file_|topo_file_|of_vllm_)?sha256|nccl_plugins(\..*)?",
        SEVERAL_CARDS,
        "what one card does alone calls no NCCL",
    ),
    Reach(
        r"cuda(_cublas)?|torch(_triton)?|vllm(_flashinfer)?",
        EVERY,
        "they hold the kernels, choose them, and set up what they work on",
    ),
    Reach(r"sglang|tensorrt|llamacpp|model|flag:.*", SERVED, "of a server alone, which the ranks are not"),
    # The environment.
    Reach(
        r"env:(NCCL_VERSION|VLLM_(BUILD_COMMIT|BUILD_PIPELINE|BUILD_URL|IMAGE_TAG))",
        NOTHING,
        "a label of the container that names a package; what was loaded is compared itself",
    ),
    Reach(
        r"env:(OMP_.*|KMP_.*|MKL_NUM_THREADS|VLLM_LOGGING_LEVEL)",
        HOST,
        "threads and logs of the host, which is ahead of the device",
    ),
    Reach(r"env:(TORCH_)?NCCL_.*", SEVERAL_CARDS, "what one card does alone calls no NCCL"),
    Reach(r"env:VLLM_ALLREDUCE_.*", SEVERAL_CARDS, "what one card does alone is summed over no ranks"),
    Reach(
        r"env:VLLM_MOE_ROUTING_SIMULATION_STRATEGY",
        SERVED,
        "layers of a server draw experts by it; the experts of a kernel's metric are its own data",
    ),
    Reach(
        r"env:(CUDA_(DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|LAUNCH_BLOCKING|MODULE_LOADING|FORCE_PTX_JIT)"
        r"|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|PYTORCH_(CUDA_)?ALLOC_CONF"
        r"|LD_PRELOAD|(VLLM|FLASHINFER|TORCHINDUCTOR)_.*)",
        EVERY,
        "it chooses kernels, cards or libraries, or how these are launched and where their memory lies",
    ),
)
"""The first line that covers a field holds; a field that none covers touches EVERY way."""

_CARDS: Final = re.compile(r"machine_class|gpus(\[\d+\]\.(name|pci_device_id|memory_gib|mig))?")


_SIZES: Final = ("flag:tensor-parallel-size", "flag:pipeline-parallel-size", "flag:data-parallel-size")
"""The product of these is how many cards a server uses."""


def reach(name: str) -> Reach | None:
    """The line about the field `name`; None where the table does not know it, so that it touches everything."""
    return next((line for line in REACHES if line.covers(name)), None)


def slowest_link(*sides: Provenance) -> Link:
    """The slowest of what cards talk over on the two sides; PCIe if it is unknown.

    An attached server may run on more cards than are seen here, so that one is known to be all only where it says so.
    """
    machines = [side.machine for side in sides]
    if any("nodes" in machine for machine in machines):
        return "network"
    if all(isinstance(gpus := machine.get("gpus"), list) and len(gpus) == 1 for machine in machines):
        return "none" if all(map(_has_one_rank, sides)) else "PCIe"

    return "NVLink" if all(machine.get("link") == "NVLink" for machine in machines) else "PCIe"


def _has_one_rank(side: Provenance) -> bool:
    """Whether no server is known to have several ranks, nor may have: a size that an attached one does not say is null.

    Without such a field it is no attached server, and what it runs on is what the machine is.
    """
    return all(str(side.stack.get(size, 1)) == "1" for size in _SIZES)


def way_of(metric: Metric, link: Link) -> Way | None:
    """How `metric` is measured; None where its kind and contract do not say it, so that everything touches it.

    Over a network the host's threads carry the data of collectives: all of it can touch them.
    """
    match metric.kind:
        case "cpu":
            return "stand-in"
        case "serving":
            return "serving, one card" if link == "none" else "serving"
        case "quality":
            return "answers, one card" if link == "none" else "answers"
        case "kernel" | "collective" as kind:
            return _way_of_ranks(kind, metric, link)


def _way_of_ranks(kind: Literal["kernel", "collective"], metric: Metric, link: Link) -> Way | None:
    contract = metric.contract
    version = contract.get("clock_version")
    if contract.get("clock") != "cuda_event" or not isinstance(version, int):
        return None
    if kind == "kernel" and contract.get("world_size", 1) != 1:
        return None
    if contract.get("mode") == "eager":
        return "kernel, launched" if kind == "kernel" else "collective, launched"
    if contract.get("mode") != "graph" or version < AHEAD_SINCE:
        return None
    if kind == "kernel":
        return "kernel, replayed"

    over: Mapping[Link, Way | None] = {
        "NVLink": "collective, replayed over NVLink",
        "PCIe": "collective, replayed over PCIe",
        "network": None,
        "none": None,  # a collective of one card: nobody knows what that is
    }
    return over[link]


def harmless(found: Sequence[Difference], metric: Metric, link: Link) -> tuple[Difference, ...]:
    """The differences of `found`, all that differs, which cannot touch `metric`.

    link: from slowest_link. Which cards are visible is harmless only while their number and kind are the same.
    """
    way = way_of(metric, link)
    free = [each for each in found if not touches(each.field, way)]
    if any(_CARDS.fullmatch(each.field) for each in found):
        free = [each for each in free if each.field != VISIBLE]

    return tuple(free)


def without_harmless(
    found: Sequence[Difference], confounding: Sequence[Difference], metric: Metric, link: Link
) -> tuple[tuple[Difference, ...], tuple[Difference, ...], tuple[Difference, ...]]:
    """`found` and the part of it that is `confounding`, without what of that cannot touch `metric`; and what cannot."""
    untouching = harmless(found, metric, link)
    free = tuple(each for each in confounding if each in untouching)
    kept, left = (tuple(each for each in some if each not in free) for some in (found, confounding))
    return kept, left, free


def touches(name: str, way: Way | None) -> bool:
    """Whether the field `name` can touch what is measured in this way; None is a way that is not known."""
    line = reach(name)
    if line is None or way is None:
        return line is None or bool(line.touches)

    return way in line.touches


def reasons(found: Collection[Difference]) -> dict[str, list[Difference]]:
    """Differences that touch nothing here by the reason that the table gives."""
    by_reason: dict[str, list[Difference]] = {}
    for difference in found:
        if line := reach(difference.field):
            by_reason.setdefault(line.reason, []).append(difference)

    return by_reason


def apart(base: Provenance, new: Provenance, metric: Metric) -> tuple[Difference, ...]:
    """The differences of two provenances that can touch `metric`; without any, recordings of it are of one stack."""
    found = differences(base, new)
    free = harmless(found, metric, slowest_link(base, new))
    return tuple(each for each in found if each not in free)
