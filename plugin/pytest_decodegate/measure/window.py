"""What a recorded window says: the replicate's numbers, and the rules it broke."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from ..cause import Cause, Finding
from ..client import counters, stream
from ..client.counters import CROSS_CHECK, Check, Counters, Received
from ..client.stream import TPOT_FORMULA, Exchange, RequestTiming
from ..errors import BadInput
from ..metric import Json
from ..serving.log_facts import compiled_in_inference
from .stationarity import LEAST_STEPS, Trend, trend
from .stationarity import parts as parts_of

SHORTEST: Final = 8
"""Tokens of the shortest answer, where whole ones have twice as many."""

_MARGIN = 1 / 8  # of a whole answer
_PREFILLING = 8  # from so many streams on that take turns to start, one may always be in its prefill

TIMED: Final = 0.9
"""Least share of the answers that must have a time for their mean to be held against the server's own: a short one
that keeps others company may come in one piece."""

COARSE: Final = 0.5
"""Largest share of the timed tokens that may come at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a closed loop sends.

    concurrency: streams open at once. prompt_tokens, output_tokens: per request. requests: measured ones in a window.
    stall_seconds: longest wait for a token. warm_up_stall_seconds: the same in warm-up, where kernels are compiled;
    None takes that of --perf-warmup-timeout.
    cross_check: largest difference between the client's and the server's TPOT, as a fraction.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    requests: int
    stall_seconds: float = 120.0
    warm_up_stall_seconds: float | None = None
    cross_check: float = CROSS_CHECK

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "prompt_tokens": 1, "output_tokens": 2, "requests": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise BadInput(f"load: {name} is {getattr(self, name)}; it must be at least {low}")

    @property
    def ramp(self) -> tuple[int, ...]:
        """Tokens of each stream's first answer: they end evenly spread over the time of one answer.

        Streams that all began with a whole answer would stay together, and the prefills of a cohort stall the others
        for as long as cohorts last: at 32 streams on two H200s TPOT fell from 22.3 to 20.8 ms over five windows. With
        shorter first answers every stream decodes from the start, and its later ones begin in a phase of its own. To
        start streams later instead would let the server idle, and would need to know how long an answer takes. An
        answer of fewer than SHORTEST tokens can hardly be timed, so that its stream adds a whole one.
        """
        tokens, least = self.output_tokens, self.shortest
        spread = [-(-(number + 1) * tokens // self.concurrency) for number in range(self.concurrency)]
        return tuple(share if share >= least else share + tokens for share in spread)

    @property
    def shortest(self) -> int:
        """Tokens of an answer that still can be timed."""
        return max(2, min(SHORTEST, self.output_tokens // 2))

    def company(self, share: float) -> int:
        """Tokens of an answer that keeps the measured ones company to their end, and not much longer.

        share: of a whole answer, what the last of them still has to decode.
        """
        tokens = math.ceil((max(share, 0.0) + _MARGIN) * self.output_tokens)
        return max(self.shortest, min(tokens, self.output_tokens))


@dataclass(frozen=True, slots=True)
class Recording:
    """A window as recorded: its requests, the log while measuring, and what the server counted over all requests.

    ramp: the first of each stream; the window begins when the last of them ends. measured: those that begin in it, as
    many as the load asks for. company: all others, which keep the measured ones at full concurrency.
    """

    ramp: tuple[Exchange, ...]
    measured: tuple[Exchange, ...]
    company: tuple[Exchange, ...]
    log: str
    counted: Counters | None


@dataclass(frozen=True, slots=True)
class Window:
    """One replicate: the measured requests of a window, and the rules that it broke (none if it is valid).

    tpot_s: seconds, one per measured request that could be timed; empty only if `broken` says why. ttft_s: seconds, one
    per measured request. output_tok_s: tokens per second over all streams. unchecked: what the server's own counters
    would check, and do not, in words; "" if they do. parts: seconds per token in each sixteenth of it, over all
    streams; empty if it is too short for that to mean anything.
    """

    tpot_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    output_tok_s: float
    broken: tuple[Finding, ...]
    facts: Mapping[str, Json] = field(default_factory=dict)
    unchecked: str = ""
    parts: tuple[float, ...] = ()


def read(recording: Recording, load: Load) -> Window:
    """Count and time what was recorded; raises ServerError if a request failed."""
    ramp, measured, company = (
        sorted(map(stream.read, part), key=attrgetter("ended_s"))
        for part in (recording.ramp, recording.measured, recording.company)
    )
    everything = [*ramp, *measured, *company]
    times = [timing.tpot_s for timing in measured]
    timed = [tpot_s for tpot_s in times if tpot_s is not None]
    start_s, end_s = ramp[-1].ended_s, measured[-1].ended_s
    most, mean = _decoding_at_once(everything, start_s, end_s)
    check = _server_check(recording.counted, everything, load.cross_check)
    parts = _parts(everything, start_s, end_s, load)
    moved = trend(parts) if parts else None
    return Window(
        tpot_s=tuple(timed),
        ttft_s=tuple(timing.ttft_s for timing in measured),
        output_tok_s=sum(_tokens_between(timing, start_s, end_s) for timing in everything) / (end_s - start_s),
        broken=(
            *_wrong_lengths(everything),
            *_uncounted(measured),
            *_unseen(measured),
            *_too_few(most, load.concurrency),
            *_moving(parts, moved),
            *_compiled(recording.log),
            *check.broken,
        ),
        facts={
            **_facts(measured),
            "decoding_at_once": mean,
            **_trend(moved),
            **check.facts,
        },
        unchecked=check.unchecked,
        parts=parts,
    )


def _parts(everything: Sequence[RequestTiming], start_s: float, end_s: float, load: Load) -> tuple[float, ...]:
    """Seconds per token in parts of a window; none where it is too short, or tokens are not counted."""
    steps = load.requests * load.output_tokens // load.concurrency
    # Within one answer each, parts are of a context that grows: no stream is in the same phase twice.
    if (
        load.requests < 2 * load.concurrency
        or steps < LEAST_STEPS
        or not all(timing.is_counted for timing in everything)
    ):
        return ()

    return parts_of([timing.arrivals for timing in everything], start_s, end_s)


def _trend(found: Trend | None) -> dict[str, Json]:
    return {"trend": {"change": found.change, "chance": found.chance}} if found else {}


def _moving(parts: Sequence[float], found: Trend | None) -> Iterator[Finding]:
    if found is None or not found.is_real:
        return

    yield Finding(
        f"the rate is not stationary: the time per token moves by {found.change:+.1%} through the window, from "
        f"{parts[0] * 1e3:.3f} ms in its first sixteenth to {parts[-1] * 1e3:.3f} ms in its last (such order comes by "
        f"chance once in {1 / found.chance:.0f} windows): the server, or its host, is not at rest yet",
        Cause.WINDOW,
        "trend",
    )


def _facts(measured: Sequence[RequestTiming]) -> dict[str, Json]:
    return {
        "formula": TPOT_FORMULA,
        "counted_by": measured[0].counted_by,
        "most_tokens_per_chunk": max(tokens for timing in measured for _, tokens in timing.arrivals),
        **_bursts(measured),
        "ttft_median_s": statistics.median(timing.ttft_s for timing in measured),
        "latency_median_s": statistics.median(timing.latency_s for timing in measured),
        **_between_tokens([timing.itl_s for timing in measured]),
    }


def _bursts(measured: Sequence[RequestTiming]) -> dict[str, Json]:
    """Tokens that came at once at the beginning, and at most after it, of the median answer, which a busy host spares.

    Nothing where they are not counted.
    """
    counted = [timing for timing in measured if timing.is_counted]
    if not counted:
        return {}

    return {
        "first_arrival_tokens": statistics.median_low(timing.first_burst[1] for timing in counted),
        "largest_burst_tokens": statistics.median_low(timing.largest_burst for timing in counted),
    }


def _between_tokens(times: Sequence[tuple[float, ...] | None]) -> dict[str, Json]:
    """The distribution of the seconds between tokens; nothing where a chunk held more than one."""
    known = [gap for gaps in times for gap in gaps or ()]
    if None in times or len(known) < 2:
        return {}

    cuts = statistics.quantiles(known, n=100, method="inclusive")
    return {"itl_s": {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(known)}}


def _server_check(counted: Counters | None, everything: Sequence[RequestTiming], limit: float) -> Check:
    times = [tpot_s for timing in everything if (tpot_s := timing.tpot_s) is not None]
    received = Received(
        requests=len(everything),
        tokens=sum(timing.tokens for timing in everything),
        tpot_s=statistics.fmean(times) if len(times) >= TIMED * len(everything) else None,
        latency_s=sum(timing.latency_s for timing in everything),
        first_tokens=max((timing.first_burst[1] for timing in everything if timing.is_counted), default=0),
    )
    return counters.check(counted, received, limit=limit)


def _wrong_lengths(timings: Sequence[RequestTiming]) -> Iterator[Finding]:
    wrong = [timing for timing in timings if timing.tokens != timing.asked_tokens]
    for first in wrong[:1]:
        yield Finding(
            f"{len(wrong)} of {len(timings)} answers do not have the tokens asked for (one has {first.tokens} of "
            f"{first.asked_tokens}, finish reason {first.finish_reason!r}); does the server honour ignore_eos?",
            Cause.WINDOW,
            "length of answers",
        )


def _uncounted(measured: Sequence[RequestTiming]) -> Iterator[Finding]:
    """Where only the sum of the tokens is known: a first chunk that may hold some, or dozens, makes any pace."""
    uncounted = [timing for timing in measured if not timing.is_counted]
    for first in uncounted[:1]:
        chunks = len(first.arrivals)
        text = (
            f"{len(uncounted)} of {len(measured)} answers do not tell how many tokens each chunk holds (one has "
            f"{first.tokens} tokens in {chunks} chunks, of which the first may hold 1 to {first.tokens - chunks + 1}), "
            "so the time per token cannot be known: the server sends neither token ids nor usage in every chunk "
            "(stream_options.continuous_usage_stats)"
        )
        yield Finding(text, Cause.WINDOW, "tokens of a chunk")


def _unseen(measured: Sequence[RequestTiming]) -> Iterator[Finding]:
    """Answers of one arrival, or of so few that most of what is timed came at once: two points are no pace."""
    counted = [timing for timing in measured if timing.is_counted]
    if unseen := sum(timing.tpot_s is None for timing in counted):
        whole = f"{unseen} of {len(measured)} answers arrived in one piece"
        text = f"{whole}: something collects the stream, or a host is busy"
        yield Finding(text, Cause.WINDOW, "answers in one piece")

    coarse = [timing for timing in counted if timing.largest_burst - 1 > COARSE * _timed_tokens(timing)]
    for first in coarse[:1]:
        text = (
            f"{len(coarse)} of {len(measured)} answers arrived in too few pieces to be timed (in one, "
            f"{first.largest_burst} of the {_timed_tokens(first)} tokens after its first piece came at once): "
            "something collects the stream; ask for more tokens, or have it send each as it comes"
        )
        yield Finding(text, Cause.WINDOW, "answers in too few pieces")


def _timed_tokens(timing: RequestTiming) -> int:
    return timing.tokens - timing.first_burst[1]


def _too_few(most: int, asked: int) -> Iterator[Finding]:
    if most < asked - (asked >= _PREFILLING):
        few = f"asked for concurrency {asked}, but at most {most} streams decoded at once"
        yield Finding(few, Cause.WINDOW, "concurrency")


def _compiled(log: str) -> Iterator[Finding]:
    for line in compiled_in_inference(log):
        yield Finding(f"a kernel was compiled in the window: {line}", Cause.WINDOW, "compilation")


def _tokens_between(timing: RequestTiming, start_s: float, end_s: float) -> float:
    inside = [tokens for at_s, tokens in timing.arrivals if start_s < at_s <= end_s]
    # With a final usage alone nobody knows which chunk carried how many: they share the total evenly.
    return sum(inside) or timing.tokens * len(inside) / len(timing.arrivals)


def _decoding_at_once(timings: Sequence[RequestTiming], start_s: float, end_s: float) -> tuple[int, float]:
    """Most streams between their first and last token at one moment of a span, and their mean number over it."""
    spans = [(max(timing.first_token_s, start_s), min(timing.last_token_s, end_s)) for timing in timings]
    overlaps = [(first, last) for first, last in spans if first < last]
    most = now = 0
    for _, step in sorted([(first, 1) for first, _ in overlaps] + [(last, -1) for _, last in overlaps]):
        now += step
        most = max(most, now)

    return most, sum(last - first for first, last in overlaps) / (end_s - start_s)
