from __future__ import annotations

import doctest
import json
import math
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis.build import SAMPLES, codes, finding, only
from safetensors.numpy import save_file

import memcurse_cli
from memcurse_cli import Autocorrelation, MemcurseError, inspect
from memcurse_cli.diagnosis import inspection
from memcurse_cli.errors import CheckpointError, TensorError, UsageError
from memcurse_cli.theory import threads


def diagonal(modulus: float, angle: float = 1.0, units: int = 4) -> dict[str, np.ndarray]:
    """A complex diagonal RNN whose eigenvalues are all alike."""
    eigenvalue = modulus * np.exp(1j * angle)
    return {"A_re": np.full(units, eigenvalue.real), "A_im": np.full(units, eigenvalue.imag)}


def test_an_unstable_layer_diverges_unless_a_horizon_makes_it_finite() -> None:
    endless = inspect(diagonal(1.01), horizon=math.inf)
    assert endless.verdict == "not_judged"
    assert "--horizon" in endless.sentence
    (layer,) = endless.layers
    assert "MC101" in codes(layer)
    assert layer.eigenvalues.unstable == 4
    assert layer.eigenvalues.time_constant.max is None
    assert layer.state.second_moment.max is None
    assert layer.state.second_moment.divergent == 4
    assert layer.parameters[0].step_effect is None
    assert only(diagonal(1.01), horizon=100).parameters[0].step_effect is not None


def test_the_horizon_comes_from_the_option_then_from_the_checkpoint(tmp_path: Path) -> None:
    sample = SAMPLES / "lru.safetensors"
    stored = inspect(sample).input
    assert (stored.horizon, stored.horizon_source) == (300, "checkpoint")
    given = inspect(sample, horizon=100).input
    assert (given.horizon, given.horizon_source) == (100, "option")
    assumed = inspect(diagonal(0.9)).input
    assert (assumed.horizon, assumed.horizon_source) == (1024, "assumed")
    endless = inspect(sample, horizon=math.inf).input
    assert (endless.horizon, endless.horizon_source) == (None, "option")
    for wrong in (math.nan, -math.inf, 2.5):
        with pytest.raises(UsageError, match="is not whole"):
            inspect(sample, horizon=wrong)
    path = tmp_path / "model.safetensors"
    for none in ("0", "x", "9" * 5000):
        save_file(diagonal(0.9), path, {"memcurse.horizon": none})
        assert inspect(path).input.horizon_source == "assumed"


def test_autocorrelation_is_a_mixture_or_one_rho() -> None:
    mixture = inspect(diagonal(0.9), autocorrelation="0.332:0,0.044:0.997")
    same = inspect(diagonal(0.9), autocorrelation=Autocorrelation((0.332, 0.044), (0.0, 0.997)))
    assert mixture == same
    assert inspect(diagonal(0.9), rho=0.5) == inspect(diagonal(0.9), autocorrelation="1:0.5")
    with pytest.raises(UsageError, match="both"):
        inspect(diagonal(0.9), rho=0.5, autocorrelation="1:0")


def test_a_layer_that_cannot_be_read_is_named_and_the_others_are_reported() -> None:
    state = {f"good/{name}": values for name, values in diagonal(0.9).items()}
    state |= {f"bad/{name}": values * np.nan for name, values in diagonal(0.9).items()}
    report = inspect(state)
    assert [layer.name for layer in report.layers] == ["good"]
    assert [layer.name for layer in report.skipped] == ["bad"]
    assert "bad/A_" in report.skipped[0].reason
    with pytest.raises(TensorError, match="A_"):
        inspect({name: values * np.nan for name, values in diagonal(0.9).items()})


@pytest.mark.parametrize("name", ["a.safetensors", "model.safetensors.index.json", "config.json"])
def test_a_file_that_changes_while_it_is_read_gives_no_report(name: str, tmp_path: Path) -> None:
    save_file(diagonal(0.5), tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(diagonal(0.5), "a.safetensors")}))
    (tmp_path / "config.json").write_text("{}")
    changed = tmp_path / name

    def rewrite(*_: object) -> None:
        changed.write_bytes(changed.read_bytes())

    def replace(*_: object) -> None:
        shutil.copy(changed, tmp_path / "new")
        (tmp_path / "new").rename(changed)

    for change in (rewrite, replace):
        for path in tmp_path.iterdir():
            os.utime(path, ns=(0, 0))
        with pytest.raises(CheckpointError, match="changed while it was read; run this") as caught:
            inspect(tmp_path, progress=change)
        assert f"{name}: the file" in str(caught.value)
    inspect(tmp_path, progress=lambda *_: changed.unlink())  # it was read as it was
    save_file(diagonal(0.5), path := tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="changed while it was read"):  # not what it breaks
        inspect(path, progress=lambda *_: path.write_bytes(b""))


