"""The folder of baselines: one file per machine class and stack, chosen for a run, and never left half-written.

The promise: whatever happens while writing (a full disk, a kill, a second pytest), every file is the old one or the new
one, whole; a file that does not validate is reported and not touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout

from ..errors import BadInput
from ..machine.classes import is_of_class
from ..machine.host import file_safe
from ..machine.provenance import Provenance, differences, unsaid
from ..machine.reach import apart
from ..metric import Json, Measurement, Metric
from ..printable import printable
from . import samples, schema2
from .benchmark_json import dumps
from .edits import is_one_measurement, joined, merge, new_band
from .moving import Moving, divide
from .reader import content_of, load, parse
from .schema import REWRITTEN, SCHEMA, Baseline, LogEntry, Session, StoredMetric
from .selection import Selection, choose

Edit: TypeAlias = Callable[[Baseline], tuple[Baseline, str]]
"""A change of a whole file, from `edits`: the new baseline, and what was done in words."""

RECORDING = "pytest --perf-record"
"""Who changed a band by recording with another one, in the log of a file."""

_FILE_NAME = re.compile(r"(\d{4,18})_.*\.json")


def path_component(text: str) -> str:
    """`text` as one component of a path: letters, digits and . + = - only, never hidden, never empty."""
    return file_safe(printable(text), kept=".+=")[:100] or "unnamed"


class Store:
    """Baselines under `root`, one folder per machine class; a writer waits `lock_seconds` for another."""

    def __init__(self, root: Path, *, lock_seconds: float = 60.0) -> None:
        self.root = root
        self.lock_seconds = lock_seconds
        self._loaded: dict[Path, tuple[tuple[int, ...], Baseline]] = {}
        self._commits: dict[str, dict[str, Json]] = {}  # by session

    def _commit(self, session_id: str) -> dict[str, Json]:
        """Commit and dirtiness of the repository around the current directory, as pytest-benchmark tells them.

        Of the moment before the first metric of a session is written: what is written makes the tree dirty.
        """
        from pytest_benchmark.utils import get_commit_info

        if session_id not in self._commits:
            commit: dict[str, Json] = get_commit_info()
            self._commits[session_id] = {name: value for name, value in commit.items() if name != "error"}

        return self._commits[session_id]

    def folder(self, machine_class: str) -> Path:
        """The folder of a machine class's files."""
        return self.root / path_component(machine_class)

    def files(self, machine_class: str) -> list[Path]:
        """The baseline files of a machine class, in the order of their numbers; other files are not ours.

        Raises BadInput if the folder is a link.
        """
        folder = self.folder(machine_class)
        _refuse_link(folder)
        paths = [path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name)] if folder.is_dir() else []
        for path in paths:
            if printable(path.name) != path.name:
                raise BadInput(f"{folder}: {path.name!r} is no name that can be shown; rename the file")

        return sorted(paths, key=_number)

    def classes(self) -> list[str]:
        """Names of the folders of machine classes that hold baseline files."""
        folders = self.root.iterdir() if self.root.is_dir() else ()
        names = (folder.name for folder in folders if folder.is_dir() and not folder.is_symlink())
        return sorted(name for name in names if name == path_component(name) and self.files(name))

    def load_all(self, machine_class: str) -> list[Baseline]:
        """The baselines of a machine class, in the order of their numbers; BadInput when one does not validate."""
        loaded = map(self._load, self.files(machine_class))
        return [baseline for baseline in loaded if baseline is not None]

    def candidates(self, machine_class: str) -> list[Baseline]:
        """What a run on a machine class may be compared with: its own baselines, and figures published for it.

        A publication may not say the kind of link, so that its class is only the beginning of this one.
        """
        own = path_component(machine_class)
        wider = (name for name in self.classes() if name != own and is_of_class(name, own))
        published = [baseline for name in wider for baseline in self.load_all(name) if baseline.published]
        return [*published, *self.load_all(machine_class)]

    def _load(self, path: Path) -> Baseline | None:
        """The baseline at `path`, read again only after it changed; None when a merge has just removed it."""
        _refuse_link(path)
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
        return choose(self.folder(machine_class), self.candidates(machine_class), provenance, declared, metric)

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
        session = replace(_session(measurement, provenance, session_id), commit=self._commit(session_id))
        with self._locked(self.folder(machine_class)):
            recorded = StoredMetric(measurement.metric, (session,))
            baseline = _home(self.load_all(machine_class), provenance, recorded) or Baseline(
                path=self._next_path(machine_class, label),
                machine_class=machine_class,
                label=label,
                provenance=replace(provenance, telemetry={}),
                metrics={},
            )
            session = _beside(session, baseline.provenance, provenance)
            self._keep_samples(baseline.path, [StoredMetric(measurement.metric, (session,))])
            _write(_with_session(baseline, measurement.metric, session))

        return baseline.path

    def beside(
        self, provenance: Provenance, machine_class: str, measurement: Measurement, session_id: str
    ) -> tuple[StoredMetric, tuple[StoredMetric, ...]]:
        """What `record` would leave of the metric in its file but its commit, and the other metrics there."""
        session = _session(measurement, provenance, session_id)
        alone = StoredMetric(measurement.metric, (session,))
        home = _home(self.load_all(machine_class), provenance, alone)
        if home is None:
            return alone, ()

        metrics = _with_session(home, measurement.metric, session).metrics
        return metrics[alone.metric.name], tuple(each for name, each in metrics.items() if name != alone.metric.name)

    def add(self, baseline: Baseline) -> Path:
        """Write `baseline` as a new NNNN_label.json of its machine class; returns where, which is not its own path.

        Raises BadInput as `record` does, and if a file there holds a session of it already.
        """
        with self._locked(self.folder(baseline.machine_class)):
            for stored in self.load_all(baseline.machine_class):
                if _holds_session(stored, baseline):
                    raise BadInput(f"{stored.path}: holds these sessions already; remove the file to import them again")

            path = self._next_path(baseline.machine_class, baseline.label)
            self._keep_samples(path, baseline.metrics.values())
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

    def reseal(self, path: Path, *, who: str, why: str) -> str:
        """Accept the content of the file `path` as it is, though its digest is of another one, and log that there.

        Raises BadInput where the digest is right, or where the content is no baseline.
        """
        with self._locked_file(path):
            baseline = _in_place(load(path, sealed=False))
            if _is_sealed(path):
                raise BadInput(f"{path}: its digest is that of its content, so there is nothing to accept")

            what = "accepted what was edited by hand"
            _write(_logged(baseline, who, what, why))

        return what

    def rewrite(self, path: Path, *, who: str, why: str) -> str:
        """Rewrite the file `path` of the schema before this one, and log that there; its samples go to the sidecar."""
        with self._locked_file(path):
            content = content_of(path)
            baseline = _in_place(schema2.parse(path, content))
            what = f"rewritten from schema {REWRITTEN} to {SCHEMA}: samples in a sidecar, six digits"
            self._keep_samples(path, baseline.metrics.values())
            _write(_logged(baseline, who, what, why))

        return f"{what}; {len(content):,} -> {path.stat().st_size:,} bytes"

    def _keep_samples(self, path: Path, metrics: Iterable[StoredMetric]) -> None:
        """Write the samples beside the file before it, so that a full disk leaves it as it was."""
        with _explained(samples.sidecar(path)):
            samples.ignore(self.root)
            samples.keep(path, metrics)

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
                _remove(source)

        return what

    def move(self, path: Path, moving: Moving, *, who: str, why: str) -> list[str]:
        """Move metrics of the file `path` to files of the classes of what they ran on; returns what was done, in words.

        Both sides log it. The new home is written first: after a kill in between both hold the sessions, and moving
        again is harmless. A file that is left empty goes. Raises BadInput as `divide` does, or as `record` does.
        """
        with self._locked_file(path):
            source = _load_in_place(path)
            stays, parts = divide(source, moving)
            said = [text for part in parts for text in self._take_in(part, who, why)]
            if stays.metrics:
                _write(_logged(stays, who, "; ".join(said), why))
            else:
                _remove(path)

        return said

    def _take_in(self, part: Baseline, who: str, why: str) -> Iterator[str]:
        """Write a part of another file into this class's files of its stack; says what went where."""
        with self._locked(self.folder(part.machine_class)):
            files = {baseline.path: baseline for baseline in self.load_all(part.machine_class)}
            came: dict[Path, list[str]] = {}
            for name, stored in part.metrics.items():
                home = _home(files.values(), part.provenance, stored) or replace(
                    part, path=self._next_path(part.machine_class, part.label), metrics={}
                )
                sessions = tuple(_beside(each, home.provenance, part.provenance) for each in stored.sessions)
                only = replace(part, metrics={name: replace(stored, sessions=sessions)})
                files[home.path] = joined(home, only)
                came.setdefault(home.path, []).append(name)

            origin = f"{part.path.parent.name}/{part.path.name}"
            for path, names in came.items():
                _write(_logged(files[path], who, f"moved {_counted(names)} here from {origin}", why))
                yield f"moved {_counted(names)} to {path.parent.name}/{path.name}"

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
        _refuse_link(folder)
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
    return _in_place(load(path))


