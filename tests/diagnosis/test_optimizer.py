"""Adam's effective steps, against runs of the libraries themselves, and rates of the groups."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from diagnosis.build import drawn_lru, only
from diagnosis.test_dense_hessian import explicit

import memcurse_cli
from memcurse_cli.diagnosis.optimizer import align
from memcurse_cli.errors import CheckpointError
from memcurse_cli.reports.console import text_of
from memcurse_cli.reports.terminal.report import render
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.schema.layer import AdamGroup, LearningRates


def groups(report: memcurse_cli.Report) -> dict[str, AdamGroup]:
    return {group.name: group for group in report.layers[0].adam}


def test_the_page_on_learning_rates_shows_the_authors_run(paper: Path) -> None:
    authors = json.loads((paper / "adam_state.json").read_text())

    def tree(name: str) -> dict[str, np.ndarray]:
        arrays = {key: np.array(value) for key, value in authors[name].items()}
        arrays["lambda_re"], arrays["lambda_im"] = arrays.pop("lambda")
        return arrays

    state = {"count": np.array(authors["adam_count"]), "mu": tree("m"), "nu": tree("v")}
    checkpoint = {"params": tree("params"), "opt_state": {"0": state, "1": {}}}
    lines = render(memcurse_cli.inspect(checkpoint, horizon=300), all_layers=True)
    drawn = text_of(lines, None, width=80)
    table = drawn[drawn.index("Adam's effective steps") : drawn.index("         State of optax")]
    page = Path(__file__).parents[2] / "docs" / "learning-rates.md"
    assert f"```text\n{table}```" in page.read_text(encoding="utf-8")


class Diagonal(torch.nn.Module):
    """y = Re[C h] of a complex diagonal recurrence, as one convolution."""

    def __init__(self, units: int, steps: int) -> None:
        super().__init__()
        random = np.random.default_rng(2)
        decay, angle = random.uniform(0.02, 1.2, units), random.uniform(0, 3, units)
        eigenvalue = np.exp(-decay + 1j * angle)
        arrays = {"lambda_re": eigenvalue.real, "lambda_im": eigenvalue.imag}
        arrays |= {name: random.normal(size=(units, 1)) for name in ("B_re", "B_im")}
        arrays |= {name: random.normal(size=(1, units)) for name in ("C_re", "C_im")}
        for name, array in arrays.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(array)))
        self.steps = steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eigenvalues = torch.complex(self.lambda_re, self.lambda_im)
        readin = torch.complex(self.B_re[:, 0], self.B_im[:, 0])
        weights = torch.complex(self.C_re[0], self.C_im[0]) * readin
        kernel = (eigenvalues[None] ** torch.arange(self.steps)[:, None] * weights).sum(1).real
        padded = torch.nn.functional.pad(x, (self.steps - 1, 0))[:, None]
        return torch.nn.functional.conv1d(padded, kernel.flip(0)[None, None])[:, 0]


@pytest.fixture(scope="module")
def noisy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adam at a perfect fit to noisy targets, with steps too small to leave it."""
    torch.manual_seed(0)
    steps = 40
    network = Diagonal(12, steps)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-9, betas=(0.9, 0.998))
    for _ in range(900):
        x = torch.randn(8, steps, dtype=torch.float64)
        output = network(x)
        target = output.detach() + torch.randn_like(output)
        optimizer.zero_grad()
        (0.5 * (output - target).square().mean()).backward()
        optimizer.step()
    path = tmp_path_factory.mktemp("adam") / "step.pt"
    torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


def test_at_a_perfect_fit_the_second_moment_is_the_hessian_and_adam_flattens_it(
    noisy_run: Path,
) -> None:
    """E g² = σ² H_ωω / samples, so that the effective step falls as 1/√H_ωω."""
    report = memcurse_cli.inspect(noisy_run, horizon=40, learning_rate=0.5)
    for name in ("lambda_re", "lambda_im"):
        group = groups(report)[name]
        assert group.learning_rate == 1e-9  # that of the run, not of --lr
        assert group.hessian_correlation < -0.99
        # What is left is the noise of a mean over 500 gradients.
        assert group.hessian_spread_after < 0.03 < 0.3 < group.hessian_spread_before


