"""Stored baselines for tests: quiet processes around given values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.condensed import condensed
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.baseline.seal import seal
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Level, Metric, Replicate

CLASS = "NVIDIA-H200-x2-NVLink"
MOE = Metric("marlin_moe[m=8]", "s", "kernel", 0.02, {"clock": "cuda_event", "shard": [7168, 256]})
RATE = Metric("output_rate[c=8]", "tok/s", "serving", 0.03, {"formula": "v1"})
GPUS: list[Json] = [{"name": "H200", "power_limit_w": 700}, {"name": "H200", "power_limit_w": 700}]
MACHINE: Mapping[str, Json] = {"gpus": GPUS, "link": "NVLink"}
STACK: Mapping[str, Json] = {"driver": "575.57", "nccl": "2.28.3", "env:NCCL_PROTO": "LL"}
QUIET = (1.0, 1.001, 0.999, 1.002, 0.998)
NOISY = (1.0, 1.05, 0.95, 1.02, 0.97)


_recordings = itertools.count()


def stored(
    metric: Metric, value: float, *, sessions: int = 1, factors: Sequence[float] = QUIET, level: Level = "gang"
) -> StoredMetric:
    """A recording of its own: no two have a session in common."""
    recording = next(_recordings)
    replicates = tuple(Replicate((value * factor, value * factor * 1.0001)) for factor in factors)
    recorded = (
        Session(f"s{n}.{recording}", f"2026-01-0{n}T00:00:00+00:00", level, replicates) for n in range(1, sessions + 1)
    )
    return StoredMetric(metric, tuple(recorded))


def baseline(
    *metrics: StoredMetric,
    path: str = "0001_base.json",
    machine_class: str = CLASS,
    machine: Mapping[str, Json] = MACHINE,
    stack: Mapping[str, Json] = STACK,
    published: str = "",
) -> Baseline:
    by_name = {one.metric.name: one for one in metrics}
    return Baseline(Path(path), machine_class, "vllm", Provenance(machine, stack, {}), by_name, published=published)


def kept(some: Baseline) -> Baseline:
    """`some` as it comes back from a file: values, statistics and summaries in a few digits."""
    return replace(some, metrics={name: condensed(one) for name, one in some.metrics.items()})


def sealed(document: Mapping[str, Any]) -> bytes:
    """The bytes of an edited file with the digest of what it holds now."""
    return seal(document)


def write(folder: Path, some: Baseline) -> Path:
    """Write it under its own name; dumps looks for a repository around the current directory."""
    path = folder / some.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(some))
    return path
