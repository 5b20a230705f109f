"""What a perf run will do, said before anything is measured: metrics, minutes, baselines, and what confounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ..baseline.durations import seconds_by_metric
from ..errors import BadInput
from ..measure.window import Load
from ..reference.loaded import probe_loaded, provenance_of
from ..settings.markers import declared_load, declared_metrics
from ..settings.stack import Stack

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from ..baseline.schema import Baseline
    from ..baseline.selection import Selection
    from ..cause import Finding
    from ..machine.cpu_load import OtherUse
    from ..machine.fingerprint import Fingerprint
    from ..machine.provenance import Provenance

MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Planned:
    """The metrics of the selected tests, as far as they declare them. undeclared: tests that do not.

    metrics: by name the world size of each, None for a metric of the server.
    """

    metrics: Mapping[str, int | None]
    undeclared: int = 0

    def __str__(self) -> str:
        metrics = f"{len(self.metrics)} metric{'' if len(self.metrics) == 1 else 's'}"
        return f"{metrics} and {self.undeclared} test(s) that declare none" if self.undeclared else metrics


def planned(items: Iterable[pytest.Item], *, stand_in: bool, most_ranks: int) -> Planned:
    """What the perf tests among `items` will measure. stand_in: there is neither a GPU nor a server of the user's.

    A test that declares only what it measures elsewhere, or wants more than `most_ranks` ranks, is going to be skipped,
    and does not count.
    """
    perf_items = (item for item in items if item.get_closest_marker("perf"))
    possible = [item for item in perf_items if _world_size(item) <= most_ranks]
    metrics: dict[str, int | None] = {}
    for item in possible:
        declared = declared_metrics(item)
        name = declared.stand_in if stand_in else declared.metric
        if name is not None:
            metrics[name] = None if "server" in getattr(item, "fixturenames", ()) else _world_size(item)

    return Planned(metrics, sum(not declared_metrics(item).names for item in possible))


def loads_of(items: Iterable[pytest.Item], *, stand_in: bool) -> dict[str, Load]:
    """Under which load the perf tests among `items` will measure servers, by metric, as far as they declare it.

    stand_in: as of `planned`.
    """
    found: dict[str, Load] = {}
    for item in items:
        declared, load = declared_metrics(item), declared_load(item)
        name = declared.stand_in if stand_in else declared.metric
        if name is not None and isinstance(load, Load):
            found[name] = load

    return found


def _world_size(item: pytest.Item) -> int:
    callspec = getattr(item, "callspec", None)
    return int(callspec.params.get("world_size", 1)) if callspec else 1


class StoredBaselines(Protocol):
    """What a run may be compared with."""

    @property
    def classes(self) -> Sequence[str]:
        """Machine classes of everything here that a metric may run on."""

    @property
    def records(self) -> bool:
        """Whether metrics without a baseline are recorded."""

    def stored(self) -> list[Baseline]:
        """All of them."""

    def select(self, metric: str, provenance: Provenance) -> Selection:
        """The one that gates `metric` on that machine and stack."""


Expected: TypeAlias = Callable[[int | None], "Provenance"]
"""Reads what so many ranks would load, None: a server; on the part of the machine that they would use."""


def expected_of(host: Fingerprint, python: str, import_path: Sequence[str]) -> Expected:
    """What `python` as it is would load on parts of `host`; the reader raises BadInput if it cannot run ranks.

    import_path: what this Python imports from.
    """
    loaded = cache(lambda: probe_loaded(Stack(), python=python, import_path=import_path))

    def expected(world_size: int | None) -> Provenance:
        return provenance_of(host if world_size is None else host.part(world_size), Stack(), loaded())

    return expected


def forecast(plan: Planned, baselines: StoredBaselines, expected: Expected) -> Iterator[str]:
    """Lines of text. expected: asked if there is something that its answer can be compared with.

    What it cannot read is said, with its BadInput, and hinders nobody.
    """
    known = baselines.stored()
    yield f"{plan}{_duration(plan.metrics, seconds_by_metric(known))}"
    if not known:
        yield f"nothing is stored for machine class {_named(baselines.classes)}: every metric {_without(baselines)}"
    elif plan.metrics:
        try:
            yield from _choices(plan, baselines, expected)
        except BadInput as error:
            yield f"which baselines gate is not known yet: {error}"


def in_the_way(leftovers: Sequence[Finding], cores: OtherUse | None) -> Iterator[str]:
    """Who uses the GPUs and the cores before anything is measured, in lines of text."""
    yield from map(str, leftovers)
    if cores is not None and cores.note is not None:
        yield cores.note.replace("while this was measured", "just now")


def minutes(metrics: Collection[str], seconds: Mapping[str, float]) -> int | None:
    """How long they took when they were recorded here, 1 at the least; None where no time of any of them is known.

    seconds: as baseline.durations gives them. Those that are not known count like the median of the others.
    """
    known = [seconds[name] for name in metrics if name in seconds]
    if not known:
        return None

    total = sum(known) + (len(metrics) - len(known)) * median(known)
    return max(1, round(total / 60))


def _duration(metrics: Collection[str], seconds: Mapping[str, float]) -> str:
    about = minutes(metrics, seconds)
    return "" if about is None else f", about {about} min by the times at which they were recorded"


def _choices(plan: Planned, baselines: StoredBaselines, expected: Expected) -> Iterator[str]:
    """Which file gates which metrics, what confounds them already, and what has no baseline."""
    sides = {size: expected(size) for size in set(plan.metrics.values())}
    selected = {name: baselines.select(name, sides[size]) for name, size in plan.metrics.items()}
    alike: dict[tuple[Path, tuple[str, ...]], list[str]] = {}
    for name, selection in selected.items():
        if selection.baseline is not None and name in selection.baseline.metrics:
            key = selection.baseline.path, tuple(map(str, selection.undeclared))
            alike.setdefault(key, []).append(name)

    for (file, _), names in alike.items():
        yield from _of_file(file, names, selected[names[0]])

    held = {name for names in alike.values() for name in names}
    if missing := [name for name in plan.metrics if name not in held]:
        yield f"no baseline for {_named(missing)}: {_without(baselines)}"


def _of_file(path: Path, names: Sequence[str], selection: Selection) -> Iterator[str]:
    file = f"{path.parent.name}/{path.name}"
    why = f": {selection.choice[0]}" if selection.choice else ""
    if selection.undeclared:
        yield f"{len(names)} CONFOUNDED already by {file}: {'; '.join(map(str, selection.undeclared))}"
    elif selection.itself:
        missing = f"no stored stack differs in what was declared ({', '.join(sorted(selection.declared))})"
        yield f"{len(names)} INVALID already: {missing}, not even {file}"
    else:
        yield f"{len(names)} gated by {file}{why}"


def _without(baselines: StoredBaselines) -> str:
    return "is recorded" if baselines.records else "ends NO_BASELINE; record with `pytest -m perf --perf-record`"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"
