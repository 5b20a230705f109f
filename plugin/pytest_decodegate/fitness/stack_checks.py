"""Checks of the software that ranks would load, of the client, and of what there is to compare with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .check import Grade, Symptom
from .readings import HostReadings, LoadedStack


def packages(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the Python of the ranks has torch, without which none runs, and vLLM."""
    for package in seen.stack.packages if seen.stack else ():
        if package.version is not None:
            yield Symptom(Grade.OK, f"{package.name} {package.version}")
        else:
            yield Symptom(Grade.FAIL if package.name == "torch" else Grade.WARN, package.problem)


def cuda(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the driver runs the CUDA that torch was built for."""
    stack = seen.stack
    built = _numbers(str(stack.facts.get("cuda") or "")) if stack else ()
    if stack is None or not stack.facts:
        yield _unread(stack)
    elif not built:
        grade = Grade.FAIL if seen.cards else Grade.OK
        yield Symptom(grade, f"torch {stack.facts.get('torch')} is a build without CUDA")
    elif stack.driver_cuda is None:
        yield Symptom(Grade.SKIP, "the driver does not say which CUDA it runs")
    else:
        driver = ".".join(map(str, stack.driver_cuda))
        text = f"torch was built for CUDA {stack.facts['cuda']}, the driver runs up to {driver}"
        newer = built[:2] > stack.driver_cuda
        # Within a major version an older driver runs newer CUDA, without what that brought (CUDA compatibility guide).
        yield Symptom(Grade.FAIL if built[0] > stack.driver_cuda[0] else Grade.WARN if newer else Grade.OK, text)


def nccl(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the NCCL that answers is the one that is installed, and the only one that is mapped."""
    stack = seen.stack
    if stack is None or not stack.facts:
        yield _unread(stack)
        return

    mapped, installed = stack.facts.get("nccl"), stack.installed.get("nccl")
    if mapped is None:
        yield Symptom(Grade.SKIP, "this torch maps no NCCL")
        return
    if installed is not None and not installed.startswith(str(mapped)):
        paths = stack.facts.get("nccl_path")
        where = f" from {', '.join(map(str, paths))}" if isinstance(paths, list) else ""
        yield Symptom(Grade.WARN, f"{mapped} answers{where}, and {installed} is installed")
    if unused := stack.facts.get("nccl_unused"):
        names = ", ".join(map(str, unused)) if isinstance(unused, list) else str(unused)
        yield Symptom(Grade.WARN, f"another copy is mapped too: {names}")

    yield Symptom(Grade.OK, f"{mapped} answers" + (", as installed" if installed else ""))


def vllm_torch(seen: HostReadings) -> Iterator[Symptom]:
    """Whether vLLM has the torch that it was built for."""
    stack = seen.stack
    wanted = stack.installed.get("vllm_wants_torch") if stack else None
    found = next((each.version for each in stack.packages if each.name == "torch"), None) if stack else None
    if wanted and found:
        fits = found.split("+")[0] in wanted.split(" or ")
        yield Symptom(Grade.OK if fits else Grade.FAIL, f"vLLM wants torch {wanted}, and {found} is there")


def client(seen: HostReadings) -> Iterator[Symptom]:
    """Whether the client is fast enough on this host."""
    if seen.client_floor is not None:
        text, good = seen.client_floor
        yield Symptom(Grade.OK if good else Grade.FAIL, text)


def baselines(seen: HostReadings) -> Iterator[Symptom]:
    """Whether there is something to compare with."""
    if seen.baselines is not None:
        grade = Grade.OK if seen.baselines else Grade.WARN
        yield Symptom(grade, f"of this machine and its parts: {', '.join(seen.baselines) or 'none'}")


def _unread(stack: LoadedStack | None) -> Symptom:
    return Symptom(Grade.SKIP, stack.problem if stack and stack.problem else "what ranks load was not asked")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
