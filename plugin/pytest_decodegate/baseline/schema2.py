"""Files of schema 2, each with all its samples: read once more, by `decodegate baselines rewrite` alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..machine.provenance import Provenance
from ..metric import Metric, Replicate
from ..printable import printable_values
from .schema import RECORDER_FIELDS, REWRITTEN, Baseline, LogEntry, Session, StoredMetric


def parse(path: Path, content: bytes) -> Baseline:
    """The baseline in `content`; BadInput where it is of another version, or lacks what every such file has."""
    try:
        document = printable_values(json.loads(content.decode()))
        if document["decodegate"]["schema"] != REWRITTEN:
            raise BadInput(f"{path}: of schema {document['decodegate']['schema']!r}, and only {REWRITTEN} is rewritten")

        return _baseline(path, document)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: no baseline of schema {REWRITTEN}: {error!r}; restore it, or record again") from error


def _baseline(path: Path, document: Mapping[str, Any]) -> Baseline:
    fields, info = document["decodegate"], document["machine_info"]
    return Baseline(
        path=path,
        machine_class=fields["machine_class"],
        label=fields["label"],
        provenance=Provenance.from_json(fields["provenance"]),
        metrics={entry["name"]: _stored(entry["name"], entry["extra_info"]) for entry in document["benchmarks"]},
        log=tuple(LogEntry(**line) for line in fields["log"]),
        published=fields.get("published", ""),
        recorder={name: str(info[name]) for name in RECORDER_FIELDS if name in info},
    )


def _stored(name: str, extra: Mapping[str, Any]) -> StoredMetric:
    metric = Metric(name, extra["unit"], extra["kind"], extra["tolerance"], extra["contract"])
    return StoredMetric(metric, tuple(map(_session, extra["sessions"])), extra["accepted"])


def _session(entry: Mapping[str, Any]) -> Session:
    """A session of an old file; its commit was that of the last write, so nobody knows it."""
    replicates = (Replicate(tuple(each["samples"]), each["facts"]) for each in entry.get("replicates", ()))
    known = (entry["id"], entry["recorded"], entry["level"], tuple(replicates), entry["telemetry"])
    return Session(*known, point=entry.get("point"))
