"""Patterns of metric names: a bracket is itself, and a comma inside one belongs to the name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_decodegate.settings.patterns import matches, split_patterns

NAMES = st.from_regex(r"[a-z][a-z0-9_.]{0,8}(\[[a-z]=[0-9]{1,3}(,[a-z]{1,5}=[0-9]{1,3})?\])?", fullmatch=True)


@given(NAMES)
def test_a_name_matches_itself_and_its_beginning(name: str) -> None:
    assert matches(name, name)
    assert matches(f"{name[:3]}*", name)
    assert not matches(name, f"{name}x")


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_names_joined_by_commas_come_apart_again(names: list[str]) -> None:
    assert split_patterns(",".join(names)) == names


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("marlin_moe*,tpot[c=1]", ["marlin_moe*", "tpot[c=1]"]),
        (" mla_decode[m=8,context=1024] , topk* ", ["mla_decode[m=8,context=1024]", "topk*"]),
        ("a[,b", ["a[", "b"]),
        ("", []),
    ],
)
def test_what_people_type(text: str, patterns: list[str]) -> None:
    assert split_patterns(text) == patterns


def test_a_bracket_is_no_set_of_characters() -> None:
    assert matches("tpot[c=?]", "tpot[c=8]")
    assert not matches("tpot[c]", "tpotc")