def test_the_quantiles_are_those_of_the_optimiser_itself(noisy_run: Path) -> None:
    content = torch.load(noisy_run, weights_only=True)
    report = memcurse_cli.inspect(noisy_run)
    assert report.checkpoint.bytes_read == 2 * sum(one.nbytes for one in content["model"].values())
    found = groups(report)
    for index, name in enumerate(content["model"]):
        state = content["optimizer"]["state"][index]
        corrected = state["exp_avg_sq"].numpy() / (1 - 0.998 ** float(state["step"]))
        steps = found[name].effective_step
        assert [steps.min, steps.p50, steps.max] == pytest.approx(
            np.quantile(1e-9 / (np.sqrt(corrected) + 1e-8), [0, 0.5, 1]).tolist(), rel=1e-12
        )
    assert from_json(to_json(report)) == report


def test_a_dense_matrix_at_a_perfect_fit_is_flattened_entry_by_entry() -> None:
    """With v̂ = E (dy/dA_ij)² over the steps, summed impulse by impulse."""
    random, steps, units = np.random.default_rng(3), 16, 5
    matrix = random.normal(size=(units, units)) * np.logspace(-1, 0, units)[:, None]
    matrix *= 0.8 / np.abs(np.linalg.eigvals(matrix)).max()
    readin, readout = random.normal(size=units), np.logspace(-1, 0.5, units)
    model = {"A": matrix, "B": readin[:, None], "C": readout[None]}
    curvature = np.diag(explicit(model, steps)[0]).reshape(matrix.shape)
    state = {
        "step": torch.tensor(600.0),
        "exp_avg": torch.from_numpy(curvature),
        "exp_avg_sq": torch.from_numpy(1e9 * curvature),
    }
    # B and C were not trained: their one parameter by its name, as FSDP gathers it.
    optimizer = {"state": {"A": state}, "param_groups": [{"params": ["A"]}]}
    tensors = {name: torch.from_numpy(value) for name, value in model.items()}
    report = memcurse_cli.inspect({"model": tensors, "optimizer": optimizer}, horizon=steps)
    group = groups(report)["A"]
    assert (group.size, group.recurrent, group.step) == (25, True, 600)
    assert group.correlation is not None
    assert group.hessian_correlation == pytest.approx(-1, abs=1e-9)
    assert group.hessian_spread_before > 0.1
    assert group.hessian_spread_after == pytest.approx(0, abs=1e-9)


def test_a_state_that_is_ambiguous_is_left_out_with_its_reason(tmp_path: Path) -> None:
    layers = {
        f"layers.{index}.{name}": torch.nn.Parameter(torch.rand(9) - 2)
        for index in range(2)
        for name in ("nu_log", "theta_log")
    }
    first = list(layers.values())[:2]
    optimizer = torch.optim.Adam([{"params": list(layers.values())[2:]}, {"params": first}])
    sum(value.sum() for value in layers.values()).backward()
    optimizer.step()
    report = memcurse_cli.inspect({"model": dict(layers), "optimizer": optimizer.state_dict()})
    for group in (group for layer in report.layers for group in layer.adam):
        assert group.effective_step is None
        assert "several groups of the optimiser" in group.reason
    torch.save(layers, tmp_path / "weights.pt")
    report = memcurse_cli.inspect(tmp_path / "weights.pt")
    assert (report.optimizer, report.layers[0].adam) == (None, ())
    with pytest.raises(CheckpointError, match="no state of an optimiser"):
        memcurse_cli.inspect(tmp_path / "weights.pt", optimizer=tmp_path / "weights.pt")


def test_an_element_without_a_gradient_is_in_no_figure() -> None:
    weights = {"nu_log": np.linspace(-3, -1, 10), "theta_log": np.linspace(-3, 0, 10)}

    def group(moment: np.ndarray) -> AdamGroup:
        moments = dict.fromkeys(weights, moment)
        state = {"count": np.array(5), "mu": moments, "nu": moments}
        checkpoint = {"params": weights, "opt_state": {"0": state}}
        return groups(memcurse_cli.inspect(checkpoint))["nu_log"]

    found = group(np.linspace(0, 1, 10))
    assert found.without_gradient == 1
    assert found.effective_step.max < 1
    assert group(np.zeros(10)).reason == "no gradient has reached it"
    assert group(np.full(10, np.nan)).reason == "its state is not finite and positive"


def test_elements_are_found_by_their_values() -> None:
    random = np.random.default_rng(0)
    weight, moment = random.normal(size=(6, 2)), random.random((6, 2))
    joined, states = weight[:, 0] + 1j * weight[:, 1], moment[:, 0] + 1j * moment[:, 1]
    # Two gates that start from the same values have two states, and no telling which is whose.
    twice = np.concatenate([weight[0], weight[0]])
    for values, stored, state, wanted in (
        (weight.T.copy(), weight, moment, moment.T.reshape(-1)),
        (weight[4:], weight, moment, moment[4:].reshape(-1)),
        (weight[:, 1], joined, states, moment[:, 1]),
        (weight[:, 1], joined, moment[:, 0], moment[:, 0]),
        (weight[0], twice, np.ones(4), np.ones(2)),
    ):
        assert np.array_equal(align(values, stored, state), wanted)
    assert align(-weight, weight, moment) is None
    assert align(weight, weight, moment[:5]) is None
    assert align(weight[0], twice, np.array([1.0, 2.0, 3.0, 4.0])) is None


