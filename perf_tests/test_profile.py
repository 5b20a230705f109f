"""Where the time of a decode step goes: the suite's own server under torch.profiler."""

import pytest

from pytest_decodegate.session.perf import Perf


@pytest.mark.perf(extended=True)
@pytest.mark.parametrize("streams", [64, 8, 1], ids="c={}".format)
def test_profile(perf: Perf, streams: int) -> None:
    """A step launches the AllReduces and MoE GEMMs that the model needs, and no cast between its layers.

    Its times gate nothing: the profiler costs the host more than many an upgrade.
    """
    perf.profile(streams)
