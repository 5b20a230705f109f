"""Replicates from a server: windows of a closed loop on one start of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from statistics import fmean, median_low
from typing import TYPE_CHECKING

from ..cause import Cause, Finding
from ..client.floor import Floor, client_floor
from ..client.stream import TPOT_FORMULA
from ..errors import ServerError
from ..metric import Json, Level, Replicate
from ..serving.said import settings_unsaid
from ..workloads.versions import CLIENT_CLOCK, clock_fields, workload_fields
from .load import WARM_UP_SECONDS, ClosedLoop
from .source import Taken
from .window import Load, Window

if TYPE_CHECKING:
    from ..machine.watch import Watch
    from ..serving.server import Server
    from .source import Progress

NOTED_ERROR = 0.005
"""Of the client's TPOT, a fraction: below it a change that matters is the server's."""

_BACKENDS = {
    "attention": "attention_backend",
    "moe": "moe_backend",
    "all-reduce": "allreduce_backends",
    "graph": "cudagraph_mode",
}


class WindowSource:
    """A Source of TPOT in seconds: one sample per request, one replicate per window.

    What a restart of the server would change they cannot see, and their level, "window", says so. warm_up_seconds:
    longest wait for a token before the first window. wrong: how the server's answers are wrong, or None; nothing is
    timed if they are.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        load: Load,
        *,
        watch: Callable[[], AbstractContextManager[Watch]],
        progress: Progress,
        wrong: str | None = None,
        warm_up_seconds: float = WARM_UP_SECONDS,
    ) -> None:
        self._name = name
        self._load = load
        self._watch = watch
        self._progress = progress
        self._warm_up_seconds = warm_up_seconds
        self._windows: list[Window] = []
        self._telemetry: list[Json] = []
        self._watched_notes: list[Finding] = []
        self._ran: Mapping[str, Json] = {}
        self.level: Level = "window"
        self._wrong = wrong
        self._replicates: list[Replicate] = []
        self._broken: list[Finding] = []
        self._server = server
        self._loop = ClosedLoop(server, load)
        self._is_warm = False

    def _contract(self) -> dict[str, Json]:
        """What the client sends, how it counts, what model it talks to, and on which backends that runs."""
        backend = _backend(self._ran)
        return {
            **clock_fields(CLIENT_CLOCK),
            **workload_fields("serving"),
            "formula": TPOT_FORMULA,
            "concurrency": self._load.concurrency,
            "prompt_tokens": self._load.prompt_tokens,
            "output_tokens": self._load.output_tokens,
            "requests": self._load.requests,
            **self._server.given_facts,
            **self._loop.prompt_facts,
            **({"backend": backend} if backend else {}),
        }

    def _facts(self, floor: Floor | str) -> dict[str, Json]:
        """What the server says it runs, what the watch saw, and what the client itself costs."""
        return {
            "server": dict(self._ran),
            "server_starts": int(self._is_warm),
            "telemetry": list(self._telemetry),
            "client_floor": floor if isinstance(floor, str) else asdict(floor),
        }

    def take(self, count: int) -> Taken:
        """Run `count` more windows; a window that could time no request is a broken rule and no replicate."""
        if not self._wrong:
            windows = self._watched(count)
            floor = _floor(self._load.concurrency)
            self._replicates.extend(
                Replicate(window.tpot_s, _facts(window, floor)) for window in windows if window.tpot_s
            )

        return self.taken

    @property
    def taken(self) -> Taken:
        """Everything so far."""
        floor = _floor(self._load.concurrency)
        return Taken(
            self.level,
            tuple(self._replicates),
            self._contract(),
            self._facts(floor),
            self._wrong,
            tuple(self._broken),
            self._notes(floor),
        )

    def _notes(self, floor: Floor | str) -> tuple[Finding, ...]:
        if not self._windows:
            return ()

        return (
            *speculation_notes(self._windows),
            *_held_back(self._windows),
            *_uncounted(self._windows),
            *_unmonitored(self._server, self._ran),
            *_unseen(self._server, self._ran),
            *_floor_notes(floor),
            *self._watched_notes,
        )

    def _watched(self, count: int) -> list[Window]:
        """Windows on a warm server, watched; warming up is not, since it is not measured."""
        if not self._is_warm:
            self._progress.tick(f"{self._name}: warming up")
            self._loop.warm_up(self._warm_up_seconds, self._say_warming_up)
            self._is_warm = True

        with self._watch() as watch:
            windows = [self._window() for _ in range(count)]

        telemetry = watch.report()
        self._broken.extend(telemetry.invalid)
        self._telemetry.append(dict(telemetry.facts))
        notes = (*telemetry.notes, *telemetry.grown)  # a server's allocator may have taken it
        self._watched_notes.extend(note for note in notes if note not in self._watched_notes)
        self._note_what_runs(self._server.facts())
        return windows

    def _say_warming_up(self, waited: str) -> None:
        self._progress.tick(f"{self._name}: warming up, {waited} (--perf-warmup-timeout)")

    def _note_what_runs(self, ran: Mapping[str, Json]) -> None:
        """One that is attached may be another between two windows."""
        before, now = _backend(self._ran), _backend(ran)
        if before and before != now:
            other = f"the server runs on {now or 'unknown backends'}, before it ran on {before}"
            self._broken.append(Finding(other, Cause.UNSTEADY, now))

        self._ran = self._ran or ran

    def _window(self) -> Window:
        number = len(self._windows) + 1
        self._progress.tick(f"{self._name}: window {number}")
        window = self._loop.window()
        self._windows.append(window)
        self._broken.extend(reason.of(f"window {number}") for reason in window.broken)
        return window


