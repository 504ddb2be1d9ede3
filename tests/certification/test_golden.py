"""The paper's rows on the released checkpoints: a fast subset here, all of them with `-m slow`."""

from pathlib import Path

import pytest

from polycert import data
from polycert.errors import PolycertError
from tests.conftest import find_shared
from tests.helpers.golden import measure, models

FAST = (
    "relu_linf__mnist_fc1/mnist_fc1_l1_c-per",
    "relu_linf__mnist_fc1/mnist_fc1_l1_mmr+at",
    "relu_l2__mnist_fc1/mnist_fc1_l2_kw",
    "sigd_linf__mnist_fc1/sigd_c-per+at",
)
# Sound tangent points: tighter than the paper where its chord was not used, looser where it relied on a cancellation.
SOUND = {
    "sigd_linf__mnist_fc1/sigd_ibp": {"CRE_Lin": 43.42, "ACB_Lin": 0.0566, "ACB_IBP": 0.0864, "ACB_PEC": 0.0852},
    "tanh_linf__mnist_fc1/tanh_c-per": {"CRE_Lin": 12.94, "ACB_Lin": 0.0871, "ACB_PEC": 0.0927},
}

# Our own figures, which only guard against change. The file of the first is not the network of the printed row: clean
# and attacked errors, which no bound enters, differ as well. The second's printed figure is what eps 0.00781 gives
# (docs/golden.md).
OTHER_NETWORK = {"relu_l2__mnist_cnn/mnist_cnn_l2_kw": {"CRE_Lin": 4.63, "ACB_Lin": 0.2861, "ACB_PEC": 0.2889}}
OTHER_EPS = {"relu_linf__cifar10_cnn/cifar_cnn_l1_at": {"CRE_Lin": 85.64}}


def _names() -> list[str]:
    shared = find_shared()
    return sorted(models(shared / "zoo")) if shared else []


def _check(shared: Path, name: str, rigour: int | None) -> None:
    try:
        data.fetch(models(shared / "zoo")[name]["dataset"])
    except PolycertError as error:
        pytest.skip(str(error))
    row = measure(shared / "zoo", name, rigour=rigour)
    beyond = row.differences()
    for key, value in (SOUND | OTHER_NETWORK | OTHER_EPS).get(name, {}).items():
        beyond.pop(key, None)
        assert row.ours[key] == pytest.approx(value, abs=0.03 if key.startswith("C") else 0.0001)
    assert not beyond, f"{name}: {beyond} beyond the tolerance, ours {row.ours}"
    assert row.lost <= 5


@pytest.mark.parametrize("name", FAST)
def test_golden_rows_of_small_networks(shared: Path, name: str) -> None:
    _check(shared, name, rigour=2000)


@pytest.mark.slow
@pytest.mark.parametrize("name", _names())
def test_golden_rows(shared: Path, name: str) -> None:
    _check(shared, name, rigour=1000)
