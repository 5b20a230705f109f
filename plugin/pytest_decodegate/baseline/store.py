"""The folder of baselines: one file per machine class and stack, chosen for a run, and never left half-written.

The promise: whatever happens while writing (a full disk, a kill, a second pytest), every file is the old one or the new
one, whole; a file that does not validate is reported and not touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import BadInput
from ..machine.provenance import Difference, Provenance, differences, undeclared
from ..metric import Measurement, Metric
from .benchmark_json import dumps
from .reader import load, parse
from .schema import Baseline, Session, StoredMetric

_FILE_NAME = re.compile(r"(\d{4,})_.*\.json")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+=]+")


@dataclass(frozen=True, slots=True)
class Selection:
    """The baseline that a run is compared with, and how the two stacks differ.

    baseline: None when the folder has none. folder: where it was looked for.
    differences: everything that differs. undeclared: the part that confounds.
    """

    folder: Path
    baseline: Baseline | None = None
    differences: tuple[Difference, ...] = ()
    undeclared: tuple[Difference, ...] = ()


def contrast(baseline: Baseline, provenance: Provenance, declared: Collection[str]) -> Selection:
    """Select `baseline` whatever its stack is: this is how `--perf-baseline PATH` compares."""
    found = differences(baseline.provenance, provenance)
    return Selection(baseline.path.parent, baseline, found, undeclared(found, declared))


def file_safe(text: str) -> str:
    """`text` as one component of a path: letters, digits and . + = - only, never hidden, never empty."""
    return _UNSAFE.sub("-", text).strip(".-")[:100] or "unnamed"


class Store:
    """Baselines under `root`, one folder per machine class; a writer waits `lock_seconds` for another."""

    def __init__(self, root: Path, *, lock_seconds: float = 60.0) -> None:
        self.root = root
        self.lock_seconds = lock_seconds

    def folder(self, machine_class: str) -> Path:
        """Where the files of a machine class lie."""
        return self.root / file_safe(machine_class)

    def files(self, machine_class: str) -> list[Path]:
        """The baseline files of a machine class, in the order of their numbers; other files are not ours."""
        folder = self.folder(machine_class)
        paths = folder.iterdir() if folder.is_dir() else ()
        return sorted((path for path in paths if _FILE_NAME.fullmatch(path.name)), key=_number)

    def select(self, machine_class: str, provenance: Provenance, declared: Collection[str]) -> Selection:
        """The newest file of the same stack; else the newest that differs only in `declared`; else the newest.

        Raises BadInput when a file that would be considered does not validate: it could be the right one.
        """
        best = Selection(self.folder(machine_class))
        for path in reversed(self.files(machine_class)):
            found = contrast(_load_in_place(path), provenance, declared)
            if not found.differences:
                return found
            if best.baseline is None or (best.undeclared and not found.undeclared):
                best = found

        return best

    def record(
        self,
        provenance: Provenance,
        machine_class: str,
        label: str,
        measurements: Sequence[Measurement],
        session_id: str,
    ) -> Path:
        """Add `measurements` to the file of this stack, or to a new NNNN_label.json; returns its path.

        A metric recorded twice in one session keeps the later value. A metric that now measures something else (unit,
        kind, contract or level) loses its old sessions. Raises BadInput when the folder cannot be locked or written, or
        when a measurement cannot be stored (no replicates, say); the files are then as they were.
        """
        with self._locked(machine_class):
            baseline = self._of_same_stack(provenance, machine_class) or Baseline(
                path=self._next_path(machine_class, label),
                machine_class=machine_class,
                label=label,
                provenance=replace(provenance, telemetry={}),
                metrics={},
            )
            metrics = dict(baseline.metrics)
            for measurement in measurements:
                session = _session(measurement, provenance, session_id)
                name = measurement.metric.name
                metrics[name] = _merged(metrics.get(name), measurement.metric, session)

            content = dumps(replace(baseline, metrics=metrics))
            # A file that the next run would refuse must not take the place of a good one.
            parse(baseline.path, content)
            with _explained(baseline.path):
                _write_whole(baseline.path, content)

        return baseline.path

    def _of_same_stack(self, provenance: Provenance, machine_class: str) -> Baseline | None:
        selection = self.select(machine_class, provenance, ())
        return None if selection.differences else selection.baseline

    def _next_path(self, machine_class: str, label: str) -> Path:
        number = max(map(_number, self.files(machine_class)), default=0) + 1
        return self.folder(machine_class) / f"{number:04d}_{file_safe(label)}.json"

    @contextmanager
    def _locked(self, machine_class: str) -> Iterator[None]:
        folder = self.folder(machine_class)
        lock = folder.with_name(f".{folder.name}.lock")
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held = FileLock(lock).acquire(timeout=self.lock_seconds)
            except Timeout:
                raise BadInput(
                    f"{folder}: another process has been recording for {self.lock_seconds:g} s (lock {lock}); "
                    "wait for it to end, then record again"
                ) from None

        with held:
            yield


def _load_in_place(path: Path) -> Baseline:
    baseline = load(path)
    if file_safe(baseline.machine_class) != path.parent.name:
        raise BadInput(
            f"{path}: /decodegate/machine_class: {baseline.machine_class!r} lies in the folder of another "
            "class, and baselines never cross machine classes; move the file back where it came from"
        )

    return baseline


def _number(path: Path) -> int:
    return int(path.name.partition("_")[0])


def _session(measurement: Measurement, provenance: Provenance, session_id: str) -> Session:
    if not measurement.replicates:
        raise BadInput(f"metric {measurement.metric.name!r}: no replicate was measured, so nothing can be recorded")

    recorded = datetime.now(UTC).isoformat(timespec="seconds")
    return Session(
        session_id, recorded, measurement.level, measurement.replicates, {**provenance.telemetry, **measurement.facts}
    )


def _merged(stored: StoredMetric | None, metric: Metric, session: Session) -> StoredMetric:
    """`stored` with `session` in the place of an earlier one of the same id, else at the end."""
    if stored is None or (stored.metric.identity, stored.level) != (metric.identity, session.level):
        return StoredMetric(metric, (session,))

    sessions = {one.id: one for one in stored.sessions} | {session.id: session}
    return StoredMetric(metric, tuple(sessions.values()))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be written: {error.strerror or error}; nothing was lost or changed there: "
            "make room or mend the permissions, then record again"
        ) from error


def _write_whole(path: Path, content: bytes) -> None:
    """Replace `path` in one step: a reader or a crash sees the old file or the new one."""
    # A killed writer leaves its temporary file, which no reader considers; under the lock nobody else uses the name.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
