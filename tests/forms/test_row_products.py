"""Products of rows with values, and their gradients, are those of torch's own broadcasting."""

import pytest
import torch

from polycert.forms.form import rows_abs_dot, rows_dot
from tests.helpers.gradients import assert_same


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(("samples", "others"), [(4, 4), (1, 4), (4, 1), (1, 1)])
def test_rows_times_values(samples: int, others: int, absolute: bool) -> None:
    generator = torch.Generator().manual_seed(samples + 10 * others)
    coef = torch.randn(samples, 3, 5, generator=generator, dtype=torch.float64)
    coef[0, 0, 0] = 0  # where the absolute value has no slope, none is taken
    values = torch.randn(others, 5, generator=generator, dtype=torch.float64)
    outer = torch.randn(max(samples, others), 3, generator=generator, dtype=torch.float64)
    coef.requires_grad_(), values.requires_grad_()

    found = (rows_abs_dot if absolute else rows_dot)(coef, values)
    plain = ((coef.abs() if absolute else coef) * values.unsqueeze(1)).sum(2)
    assert_same(found, plain, outer, (coef, values))
