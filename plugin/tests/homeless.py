"""A user of whom nobody knows a home, as in a container that runs under an id that no file names."""

from __future__ import annotations

import pwd
from typing import NoReturn

import pytest


def without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take variables and the entry of this user away."""

    def unknown(_: int) -> NoReturn:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
