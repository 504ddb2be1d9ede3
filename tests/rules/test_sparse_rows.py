"""Products that leave zeros out are the products themselves, and so are their gradients."""

import pytest
import torch
import torch.nn.functional as F

from polycert.rules.conv_adjoint import Overlaid, RowProduct, nonzero_columns, nonzero_rows
from tests.helpers.gradients import assert_same


@pytest.mark.parametrize("dead_rows", [0, 9, 12])
@pytest.mark.parametrize("dead_columns", [0, 4, 7])
def test_a_product_without_its_zeros(dead_rows: int, dead_columns: int) -> None:
    generator = torch.Generator().manual_seed(dead_rows + 20 * dead_columns)
    rows = torch.randn(12, 7, generator=generator, dtype=torch.float64)
    rows[:, torch.randperm(7, generator=generator)[:dead_columns]] = 0
    weight = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    outer = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    outer[torch.randperm(12, generator=generator)[:dead_rows]] = 0
    rows.requires_grad_(), weight.requires_grad_()

    found = RowProduct.apply(rows, weight)  # type: ignore[no-untyped-call]
    assert_same(found, rows @ weight, outer, (rows, weight))


@pytest.mark.parametrize("step", [1, 3, 4])
@pytest.mark.parametrize("fixed", [False, True], ids=["both", "lines"])
def test_lines_laid_over_one_another(step: int, fixed: bool) -> None:
    generator = torch.Generator().manual_seed(step)
    lines, matrix = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 3, 2), (2, 4)))
    outer = torch.randn(5, 2 * step + 4, generator=generator, dtype=torch.float64)
    inputs = [lines.requires_grad_()] if fixed else [lines.requires_grad_(), matrix.requires_grad_()]

    found = Overlaid.apply(lines, matrix, step, 2 * step + 4)  # type: ignore[no-untyped-call]
    plain = sum(F.pad(lines[:, k] @ matrix, (k * step, (2 - k) * step)) for k in range(3))
    assert_same(found, plain, outer, inputs)


def test_what_is_left_out_is_all_zero() -> None:
    values = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, torch.nan, 0.0], [0.0, 0.0, 0.0, 0.0]])
    columns, rows = nonzero_columns(values), nonzero_rows(values)
    assert columns is not None
    assert columns.tolist() == [1, 2]
    assert rows is not None
    assert rows.tolist() == [0, 1]
    assert nonzero_rows(torch.ones(3, 4)) is None
    assert nonzero_columns(torch.ones(3, 4)) is None
    assert nonzero_columns(torch.ones(0, 4)) is None
