"""The folder of baselines: one file per machine class and stack, chosen for a run, and never left half-written.

The promise: whatever happens while writing (a full disk, a kill, a second pytest), every file is the old one or the new
one, whole; a file that does not validate is reported and not touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout

from ..errors import BadInput
from ..machine.provenance import Provenance, differences
from ..metric import Measurement, Metric
from .benchmark_json import dumps
from .edits import merge, new_band
from .reader import load, parse
from .schema import Baseline, LogEntry, Session, StoredMetric
from .selection import Selection, choose

Edit: TypeAlias = Callable[[Baseline], tuple[Baseline, str]]
"""A change of a whole file, from `edits`: the new baseline, and what was done in words."""

RECORDER = "pytest --perf-record"
"""Who changed a band by recording with another one."""

_FILE_NAME = re.compile(r"(\d{4,})_.*\.json")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+=]+")


def path_component(text: str) -> str:
    """`text` as one component of a path: letters, digits and . + = - only, never hidden, never empty."""
    return _UNSAFE.sub("-", text).strip(".-")[:100] or "unnamed"


class Store:
    """Baselines under `root`, one folder per machine class; a writer waits `lock_seconds` for another."""

    def __init__(self, root: Path, *, lock_seconds: float = 60.0) -> None:
        self.root = root
        self.lock_seconds = lock_seconds
        self._loaded: dict[Path, tuple[tuple[int, ...], Baseline]] = {}

    def folder(self, machine_class: str) -> Path:
        """Where the files of a machine class lie."""
        return self.root / path_component(machine_class)

    def files(self, machine_class: str) -> list[Path]:
        """The baseline files of a machine class, in the order of their numbers; other files are not ours."""
        folder = self.folder(machine_class)
        paths = folder.iterdir() if folder.is_dir() else ()
        return sorted((path for path in paths if _FILE_NAME.fullmatch(path.name)), key=_number)

    def classes(self) -> list[str]:
        """Names of the folders of machine classes that hold baseline files."""
        folders = self.root.iterdir() if self.root.is_dir() else ()
        names = (folder.name for folder in folders if folder.is_dir())
        return sorted(name for name in names if name == path_component(name) and self.files(name))

    def load_all(self, machine_class: str) -> list[Baseline]:
        """The baselines of a machine class, in the order of their numbers; BadInput when one does not validate."""
        return [one for path in self.files(machine_class) if (one := self._load(path)) is not None]

    def _load(self, path: Path) -> Baseline | None:
        """The baseline at `path`, read again only after it changed; None when a merge has just removed it."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None

        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if path not in self._loaded or self._loaded[path][0] != version:
            self._loaded[path] = (version, _load_in_place(path))

        return self._loaded[path][1]

    def select(
        self, machine_class: str, provenance: Provenance, declared: Collection[str], metric: str | None = None
    ) -> Selection:
        """The file that a run of `metric` is compared with, by the rule of the module `selection`.

        Raises BadInput when a file does not validate: it could be the right one.
        """
        return choose(self.folder(machine_class), self.load_all(machine_class), provenance, declared, metric)

    def record(
        self,
        provenance: Provenance,
        machine_class: str,
        label: str,
        measurement: Measurement,
        session_id: str,
    ) -> Path:
        """Add `measurement` to the file of this stack, or to a new NNNN_label.json; returns its path.

        A metric recorded twice in one session keeps the later value. A metric that now measures something else (unit,
        kind, contract or level) goes to a file where its name is free, a new one if need be: nothing recorded is lost,
        and `select` takes the file that was recorded last. A new band is noted in the log of the file. Raises BadInput
        when the folder cannot be locked or written, or when the measurement cannot be stored (no replicates, say); the
        files are then as they were.
        """
        session = _session(measurement, provenance, session_id)
        with self._locked(self.folder(machine_class)):
            baseline = self._home(provenance, machine_class, measurement) or Baseline(
                path=self._next_path(machine_class, label),
                machine_class=machine_class,
                label=label,
                provenance=replace(provenance, telemetry={}),
                metrics={},
            )
            _write(_with_session(baseline, measurement.metric, session))

        return baseline.path

    def add(self, baseline: Baseline) -> Path:
        """Write `baseline` as a new NNNN_label.json of its machine class; returns where, which is not its own path.

        Raises BadInput as `record` does, and if a file there holds a session of it already.
        """
        with self._locked(self.folder(baseline.machine_class)):
            for one in self.load_all(baseline.machine_class):
                if _holds_session(one, baseline):
                    raise BadInput(f"{one.path}: holds these sessions already; remove the file to import them again")

            path = self._next_path(baseline.machine_class, baseline.label)
            _write(replace(baseline, path=path))

        return path

    def edit(self, path: Path, change: Edit, *, who: str, why: str) -> str:
        """Apply `change` to the file `path` and log it there; returns what was done, in words.

        Raises BadInput as `change` does, or as `record` does; the file is then as it was.
        """
        with self._locked_file(path):
            edited, what = change(_load_in_place(path))
            _write(_logged(edited, who, what, why))

        return what

    def merge(self, path: Path, source: Path, *, who: str, why: str) -> str:
        """Merge the file `source`, of the same class and stack, into `path`, and log it there.

        A source that lies beside `path` is then removed. A kill in between leaves both, and merging again is harmless.
        """
        if path.resolve() == source.resolve():
            raise BadInput(f"{path}: cannot be merged with itself; name two files")

        with self._locked_file(path):
            edited, what = merge(_load_in_place(path), load(source))
            _write(_logged(edited, who, what, why))
            if source.resolve().parent == path.resolve().parent:
                with _explained(source):
                    source.unlink()
                    _sync_folder(source.parent)

        return what

    def _home(self, provenance: Provenance, machine_class: str, measurement: Measurement) -> Baseline | None:
        """The newest file of this stack that holds this very measurement, else the newest where its name is free."""
        files = [
            one
            for one in reversed(self.load_all(machine_class))
            if not differences(one.provenance, provenance) and not one.published
        ]
        name = measurement.metric.name
        same = (one for one in files if name in one.metrics and _measures(one.metrics[name], measurement))
        free = (one for one in files if name not in one.metrics)
        return next(same, next(free, None))

    def _next_path(self, machine_class: str, label: str) -> Path:
        number = max(map(_number, self.files(machine_class)), default=0) + 1
        return self.folder(machine_class) / f"{number:04d}_{path_component(label)}.json"

    def _locked_file(self, path: Path) -> AbstractContextManager[None]:
        """The lock over a file that must be there: an edit makes no folders."""
        if not path.is_file():
            raise BadInput(f"{path}: is not a file; `decodegate baselines` lists what is stored")

        return self._locked(path.parent)

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
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
    if path_component(baseline.machine_class) != path.parent.name:
        raise BadInput(
            f"{path}: /decodegate/machine_class: {baseline.machine_class!r} lies in the folder of another "
            "class, and baselines never cross machine classes; move the file back where it came from"
        )

    return baseline


