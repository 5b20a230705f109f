"""The decode step as a sum: each kernel and collective as often as a step has it, at the time that its metric measured.

Counts are the model's (workloads.kimi). All times are of a rank with the dims of TP=8, whatever the number of ranks
that communicate, as the metrics are: `ranks` 1 is the rank-slice on one card, 8 the full host.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..workloads.kimi import KIMI_K25, Model
from .categories import Category

Branch = Literal["main", "routed", "shared"]
"""Routed and shared experts run beside each other on two streams: the longer of both counts. The rest is one chain."""

CONTEXT: Final = 1024
"""Tokens in the cache of a request, of the mla_decode that a step is made of, unless another is asked for."""


@dataclass(frozen=True, slots=True)
class Part:
    """One metric of the step, `count` times on each rank."""

    metric: str
    category: Category
    count: int
    branch: Branch = "main"


@dataclass(frozen=True, slots=True)
class Time:
    """What a metric measured: seconds of one call; error: its standard error, as a fraction of them."""

    seconds: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger: a part of the step at the time of its metric, or something that is given."""

    name: str
    category: Category
    count: float
    time: Time
    branch: Branch = "main"

    @property
    def seconds(self) -> float:
        """Of all its calls in a step."""
        return self.count * self.time.seconds


@dataclass(frozen=True, slots=True)
class Ledger:
    """The entries of a step, and the metrics that it would need and that nobody has measured."""

    entries: tuple[Entry, ...]
    missing: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The predicted step: the chain, and the longer of routed and shared experts."""
        return sum(entry.seconds for entry in self.counted)

    @property
    def error_s(self) -> float:
        """Standard error of `seconds`: metrics are measured apart, so that their errors add as squares."""
        return math.hypot(*(count * time.seconds * time.error for (_, time), count in self.calls.items()))

    @property
    def calls(self) -> Mapping[tuple[str, Time], float]:
        """Calls of what counts, by name and time: what one metric measured may stand in a step twice."""
        calls: defaultdict[tuple[str, Time], float] = defaultdict(float)
        for entry in self.counted:
            calls[entry.name, entry.time] += entry.count

        return calls

    @property
    def hidden(self) -> Branch | None:
        """The branch that the other one hides; None where there is but one."""
        routed, shared = (sum(each.seconds for each in self.entries if each.branch == branch) for branch in _BESIDE)
        if not (routed or shared):
            return None

        return "shared" if shared < routed else "routed"

    @property
    def counted(self) -> tuple[Entry, ...]:
        """The entries whose time is part of the step."""
        hidden = self.hidden
        return tuple(entry for entry in self.entries if entry.branch != hidden)

    def of(self, category: Category) -> float:
        """Seconds of one category that count."""
        return sum(entry.seconds for entry in self.counted if entry.category == category)

    def replaced(self, *names: str, by: Sequence[Entry] = ()) -> Ledger:
        """The ledger without the entries of those names, and with others instead."""
        return Ledger((*(entry for entry in self.entries if entry.name not in names), *by), self.missing)


_BESIDE: Final[tuple[Branch, Branch]] = ("routed", "shared")


def parts(ranks: int, tokens: int, context: int = CONTEXT, model: Model = KIMI_K25) -> tuple[Part, ...]:
    """The parts of a step of `tokens` tokens on one of `ranks` ranks; `context` tokens of cache a request."""
    return tuple(_parts(ranks, tokens, context, model))


def _parts(ranks: int, tokens: int, context: int, model: Model) -> Iterator[Part]:
    launches, projections = model.launches, model.shard(8).projections
    for op, (category, branch) in _OPS.items():
        count = launches[op] if op in launches else projections[op].per_step
        # The first norm has no residual to add, and is as long as the others.
        count += launches["rms_norm"] if op == "add_rms_norm" else 0
        yield Part(_METRICS.get(op, op) + f"[m={tokens}]", category, count, branch)

    yield Part(f"mla_decode[m={tokens},context={context}]", Category.ATTENTION, launches["mla_decode"])
    yield Part(f"marlin_moe[m={tokens}]", Category.MOE_GEMM, model.moe_layers, "routed")
    if ranks > 1:
        of_batch = "" if tokens == 1 else f"m={tokens},"
        allreduces = model.layer_allreduces + 1  # of the embedding
        yield Part(f"allreduce_pynccl_graph[{of_batch}world={ranks}]", Category.ALLREDUCE, allreduces)
        yield Part(f"logits_gather[m={tokens},world={ranks}]", Category.COLLECTIVES, 1)


_OPS: Final[Mapping[str, tuple[Category, Branch]]] = {
    "embedding": (Category.MEMORY, "main"),
    "add_rms_norm": (Category.NORM, "main"),
    "fused_qkv_a": (Category.GEMM, "main"),
    "q_a_norm": (Category.NORM, "main"),
    "kv_a_norm": (Category.NORM, "main"),
    "q_b": (Category.GEMM, "main"),
    "rope": (Category.NORM, "main"),
    "kv_write": (Category.ATTENTION, "main"),
    "w_uk": (Category.GEMM, "main"),
    "w_uv": (Category.GEMM, "main"),
    "o_proj": (Category.GEMM, "main"),
    "dense_gate_up": (Category.GEMM, "main"),
    "silu_mul_dense": (Category.NORM, "main"),
    "dense_down": (Category.GEMM, "main"),
    "router_gate": (Category.ROUTING, "main"),
    "topk": (Category.ROUTING, "routed"),
    "shared_gate_up": (Category.GEMM, "shared"),
    "silu_mul_shared": (Category.NORM, "shared"),
    "shared_down": (Category.GEMM, "shared"),
    "scaled_add": (Category.NORM, "main"),
    "lm_head": (Category.GEMM, "main"),
    "argmax": (Category.SAMPLING, "main"),
}
"""Metrics whose time a step has as often as the model launches them. marlin_moe holds align, activation and sum of the
routed experts; what it is made of is measured apart, and counted once."""

_INSIDE: Final[Mapping[str, Mapping[str, Category]]] = {
    "marlin_moe": {"moe_align": Category.ROUTING, "silu_mul_experts": Category.NORM, "moe_sum": Category.ROUTING}
}
"""Metrics of kernels that another metric holds besides those of its own category."""

_METRICS: Final[Mapping[str, str]] = {"silu_mul_dense": "silu_mul_shared"}
"""Measured under another name: the dense layer's activation is one launch of some 2 us, nine times as wide as the
shared expert's and as long."""