def _facts(window: Window, floor: Floor | str) -> Mapping[str, Json]:
    known = {} if isinstance(floor, str) else {"client_error": floor.tpot_error}
    return {**window.facts, "output_tok_s": window.output_tok_s, **known}


def _floor(concurrency: int) -> Floor | str:
    """The client's own floor; what kept it from being measured is a fact too, and no reason to lose the windows."""
    try:
        return client_floor(concurrency)
    except ServerError as error:
        return f"not measured: {error}"


def _floor_notes(floor: Floor | str) -> Iterator[Finding]:
    """The client's own floor where a reader must think of it; the report says the largest of a run once."""
    if isinstance(floor, str) or abs(floor.tpot_error) > NOTED_ERROR:
        yield Finding(f"the client's own floor, subtracted from nothing: {floor}")


def _held_back(windows: Sequence[Window]) -> Iterator[Finding]:
    """That answers begin with a burst, which TTFT then is of, and how coarse the rest comes."""
    first, burst = (
        median_low([int(str(window.facts.get(name, 0))) for window in windows] or [0])
        for name in ("first_arrival_tokens", "largest_burst_tokens")
    )
    if first > 1:
        yield Finding(
            f"the first arrival of an answer held {first} tokens: TPOT is of those after it, and TTFT the time until "
            "something let them go"
        )
    if burst > 1:
        yield Finding("several tokens came at once: TPOT is right on average, the time between two tokens is unknown")


def _uncounted(windows: Sequence[Window]) -> Iterator[Finding]:
    """What nobody but the client says, once; a reader must not take it for checked."""
    for unchecked in dict.fromkeys(window.unchecked for window in windows if window.unchecked):
        yield Finding(f"not checked by the server's own count: {unchecked}")


def _unmonitored(server: Server, ran: Mapping[str, Json]) -> Iterator[Finding]:
    """Why nobody would see that a kernel is compiled inside a window; nothing where it would be seen."""
    if server.attached:
        yield Finding("kernels compiled inside a window go unseen: the log of an attached server is not ours to read")
    elif not (ran.get("jit_monitor") or server.stand_in):
        yield Finding("kernels compiled inside a window go unseen: this vLLM does not report them (0.26 and later do)")


def _unseen(server: Server, ran: Mapping[str, Json]) -> Iterator[Finding]:
    """The settings of an attached server that could change unnoticed."""
    if server.attached and (unsaid := ", ".join(settings_unsaid(ran))):
        yield Finding(f"not seen: {unsaid}: no page of the attached server says them, so nobody compares them")


def _backend(ran: Mapping[str, Json]) -> str:
    """What computes on the server, in one line: an upgrade that changes it is then named; "" if nothing is known."""
    known = ((name, ran.get(fact)) for name, fact in _BACKENDS.items())
    shown = ((name, " ".join(map(str, value)) if isinstance(value, list) else value) for name, value in known)
    return ", ".join(f"{name} {value}" for name, value in shown if value)


def speculation_notes(windows: Sequence[Window]) -> Iterator[Finding]:
    """What speculative decoding did, on average over the windows that drafted; nothing without it."""
    seen = [found for window in windows if isinstance(found := window.facts.get("speculation"), dict)]
    if not seen:
        return

    length, rate, drafts, drafted = (
        fmean(float(str(drafted[name])) for drafted in seen) for name in ("length", "rate", "drafts", "draft_tokens")
    )
    positions = zip(
        *(drafted["per_position"] for drafted in seen if isinstance(drafted["per_position"], list)), strict=False
    )
    shares = " ".join(f"{fmean(float(str(share)) for share in shares):.0%}" for shares in positions)
    yield Finding(
        f"speculative decoding: acceptance length {length:.2f}, rate {rate:.0%}, {drafts:.0f} drafts of {drafted:.0f} "
        f"tokens a window, accepted by position: {shares or 'unknown'}",
        Cause.ACCEPTANCE,
    )
