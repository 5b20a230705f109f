"""The data of a measurement, checked once: the Metric, its Replicates, and both as a Measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .errors import BadInput

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Better = Literal["lower", "higher"]
Kind = Literal["kernel", "collective", "serving", "cpu", "quality"]
Level = Literal["process", "gang", "window", "server", "published"]

UNITS: Mapping[str, Better] = {"s": "lower", "tok/s": "higher", "B/s": "higher", "%": "higher"}
"""Units a metric may have, and which way is better in each."""

DEFAULT_TOLERANCE: Mapping[Kind, float] = {
    "kernel": 0.02,
    "collective": 0.05,
    "serving": 0.03,
    "cpu": 0.50,
    "quality": 0.02,
}
"""Tolerance band by kind of metric, as a fraction. "cpu" is the stand-in without a GPU, on shared cores; "quality" is
no time at all: how far answers agree, judged by the rule of gate.quality."""

FOLLOWS_STACK = ("kernels", "backend", "nccl_algorithm", "nccl_protocol", "nccl_channels")
"""Fields of a contract that say what really ran. An upgrade may change them on purpose: then they are named and the
time decides. With nothing changed, a different kernel is another measurement."""

BESIDE_TPOT = ("ttft", "itl_p50", "itl_p99", "output_rate")
"""What stands for "tpot" in the names of metrics that come from the same windows: see measure.beside_tpot."""

_TPOT = "tpot"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.=,/\[\]-]*")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


def literal_brackets(pattern: str) -> str:
    """A shell pattern of metric names as fnmatch wants it: a bracket in a name is itself, not a set of characters."""
    return pattern.replace("[", "[[]")


def beside_tpot(tpot: str, stem: str) -> str:
    """The name of `stem`, one of BESIDE_TPOT, in the windows of the metric `tpot`: "tpot[c=8]" -> "ttft[c=8]"."""
    return tpot.replace(_TPOT, stem, 1) if _TPOT in tpot else f"{stem}_of_{tpot}"


def middle(ordered: Sequence[float]) -> float:
    """Median of values that are in order already; statistics.median would sort them again."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def parse_tolerance(text: str, where: str) -> float:
    """Read a band such as "3%" or "2.5 %" as a fraction; `where` names its source in the error."""
    match = _PERCENT.fullmatch(text.strip())
    value = float(match[1]) / 100 if match else 0.0
    if not 0 < value < 1:
        raise BadInput(f"{where}: tolerance {text!r} is not a percentage between 0 and 100; write for example '3%'")

    return value


@dataclass(frozen=True, slots=True)
class Metric:
    """One gated quantity.

    name: stable id that joins a run to its baseline, for example "marlin_moe[m=8]".
    unit: one of UNITS; values are in this unit, never scaled.
    kind: the noise class; metrics of one kind share their pooled variance and default band.
    tolerance: change for the worse that is accepted, as a fraction (0.02 is 2 %).
    contract: how the time was taken (clock, eager or graph, cold or warm, formula id); part of the identity.
    """

    name: str
    unit: str
    kind: Kind
    tolerance: float
    contract: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadInput(f"metric name {self.name!r}: use lower-case letters, digits and _ . = , / [ ] - only")
        if self.unit not in UNITS:
            raise BadInput(f"metric {self.name!r}: unknown unit {self.unit!r}; known units are {', '.join(UNITS)}")
        if self.kind not in DEFAULT_TOLERANCE:
            raise BadInput(
                f"metric {self.name!r}: unknown kind {self.kind!r}; use one of {', '.join(DEFAULT_TOLERANCE)}"
            )
        if not 0 < self.tolerance < 1:
            raise BadInput(f"metric {self.name!r}: tolerance {self.tolerance!r} is not a fraction between 0 and 1")

    @classmethod
    def of(cls, name: str, kind: Kind, *, unit: str = "s", tolerance: float | None = None) -> Metric:
        """A metric with its kind's default band unless `tolerance` is given; the contract comes with the workload."""
        band = DEFAULT_TOLERANCE.get(kind, 0.0) if tolerance is None else tolerance
        return cls(name, unit, kind, band)

    @property
    def better(self) -> Better:
        """Which way is better: "lower" for times, "higher" for rates."""
        return UNITS[self.unit]

    @property
    def identity(self) -> dict[str, Json]:
        """The fields that must stay the same under one name: unit, kind and every field of the contract, flat."""
        contract = {f"contract.{name}": value for name, value in self.contract.items()}
        return {"unit": self.unit, "kind": self.kind, **contract}

    def change(self, worse: float) -> float:
        """The change of the value, as a fraction, that a log change `worse` for the worse is: rates fall then."""
        return math.expm1(worse if self.better == "lower" else -worse)

    def seconds(self, value: float) -> float:
        """`value` as seconds per unit, lower is better: what pytest-benchmark and its readers expect."""
        return value if self.better == "lower" else 1 / value


@dataclass(frozen=True, slots=True)
class Replicate:
    """Samples of one fresh process (or gang, or server window), in the metric's unit and in order.

    value: the process value, the median of the samples. samples: empty of a stored one, whose file keeps the value.
    """

    samples: tuple[float, ...]
    facts: Mapping[str, Json] = field(default_factory=dict)
    value: float = field(init=False)

    def __post_init__(self) -> None:
        if not self.samples:
            raise BadInput("a replicate without samples measured nothing")
        ordered = sorted(self.samples)
        if not (ordered[0] > 0 and math.isfinite(sum(ordered))):
            self._refuse_samples()

        object.__setattr__(self, "value", middle(ordered))

    @classmethod
    def known(cls, samples: tuple[float, ...], facts: Mapping[str, Json], value: float) -> Replicate:
        """A replicate whose median `value` is known, and whose `samples` are checked or were not kept."""
        replicate = object.__new__(cls)
        object.__setattr__(replicate, "samples", samples)
        object.__setattr__(replicate, "facts", facts)
        object.__setattr__(replicate, "value", value)
        return replicate

    def _refuse_samples(self) -> None:
        for index, sample in enumerate(self.samples):
            if not (math.isfinite(sample) and sample > 0):
                raise BadInput(f"sample {index} is {sample!r}; samples are finite and above zero")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric measured in this run: its replicates, what a replicate was, and what else was seen."""

    metric: Metric
    replicates: tuple[Replicate, ...]
    level: Level
    facts: Mapping[str, Json] = field(default_factory=dict)

    @property
    def values(self) -> tuple[float, ...]:
        """Process values, one per replicate, in the metric's unit."""
        return tuple(replicate.value for replicate in self.replicates)
