"""Kernel names: what tells kernels apart stays, what compilers spell differently does not."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suite_metrics import suite_metrics

from pytest_decodegate.workloads.runtime.kernel_names import short_name

HERE = Path(__file__).parent
US_PER_STEP: dict[str, float | None] = json.loads((HERE / "data" / "kernel_names.json").read_text())["us_per_step"]
TRACED = list(US_PER_STEP)
METRICS: list[tuple[str, list[str] | str]] = json.loads((HERE / "data" / "kernel_metrics.json").read_text())["kernels"]
LEAST_SHARE = 0.001
"""Of the device time of a step, from which on a kernel must be timed by a metric or have a reason."""

ADD_RMS_NORM = (
    "std::enable_if<(((8)>(0)) && (vllm::_typeConvert<c10::BFloat16>::exists)), void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, "
    "float, int, int)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        (
            "void at::native::fill_kernel<4, at::native::Fill<float>, std::array<char*, 1ul> >(int, char*)",
            "at::native::fill_kernel<4, at::native::Fill<float>, std::array<char*, 1>>",
        ),
        (
            "void at::native::(anonymous namespace)::softmax<float, (int)4>(float*, int)",
            "at::native::(anonymous namespace)::softmax<float, 4>",
        ),
        (ADD_RMS_NORM, "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>"),
        (ADD_RMS_NORM.replace("(8)>(0)", "8 < 9"), "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>"),
        ("unsigned long f<(x)0>(int) [clone .cold]", "f<(x)0>"),
        (
            "void k<g(int)::{lambda()#3}::operator()() const::{lambda(float)#1}>(int)",
            "k<g(int)::{lambda()#3}::operator()() const::{lambda(float)#1}>",
        ),
        ("g(int)::{lambda(char*)#1}::operator()(char*) const", "g(int)::{lambda(char*)#1}::operator()"),
        ("(anonymous namespace)::plain(int)", "(anonymous namespace)::plain"),
        ("_fwd_grouped_kernel_stage1", "_fwd_grouped_kernel_stage1"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("Memset (Device)", "Memset"),
        ("", ""),
    ],
)
def test_a_name_keeps_what_picks_the_kernel(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void k<256, true, 8ul>(int4 const*)", "void k<(int)256, (bool)1, (unsigned long)8>(const int4 *)"),
        ("void k<false, std::array<char*, 2ul> >(int)", "void k<(bool)0, std::array<char *, 2UL>>(int)"),
        ("void a::(anonymous namespace)::k<1>(int)", "void a::<unnamed>::k<1>(int)"),
        ("void a::(anonymous namespace)::k<1>(int)", "void a::_GLOBAL__N__1a2b_3_file_cu_4::k<1>(int)"),
        ("void k<float const*>(float const*)", "void k<const float *>(const float *)"),
        (ADD_RMS_NORM, "void " + ADD_RMS_NORM.split("::type ")[1]),
    ],
)
def test_two_spellings_of_one_kernel_are_one(one: str, other: str) -> None:
    assert short_name(one) == short_name(other)


def test_distinct_kernels_of_real_traces_stay_distinct() -> None:
    assert len(TRACED) == 60
    short = {short_name(name) for name in TRACED}
    assert len(short) == len(TRACED)


@pytest.mark.parametrize("name", TRACED)
def test_a_short_name_ends_with_the_name_and_its_template_arguments(name: str) -> None:
    short = short_name(name)
    assert not short.startswith(("void ", "std::enable_if"))
    assert short.count("(") == short.count(")")
    assert short_name(short) == short, "shortening twice changes nothing"


identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(
    lambda word: word not in ("const", "operator")
)
literals = st.one_of(st.integers(0, 512).map(str), st.sampled_from(["true", "false"]))


@st.composite
def template_arguments(draw: st.DrawFn, depth: int = 2) -> str:
    """A list of template arguments, nested, with comparisons and lambdas among them."""
    inner = template_arguments(depth=depth - 1) if depth else literals
    words = st.one_of(
        literals,
        identifiers,
        st.tuples(identifiers, inner).map(lambda pair: f"{pair[0]}<{pair[1]}>"),
        st.tuples(identifiers, inner).map(lambda pair: f"{pair[0]}({pair[1]})::{{lambda(int)#1}}"),
        st.just("((8)>(0)) && (t<int>::ok)").map("({})".format),
    )
    return ", ".join(draw(st.lists(words, min_size=1, max_size=3)))


@given(st.lists(identifiers, min_size=1, max_size=3), template_arguments(), template_arguments())
def test_what_surrounds_a_name_never_changes_it(scopes: list[str], chosen: str, given_arguments: str) -> None:
    name = f"{'::'.join(scopes)}<{chosen}>"
    alone = short_name(f"{name}()")
    assert alone.startswith("::".join(scopes) + "<")
    for around in ("void {}({})", "std::enable_if<(((8)>(0))), void>::type {}({})", "unsigned int {}({}) const"):
        assert short_name(around.format(name, given_arguments)) == alone


@given(st.lists(template_arguments(), min_size=2, max_size=2, unique_by=lambda text: short_name(f"k<{text}>()")))
def test_other_template_arguments_are_another_kernel(two: list[str]) -> None:
    assert short_name(f"void k<{two[0]}>(int)") != short_name(f"void k<{two[1]}>(int)")


def timed_by(name: str) -> list[str] | str | None:
    """The metrics that time a kernel, or why none does; None where nobody knows it."""
    return next((by for pattern, by in METRICS if fnmatchcase(short_name(name), pattern)), None)


def test_every_kernel_of_a_real_step_is_timed_by_a_metric_or_has_a_reason() -> None:
    step = sum(time for time in US_PER_STEP.values() if time)
    large = [name for name, time in US_PER_STEP.items() if time and time >= LEAST_SHARE * step]
    assert len(large) > 40
    assert [name for name in large if timed_by(name) is None] == []
    untimed = sum(US_PER_STEP[name] or 0.0 for name in large if isinstance(timed_by(name), str))
    assert untimed < 0.10 * step


def test_what_times_a_kernel_is_in_the_suite() -> None:
    ops = {name.split("[")[0] for name in suite_metrics()}
    named = {op for _, by in METRICS if isinstance(by, list) for op in by}
    assert named - ops == set()


@pytest.mark.parametrize(("pattern", "by"), METRICS)
def test_no_line_of_the_table_is_idle_or_without_a_reason(pattern: str, by: list[str] | str) -> None:
    assert by
    assert [name for name in TRACED if timed_by(name) == by and fnmatchcase(short_name(name), pattern)]
