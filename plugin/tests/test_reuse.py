"""One heavy object per family and process."""

from __future__ import annotations

import weakref

import pytest

from pytest_decodegate.workloads.runtime import reuse as module
from pytest_decodegate.workloads.runtime.reuse import reused


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

    assert reused("experts", (8, 0), make) is reused("experts", (8, 0), make)
    assert len(made) == 1


def test_another_key_drops_the_old_object_before_the_new_one_is_made() -> None:
    old = weakref.ref(reused("experts", 8, Weights))
    assert old() is not None
    gone = reused("experts", 4, lambda: old() is None)
    assert gone


def test_families_do_not_disturb_each_other() -> None:
    experts = reused("experts", 8, Weights)
    reused("dense", 8, Weights)
    reused("dense", 4, Weights)
    assert reused("experts", 8, Weights) is experts


def test_a_failed_make_leaves_nothing_behind() -> None:
    reused("experts", 8, Weights)
    with pytest.raises(MemoryError):
        reused("experts", 4, _too_large)

    assert isinstance(reused("experts", 4, Weights), Weights)


def _too_large() -> Weights:
    raise MemoryError
