"""The markers of perf tests: perf and world_size, checked when tests are collected."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from ..errors import BadInput

_NAMES = ("metric", "stand_in")
_KNOWN = frozenset({"tolerance", "extended", "advisory", "load", *_NAMES})


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Raise UsageError for the first perf test whose marker cannot be used."""
    try:
        for item in items:
            marker_tolerance(item)
            declared_metrics(item)
            declared_load(item)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error


def marker_tolerance(item: pytest.Item) -> float | None:
    """The band of the nearest perf marker that gives one; raises BadInput for anything else in a perf marker."""
    bands = [_perf_marker(item.nodeid, marker) for marker in item.iter_markers("perf")]
    return next((band for band in bands if band is not None), None)


def marker_extended(item: pytest.Item) -> bool:
    """Whether a perf marker of the item says extended=True; `marker_tolerance` has checked the markers."""
    return any(marker.kwargs.get("extended") for marker in item.iter_markers("perf"))


def marker_advisory(item: pytest.Item) -> bool:
    """Whether a perf marker of the item says advisory=True: measured and shown, but blocking nothing but by numbers."""
    return any(marker.kwargs.get("advisory") for marker in item.iter_markers("perf"))


@dataclass(frozen=True, slots=True)
class Declared:
    """The metric that a perf test says it measures, with its parameters filled in; None where it does not say.

    metric: on a GPU, or of a server that the user names. stand_in: without either. A test that declares one of the two
    is skipped where the other would be measured.
    """

    metric: str | None
    stand_in: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Both, as far as they are declared."""
        return tuple(name for name in (self.metric, self.stand_in) if name is not None)


def declared_metrics(item: pytest.Item) -> Declared:
    """What the nearest perf markers of `item` declare; raises BadInput for a placeholder that is no parameter."""
    return Declared(*(_declared(item, name) for name in _NAMES))


def _declared(item: pytest.Item, name: str) -> str | None:
    given = (marker.kwargs[name] for marker in item.iter_markers("perf") if name in marker.kwargs)
    template = next(given, None)
    if template is None:
        return None

    callspec = getattr(item, "callspec", None)
    known = dict(callspec.params) if callspec else {}
    try:
        return str(template.format_map(known))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise BadInput(
            f"{item.nodeid}: perf marker: {name}={template!r} cannot be filled in ({error!r}); placeholders are "
            f"parameters of the test: {', '.join(sorted(known)) or 'it has none'}"
        ) from error


def declared_load(item: pytest.Item) -> object:
    """What the nearest perf marker that names a `load` says of the load of its server; None where none does.

    It is a function of parameters of the test; raises BadInput where these cannot be filled in.
    """
    function = next((marker.kwargs["load"] for marker in item.iter_markers("perf") if "load" in marker.kwargs), None)
    if function is None:
        return None

    callspec = getattr(item, "callspec", None)
    known = dict(callspec.params) if callspec else {}
    try:
        wanted = inspect.signature(function).parameters
        return function(**{name: known[name] for name in wanted})
    except (TypeError, ValueError, KeyError) as error:
        raise BadInput(
            f"{item.nodeid}: perf marker: load={function!r} is to be a function of parameters of the test, which are "
            f"{', '.join(sorted(known)) or 'none'} ({error!r})"
        ) from error


def marker_world_sizes(nodeid: str, marker: pytest.Mark | None) -> tuple[int, ...]:
    """The sizes of a world_size marker, (1,) without one; raises BadInput for what is no positive whole number."""
    if marker is None:
        return (1,)
    if marker.kwargs or not marker.args:
        raise BadInput(f"{nodeid}: world_size takes one or more numbers, for example @pytest.mark.world_size(1, 2)")
    for size in marker.args:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise BadInput(f"{nodeid}: world_size {size!r} is not a positive whole number")

    return tuple(marker.args)


def _perf_marker(nodeid: str, marker: pytest.Mark) -> float | None:
    if marker.args:
        raise BadInput(f"{nodeid}: the perf marker takes no positional argument, found {marker.args[0]!r}")
    if unknown := sorted(set(marker.kwargs) - _KNOWN):
        raise BadInput(
            f"{nodeid}: the perf marker knows no {unknown[0]!r}; it takes metric='name[m={{m}}]', "
            "stand_in='name_cpu', tolerance='3%', extended=True, advisory=True, load=function"
        )
    for flag in ("extended", "advisory"):
        if not isinstance(marker.kwargs.get(flag, False), bool):
            raise BadInput(f"{nodeid}: perf marker: {flag} is {marker.kwargs[flag]!r}; give True or False")
    for name in _NAMES:
        if not isinstance(marker.kwargs.get(name, ""), str):
            raise BadInput(f"{nodeid}: perf marker: {name} is {marker.kwargs[name]!r}; give the name of a metric")
    if "tolerance" not in marker.kwargs:
        return None

    from ..metric import parse_tolerance

    return parse_tolerance(str(marker.kwargs["tolerance"]), f"{nodeid}: perf marker")
