"""Orthogonal RNNs as geotorch parametrises them."""

from __future__ import annotations

from collections.abc import Callable

import geotorch
import pytest
import torch
from checkpoints.readers import arrays_of
from families.derivatives import read_layer
from numpy.testing import assert_allclose

from memcurse_cli.families.dense.dense_rnn import OrthogonalRNN

H, INPUTS = 5, 3


@pytest.mark.parametrize("triv", [geotorch.so.torus_init_, geotorch.so.uniform_init_])
def test_geotorch_s_own_cell(triv: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(4)
    cell = torch.nn.RNNCell(INPUTS, H, dtype=torch.float64)
    geotorch.orthogonal(cell, "weight_hh")
    cell.weight_hh = triv(torch.empty(H, H, dtype=torch.float64))
    with torch.no_grad():
        cell.parametrizations.weight_hh.original.add_(torch.randn(H, H).tril(-1))
    recurrence = read_layer(arrays_of(cell), OrthogonalRNN())
    assert_allclose(recurrence.dense.matrix, cell.weight_hh.detach().numpy(), atol=1e-13)
