"""`decodegate ledger`: a decode step as a sum of stored metrics, beside the measured TPOT, and what would change it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import BadInput

if TYPE_CHECKING:
    from ..profile.explained import Explained
    from ..profile.ledger import Ledger, Time
    from ..profile.measured import Tpot
    from ..profile.what_if import Prediction
    from ..workloads.kimi import Model

_GRAMMAR: Final = (
    "write METRIC:COUNT=NAME@19us (so many calls become others), METRIC=4.1us or METRIC=OTHER-METRIC (another time), "
    "no:cast (a category is gone), ranks=4, or speculative:DRAFTS,ACCEPTANCE%%,900us (time of one draft token)"
)


def add(commands: Any) -> None:
    """Register the command with the subparsers `commands`."""
    parser = commands.add_parser(
        "ledger", help="add a decode step up from stored metrics, and say what would change it"
    )
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="baseline files; of two the last one counts"
    )
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4, 8), help="that communicate (default: 1)")
    parser.add_argument("--streams", type=int, default=1, metavar="M", help="tokens a step (default: 1)")
    parser.add_argument("--context", type=int, default=1024, metavar="C", help="tokens of cache a request (1024)")
    parser.add_argument("--layers", type=int, metavar="L", help="layers of Kimi-K2.5 in the model (default: all 61)")
    parser.add_argument(
        "--tpot", type=_milliseconds, metavar="MS", help="measured elsewhere: '4.41ms' (default: as the files have it)"
    )
    parser.add_argument(
        "--itl", type=_milliseconds, metavar="MS", help="beside --tpot: the median between two tokens, without prefills"
    )
    parser.add_argument(
        "--what-if", action="append", default=[], metavar="CHANGE", dest="what_ifs", help=f"predict; {_GRAMMAR}"
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="name what the step holds beyond the sum: the --json of `decodegate profile`, of the same step",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..report.ledger import explained_text, text

    asked = _Asked.of(options)
    now = asked.step()
    if not now.entries:
        raise BadInput(
            f"{', '.join(map(str, options.files))}: no metric of a step of {options.streams} token(s) is stored there; "
            f"the first that it needs is {now.missing[0]}"
        )

    predictions = [asked.predicted(change) for change in options.what_ifs]
    title = f"decode step of {options.streams} token(s) on {options.ranks} rank(s), context {options.context}"
    path = options.profile
    beyond = explained_text(asked.explained(now, path), str(path)) if path is not None else []
    print("\n".join([*text(now, title, asked.tpot_s, predictions), *beyond]))
    return int(bool(now.missing))


def _milliseconds(text: str) -> float:
    """A positive time such as "4.41ms", in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*ms", text)
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time above zero in milliseconds; write for example '4.41ms'")

    return float(match[1]) / 1e3


@dataclass(frozen=True, slots=True)
class _Asked:
    """The step that is asked for, and the times that it is made of. tpot: measured, of as many streams and layers."""

    times: Mapping[str, Time]
    tpot: Tpot | None
    model: Model
    ranks: int
    tokens: int
    context: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> _Asked:
        from ..baseline.reader import load
        from ..profile.measured import Tpot, stored_times, stored_tpot
        from ..workloads.kimi import KIMI_K25

        model = replace(KIMI_K25, layers=options.layers or KIMI_K25.layers)
        depth = "" if model == KIMI_K25 else f",layers={model.layers}"
        files = list(map(load, options.files))
        if options.tpot is None and options.itl is not None:
            raise BadInput(f"--itl {options.itl * 1e3:g}ms: what is between tokens is part of a TPOT; give --tpot, too")

        given = None if options.tpot is None else Tpot(options.tpot, options.itl)
        tpot = given or stored_tpot(files, f"tpot[c={options.streams}{depth}]")
        return cls(stored_times(files), tpot, model, options.ranks, options.streams, options.context)

    @property
    def tpot_s(self) -> float | None:
        """The measured TPOT, if it is known."""
        return self.tpot.seconds if self.tpot else None

    def step(self, *, ranks: int | None = None, tokens: int | None = None) -> Ledger:
        """The ledger, of other ranks or tokens if those are given."""
        from ..profile.ledger import ledger, parts

        needed = parts(ranks or self.ranks, tokens or self.tokens, self.context, self.model)
        return ledger(needed, self.times)

    def explained(self, step: Ledger, path: Path) -> Explained:
        """`step` beside the profile in a file; raises BadInput for one of another step."""
        from ..profile import documents, truth
        from ..profile.explained import explained

        profile = documents.read(path)
        if profile.partial:
            missing = ", ".join(map(str, profile.missing))
            raise BadInput(f"{path}: is partial, without rank(s) {missing}, so collectives hold an unknown wait")
        if profile.tokens not in (None, self.tokens) or len(profile.ranks) != self.ranks:
            raise BadInput(
                f"{path}: is of {profile.tokens} token(s) a step on {len(profile.ranks)} rank(s), and the ledger of "
                f"{self.tokens} on {self.ranks}; give --streams and --ranks"
            )
        if problems := truth.problems(profile, truth.expected(self.model, self.ranks)):
            raise BadInput(f"{path}: {problems[0]}; give the --layers of the model that was profiled")

        return explained(self.whole(step, f"--profile {path}"), self.times, profile, self.tpot)

    def predicted(self, change: str) -> Prediction:
        """What one --what-if asks for."""
        for pattern, predict in _CHANGES.items():
            if match := re.fullmatch(pattern, change):
                return predict(self, match)

        raise BadInput(f"--what-if {change!r} is not understood: {_GRAMMAR.replace('%%', '%')}")

    def whole(self, step: Ledger, option: str) -> Ledger:
        """`step` if nothing is missing in it: half a sum would pass for a gain. option: which needs it."""
        if step.missing:
            raise BadInput(f"{option}: no file holds {', '.join(step.missing[:3])}, which that step needs")

        return step


