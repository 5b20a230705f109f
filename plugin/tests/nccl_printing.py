"""Tables as nccl-tests prints them: the formats of src/util.cu of its 2.19.6, its bandwidths from src/*.cu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "sendrecv": lambda n: 1,
}

PREAMBLE = f"{'':12s}  {'':12s}  {'':8s}  {'':6s}  {'':6s}"


@dataclass(frozen=True)
class Printing:
    """A run. bandwidth_ranks: those that its bandwidths are of, if not its own."""

    collective: str = "all_reduce"
    ranks: int = 2
    gpus: int = 1  # a process
    dtype: str = "bfloat16"
    graph: int = 0
    per_iteration: bool = False
    stamp: str = ""
    wrong: str = "0"
    groups: int = 1
    bandwidth_ranks: int | None = None
    named: bool = True
    device: str = "NVIDIA H200"

    def parts(self, rows: Sequence[tuple[int, float, float]]) -> list[str]:
        """What was printed at a time: chunks of the text, of which a row has four."""
        chunks = [self.head()]
        for size, *times in rows:
            chunks.append(f"{size:12d}  {size // 2:12d}  {self.dtype:>8s}  {'sum':>6s}  {'-1':>6s}")
            for place, time in enumerate(times):
                chunks.append(self.body(size, time) + (f"{self.stamp:>21s}" if place and self.stamp else ""))

            chunks.append("\n")

        return [*chunks, self.foot()]

    def table(self, *rows: tuple[int, float, float]) -> str:
        return "".join(self.parts(rows))

    def body(self, size: int, time: float) -> str:
        algbw = size / time / 1e3
        busbw = algbw * FACTORS[self.collective](self.bandwidth_ranks or self.ranks)
        text = f"  {number(time, 7):>7s}  {number(algbw, 6):>6s}  {number(busbw, 6):>6s}  {self.wrong:>6s}"
        return text + (f"  {number(time, 7):>7s}" * 3 + f"  {number(0.1, 7):>7s}" if self.per_iteration else "")

    def head(self) -> str:
        titles = f"{'time':>7s}  {'algbw':>6s}  {'busbw':>6s}  {'#wrong':>6s}"
        titles += f"  {'i_min':>7s}  {'i_max':>7s}  {'i_p99':>7s}  {'i_cv%':>7s}" if self.per_iteration else ""
        columns = f"# {'size':>10s}  {'count':>12s}  {'type':>8s}  {'redop':>6s}  {'root':>6s}  {titles}  {titles}"
        start = f"# Collective test starting: {self.collective}_perf\n" if self.named else ""
        return (
            f"# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n{start}"
            f"# nThread 1 nGpus {self.gpus} minBytes 8 maxBytes 28672 step: 2(factor) warmup iters: 1 iters: 20 "
            f"agg iters: 1 validation: 1 graph: {self.graph} unalign: 0\n#\n# Using devices\n{self.devices()}#\n"
            f"# {PREAMBLE}         out-of-place                       in-place          \n"
            f"{columns} {'timestamp' if self.stamp else ''}\n"
            f"# {'(B)':>10s}  {'(elements)':>12s}                             (us)  (GB/s)  (GB/s)\n"
        )

    def devices(self) -> str:
        return "".join(
            f"#  Rank {rank:2d} Group {group:2d} Pid {4711 + rank // self.gpus:6d} on {'node-a':>10s} device "
            f"{rank % 8:2d} [0000:{rank:02x}:00] {self.device}\n"
            for group in range(self.groups)
            for rank in range(group * self.ranks, (group + 1) * self.ranks)
        )

    def foot(self) -> str:
        named = f"# Collective test concluded: {self.collective}_perf\n" if self.named else ""
        return f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.2 \n#\n{named}"


def number(value: float, width: int) -> str:
    """getFloatStr of util.cu."""
    for decimals in (2, 1, 0):
        if len(text := f"{value:.{decimals}f}") <= width:
            return text

    return f"{value:.{1 if width >= 7 else 0}e}"