def _number(path: Path) -> int:
    return int(path.name.partition("_")[0])


def one_session(measurement: Measurement, provenance: Provenance, session_id: str) -> StoredMetric:
    """`measurement` as it would be recorded first; raises BadInput when it has no replicates."""
    return StoredMetric(measurement.metric, (_session(measurement, provenance, session_id),))


def _session(measurement: Measurement, provenance: Provenance, session_id: str) -> Session:
    if not measurement.replicates:
        raise BadInput(f"metric {measurement.metric.name!r}: no replicate was measured, so nothing can be recorded")

    telemetry = {**provenance.telemetry, **measurement.facts}
    return Session(session_id, _now(), measurement.level, measurement.replicates, telemetry)


def _holds_session(baseline: Baseline, other: Baseline) -> bool:
    """Whether a metric of both has a session of one id in both."""
    pairs = ((baseline.metrics[name], stored) for name, stored in other.metrics.items() if name in baseline.metrics)
    return any({one.id for one in mine.sessions} & {one.id for one in its.sessions} for mine, its in pairs)


def _measures(stored: StoredMetric, measurement: Measurement) -> bool:
    """Whether the two are one measurement, whose sessions may stand in one row."""
    return (stored.metric.identity, stored.level) == (measurement.metric.identity, measurement.level)


def _with_session(baseline: Baseline, metric: Metric, session: Session) -> Baseline:
    """`baseline` with `session` of `metric` in the place of an earlier one of the same id, else at the end."""
    stored = baseline.metrics.get(metric.name)
    sessions = {one.id: one for one in stored.sessions} if stored else {}
    merged = StoredMetric(metric, (*(sessions | {session.id: session}).values(),), stored.accepted if stored else None)
    recorded = replace(baseline, metrics={**baseline.metrics, metric.name: merged})
    band = new_band(stored, metric.tolerance)
    return recorded if band is None else _logged(recorded, RECORDER, band, f"recorded so in session {session.id}")


def _logged(baseline: Baseline, who: str, what: str, why: str) -> Baseline:
    return replace(baseline, log=(*baseline.log, LogEntry(_now(), who, what, why)))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _write(baseline: Baseline) -> None:
    content = dumps(baseline)
    # A file that the next run would refuse must not take the place of a good one.
    parse(baseline.path, content)
    with _explained(baseline.path):
        _write_whole(baseline.path, content)


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
