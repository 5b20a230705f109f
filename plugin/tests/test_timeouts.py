"""Our deadline against pytest-timeout's and faulthandler's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_decodegate.gang.options import StartLimit
from pytest_decodegate.resources.timeouts import LEAST_SECONDS, MARGIN_SECONDS, deadline, start_limit


def item(marker: Any = None, option: Any = None, **ini: Any) -> Any:
    """A test item as far as timeouts go: a marker, the option, and ini values of the plugins that are there."""
    config = SimpleNamespace(getoption=lambda name, default: option, getini=lambda name: ini[name])
    return SimpleNamespace(config=config, get_closest_marker=lambda name: marker)


def mark(*args: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(args=args, kwargs=kwargs)


@pytest.fixture(autouse=True)
def no_timeout_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)


@pytest.mark.parametrize(
    "one",
    [
        item(),
        item(timeout=None, faulthandler_timeout=0.0),
        item(timeout=0, faulthandler_timeout=""),
        item(timeout="soon"),
        item(marker=mark(0), timeout=20),
    ],
)
def test_without_another_timeout_ours_is_what_was_asked(one: Any) -> None:
    assert deadline(one, time.monotonic(), 600.0) == 600.0


@pytest.mark.parametrize(
    "one",
    [
        item(marker=mark(60)),
        item(marker=mark(timeout=60)),
        item(option=60.0, timeout=5),
        item(timeout="60"),
        item(faulthandler_timeout=60.0),
        item(marker=mark(60), option=10.0),
        item(timeout=300, faulthandler_timeout=60.0),
    ],
)
def test_the_deadline_comes_before_the_other_timeout(one: Any) -> None:
    left = deadline(one, time.monotonic(), 600.0)
    assert 0 < left <= 60 - MARGIN_SECONDS


def test_the_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TIMEOUT", "60")
    assert deadline(item(timeout=300), time.monotonic(), 600.0) <= 60 - MARGIN_SECONDS


def test_what_the_test_has_used_already_is_subtracted() -> None:
    started = time.monotonic() - 30
    assert deadline(item(timeout=60), started, 600.0) <= 60 - 30 - MARGIN_SECONDS


def test_a_timeout_that_is_all_but_over_leaves_a_little() -> None:
    assert deadline(item(timeout=1), time.monotonic() - 100, 600.0) == LEAST_SECONDS


def test_a_start_says_what_made_its_limit_short() -> None:
    begin = time.monotonic()
    assert start_limit(item(), begin, 300.0) == start_limit(None, begin, 300.0) == StartLimit(300.0)
    assert start_limit(item(timeout=400), begin, 300.0) == StartLimit(300.0)
    found = start_limit(item(timeout=20, faulthandler_timeout=60.0), begin, 300.0)
    assert found.seconds <= 20 - MARGIN_SECONDS
    assert "ends the test 20 s after its begin" in found.why


def test_our_own_deadline_stays_if_it_is_shorter() -> None:
    assert deadline(item(timeout=60), time.monotonic(), 2.0) == 2.0