def _is_sealed(path: Path) -> bool:
    try:
        load(path)
    except BadInput:
        return False

    return True


def _in_place(baseline: Baseline) -> Baseline:
    """`baseline`, which lies where its class says; raises BadInput if it does not."""
    if path_component(baseline.machine_class) != baseline.path.parent.name:
        raise BadInput(
            f"{baseline.path}: /decodegate/machine_class: {baseline.machine_class!r} lies in the folder of another "
            "class, and baselines never cross machine classes; move the file back where it came from"
        )

    return baseline


def _number(path: Path) -> int:
    return int(path.name.partition("_")[0])


def one_session(measurement: Measurement, provenance: Provenance, session_id: str) -> StoredMetric:
    """`measurement` as it would be recorded first, without a commit; raises BadInput when it has no replicates."""
    return StoredMetric(measurement.metric, (_session(measurement, provenance, session_id),))


def _session(measurement: Measurement, provenance: Provenance, session_id: str) -> Session:
    if not measurement.replicates:
        raise BadInput(f"metric {measurement.metric.name!r}: no replicate was measured, so nothing can be recorded")

    telemetry = {**provenance.telemetry, **measurement.facts}
    return Session(session_id, _now(), measurement.level, measurement.replicates, telemetry)


def _holds_session(baseline: Baseline, other: Baseline) -> bool:
    """Whether a metric of both has a session of one id in both."""
    pairs = ((baseline.metrics[name], stored) for name, stored in other.metrics.items() if name in baseline.metrics)
    return any(
        {session.id for session in mine.sessions} & {session.id for session in its.sessions} for mine, its in pairs
    )


