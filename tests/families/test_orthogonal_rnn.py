"""Orthogonal and unitary RNNs against torch's parametrisations, expRNN's maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from checkpoints.readers import arrays_of
from families.derivatives import match_of, read_layer
from families.oracles import assert_same_spectrum
from numpy.testing import assert_allclose
from torch.nn.utils import parametrizations

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.diagnosis.diagnose import diagnose
from memcurse_cli.diagnosis.settings import Settings
from memcurse_cli.errors import TensorError
from memcurse_cli.families.dense.dense_rnn import OrthogonalRNN
from memcurse_cli.families.detect import detect

H, INPUTS = 5, 3


def trained(kind: str, dtype: torch.dtype = torch.float64) -> torch.nn.RNN:
    """An RNN with an orthogonal hidden weight, some way from where it started."""
    torch.manual_seed(0)
    module = torch.nn.RNN(INPUTS, H, dtype=dtype)
    parametrizations.orthogonal(module, "weight_hh_l0", kind)
    with torch.no_grad():
        module.parametrizations.weight_hh_l0.original.add_(
            0.3 * torch.randn(H, H, dtype=dtype).tril(-1)
        )
    return module


@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
def test_torch_s_parametrisation(kind: str) -> None:
    module = trained(kind)
    recurrence = read_layer(arrays_of(module, "rnn."), OrthogonalRNN(), orthogonal_map=kind)
    assert recurrence.name == "rnn.l0"
    weight = module.weight_hh_l0.detach().numpy()
    assert_allclose(recurrence.dense.matrix, weight, atol=1e-13)
    assert_same_spectrum(np.exp(recurrence.log_eigenvalues), np.linalg.eigvals(weight), 1e-12)
    assert not recurrence.log_eigenvalues.real.any()
    assert_allclose(recurrence.readin, module.weight_ih_l0.detach().numpy())


def cayley_map(skew: torch.Tensor) -> torch.Tensor:
    """As expRNN has it, with torch.linalg.solve for the torch.solve that is no more."""
    one = torch.eye(skew.shape[0], dtype=skew.dtype)
    return torch.linalg.solve(one + skew, one - skew)


@pytest.mark.parametrize(
    ("kind", "function"), [("cayley", cayley_map), ("matrix_exp", torch.matrix_exp)]
)
def test_exprnn(kind: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(3)
    skewed = torch.randn(H, H, generator=generator, dtype=torch.float64)
    base = torch.linalg.qr(torch.randn(H, H, generator=generator, dtype=torch.float64))[0]
    arrays = {
        "rnn.recurrent_kernel.A": skewed.numpy(),
        "rnn.recurrent_kernel.base": base.numpy(),
        "rnn.input_kernel.weight": np.ones((H, INPUTS)),
        "rnn.nonlinearity.b": np.zeros(H),
    }
    recurrence = read_layer(arrays, OrthogonalRNN(), orthogonal_map=kind)
    assert recurrence.name == "rnn"
    upper = skewed.triu(diagonal=1)
    kernel = base @ function(upper - upper.T)
    assert_allclose(recurrence.dense.matrix, kernel.T.numpy(), atol=1e-13)


class UnitaryCell(torch.nn.Module):
    """The step of a unitary RNN, whose matrix torch's parametrisation keeps unitary."""

    def __init__(self, kind: str, dtype: torch.dtype = torch.complex128) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.weight_hh = torch.nn.Parameter(torch.randn(H, H, dtype=dtype))
        self.weight_ih = torch.nn.Parameter(torch.randn(H, INPUTS, dtype=dtype))
        parametrizations.orthogonal(self, "weight_hh", kind)
        with torch.no_grad():
            self.parametrizations.weight_hh.original.add_(torch.randn(H, H, dtype=dtype))

    def forward(self, given: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self.weight_hh @ state + self.weight_ih @ given


@pytest.mark.parametrize("kind", ["matrix_exp", "cayley"])
def test_a_unitary_impulse_keeps_its_norm_and_turns(kind: str) -> None:
    cell = UnitaryCell(kind)
    recurrence = read_layer(arrays_of(cell), OrthogonalRNN(), orthogonal_map=kind)
    given = torch.randn(INPUTS).to(torch.complex128)
    vectors, values = recurrence.dense.eigenvectors, np.exp(recurrence.log_eigenvalues)
    modes = np.linalg.solve(vectors, recurrence.readin @ given.numpy())
    state = torch.zeros(H, dtype=torch.complex128)
    with torch.no_grad():
        for lag in range(8):
            state = cell(torch.zeros_like(given) if lag else given, state)
            expected = vectors @ (values**lag * modes)
            assert_allclose(expected.imag, 0, atol=1e-12)
            assert_allclose(state, expected.real[:H] + 1j * expected.real[H:], atol=1e-12)
            assert_allclose(torch.linalg.norm(state), np.linalg.norm(modes), rtol=1e-10)


def test_a_unitary_layer_s_report() -> None:
    recurrence = read_layer(arrays_of(UnitaryCell("matrix_exp", torch.complex64)), OrthogonalRNN())
    assert recurrence.unitary
    assert recurrence.stable_by_construction
    assert "stands beside its conjugate" in recurrence.assumptions[-2]
    report = diagnose(recurrence, Settings(horizon=50))
    (group,) = report.parameters
    assert group.direction == "decorrelating"
    (finding,) = (each for each in report.findings if each.code == "MC101")
    assert finding.severity == "info"


def test_what_is_refused_and_what_is_left_to_others() -> None:
    arrays = arrays_of(trained("matrix_exp"))
    base = "parametrizations.weight_hh_l0.0.base"
    with pytest.raises(TensorError, match="not orthogonal"):
        read_layer(arrays | {base: np.ones((H, H))}, OrthogonalRNN())
    changed = arrays | {"parametrizations.weight_hh_l0.original": np.zeros((H, H))}
    with pytest.raises(TensorError, match="Householder"):
        read_layer(changed, OrthogonalRNN(), orthogonal_map="householder")
    spectral = {name: array for name, array in arrays.items() if name != base}
    assert match_of(spectral, OrthogonalRNN()) == []
    ((family, _),) = detect(MemoryStore(arrays).tensors)
    assert family.name == "orthogonal_rnn"
