"""The next command after a run: the one that was typed, with what would settle what is open."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..gate.decision import Answer, Decision, is_fine, is_run_level
from ..gate.result import Failed, Result
from ..gate.run import Run
from ..gate.text.advice import budget_for, declarations
from ..gate.verdict import Judgement, Verdict
from ..redaction import redact_arguments

MOST_NAMES = 6
"""Metrics that a command names one by one; more are named by their families."""

ONLY = "--perf-only"
MORE = "--perf-max-replicates"
BUDGET = "--perf-budget"
CHANGE = "--perf-change"
ALLOW = "--allow"
RECORD = "--perf-record"
UPGRADE = "upgrade"


def next_command(run: Run, decision: Decision, typed: Sequence[str]) -> list[str]:
    """Words for a shell, quoted, secrets left out; [] where nothing is left to run.

    typed: the command that started the run: pytest or decodegate upgrade, and its arguments.
    """
    own, for_pytest = _split(typed)
    options = list(_options(run, decision, is_upgrade=bool(own)))
    if not options:
        return []

    before = _replaced(own, [option for option in options if option[0] == ALLOW])
    after = _replaced(for_pytest, [option for option in options if option[0] != ALLOW])
    words = [*before, *(["--"] if before and after else []), *after]
    return [shlex.quote(word) for word in redact_arguments(words)]


def _split(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command of ours, and those for pytest."""
    words = list(typed)
    if UPGRADE not in words[1:2]:
        return [], words
    if "--" not in words:
        return words, []

    place = words.index("--")
    return words[:place], words[place + 1 :]


def _options(run: Run, decision: Decision, *, is_upgrade: bool) -> Iterator[tuple[str, str | None]]:
    """Options with the values that replace what was typed, None for an option that is to go."""
    if decision.answer is Answer.RECORDED:
        yield RECORD, None
        return

    left = [outcome for outcome in run.outcomes if not is_fine(outcome)]
    if not left:
        return

    judgements = [outcome.judgement for outcome in left if isinstance(outcome, Result)]
    if any(map(_is_test, left)) or all(map(is_run_level, left)):
        yield ONLY, None
    else:  # each in a word of its own, so that the lines of the command stay short
        names = [outcome.name for outcome in left if not is_run_level(outcome)]
        yield from ((ONLY, pattern) for pattern in _patterns(names))
    if declared := _declared(judgements):
        yield ALLOW if is_upgrade else CHANGE, ",".join(declared)
    if any(judgement.verdict is Verdict.NO_BASELINE for judgement in judgements):
        yield RECORD, "missing"
    settlements = [each.settlement for each in judgements if each.settlement]
    if most := max((each.replicates or 0 for each in settlements if each.seconds is None), default=0):
        yield MORE, str(most)
    if longest := max((each.seconds or 0.0 for each in settlements), default=0.0):
        yield BUDGET, budget_for(longest)


def _is_test(outcome: Result | Failed) -> bool:
    """Whether no metric is known of it."""
    return isinstance(outcome, Failed) and outcome.metric is None


def _patterns(names: Sequence[str]) -> list[str]:
    """Names, or the patterns of their families where there are many."""
    if len(names) <= MOST_NAMES:
        return list(dict.fromkeys(names))

    return list(dict.fromkeys(_family(name) for name in names))


def _family(name: str) -> str:
    """The pattern of all sizes of what `name` measures: "marlin_moe[*]"; a name without a size is its own."""
    family, bracket, _ = name.partition("[")
    return f"{family}[*]" if bracket else name


def _declared(judgements: Sequence[Judgement]) -> list[str]:
    """What is to be declared, with what was declared already: the command replaces the one that was typed."""
    confounded = [judgement for judgement in judgements if any(each.declarable for each in judgement.undeclared)]
    return list(dict.fromkeys(name for judgement in confounded for name in declarations(judgement.differences)))


def _replaced(words: Sequence[str], options: Sequence[tuple[str, str | None]]) -> list[str]:
    """`words` without these options and their values, and with those that have one at the end."""
    replaced = {name for name, _ in options}
    kept: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skip and not word.startswith("-"):
            skip = False
            continue

        skip = name in replaced and not equals
        if name not in replaced:
            kept.append(word)

    return [*kept, *(f"{name}={value}" for name, value in options if value is not None)]
