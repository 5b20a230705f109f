"""One heavy object per family and process."""

from __future__ import annotations

import weakref

import pytest

from pytest_decodegate.workloads.runtime import kept as module
from pytest_decodegate.workloads.runtime.kept import kept


class Weights:
    """Stands for gigabytes."""


@pytest.fixture(autouse=True)
def _nothing_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_objects", {})


def test_the_same_key_gives_the_same_object_and_makes_it_once() -> None:
    made: list[Weights] = []

    def make() -> Weights:
        made.append(Weights())
        return made[-1]

    assert kept("experts", (8, 0), make) is kept("experts", (8, 0), make)
    assert len(made) == 1


def test_another_key_drops_the_old_object_before_the_new_one_is_made() -> None:
    old = weakref.ref(kept("experts", 8, Weights))
    assert old() is not None
    gone = kept("experts", 4, lambda: old() is None)
    assert gone


def test_families_do_not_disturb_each_other() -> None:
    experts = kept("experts", 8, Weights)
    kept("dense", 8, Weights)
    kept("dense", 4, Weights)
    assert kept("experts", 8, Weights) is experts


def test_a_failed_make_leaves_nothing_behind() -> None:
    kept("experts", 8, Weights)
    with pytest.raises(MemoryError):
        kept("experts", 4, _too_large)

    assert isinstance(kept("experts", 4, Weights), Weights)


def _too_large() -> Weights:
    raise MemoryError
