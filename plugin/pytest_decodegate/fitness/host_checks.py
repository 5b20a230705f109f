"""Checks of what is around the GPUs: CPU, memory nodes, PCIe bridges, room, and limits of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..machine.cpu_load import NOTED_SHARE
from .check import Grade, Symptom
from .readings import HostReadings, Space

CLOCK_SOURCES: Final = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
"""Those that are read without leaving the process: tens of nanoseconds, where hpet and acpi_pm take microseconds."""

DESCRIPTORS: Final = (256, 1024)
"""Open files of a process: 128 streams with their server's, and the default of most systems. Below: FAIL, WARN."""

ROOM: Final = {"shared memory": (16 << 20, 1 << 30)}
"""Bytes free below which a place FAILs and WARNs; NCCL takes some ten MB there for each pair of ranks."""

DISK: Final = (256 << 20, 5 << 30)
"""The same of every other place: what a run records, and what compilers of kernels leave."""

STEAL: Final = (0.05, 0.005)
"""Share of CPU time that other machines took. Above: FAIL, WARN."""


def peer_path(seen: HostReadings) -> Iterator[Symptom]:
    """Whether bridges or an IOMMU send what cards tell each other through the root."""
    files = seen.files
    if seen.fingerprint is None or len(seen.fingerprint.gpus) < 2 or seen.fingerprint.link == "NVLink":
        yield Symptom(Grade.SKIP, "no two cards that talk over PCIe")
        return
    if files.redirecting:
        shown = ", ".join(files.redirecting[:4]) + (" ..." if len(files.redirecting) > 4 else "")
        yield Symptom(Grade.WARN, f"ACS of {len(files.redirecting)} PCIe bridges redirects peers ({shown})")
    if translating := [kind for kind in files.iommu if kind != "identity"]:
        yield Symptom(Grade.WARN, f"the IOMMU translates what cards read and write ({', '.join(translating)})")
    if files.unread_bridges:
        yield Symptom(
            Grade.SKIP, f"ACS of {files.unread_bridges} PCIe bridges is for root to read: sudo decodegate doctor"
        )
    else:
        yield Symptom(Grade.OK, "no redirection by ACS, no translation by an IOMMU")


def numa(seen: HostReadings) -> Iterator[Symptom]:
    """Whether this process may use cores near each card, and whether pages stay where they are."""
    topology = seen.fingerprint.topology if seen.fingerprint else None
    for gpu in topology.gpus if topology else ():
        near, number = gpu.get("cpus"), gpu.get("gpu")
        if isinstance(near, str) and near and isinstance(number, int):
            good = bool(core_list(near) & seen.cores)
            text = f"cores {near} are near it" + ("" if good else ", and this process may run on none of them")
            yield Symptom(Grade.OK if good else Grade.WARN, text, number)

    nodes = seen.fingerprint.host.machine.get("numa_nodes") if seen.fingerprint else None
    if isinstance(nodes, int):
        moves = nodes > 1 and seen.files.numa_balancing is True
        balancing = "the kernel moves pages between them" if moves else "pages stay where they are"
        yield Symptom(Grade.WARN if moves else Grade.OK, f"{nodes} node(s), {balancing}")


def governor(seen: HostReadings) -> Iterator[Symptom]:
    """Whether cores run at full frequency at once."""
    slow = {name: count for name, count in seen.files.governors.items() if name != "performance"}
    if slow:
        yield Symptom(Grade.WARN, ", ".join(f"{name} on {count} cores" for name, count in slow.items()))
    elif seen.files.governors:
        yield Symptom(Grade.OK, "performance on all cores")
    else:
        yield Symptom(Grade.SKIP, "the kernel does not tell, as in most virtual machines")


def cores(seen: HostReadings) -> Iterator[Symptom]:
    """Whether each rank has a core of its own, and others leave them alone."""
    if seen.fingerprint is None:
        return

    count, quota = len(seen.cores), seen.fingerprint.host.machine.get("cpu_quota_cores")
    usable = min(count, quota) if isinstance(quota, int | float) else count
    wanted = len(seen.fingerprint.gpus) + 1
    if usable < wanted:
        yield Symptom(Grade.WARN, f"{usable:g} cores may be used, and {wanted} processes are timed on them")
    if seen.others is not None and seen.others.others >= NOTED_SHARE * seen.others.cores:
        most = f", most: {seen.others.most[0]}" if seen.others.most else ""
        yield Symptom(Grade.WARN, f"others use {seen.others.others:.1f} of {seen.others.cores} cores now{most}")

    yield Symptom(Grade.OK, f"{usable:g} cores, quiet")


def steal(seen: HostReadings) -> Iterator[Symptom]:
    """Whether other machines take time from this one's cores."""
    if seen.steal is not None:
        fail, warn = STEAL
        grade = Grade.FAIL if seen.steal > fail else Grade.WARN if seen.steal > warn else Grade.OK
        yield Symptom(grade, f"{seen.steal:.2%} of the time")


def clock_source(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the time can be read without a trip into the kernel."""
    source = seen.files.clock_source
    if source:
        yield Symptom(Grade.OK if source in CLOCK_SOURCES else Grade.WARN, source)


def room(seen: HostReadings) -> Iterator[Symptom]:
    """Whether there is room on disk and in shared memory."""
    for space in seen.spaces:
        fail, warn = ROOM.get(space.what, DISK)
        grade = Grade.FAIL if space.free < fail else Grade.WARN if space.free < warn else Grade.OK
        yield Symptom(grade, f"{space.what}: {_size(space)}")


def descriptors(seen: HostReadings) -> Iterator[Symptom]:
    """Whether a process may open files enough."""
    if seen.descriptors is not None:
        fail, warn = DESCRIPTORS
        grade = Grade.FAIL if seen.descriptors < fail else Grade.WARN if seen.descriptors < warn else Grade.OK
        yield Symptom(grade, f"{seen.descriptors} a process")


def core_list(text: str) -> frozenset[int]:
    """Cores of a list as the kernel writes it: "0-3,8" -> {0, 1, 2, 3, 8}; nothing for what is no such list."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found.update(range(int(first), int(last or first) + 1))

    return frozenset(found)


def _size(space: Space) -> str:
    return f"{space.free / 2**30:.1f} of {space.total / 2**30:.1f} GiB free at {space.path}"
