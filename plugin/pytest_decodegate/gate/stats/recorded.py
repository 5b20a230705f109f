"""Classes of noise, and how noisy each was where it was recorded: what stands in until a host has numbers of its own.

noise.json says of each number where it comes from, or that it is assumed; `plugin/benchmarks/derive_noise.py` derives
those that were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from ...metric import Kind, Level, Metric

Mode: TypeAlias = Literal["graph", "eager", "host"]
"""How work is launched: replayed by the device, launched call by call, or no launch that is known (a server)."""


_MODES: Mapping[str, Mode] = {"graph": "graph", "eager": "eager"}


SAME_CARDS: Final = "/same cards"
"""Behind a kind in noise.json: what is known of sessions that all ran on the same cards."""


STREAMING: Final = "/streaming"
"""Behind a class in noise.json: what is known of its metrics that stream memory."""


class NoiseClass(NamedTuple):
    """Metrics that are noisy for the same reasons: what is measured, how it is launched, and what a replicate is.

    cards: whether all sessions ran on the same cards, or on any of a kind. streams: whether these metrics are as fast
    as the memory of their card, which differs from card to card and is one number for all of them; never on the same
    cards, whose memory is one.
    """

    kind: Kind
    mode: Mode
    level: Level
    cards: Literal["same", "any"] = "any"
    streams: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Where its noise is looked up in noise.json, the closest first."""
        name = "/".join(self[:3])
        return (*([name + STREAMING] if self.streams else []), name, self.kind)


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How noisy the metrics of a class were elsewhere; sds as fractions.

    process_sd, process_df: of the scaled inverse chi-square distribution of the variances between processes.
    session_sd: root mean square of the difference between one session and all. session_df: how alike metrics are in
    it, as process_df; above 2, so that there is a root mean square. source: of each, where it comes from.
    """

    process_sd: float
    process_df: float
    session_sd: float
    session_df: float
    process_source: str
    session_source: str

    @property
    def session_scale(self) -> float:
        """Of the scaled inverse chi-square distribution of the metrics' session variances, a variance."""
        return self.session_sd**2 * (self.session_df - 2) / self.session_df


def noise_class(metric: Metric, level: Level, *, same_cards: bool = False, streams: bool = False) -> NoiseClass:
    """The class of a metric that is replicated at `level`; same_cards: in sessions that all ran on the same cards.

    streams: whether it streams memory.
    """
    mode = _MODES.get(str(metric.contract.get("mode")), "host")
    if same_cards:
        return NoiseClass(metric.kind, mode, level, "same")

    return NoiseClass(metric.kind, mode, level, streams=streams)


def recorded(noise_class: NoiseClass) -> Recorded:
    """What was recorded of a class; of one that nobody recorded, what is assumed of its kind.

    What is known of sessions of the same cards holds for them, where it is known of the kind.
    """
    table, kind = _table(), noise_class.kind
    known = next(table[name] for name in noise_class.names if name in table)
    own = table.get(f"{kind}{SAME_CARDS}") if noise_class.cards == "same" else None
    if own is None or own.session_sd > known.session_sd:
        return known

    return replace(known, session_sd=own.session_sd, session_df=own.session_df, session_source=own.session_source)


@cache
def _table() -> dict[str, Recorded]:
    content = resources.files(__package__).joinpath("noise.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, Recorded])
