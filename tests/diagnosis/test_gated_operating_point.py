"""Where gated layers of a checkpoint work, whoever stored them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memcurse_cli import inspect
from memcurse_cli.reports.terminal.report import to_text
from memcurse_cli.schema.layer import GatedOperatingPoint
from memcurse_cli.schema.report import LayerReport
from memcurse_cli.theory.mean_field import fields, network

Floats = NDArray[np.float64]
SAMPLE = Path(__file__).resolve().parents[2] / "sample_checkpoints" / "gru.safetensors"
SIZE, INPUTS = 24, 3
GATES = {"gru": ("reset", "update", "new"), "lstm": ("input", "forget", "cell", "output")}


def torch_layer(kind: str, size: int = SIZE, scale: float = 1.0) -> dict[str, Floats]:
    """Weights and biases as torch draws them, times a scale."""
    random, rows = np.random.default_rng(0), len(GATES[kind]) * size
    shapes = {
        "weight_ih_l0": (rows, INPUTS),
        "weight_hh_l0": (rows, size),
        "bias_ih_l0": (rows,),
        "bias_hh_l0": (rows,),
    }
    bound = scale / np.sqrt(size)
    return {name: random.uniform(-bound, bound, size=shape) for name, shape in shapes.items()}


def only(state: dict[str, Floats] | Path, **options: Any) -> LayerReport:
    (layer,) = inspect(state, **{"spectra": True} | options).layers
    return layer


def point(state: dict[str, Floats] | Path, **options: Any) -> GatedOperatingPoint:
    found = only(state, **options).operating_point
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_driven_layer_as_torch_makes_it_works_where_mean_field_theory_has_it(kind: str) -> None:
    found = point(torch_layer(kind, 256), input_scale=20.0)
    assert found.agrees is True
    assert found.reason is None
    assert found.predicted.second_moment == pytest.approx(found.simulated.second_moment, rel=0.1)
    for predicted, simulated in zip(found.predicted.gates, found.simulated.gates, strict=True):
        assert predicted.name == simulated.name
        assert predicted.mean == pytest.approx(simulated.mean, abs=0.01)
        assert predicted.spread == pytest.approx(simulated.spread, abs=0.01)
    # Weights that stay lengthen the memory of a change by a quarter at most here.
    slower = np.log(found.predicted.growth) / np.log(found.simulated.growth)
    assert 0.95 < slower < 1.25
    assert found.simulated.growth_error is not None
    assert found.simulated.growth_error < 0.01


def blocks(values: Floats, kind: str, order: tuple[str, ...]) -> list[Floats]:
    """Rows of gates in torch's order, in another."""
    parts = dict(zip(GATES[kind], np.split(values, len(GATES[kind])), strict=True))
    return [parts[gate] for gate in order]


def keras(state: dict[str, Floats]) -> dict[str, Floats]:
    """A GRU as Keras keeps it."""

    def columns(name: str) -> Floats:
        return np.concatenate(blocks(state[name], "gru", ("update", "reset", "new"))).T

    return {
        "rnn/kernel": columns("weight_ih_l0"),
        "rnn/recurrent_kernel": columns("weight_hh_l0"),
        "rnn/bias": np.stack([columns("bias_ih_l0"), columns("bias_hh_l0")]),
    }


def flax(state: dict[str, Floats]) -> dict[str, Floats]:
    """An LSTM as Flax keeps it."""
    found = {}
    for side, role in (("i", "ih"), ("h", "hh")):
        weights = blocks(state[f"weight_{role}_l0"], "lstm", GATES["lstm"])
        found |= {f"cell.{side}{one}.kernel": w.T for one, w in zip("ifgo", weights, strict=True)}
    biases = blocks(state["bias_ih_l0"] + state["bias_hh_l0"], "lstm", GATES["lstm"])
    return found | {f"cell.h{one}.bias": b for one, b in zip("ifgo", biases, strict=True)}


@pytest.mark.parametrize(("kind", "other"), [("gru", keras), ("lstm", flax)])
def test_it_is_the_same_whoever_stored_the_layer(kind: str, other: Any) -> None:
    state = torch_layer(kind, scale=3.0)
    found, wanted = point(other(state)), point(state)
    assert found.predicted.growth == pytest.approx(wanted.predicted.growth, rel=1e-9)
    assert found.predicted.second_moment == pytest.approx(wanted.predicted.second_moment, rel=1e-9)
    # A run that is chaotic would part from another by rounding alone; these forget.
    assert wanted.simulated.growth < 1
    assert found.simulated.second_moment == pytest.approx(wanted.simulated.second_moment, rel=1e-9)
    assert found.simulated.growth == pytest.approx(wanted.simulated.growth, rel=1e-9)


def test_a_reset_gate_before_the_matrix_is_another_network() -> None:
    state = keras(torch_layer("gru", scale=3.0))
    after = point(state)
    before = point(state | {"rnn/bias": state["rnn/bias"].sum(axis=0)})
    assert before.singular_value_variance is None
    assert after.singular_value_variance is not None
    assert before.predicted.growth != after.predicted.growth
    assert before.agrees is not None


def test_a_trained_layer_is_not_a_random_one() -> None:
    found = point(SAMPLE)
    assert found.agrees is False
    assert found.simulated.growth > 1.3 * found.predicted.growth
    page = to_text(inspect(SAMPLE, spectra=True), width=80)
    assert "State at work" in page
    assert "go by the simulated layer" in " ".join(page.split()).lower()


def test_the_input_scale_is_that_of_the_report() -> None:
    state = torch_layer("gru")
    quiet, loud = point(state, input_scale=0.1), point(state, input_scale=3.0)
    assert (quiet.input_scale, loud.input_scale) == (0.1, 3.0)
    for one in ("predicted", "simulated"):
        assert getattr(quiet, one).second_moment < getattr(loud, one).second_moment


def test_only_spectra_take_it() -> None:
    assert only(SAMPLE, spectra=False).operating_point is None
    projected = {
        "weight_ih_l0": np.zeros((4 * SIZE, INPUTS)),
        "weight_hh_l0": np.zeros((4 * SIZE, 2)),
        "weight_hr_l0": np.zeros((2, SIZE)),
    }
    assert only(projected).operating_point is None
    without_inputs = {"weight_hh_l0": torch_layer("gru")["weight_hh_l0"]}
    assert only(without_inputs).operating_point is None


def test_what_is_missing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LARGEST", SIZE - 1)
    monkeypatch.setattr(fields, "gated_mean_field", lambda *_: None)
    found = point(torch_layer("gru"))
    assert found.predicted is found.simulated is found.agrees is None
    assert "no fixed point" in (found.reason or "")
    assert "not simulated" in (found.reason or "")
