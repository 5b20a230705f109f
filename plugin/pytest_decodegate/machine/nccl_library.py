"""Which copy of NCCL answers the calls of this process, where several are mapped: asked of the dynamic linker."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

_TORCH: Final = "libtorch_cuda.so"
"""The library of torch that calls NCCL."""


class _Place(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def answering_torch() -> str | None:
    """The file whose ncclGetVersion torch's calls reach; None where nothing in this process has one.

    The linker looks where it looked for torch: first among what every library sees, which holds what was preloaded,
    then among the libraries that torch itself asked for.
    """
    for name in (None, _TORCH):
        try:
            # RTLD_NOLOAD: nothing may be mapped by asking.
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY) if name else ctypes.CDLL(None)
        except OSError:
            continue
        if file := file_of(library):
            return file

    return None


def file_of(library: Any) -> str | None:
    """The file in which `library`, a ctypes.CDLL, finds ncclGetVersion; None if it finds none."""
    try:
        address = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p)
    except AttributeError:
        return None

    place = _Place()
    known = ctypes.CDLL(None).dladdr(address, ctypes.byref(place))
    return os.fsdecode(place.file) if known and place.file else None


def version_of(library: Any) -> str:
    """What the ncclGetVersion of `library` says, "unknown" if it fails."""
    code = ctypes.c_int()
    status = library.ncclGetVersion(ctypes.byref(code))
    return decode_nccl(code.value) if status == 0 else "unknown"


def nccl_version(path: str) -> str:
    """Ask the copy of NCCL that is already loaded from `path`, never another one."""
    # RTLD_NOLOAD: were the path replaced under the process, loading it would report a library that nobody uses.
    return version_of(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))


def decode_nccl(code: int) -> str:
    """22809 -> "2.28.9"; before 2.9 the code was 1000 a major version (nccl.h, NCCL_VERSION)."""
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"
