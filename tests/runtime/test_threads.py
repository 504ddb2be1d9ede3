"""Batches on several threads."""

import threading

import pytest
import torch
from torch import nn

import polycert as pc
from polycert.runtime.execution import over_batches, plain_products


@pytest.mark.parametrize("threads", [1, 3])
def test_every_sample_once_and_in_order(threads: int) -> None:
    heard: list[tuple[int, int]] = []
    found = over_batches(lambda part: list(range(part.start, part.stop)), 10, 4, threads, lambda *n: heard.append(n))
    assert [n for part in found for n in part] == list(range(10))
    assert heard == [(4, 10), (8, 10), (10, 10)]


def test_threads_work_side_by_side() -> None:
    """Each batch waits for the other."""
    both = threading.Barrier(2, timeout=20)
    assert len(over_batches(lambda part: both.wait(), 2, 1, threads=2)) == 2


def test_an_error_stops_what_has_not_begun() -> None:
    begun: list[int] = []

    def work(part: slice) -> None:
        begun.append(part.start)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        over_batches(work, 100, 1, threads=2)
    assert len(begun) < 100


def test_threads_change_no_result() -> None:
    torch.manual_seed(0)
    net = pc.capture(nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)), (1, 7, 7))
    x, ball = torch.rand(23, 1, 7, 7), pc.Ball(eps=0.02, low=0.0, high=1.0)
    one, two = (pc.certify(net, x, None, ball, batch_size=4, threads=n) for n in (1, 2))
    assert torch.equal(one.radius, two.radius)
    assert torch.equal(one.margin, two.margin)
    assert torch.equal(one.index, two.index)
    radii = [pc.largest_radius(net, x, None, upper=0.2, batch_size=4, threads=n).radius for n in (1, 2)]
    assert torch.equal(*radii)


@pytest.mark.parametrize(
    ("option", "value"),
    [("threads", 0), ("threads", 1.5), ("memory", "500M"), ("memory", -5), ("batch_size", 0), ("batch_size", True)],
)
def test_a_size_that_is_none_is_refused_by_name(option: str, value: object) -> None:
    net, x, ball = torch.nn.Linear(3, 2), torch.rand(2, 3), pc.Ball(eps=0.1)
    for ask in (lambda: pc.certify(net, x, None, ball, **{option: value}), lambda: _radius(net, x, option, value)):
        with pytest.raises(pc.PolycertError, match=f"{option} must be a whole number"):
            ask()


def _radius(net: torch.nn.Module, x: torch.Tensor, option: str, value: object) -> pc.Radii:
    return pc.largest_radius(net, x, None, norm=2, upper=1.0, **{option: value})


@pytest.mark.parametrize("option", ["workers", "memory"])
def test_verify_refuses_such_sizes_too(option: str) -> None:
    with pytest.raises(pc.PolycertError, match=f"{option} must be a whole number"):
        pc.verify(nn.Linear(3, 2), torch.rand(2, 3), None, pc.Ball(eps=0.1), **{option: 0})


def test_fast_transforms_stay_off_while_one_thread_proves() -> None:
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with plain_products(torch.device("cpu")):
            entered.set()
            leave.wait(30)
            seen.append(torch.backends.nnpack.set_flags(False))

    before = torch.backends.nnpack.set_flags(True)
    try:
        with plain_products(torch.device("cpu")):
            thread = threading.Thread(target=other)
            thread.start()
            assert entered.wait(30)
        leave.set()  # the first one in has left
        thread.join()
        assert seen == [(False,)]
        assert torch.backends.nnpack.set_flags(True) == (True,)
    finally:
        torch.backends.nnpack.set_flags(*before)
