"""`dumps` writes a baseline as a file that pytest-benchmark and the readers of its JSON understand.

The promise: `stats` is in seconds per unit, so that a slowdown is a slowdown for every reader, and all fields are
pytest-benchmark's own, computed by its own class. Native units and processes lie in `extra_info`, which the gate reads.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import BadInput
from ..metric import Json, Replicate
from .schema import RECORDER_FIELDS, SCHEMA, Baseline, Session, StoredMetric

_EPOCH = "1970-01-01T00:00:00+00:00"


def dumps(baseline: Baseline) -> bytes:
    """The file of `baseline`, strict JSON in UTF-8; raises BadInput where a fact or setting is no JSON value.

    `commit_info` describes the repository around the current directory, or says "unversioned".
    """
    import pytest_benchmark
    from pytest_benchmark.utils import get_commit_info

    document = {
        "machine_info": _machine_info(baseline),
        "commit_info": get_commit_info(),
        "benchmarks": [entry(stored) for stored in baseline.metrics.values()],
        "datetime": (baseline.newest.recorded if baseline.newest else "") or _EPOCH,
        "version": pytest_benchmark.__version__,
        "decodegate": {
            "schema": SCHEMA,
            "machine_class": baseline.machine_class,
            "label": baseline.label,
            "provenance": baseline.provenance.to_json(),
            "log": [asdict(entry) for entry in baseline.log],
            **({"published": baseline.published} if baseline.published else {}),
        },
    }
    try:
        return (json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise BadInput(f"{baseline.path}: something to record is no JSON value: {error}") from error


def _machine_info(baseline: Baseline) -> Mapping[str, Json]:
    """What stays the same from run to run: readers compare all of it, and warn at every difference."""
    machine, stack = baseline.provenance.machine, baseline.provenance.stack
    here: Mapping[str, Json] = {name: getattr(platform, name)() for name in RECORDER_FIELDS}
    measured = {"python_version": stack["python"]} if "python" in stack else {}
    return {
        "node": baseline.machine_class,
        **here,
        # The ranks may run under another Python than pytest, and a file may be edited under a third one.
        **measured,
        **baseline.recorder,
        "cpu": {"brand_raw": machine.get("cpu", "unknown")},
        "gpus": machine.get("gpus", []),
    }


def entry(stored: StoredMetric) -> dict[str, Any]:
    """One metric as pytest-benchmark's JSON has it, our own fields under `extra_info`."""
    metric = stored.metric
    return {
        "group": metric.kind,
        "name": metric.name,
        # Readers join files by fullname: a node id would change with every rename of a test.
        "fullname": metric.name,
        "params": None,
        "param": None,
        "extra_info": {
            "unit": metric.unit,
            "better": metric.better,
            "kind": metric.kind,
            "tolerance": metric.tolerance,
            "contract": dict(metric.contract),
            "accepted": stored.accepted,
            "sessions": [_session(session) for session in stored.sessions],
        },
        "options": {
            "disable_gc": False,
            "timer": str(metric.contract.get("clock", "unknown")),
            "min_rounds": 1,
            "max_time": 0.0,
            "min_time": 0.0,
            "precision": None,
            "confidence": None,
            "warmup": False,
        },
        "stats": _stats(stored.data),
    }


def _session(session: Session) -> Mapping[str, Json]:
    return {
        "id": session.id,
        "recorded": session.recorded,
        "level": session.level,
        "telemetry": dict(session.telemetry),
        **_measured(session),
    }


def _measured(session: Session) -> Mapping[str, Json]:
    """A published figure stands alone: nothing may look as if samples were behind it."""
    if session.point is not None:
        return {"point": session.point}

    return {"replicates": [_replicate(replicate) for replicate in session.replicates]}


def _replicate(replicate: Replicate) -> Json:
    return {"value": replicate.value, "samples": list(replicate.samples), "facts": dict(replicate.facts)}


def _stats(data: list[float]) -> Mapping[str, object]:
    from pytest_benchmark.stats import Stats

    stats = Stats()
    for seconds in data:
        stats.update(seconds)

    return {**stats.as_dict(), "data": data, "iterations": 1}
