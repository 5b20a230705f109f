from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_decodegate.machine.gpus import Gpu
from pytest_decodegate.machine.pcie import LEAST_LOOKS, PcieLink, Slot, link, pci_address, reached, slow_link

FULL = PcieLink(5, 16)
links = st.builds(PcieLink, st.integers(1, 6), st.sampled_from([1, 2, 4, 8, 16]))


def gpu(**machine: int | None) -> Gpu:
    return Gpu(3, "GPU-a", "H200", "00000000:AF:00.0", None, machine, {})


def at_most(link: PcieLink, most: PcieLink) -> PcieLink:
    return PcieLink(min(link.generation, most.generation), min(link.width, most.width))


def test_the_slot_of_a_gpu() -> None:
    assert gpu(pcie_gen_max=5, pcie_width_max=16).slot == Slot(3, "0000:af:00.0", FULL)
    assert gpu(pcie_gen_max=None, pcie_width_max=16).slot == Slot(3, "0000:af:00.0", None)


def test_an_address_of_the_kernel_stays_as_it_is() -> None:
    assert pci_address("0000:65:00.0") == "0000:65:00.0"


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (None, None)])
def test_half_a_link_is_none(generation: int | None, width: int | None) -> None:
    assert link(generation, width) is None


def test_more_lanes_of_an_older_generation_can_be_as_fast() -> None:
    assert reached([PcieLink(5, 4), PcieLink(3, 8), PcieLink(4, 16)]) == PcieLink(4, 16)
    assert reached([]) is None
    assert (PcieLink(1, 1).speed, PcieLink(2, 1).speed, PcieLink(1, 2).speed) == (1, 2, 2)


@given(links, st.lists(links, min_size=LEAST_LOOKS - 1, max_size=9))
def test_a_link_that_once_reached_its_best_is_no_problem(most: PcieLink, looks: list[PcieLink]) -> None:
    assert slow_link("GPU 0", [*(at_most(look, most) for look in looks), most], most) is None


@given(links, st.lists(links, max_size=LEAST_LOOKS - 1))
def test_a_few_looks_prove_nothing(most: PcieLink, looks: list[PcieLink]) -> None:
    assert slow_link("GPU 0", looks, most) is None


@given(links, st.lists(links, min_size=LEAST_LOOKS, max_size=9))
def test_a_link_that_never_reached_its_best_is_named(most: PcieLink, looks: list[PcieLink]) -> None:
    seen = [at_most(look, most) for look in looks]
    assume(most not in seen)
    assert f"runs at {reached(seen)} under load, of {most} that" in (slow_link("GPU 0", seen, most) or "")


def test_fewer_lanes_are_told_even_at_the_full_generation() -> None:
    assert slow_link("GPU 0", [PcieLink(5, 8)] * LEAST_LOOKS, FULL) == (
        "GPU 0: its PCIe link runs at gen 5 x8 under load, of gen 5 x16 that card and slot can do; "
        "reseat the card or its riser, and look at the slot's settings in the BIOS"
    )


def test_without_a_known_best_nothing_is_told() -> None:
    assert slow_link("GPU 0", [PcieLink(1, 1)] * 9, None) is None
