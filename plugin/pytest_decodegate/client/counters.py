"""The server's own counters over a window, from its /metrics page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..cause import Cause, Finding
from ..metric import Json

CROSS_CHECK: Final = 0.03
"""Largest difference between the client's and the server's mean TPOT, as a fraction of the server's."""

QUEUED: Final = 0.2
"""Largest share of their time that requests may wait in the server's queue."""

_NO_PREFIX_CACHE: Final = "--no-enable-prefix-caching"

# Quantity -> series, in order of preference; the names are those of vLLM 0.20 to 0.33 and, last, of older ones.
_SERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "tpot_sum": ("vllm:request_time_per_output_token_seconds_sum",),
    "tpot_count": ("vllm:request_time_per_output_token_seconds_count",),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "generation_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "queue_sum": ("vllm:request_queue_time_seconds_sum",),
}
# Only servers with speculative decoding have these: their absence says nothing.
_OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
}
_AT_POSITION: Final = "accepted_at_"
_PER_POSITION: Final = re.compile(r"vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?")
_POSITION = re.compile(r'\bposition="(\d{1,6})"')
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")


_CHECKED_BY: Final[Mapping[str, str]] = {
    "tpot_sum": "TPOT",
    "tpot_count": "the number of requests",
    "generation_tokens": "the number of tokens",
    "prefix_hits": "cache hits",
    "preemptions": "preemptions",
    "queue_sum": "waiting in its queue",
}
"""What each quantity checks, in words."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters at one moment, or between two, summed over engines and other labels.

    Quantities of _SERIES of which the page holds no number are left out.
    """

    values: Mapping[str, float]

    def since(self, before: Counters) -> Counters:
        """What was counted since `before`, as far as both know."""
        common = self.values.keys() & before.values.keys()
        return Counters({name: self.values[name] - before.values[name] for name in common})

    @property
    def missing(self) -> tuple[str, ...]:
        """The quantities of _SERIES that are not known."""
        return tuple(name for name in _SERIES if name not in self.values)


