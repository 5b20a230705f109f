"""Heavy objects that workloads of a rank use again, one of each family: the last that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

_objects: dict[str, tuple[Hashable, Any]] = {}


def reused(family: str, key: Hashable, make: Callable[[], T]) -> T:
    """The object of `family` under `key`: the one held if its key is equal, else what `make()` gives.

    An object under another key is dropped before `make` runs, because both may not fit on the device; if `make` raises,
    the family holds nothing. So M = 1, 2, 4, ... of one op share their weights, and another shard replaces them.
    """
    if family in _objects and _objects[family][0] == key:
        held: T = _objects[family][1]
        return held

    _drop(family)
    made = make()
    _objects[family] = (key, made)
    return made


def _drop(family: str) -> None:
    import gc

    from .rank import empty_device_cache

    if _objects.pop(family, None) is not None:
        gc.collect()
        empty_device_cache()