SIZE = 6


def lru(decay: float = 0.01) -> dict[str, np.ndarray]:
    return drawn_lru(SIZE, (0.5 * decay, 2 * decay))


def rates(tensors: dict[str, np.ndarray], **options: float) -> LearningRates:
    return only(tensors, learning_rates=True, **options).learning_rates


def test_every_group_is_given_the_usable_rate_of_its_layer() -> None:
    """Where that is below the rate of the rest; the step that reaches the limit is a figure."""
    asked = {"learning_rates": True, "step_limit": 0.2, "horizon": 200}
    report = memcurse_cli.inspect(lru(), learning_rate=3.0, **asked)
    assert from_json(to_json(report)) == report
    assert memcurse_cli.inspect(lru()).layers[0].learning_rates is None
    (layer,) = report.layers
    found, usable = layer.learning_rates, layer.usable_rate.rate
    assert (found.rest, found.limit) == (3.0, 0.2)
    assert usable < 3.0
    for rate, parameter in zip(found.groups, layer.parameters, strict=True):
        kappa = parameter.relative_sensitivity.p99
        assert rate.effect_rate == pytest.approx(0.2 / math.sqrt(kappa))
        assert (rate.learning_rate, rate.relative) == (usable, usable / 3.0)
    calm = rates(lru(), learning_rate=1e-3, horizon=200).groups
    assert {(rate.learning_rate, rate.relative) for rate in calm} == {(1e-3, 1.0)}


def test_the_two_sharpnesses_are_those_of_the_blocks_of_the_hessian() -> None:
    """H = J Jᵀ for a white input, with J of finite differences of ``Re[C λᵏ γ B]``."""
    tensors, steps = lru(0.2), 400

    def response(values: dict[str, np.ndarray]) -> np.ndarray:
        log = -np.exp(values["nu_log"]) + 1j * np.exp(values["theta_log"])
        drive = np.exp(values["gamma_log"]) * (values["B_re"] + 1j * values["B_im"])[:, 0]
        readout = (values["C_re"] + 1j * values["C_im"])[0]
        return (np.exp(np.arange(steps)[:, None] * log) @ (readout * drive)).real

    rows = []
    for name in ("nu_log", "theta_log", "gamma_log", "B_re", "B_im", "C_re", "C_im"):
        for place in range(SIZE):
            shift = 1e-6 * np.eye(SIZE)[place].reshape(tensors[name].shape)
            above, below = (
                response(tensors | {name: tensors[name] + sign * shift}) for sign in (1, -1)
            )
            rows.append((above - below) / 2e-6)
    rows.append(np.eye(1, steps)[0])  # D sees the input itself
    hessian = np.array(rows) @ np.array(rows).T
    own, rest = hessian[: 3 * SIZE, : 3 * SIZE], hessian[3 * SIZE :, 3 * SIZE :]
    found = rates(tensors, horizon=math.inf).sharpness
    assert found.recurrent == pytest.approx(np.linalg.eigvalsh(own)[-1], rel=1e-6)
    assert found.rest == pytest.approx(np.linalg.eigvalsh(rest)[-1], rel=1e-6)
    assert found.sgd_ratio == pytest.approx(found.rest / found.recurrent)
    assert found.adam_ratio == pytest.approx(math.sqrt(np.trace(rest) / np.trace(own)), rel=1e-6)


def test_what_is_not_known_says_why() -> None:
    found = rates({name: lru()[name] for name in ("nu_log", "theta_log", "gamma_log")})
    assert found.sharpness is None
    assert found.sharpness_reason == "neither B nor C is known for it"
    dense = rates({"A": 0.5 * np.eye(3), "B": np.ones((3, 1)), "C": np.ones((1, 3))})
    assert dense.sharpness is None
    assert "dense" in dense.sharpness_reason
    unstable = {"lambda_re": np.array([1.1, 0.3]), "lambda_im": np.array([0.0, 0.1])}
    for rate in rates(unstable, horizon=math.inf).groups:
        assert (rate.effect_rate, rate.learning_rate, rate.relative) == (None, None, None)