@dataclass(frozen=True, slots=True)
class Check:
    """What the server's counters say about a window: rules broken, and facts for the report.

    unchecked: the checks that could not be made, and why, in words; "" if all were.
    """

    broken: tuple[Finding, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    unchecked: str = ""


def parse(page: str | None) -> Counters | None:
    """Read a /metrics page in the Prometheus text format; None if it has none of the series of a vLLM engine.

    A router's page has others of that prefix. A series that is not there, or is no number, is left out. Tokens accepted
    at each position of a draft are the values "accepted_at_0", "accepted_at_1" ...
    """
    totals = _totals(page or "")
    found = {
        quantity: totals[name]
        for quantity, names in {**_SERIES, **_OPTIONAL}.items()
        if (name := next((name for name in names if name in totals), None))
    }
    if not found:
        return None

    return Counters(found | {name: total for name, total in totals.items() if name.startswith(_AT_POSITION)})


@dataclass(frozen=True, slots=True)
class Received:
    """What the client received over the same window: all its requests, also those that are not measured.

    tpot_s: their mean TPOT, None where it is not known of each. latency_s: their latencies, summed. first_tokens: most
    tokens of a first arrival.
    """

    requests: int
    tokens: int
    tpot_s: float | None
    latency_s: float
    first_tokens: int = 1


def check(delta: Counters | None, received: Received, *, limit: float = CROSS_CHECK) -> Check:
    """Judge a window by what the server counted over it, which may be nothing; `limit` is for the two TPOTs."""
    if delta is None:
        return Check(unchecked=f"{', '.join(_CHECKED_BY.values())} (the server has no /metrics of vLLM)")

    counted = sorted(name for name in delta.values if not name.startswith(_AT_POSITION))
    facts: dict[str, Json] = {f"server_{name}": delta.values[name] for name in counted}
    if any(change < 0 for change in delta.values.values()):
        restarted = "the server's counters went backwards: it was restarted inside the window"
        return Check((Finding(restarted, Cause.WINDOW, "restart"),), facts)

    broken: list[Finding] = []
    broken += _zero(delta, "prefix_hits", f"tokens came from the prefix cache; start vLLM with {_NO_PREFIX_CACHE}")
    broken += _zero(delta, "preemptions", "requests were preempted: the KV cache is too small for this concurrency")
    broken += _traffic(delta, received)
    broken += _queued(delta, received)
    count, total_s = (delta.values.get(name, 0.0) for name in ("tpot_count", "tpot_sum"))
    if count and total_s and received.tpot_s is not None:
        facts |= {"client_tpot_s": received.tpot_s, "server_tpot_s": total_s / count}
        broken += _disagreement(received.tpot_s, total_s / count, limit, received.first_tokens)

    if speculation := acceptance(delta):
        facts["speculation"] = speculation

    return Check(tuple(broken), facts, _unchecked(delta.missing))


def _unchecked(missing: Sequence[str]) -> str:
    if not missing:
        return ""

    series = ", ".join(_SERIES[name][0] for name in missing)
    return f"{', '.join(_CHECKED_BY[name] for name in missing)} (its /metrics has no number for {series})"


def acceptance(delta: Counters) -> dict[str, Json]:
    """What speculative decoding did in a window; empty if the server drafted nothing.

    length: tokens that one step of the model gives, 1 + accepted / drafts. rate: accepted / drafted tokens.
    per_position: share of the drafts whose token at this position was accepted.
    """
    drafts, drafted = (delta.values.get(name, 0.0) for name in ("drafts", "draft_tokens"))
    if not (drafts and drafted):
        return {}

    accepted = delta.values.get("accepted_tokens", 0.0)
    positions = sorted(int(name.removeprefix(_AT_POSITION)) for name in delta.values if name.startswith(_AT_POSITION))
    return {
        "length": 1 + accepted / drafts,
        "rate": accepted / drafted,
        "drafts": drafts,
        "draft_tokens": drafted,
        "per_position": [delta.values[f"{_AT_POSITION}{position}"] / drafts for position in positions],
    }


def _totals(page: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for line in page.splitlines():
        if sample := _SAMPLE.fullmatch(line):
            name = _series(sample[1], sample[2] or "")
            totals[name] = totals.get(name, 0.0) + _number(sample[3])

    return {name: total for name, total in totals.items() if math.isfinite(total)}


def _series(name: str, labels: str) -> str:
    """The name under which a sample is summed: over all its labels but the position of a draft."""
    position = _POSITION.search(labels) if _PER_POSITION.fullmatch(name) else None
    return f"{_AT_POSITION}{position[1]}" if position else name


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _zero(delta: Counters, name: str, what: str) -> Iterator[Finding]:
    if count := delta.values.get(name):
        yield Finding(f"{count:g} {what}", Cause.WINDOW, name)


def _traffic(delta: Counters, received: Received) -> Iterator[Finding]:
    finished = delta.values.get("tpot_count", received.requests)
    generated = delta.values.get("generation_tokens", received.tokens)
    if (finished, generated) != (received.requests, received.tokens):
        yield Finding(
            f"the server finished {finished:g} requests ({generated:g} tokens) while this client received "
            f"{received.requests} ({received.tokens}); somebody else uses it, or it has not counted them all yet",
            Cause.WINDOW,
            "other traffic",
        )


def _queued(delta: Counters, received: Received) -> Iterator[Finding]:
    share = delta.values.get("queue_sum", 0.0) / received.latency_s
    if share > QUEUED:
        queued = f"requests spent {share:.0%} of their time in the server's queue: it does not run that many at once"
        yield Finding(queued, Cause.WINDOW, "queue")


def _disagreement(client_s: float, server_s: float, limit: float, first_tokens: int) -> Iterator[Finding]:
    difference = client_s / server_s - 1
    late = "the first" if difference < 0 else "the last"
    held = f"; up to {first_tokens} tokens came with the first arrival" if first_tokens > 1 else ""
    if abs(difference) > limit:
        yield Finding(
            f"client TPOT {client_s * 1e3:.3f} ms and the server's own {server_s * 1e3:.3f} ms differ by "
            f"{difference:+.1%} (limit {limit:.0%}): {late} tokens reach the client late, "
            f"because its host or the server's front end is too busy, or something holds them back{held}",
            Cause.WINDOW,
            "server's own TPOT",
        )