def test_large_layers_are_read_side_by_side_and_told_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, tensors = np.random.default_rng(0), {}
    for layer, size in enumerate((12_000, 11_000, 10_000, 9_000)):
        decay = 10 ** random.uniform(-4, -1, size)
        tensors[f"layers.{layer}.nu_log"] = np.log(decay)
        tensors[f"layers.{layer}.theta_log"] = np.log(random.uniform(0.01, 3, size))
        tensors[f"layers.{layer}.gamma_log"] = 0.5 * np.log(-np.expm1(-2 * decay))
        tensors[f"layers.{layer}.B_re"] = tensors[f"layers.{layer}.B_im"] = np.ones((size, 1))
    tensors["layers.1.nu_log"][0] = np.nan
    alone = inspect(tensors)

    for name in threads.THREAD_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    met, original = threading.Barrier(2), inspection.read_layer

    def met_by_another(*given: Any) -> Any:
        met.wait(timeout=60)
        return original(*given)

    monkeypatch.setattr(inspection, "read_layer", met_by_another)
    told: list[str] = []
    report = inspect(tensors, progress=lambda index, count, name: told.append(name))
    assert told == [f"layers.{layer}" for layer in range(4)]
    assert [layer.name for layer in report.layers] == ["layers.0", "layers.2", "layers.3"]
    assert [layer.name for layer in report.skipped] == ["layers.1"]
    assert report == alone


def test_values_are_kept_only_where_asked_for_and_counted_always(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    save_file(diagonal(0.9, 0.5), path)
    stored, given = only(path), only(diagonal(0.9, 0.5))
    assert (stored.parameters, stored.eigenvalues) == (given.parameters, given.eigenvalues)
    assert only(path).eigenvalues.values is None
    values = only(path, values=True).eigenvalues.values
    np.testing.assert_allclose(values, [[0.9 * np.cos(0.5), 0.9 * np.sin(0.5)]] * 4)
    state = {"A_re": np.array([0.0, 0.5, 0.9, 0.999, 1.1]), "A_im": np.zeros(5)}
    counts = only(state).eigenvalues.time_constant_histogram
    # λ = 0, and τ(0.5) = 1.44 in the bin from 1 to √10; the unstable one nowhere
    assert (sum(counts), counts[:2]) == (4, (1, 1))


@pytest.mark.parametrize(
    ("modulus", "options", "code"),
    [
        (0.999, {"learning_rate": 1e-2}, "MC201"),
        (1 - 1e-8, {}, "MC103"),
        (1e-3, {}, "MC104"),
        (0.999, {"horizon": 100}, "MC105"),
        (0.9999, {}, "MC205"),
        (0.995, {}, "MC401"),
    ],
)
def test_findings(modulus: float, options: dict[str, float], code: str) -> None:
    assert code in codes(only(diagonal(modulus), **options))
    assert codes(only(diagonal(0.5))) == set()


def test_advice_is_what_the_layer_can_follow() -> None:
    """No γ = √(1-|λ|²) for |λ| ≥ 1, and no Adam to who uses it."""
    state = diagonal(1.01, units=1) | {"B": np.ones((1, 1)), "C": np.full((1, 1), 30.0)}
    advice = {found.code: found.advice for found in only(state, horizon=300).findings}
    assert advice["MC205"].endswith("once every |λ| is below 1")
    assert "MC302" not in advice
    stable = finding(only(diagonal(0.9999)), "MC205")
    assert stable.advice == "scale the input of each state by √(1-|λ|²)"


def test_a_sensitivity_that_costs_too_much_is_refused_with_its_reason() -> None:
    layer = only({"A": np.eye(2), "B": np.eye(2), "C": np.eye(2)}, horizon=10**7)
    assert layer.verdict == "cursed"  # its usable rate is known
    assert layer.parameters[0].step_effect is None
    assert layer.dense.reason in finding(layer, "MC206").message


def test_the_python_api_is_what_it_says() -> None:
    for name in memcurse_cli.__all__:
        assert getattr(memcurse_cli, name).__name__ == name
    assert issubclass(UsageError, MemcurseError)
    with pytest.raises(AttributeError):
        memcurse_cli.absent  # noqa: B018  (the access itself is the test)
    assert doctest.testmod(memcurse_cli).failed == 0


def test_one_shard_alone_says_that_there_are_others(tmp_path: Path) -> None:
    save_file(diagonal(0.9), path := tmp_path / "model-00001-of-00003.safetensors")
    (note,) = inspect(path).checkpoint.notes
    assert note == "it is one of 3 shards: give their directory for every layer"
    whole = path.rename(tmp_path / "model-00001-of-00001.safetensors")
    assert inspect(whole).checkpoint.notes == ()
