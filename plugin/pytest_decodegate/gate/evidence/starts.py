"""What starts took, and whether compile caches were warm: a start that had to compile is not compared with one that had
not, and a reader is told of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...cause import Finding
from ...metric import Json


@dataclass(frozen=True, slots=True)
class Start:
    """One start, of a server or of ranks. seconds: until a server was healthy; None for ranks.

    cold, warm: names of compile caches that lacked something, and that had all; none where they were not used.
    """

    seconds: float | None
    cold: tuple[str, ...]
    warm: tuple[str, ...]

    @property
    def caches(self) -> str:
        """In words: "cold compile caches (vllm, triton)"; "" where none was used or nobody looked."""
        if self.cold:
            return f"cold compile caches ({', '.join(self.cold)})"

        return f"warm compile caches ({', '.join(self.warm)})" if self.warm else ""

    def __str__(self) -> str:
        caches = self.caches or "no compile cache in use"
        return caches if self.seconds is None else f"{self.seconds:.0f} s with {caches}"

    def compares_with(self, other: Start) -> bool:
        """Whether both had to compile, or neither."""
        return bool(self.cold) == bool(other.cold)


def start_of(facts: Mapping[str, Json]) -> Start | None:
    """The start behind the facts of a measurement, or the telemetry of a session; None where they do not tell."""
    server = facts.get("server")
    known = server if isinstance(server, dict) else facts
    caches, seconds = known.get("compile_caches"), known.get("start_seconds")
    if not isinstance(caches, dict):
        return None

    states = {name: cache.get("state") for name, cache in caches.items() if isinstance(cache, dict)}
    whole = seconds.get("whole") if isinstance(seconds, dict) else None
    return Start(
        float(whole) if isinstance(whole, int | float) else None,
        tuple(name for name, state in states.items() if state == "cold"),
        tuple(name for name, state in states.items() if state == "warm"),
    )


def start_notes(new: Start | None, base: Start | None) -> Iterator[Finding]:
    """What a reader should know of a start beside that of the baseline, if compile caches had a part in either."""
    if new is None or not (new.caches or (base and base.caches)):
        return

    if new.seconds is None:
        if base and not new.compares_with(base):
            yield Finding(
                f"the ranks ran with {new}, the baseline's with {base}: what was compiled took time before the samples"
            )
    elif base is None or base.seconds is None:
        yield Finding(f"the server started in {new}")
    elif new.compares_with(base):
        yield Finding(f"the server started in {new}; in the baseline in {base}")
    else:
        yield Finding(
            f"the server started in {new}; in the baseline in {base}: an upgrade empties these caches, so the two "
            "starts are not compared"
        )


def starts_in_turn(sides: Mapping[Literal["base", "candidate"], Sequence[Start]]) -> Iterator[Finding]:
    """All starts of servers of two stacks, side by side; nothing where no compile cache was in use."""
    if not any(start.caches for starts in sides.values() for start in starts):
        return

    listed = "; ".join(f"{side} {', '.join(map(str, starts))}" for side, starts in sides.items())
    apart = len({bool(start.cold) for starts in sides.values() for start in starts}) > 1
    rest = ": only starts with warm caches say something of each other" if apart else ""
    yield Finding(f"starts of the servers: {listed}{rest}")
