"""Baselines, sessions and runs of one stack on two H200s, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pytest_decodegate.baseline.benchmark_json import dumps
from pytest_decodegate.baseline.schema import Baseline, Session, StoredMetric
from pytest_decodegate.machine.provenance import Provenance
from pytest_decodegate.metric import Json, Measurement, Metric, Replicate

H200 = "NVIDIA-H200-x2-NVLink"
FOLDER = Path("baselines") / H200
GEMM = Metric("gemm", "s", "kernel", 0.02, {"clock": "cuda_event"})
QUIET = (1.0, 1.001, 0.999, 1.0015, 0.9985)
STACK: Mapping[str, Json] = {"driver": "580", "nccl": "2.28.3", "torch": "2.11"}
SLOTS = ("0000:17:00.0", "0000:65:00.0")


def telemetry(*uuids: str) -> dict[str, Json]:
    return {"gpus": [{"bus_id": slot, "uuid": uuid} for slot, uuid in zip(SLOTS, uuids, strict=False)]}


def run_of(*uuids: str, **stack: Json) -> Provenance:
    """Machine and stack of a run: STACK with changes, on these cards."""
    return Provenance({"gpus": ["H200", "H200"], "power_limit_w": 700}, {**STACK, **stack}, telemetry(*uuids))


def replicates(value: float) -> tuple[Replicate, ...]:
    return tuple(Replicate((value * factor, value * factor * 1.0001)) for factor in QUIET)


def session(day: int, value: float = 1e-5, name: str | None = None, uuids: Sequence[str] = ()) -> Session:
    recorded = datetime(2026, 1, 1, 8, tzinfo=UTC) + timedelta(days=day)
    return Session(name or f"s{day}", recorded.isoformat(), "gang", replicates(value), telemetry(*uuids))


def baseline(number: int, *sessions: Session, metric: Metric = GEMM, root: Path = FOLDER, **stack: Json) -> Baseline:
    """The file of STACK with changes, with sessions of one metric."""
    provenance = replace(run_of(**stack), telemetry={})
    path = root / f"{number:04d}_stack.json"
    return Baseline(path, H200, "stack", provenance, {metric.name: StoredMetric(metric, sessions)})


def measured(value: float = 1e-5, metric: Metric = GEMM) -> Measurement:
    return Measurement(metric, replicates(value), "gang")


NCCL = run_of(nccl="2.28.9")


COLLECTIVE = replace(GEMM, name="allreduce[n=14336]", kind="collective", tolerance=0.05)


def put(root: Path, one: Baseline) -> Path:
    path = root / H200 / one.path.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dumps(replace(one, path=path)))
    return path


def both(*sessions: Session) -> Baseline:
    """A file with two metrics."""
    one = baseline(1, *sessions)
    metrics = {metric.name: StoredMetric(metric, sessions) for metric in (GEMM, COLLECTIVE)}
    return replace(one, metrics=metrics)
