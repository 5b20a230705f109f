"""NCCL's log under NCCL_DEBUG=INFO: version, ranks, transports, and how each collective was issued.

Read from NCCL's own words and never from a kernel's name: 2.31 renamed its kernels, and before it a name did not prove
the protocol. Formats are those of NCCL's sources from 2.21 to 2.31; a line that is none of them is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..metric import Json
from ..printable import printable, without_colours

SUBSYSTEMS: Final = "INIT,ENV,GRAPH,TUNING,P2P,SHM,NET"
"""NCCL_DEBUG_SUBSYS under which NCCL writes every line that is read here; rank 0 alone writes those of TUNING."""

# NCCL below 2.25 wrote numbers (nccl_common.h, NCCL_ALGO_* and NCCL_PROTO_*).
_ALGORITHMS: Final = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS: Final = ("LL", "LL128", "SIMPLE")

_PREFIX: Final = " NCCL INFO "
"""Before it stand host, pid, thread, device, and a timestamp if the user asked for one (debug.cc, ncclDebugLog)."""

_BARE_VERSION: Final = re.compile(r"(?<![\w])NCCL version \d")
"""Written without host and process, so whatever stands before it is of mpirun, srun or a collector of logs."""

_VERSION: Final = re.compile(r"NCCL version (\d[\w.]*)(?:\+cuda[\w.]+)?\s*$")
_COMPLETE: Final = re.compile(r"nranks (\d{1,18}) .{0,500}Init COMPLETE")
_CHANNELS: Final = re.compile(
    r"(\d{1,18}) coll channels, .{0,200}?(\d{1,18}) nvls channels, (\d{1,18}) p2p channels, "
    r"(\d{1,18}) p2p channels per peer"
)
_CHANNEL_NAMES: Final = ("collectives", "nvls", "p2p", "p2p_per_peer")
# transport/net.cc: "NET/%s/%d%s%s", name of the plugin (of two words on AWS), device, GDRDMA, Shared; net names and
# devices are numbered anew on each host, but without GDRDMA the data goes through the host's memory.
_VIA: Final = re.compile(
    r"Channel \d{1,9}(?:/\d{1,9})? : \S+ -> \S+(?: \[(?:send|receive)\])? via "
    r"(?:(?P<net>(?:NET|COLLNET)/[^/]{1,80})/\d{1,9}(?:\(\d{1,9}\))?(?P<gdr>/GDRDMA(?:\(\w{1,20}\))?)?"
    r"|(?P<local>\w+/(?:direct pointer|\w+)))"
)
_TUNED: Final = re.compile(
    r"(?:(?P<function>\w+): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"
    r"(?: channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,18})\.\.(?P<high>\d{1,18})\}| time \S+)$"
)
_SYMMETRIC: Final = re.compile(
    r"(?P<function>\w+) \[Symmetric\]: (?P<bytes>\d{1,18}) Bytes -> "
    r"Kernel (?P<kernel>\S+) nchannels (?P<channels>\d{1,18}) "
)
_COPIED: Final = re.compile(r"(?P<function>\w+) \[(?:Copy Engine|Hierarchical CE)\]: (?P<bytes>\d{1,18}) Bytes -> ")


@dataclass(frozen=True, slots=True)
class NcclCall:
    """One collective as NCCL issued it.

    function: "AllReduce", "" where NCCL does not say. bytes: of the message as NCCL counts it (per rank for AllGather).
    algorithm: "RING", "TREE", "NVLS" ...; "SYMMETRIC" or "COPY_ENGINE" for the ways around the algorithms.
    protocol: "LL", "LL128", "SIMPLE"; of a symmetric one its variant. channels: None where NCCL does not say.
    """

    function: str
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None


@dataclass(frozen=True, slots=True)
class NcclLog:
    """The content of the logs of all ranks together; parts that NCCL did not write are empty.

    versions: of every copy of NCCL that spoke. nranks: of the communicators that came up. transports: "P2P/CUMEM",
    "SHM/direct", "NET/Socket", "NET/IB/GDRDMA". channels: of the last communicator (collectives, nvls, p2p,
    p2p_per_peer). issued: in the order of the log.
    """

    versions: tuple[str, ...]
    nranks: tuple[int, ...]
    transports: tuple[str, ...]
    channels: dict[str, Json]
    issued: tuple[NcclCall, ...]


def read_nccl_log(text: str) -> NcclLog:
    """Read one log, or several behind each other."""
    messages = list(_messages(text))
    channels = [dict(zip(_CHANNEL_NAMES, map(int, match.groups()), strict=True)) for match in _all(_CHANNELS, messages)]
    return NcclLog(
        versions=_distinct(match[1] for match in _all(_VERSION, messages)),
        nranks=tuple(sorted({int(match[1]) for match in _all(_COMPLETE, messages)})),
        transports=tuple(sorted({_transport(match) for match in _all(_VIA, messages)})),
        channels=dict[str, Json](channels[-1]) if channels else {},
        issued=tuple(call for message in messages if (call := _call(message)) is not None),
    )


def contract(issued: Iterable[NcclCall]) -> dict[str, Json]:
    """nccl_algorithm, nccl_protocol and nccl_channels of the collective that moved most bytes; {} without any.

    A workload's own collective comes once for each call of its burst; barriers and what a check exchanges are small.
    Calls of one size that NCCL issued in several ways are joined by "+".
    """
    known = list(issued)
    if not known:
        return {}

    sizes = Counter((call.function, call.bytes) for call in known)
    most = max(sizes, key=lambda size: sizes[size] * size[1])
    chosen = [call for call in known if (call.function, call.bytes) == most]
    channels = sorted({call.channels for call in chosen if call.channels is not None})
    fields: dict[str, Json] = {
        "nccl_algorithm": "+".join(sorted({call.algorithm for call in chosen})),
        "nccl_protocol": "+".join(sorted({call.protocol for call in chosen})),
    }
    if channels:
        fields["nccl_channels"] = channels[0] if len(channels) == 1 else "+".join(map(str, channels))

    return fields


def _messages(text: str) -> Iterator[str]:
    # Two copies of NCCL in one process write to one file, each at its own place: zeros fill the gaps.
    for line in map(printable, without_colours(text.replace("\0", "")).splitlines()):
        _, prefix, message = line.rpartition(_PREFIX)
        if prefix:
            yield message
        elif match := _BARE_VERSION.search(line):
            yield line[match.start() :]


def _transport(match: re.Match[str]) -> str:
    return match["local"] or f"{match['net']}{match['gdr'] or ''}"


def _all(pattern: re.Pattern[str], messages: Iterable[str]) -> Iterator[re.Match[str]]:
    return (match for message in messages if (match := pattern.search(message)))


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _call(message: str) -> NcclCall | None:
    if match := _TUNED.match(message):
        channels = None if match["low"] is None else int(match["high"]) - int(match["low"]) + 1
        algorithm, protocol = _named(match["algorithm"], _ALGORITHMS), _named(match["protocol"], _PROTOCOLS)
        return NcclCall(match["function"] or "", int(match["bytes"]), algorithm, protocol, channels)
    if match := _SYMMETRIC.match(message):
        return NcclCall(match["function"], int(match["bytes"]), "SYMMETRIC", match["kernel"], int(match["channels"]))
    if match := _COPIED.match(message):
        return NcclCall(match["function"], int(match["bytes"]), "COPY_ENGINE", "none", None)

    return None


def _named(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdecimal() and len(word) == 1 and int(word) < len(names) else word
