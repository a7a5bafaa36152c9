"""Gates that see the input through projections, against the gates of the libraries' own layers."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import match_of
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.memory import MemoryStore
from memcurse_cli.families.cells.torch import MGU
from memcurse_cli.families.family import Family, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive, NoDrive, low_rank_gate
from memcurse_cli.families.selective.mamba import Mamba
from memcurse_cli.families.selective.mixing import MinGRU
from memcurse_cli.theory.gates.laws import Motion

Arrays = dict[str, NDArray[np.float64]]


def drive_of(arrays: Arrays, family: Family) -> GateDrive:
    (match,) = match_of(arrays, family)
    store = MemoryStore(arrays)
    recurrence = family.read(store, match, ReadOptions(gates=True))
    assert family.read(store, match, ReadOptions()).gate is None
    drive = recurrence.gate
    assert drive is not None
    assert {group.name for group in recurrence.parameters} <= drive.motions.keys()
    # At the bias the law, its gain and its derivatives are the layer that the family reports.
    values = drive.law(drive.gate.bias)
    gain, motions = values.gain, dict(values.motions)
    if drive.write is not None and drive.write_gate is not None:
        opened = drive.write(drive.write_gate.bias)
        motions = {
            name: motion._replace(gain=motion.gain * opened.value)
            for name, motion in motions.items()
        }
        motions[drive.write.parameter] = Motion(np.zeros_like(gain), gain * opened.slope)
        gain = gain * opened.value
    assert_allclose(values.eigenvalue, np.exp(recurrence.log_eigenvalues.real), rtol=1e-12)
    assert_allclose(gain, np.exp(recurrence.log_gain.real), rtol=1e-12)
    for group in recurrence.parameters:
        name, factor = drive.motions[group.name]
        entries = group.eigenvalue
        assert_allclose(
            factor * motions[name].eigenvalue[entries],
            group.eigenvalue_derivative.real,
            rtol=1e-9,
            atol=1e-15,
        )
        slope = group.log_gain_derivative
        expected = np.zeros(entries.size) if slope is None else slope.real * gain[entries]
        assert_allclose(factor * motions[name].gain[entries], expected, rtol=1e-9, atol=1e-12)
    return drive


def test_a_selection_holds_the_rows_of_the_step_last() -> None:
    """MambaBEAT's own split: selection(x) is B, C and then Δ."""
    rng = np.random.default_rng(4)
    arrays = {
        "layers.0.A_log": rng.normal(size=(6, 3)),
        "layers.0.dt_proj.bias": rng.normal(size=6),
        "layers.0.dt_proj.weight": rng.normal(size=(6, 2)),
        "layers.0.selection.weight": rng.normal(size=(8, 6)),
    }
    product = arrays["layers.0.dt_proj.weight"] @ arrays["layers.0.selection.weight"][-2:]
    drive = drive_of(arrays, Mamba())
    assert_allclose(drive.gate.norms.inputs, np.repeat((product**2).sum(1), 3), rtol=1e-12)


def test_mamba_with_a_norm_between_the_projections() -> None:
    rng = np.random.default_rng(2)
    arrays = {
        "mixer.A_log": rng.normal(size=(6, 3)),
        "mixer.dt_proj.bias": rng.normal(size=6),
        "mixer.dt_proj.weight": rng.normal(size=(6, 2)),
        "mixer.x_proj.weight": rng.normal(size=(8, 6)),
        "mixer.dt_layernorm.weight": np.array([0.5, 2.0]),
    }
    drive = drive_of(arrays, Mamba())
    expected = np.repeat(((arrays["mixer.dt_proj.weight"] * [0.5, 2.0]) ** 2).sum(1), 3)
    for scale in (0.0, 1.0, 100.0):
        assert_allclose(drive.gate.variance(scale, 0.0), expected)


@pytest.mark.parametrize("fused", [True, False])
def test_min_gru(fused: bool) -> None:
    rng = np.random.default_rng(5)
    gate, bias = rng.normal(size=(4, 3)), rng.normal(size=4)
    arrays = {
        "to_hidden_and_gate.weight": np.concatenate([rng.normal(size=(4, 3)), gate]),
        "to_hidden_and_gate.bias": np.concatenate([np.ones(4), bias]),
    }
    if not fused:
        arrays = {"linear_z.weight": gate, "linear_z.bias": bias, "linear_h.weight": gate + 1}
    drive = drive_of(arrays, MinGRU())
    assert_allclose(drive.gate.norms.inputs, (gate**2).sum(1))
    assert_allclose(drive.gate.bias, bias)


@pytest.mark.parametrize("linears", [True, False])
def test_mgu(linears: bool) -> None:
    rng = np.random.default_rng(5)
    w, u = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 4))
    bias = rng.normal(size=(2, 4))
    arrays = {"weight_ih": w.reshape(8, 3), "weight_hh": u.reshape(8, 4), "bias_ih": bias.ravel()}
    if linears:
        arrays = {"U_f.weight": u[0], "W_f.weight": w[0], "W_f.bias": bias[0]}
        arrays |= {"U_h.weight": u[1], "W_h.weight": w[1], "W_h.bias": bias[1]}
    drive = drive_of(arrays, MGU)
    assert_allclose(drive.gate.norms.inputs, (w[0] ** 2).sum(1))
    assert_allclose(drive.gate.norms.hidden, (u[0] ** 2).sum(1))
    assert drive.state is not None
    assert_allclose(drive.state.candidate.norms.hidden, (u[1] ** 2).sum(1))
    assert_allclose(drive.state.candidate.bias, bias[1])
    (match,) = match_of(arrays, MGU)
    options = ReadOptions(gates=True, assume={"gate_keeps": "yes"})
    assert isinstance(MGU.read(MemoryStore(arrays), match, options).gate, NoDrive)


def test_shapes_that_do_not_fit_have_no_drive() -> None:
    store = MemoryStore({"v": np.ones((4, 3)), "w": np.ones((2, 5)), "u": np.ones((1, 4, 3))})
    assert low_rank_gate(store, np.ones(4), "v", "w") is None  # the rank is 3
    assert low_rank_gate(store, np.ones(5), "w", "v") is None  # 2 rows, 5 biases
    assert low_rank_gate(store, np.ones(4), "u", "w") is None
    assert low_rank_gate(store, np.ones(4), "v", "absent") is None