def _option(match: re.Match[str]) -> str:
    return f"--what-if {match[0]!r}"


def _without(asked: _Asked, match: re.Match[str]) -> Prediction:
    from ..profile.categories import Category
    from ..profile.what_if import without

    if match["category"] not in list(Category):
        raise BadInput(f"--what-if {match[0]!r}: no category {match['category']!r}; one of {', '.join(Category)}")

    return without(asked.step(), Category(match["category"]), of_s=asked.tpot_s)


def _other_ranks(asked: _Asked, match: re.Match[str]) -> Prediction:
    from ..profile.what_if import other_ranks

    ranks = int(match["ranks"])
    then = asked.whole(asked.step(ranks=ranks), _option(match))
    return other_ranks(asked.whole(asked.step(), _option(match)), then, ranks, of_s=asked.tpot_s)


def _speculative(asked: _Asked, match: re.Match[str]) -> Prediction:
    from ..profile.what_if import speculative

    drafts, acceptance = int(match["drafts"]), float(match["acceptance"]) / 100
    verifying = asked.whole(asked.step(tokens=asked.tokens * (drafts + 1)), _option(match))
    now = asked.whole(asked.step(), _option(match))
    return speculative(now, verifying, drafts, acceptance, _time(match), of_s=asked.tpot_s)


def _exchanged(asked: _Asked, match: re.Match[str]) -> Prediction:
    from ..profile.categories import Category
    from ..profile.ledger import Entry
    from ..profile.what_if import exchanged

    by = Entry(match["by"], Category.COLLECTIVES, int(match["count"]), _time(match))
    return exchanged(asked.step(), match["name"], by.count, by, of_s=asked.tpot_s)


def _retimed(asked: _Asked, match: re.Match[str]) -> Prediction:
    from ..profile.what_if import faster

    return faster(asked.step(), match["name"], _time(match), match["name"], of_s=asked.tpot_s)


def _like(asked: _Asked, match: re.Match[str]) -> Prediction:
    from ..profile.what_if import faster

    other = match["other"]
    if other not in asked.times:
        raise BadInput(f"--what-if {match[0]!r}: no file holds {other!r}")

    return faster(asked.step(), match["name"], asked.times[other], other, of_s=asked.tpot_s)


def _time(match: re.Match[str]) -> Time:
    from ..profile.ledger import Time

    return Time(float(match["us"]) * 1e-6)


_METRIC: Final = r"(?P<name>\w+\[[^\]]*\])"
_US: Final = r"(?P<us>\d+(?:\.\d+)?)us"

_CHANGES: Final[Mapping[str, Callable[[_Asked, re.Match[str]], Prediction]]] = {
    r"no:(?P<category>\w+)": _without,
    r"ranks=(?P<ranks>[1248])": _other_ranks,
    rf"speculative:(?P<drafts>\d+),(?P<acceptance>\d+(?:\.\d+)?)%,{_US}": _speculative,
    rf"{_METRIC}:(?P<count>\d+)=(?P<by>[^=@]+)@{_US}": _exchanged,
    rf"{_METRIC}={_US}": _retimed,
    rf"{_METRIC}=(?P<other>\w+\[[^\]]*\])": _like,
}
"""What a --what-if may ask for, by the form of its text."""