def _home(baselines: Iterable[Baseline], provenance: Provenance, new: StoredMetric) -> Baseline | None:
    """The newest file of this stack that holds this very measurement, else the newest where its name is free.

    What cannot touch the metric makes no other stack: sessions of several hosts stand in one row.
    """
    files = [
        baseline
        for baseline in sorted(baselines, key=lambda baseline: _number(baseline.path), reverse=True)
        if not (baseline.published or apart(baseline.provenance, provenance, new.metric))
        and _say_the_same(baseline.provenance, provenance)
    ]
    name = new.metric.name
    same = (file for file in files if name in file.metrics and is_one_measurement(file.metrics[name], new))
    free = (file for file in files if name not in file.metrics)
    return next(same, next(free, None))


def _say_the_same(file: Provenance, provenance: Provenance) -> bool:
    """Whether neither side knows a setting of an attached server that the other does not: a file has one word on it."""
    return not (unsaid(file, provenance) or unsaid(provenance, file))


def _beside(session: Session, file: Provenance, provenance: Provenance) -> Session:
    """The session with what its host had otherwise than the file's, which its metric does not feel."""
    others: list[Json] = [str(each) for each in differences(file, provenance)]
    return replace(session, telemetry={**session.telemetry, "unlike_file": others}) if others else session


def _counted(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} metrics ({names[0]} ... {names[-1]})"


def _with_session(baseline: Baseline, metric: Metric, session: Session) -> Baseline:
    """`baseline` with `session` of `metric` in the place of an earlier one of the same id, else at the end."""
    stored = baseline.metrics.get(metric.name)
    sessions = {earlier.id: earlier for earlier in stored.sessions} if stored else {}
    merged = StoredMetric(metric, (*(sessions | {session.id: session}).values(),), stored.accepted if stored else None)
    recorded = replace(baseline, metrics={**baseline.metrics, metric.name: merged})
    band = new_band(stored, metric.tolerance)
    return recorded if band is None else _logged(recorded, RECORDING, band, f"recorded so in session {session.id}")


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
    # What somebody has planted there goes: were it a link, its target would be overwritten.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if os.path.lexists(temporary):
            temporary.unlink()
        with temporary.open("xb") as stream:  # O_EXCL: neither follows a link nor takes what is there
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())

        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

    _sync_folder(path.parent)


def _refuse_link(path: Path) -> None:
    """Raise BadInput if `path`, below the folder of baselines, is a link: what is written would land elsewhere."""
    if path.is_symlink():
        raise BadInput(
            f"{path}: is a link to {path.readlink()}, and links in a folder of baselines are not followed; put what it "
            "leads to in its place, or name the other folder with the ini option perf_baselines"
        )


def _remove(path: Path) -> None:
    with _explained(path):
        path.unlink()
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