def ledger(needed: Sequence[Part], times: Mapping[str, Time]) -> Ledger:
    """The parts of a step at the times of their metrics; what `times` does not hold is missing."""
    found = [
        Entry(part.metric, part.category, part.count, times[part.metric], part.branch)
        for part in needed
        if part.metric in times
    ]
    lacking = dict.fromkeys(part.metric for part in needed if part.metric not in times)
    return Ledger(tuple(found), tuple(lacking))


def by_category(step: Ledger, times: Mapping[str, Time]) -> dict[Category, float]:
    """Seconds of all entries, hidden ones too, by category, as a profile counts them: kernel by kernel.

    A metric that is several kernels is divided by what `times` holds of those, and is whole where one is missing.
    """
    found = dict.fromkeys(Category, 0.0)
    for entry in step.entries:
        found[entry.category] += entry.seconds
        for category, seconds in _inside(entry, times):
            found[category] += seconds
            found[entry.category] -= seconds

    return found


def _inside(entry: Entry, times: Mapping[str, Time]) -> list[tuple[Category, float]]:
    """What an entry holds of other categories, in seconds of a step; nothing where `times` does not hold all of it."""
    family, bracket, size = entry.name.partition("[")
    ops = _INSIDE.get(family, {})
    known = [(category, times.get(f"{op}{bracket}{size}")) for op, category in ops.items()]
    found = [(category, entry.count * time.seconds) for category, time in known if time is not None]
    return found if len(found) == len(ops) else []


def weights(known: Ledger) -> dict[str, float]:
    """How much a change of each metric by one second changes the step; {} where something is missing in it.

    What the other branch hides weighs nothing: it may take longer without moving the step.
    """
    if known.missing:
        return {}

    found = dict.fromkeys((entry.name for entry in known.entries), 0.0)
    for entry in known.counted:
        found[entry.name] += entry.count

    return found
