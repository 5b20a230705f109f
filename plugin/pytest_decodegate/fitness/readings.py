"""What was read of a host before it is judged: plain data, so that checks can be tested without a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..machine.card_condition import CardCondition
from ..machine.cpu_load import OtherUse
from ..machine.fingerprint import Fingerprint
from ..machine.gpus import Gpu
from ..machine.nvml import GpuProcess, GpuReading
from ..metric import Json


@dataclass(frozen=True, slots=True)
class CardLoad:
    """A card under a short load. looks: while it was busy. limited_s: seconds for which each reason limited its clocks.

    copy_bytes_s, host_bytes_s: read and written within its memory, and from the host's memory to it.
    """

    looks: tuple[GpuReading, ...]
    limited_s: Mapping[str, float]
    copy_bytes_s: float
    host_bytes_s: float


@dataclass(frozen=True, slots=True)
class InspectedCard:
    """A card as it stands before anything of ours runs on it. foreign: processes on it that are not ours.

    cuda_users: pids among them that have mapped CUDA as far as can be seen: others may be numbers of another container.
    load: under a short load; None if there was none.
    """

    gpu: Gpu
    condition: CardCondition = field(default_factory=CardCondition)
    idle: GpuReading | None = None
    foreign: tuple[GpuProcess, ...] = ()
    cuda_users: frozenset[int] = frozenset()
    used_mib: int = 0
    busy_percent: int | None = None
    load: CardLoad | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the file system of `path`, in bytes. what: what a run writes there."""

    what: str
    path: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class HostFiles:
    """What /sys and /proc tell; None and empty where they do not.

    governors: number of cores by frequency governor. numa_balancing: whether the kernel moves pages between nodes.
    iommu: whether DMA is translated, and how ("DMA-FQ", "identity"). redirecting: PCIe bridges whose ACS sends traffic
    between cards up to the root; unread_bridges: those whose settings this user may not read.
    """

    clock_source: str | None = None
    governors: Mapping[str, int] = field(default_factory=dict)
    numa_balancing: bool | None = None
    iommu: tuple[str, ...] = ()
    redirecting: tuple[str, ...] = ()
    unread_bridges: int = 0


@dataclass(frozen=True, slots=True)
class Importable:
    """A package in the Python of the ranks. version: None where it cannot be imported, and `problem` says why."""

    name: str
    version: str | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LoadedStack:
    """The stack as a process of the ranks' Python loads it.

    facts: as of machine.stack.probe. problem: why there are none. driver_cuda: the newest CUDA that the driver runs.
    installed: as of machine.requirements.
    """

    packages: tuple[Importable, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    problem: str = ""
    driver_cuda: tuple[int, int] | None = None
    installed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LostGpus:
    """That the host had more GPUs when it recorded, in a sentence. sure: it is known to be the same host."""

    text: str
    sure: bool

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HostReadings:
    """Everything that the checks look at.

    fingerprint: None where the GPUs are broken, and `refused` says how. attached: a server of the user's is measured,
    whose processes are no strangers. not_loaded: why no card was loaded, "" if they were. steal: share of CPU time
    that other machines took. descriptors: files that a process may open. cores: those that this process may run on.
    stack: None where it was not asked. client_floor: the client's own pace or why there is none; good or not.
    """

    fingerprint: Fingerprint | None
    refused: str = ""
    cards: tuple[InspectedCard, ...] = ()
    attached: bool = False
    not_loaded: str = ""
    files: HostFiles = field(default_factory=HostFiles)
    spaces: tuple[Space, ...] = ()
    descriptors: int | None = None
    cores: frozenset[int] = frozenset()
    others: OtherUse | None = None
    steal: float | None = None
    stack: LoadedStack | None = None
    client_floor: tuple[str, bool] | None = None
    lost_gpus: LostGpus | None = None
    baselines: tuple[str, ...] | None = None
