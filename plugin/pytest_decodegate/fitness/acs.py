"""Access Control Services of PCIe bridges: with redirection, traffic between two cards goes up to the root and back.

Layout: PCI Express Base Specification, extended capabilities (header: id in bits 0-15, next in bits 20-31) and ACS
(id 0x000D, control register at offset 6; bit 2 P2P request redirect, bit 3 completion redirect).
"""

from __future__ import annotations

import struct
from typing import Final

FIRST: Final = 0x100
"""Where extended capabilities begin. The kernel shows no more than 64 bytes to users other than root."""

_ACS: Final = 0x000D
_CONTROL: Final = 6
_REDIRECTS: Final = 0x0C


def redirects(config: bytes) -> bool | None:
    """Whether a bridge with this configuration space redirects traffic of peers; None where that cannot be read."""
    if len(config) < FIRST + 4:
        return None

    offset, seen = FIRST, set[int]()
    while offset >= FIRST and offset not in seen and offset + _CONTROL + 2 <= len(config):
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS:
            return bool(struct.unpack_from("<H", config, offset + _CONTROL)[0] & _REDIRECTS)

        offset = header >> 20

    return False
