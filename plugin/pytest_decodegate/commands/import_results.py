"""`decodegate import`: results of other tools as a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, unreadable
from ..metric import DEFAULT_TOLERANCE

if TYPE_CHECKING:
    from ..importing.found import SourceFile

_MOST_BYTES = 2**30


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser(
        "import",
        help="take results of vllm bench serve, SGLang, aiperf, guidellm, nccl-tests or pytest-benchmark as a baseline",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of one stack on one machine")
    parser.add_argument("--out", type=Path, default=Path("baselines"), help="folder of stored baselines")
    parser.add_argument(
        "--machine-class",
        default="unknown",
        metavar="CLASS",
        help="as `decodegate doctor` prints it (default: unknown)",
    )
    parser.add_argument(
        "--stack",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="part of the stack that the files do not tell, such as driver=580.95 or nccl=2.28.9 (repeatable)",
    )
    parser.add_argument("--label", default="", help="name of the stack (default: that of the tool)")
    parser.add_argument("--client-version", metavar="VERSION", help="vLLM that ran the client of `vllm bench serve`")
    parser.add_argument(
        "--collective",
        default="",
        metavar="NAME",
        help="of a table of nccl-tests that does not name it, such as all_reduce (those printed before June 2025)",
    )
    parser.add_argument(
        "--kind", choices=DEFAULT_TOLERANCE, default="cpu", help="kind of pytest-benchmark's metrics (default: cpu)"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..baseline.store import Store
    from ..importing.baseline import UserFacts, joined
    from ..machine.provenance import UNKNOWN

    user = UserFacts(
        machine_class=options.machine_class,
        label=options.label,
        stack=dict(_settings(options.stack)),
        client_version=options.client_version,
        kind=options.kind,
        collective=options.collective,
    )
    baseline = joined([_source(path) for path in options.files], user)
    path = Store(options.out).add(baseline)
    what = "published figures" if baseline.published else "sessions with samples"
    print(f"{path}: {len(baseline.metrics)} metrics, {what}")
    unknown = [name for name, value in baseline.provenance.stack.items() if value == UNKNOWN]
    if unknown:
        print(f"not known: {', '.join(unknown)}; import again with --stack NAME=VALUE if you know")

    return 0


def _source(path: Path) -> SourceFile:
    from ..importing.found import SourceFile

    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise BadInput(f"{path}: {size} bytes are too many for a result")

        return SourceFile(path, path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error


def _settings(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise BadInput(f"--stack {text!r}: write NAME=VALUE, for example driver=580.95.05")

        yield name, value
