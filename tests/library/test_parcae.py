"""Parcae against transformers' own module and a loop of its forward."""

from __future__ import annotations

import numpy as np
import torch
from families.derivatives import read_layer
from families.impulse import impulse_response
from numpy.testing import assert_allclose
from transformers import EsmFold2Config
from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2Parcae

from memcurse_cli.families.state_space.diagonal import Parcae

N, STEPS = 6, 12


def test_an_impulse_through_the_library_s_forward() -> None:
    torch.manual_seed(0)
    config = EsmFold2Config(pairwise_hidden_size=N, parcae_num_coda_layers=0)
    parcae = EsmFold2Parcae(config).double()
    parcae.input_norm.float()  # it computes in single precision whatever it is given
    with torch.no_grad():
        for parameter in (parcae.log_state_decay, parcae.log_delta):
            parameter.uniform_(-3, 2)
        parcae.input_matrix_continuous.normal_()
        parcae.out_proj.weight.normal_()
    arrays = {f"trunk.parcae.{name}": t.numpy() for name, t in parcae.state_dict().items()}
    recurrence = read_layer(arrays, Parcae())
    assert recurrence.name == "trunk.parcae"
    assert recurrence.stable_by_construction
    assert "recycling loop" in recurrence.assumptions[0]
    given = torch.randn(N, dtype=torch.float64)
    silence = torch.zeros_like(given)  # normalised to the bias, which is zero
    outputs, state = [], torch.zeros(N, dtype=torch.float64)
    with torch.no_grad():
        decay, readin = parcae.discretize()
        assert_allclose(np.exp(recurrence.log_eigenvalues), decay, rtol=1e-14)
        for step in range(STEPS):
            state = parcae(state, silence if step else given, decay, readin)
            outputs.append(parcae.out_proj(state).numpy())
        heard = parcae.input_norm(given).numpy()
    response = impulse_response(recurrence, STEPS)
    assert_allclose(np.einsum("oil,i->lo", response, heard), outputs, rtol=0, atol=1e-13)
