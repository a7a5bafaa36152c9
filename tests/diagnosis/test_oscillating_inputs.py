"""`estimate_autocorrelation` of what oscillates, and of what does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
from numpy.typing import NDArray
from theory.sequences import PAPER, gaussian

from memcurse_cli.diagnosis.autocorrelation import estimate_autocorrelation, read_autocorrelation
from memcurse_cli.diagnosis.hessian.inspection import hessian as hessian_of
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.prediction import predict
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.terminal.autocorrelation import to_text
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.theory.autocorrelation import Autocorrelation

SAMPLES = Path(__file__).resolve().parents[2] / "sample_checkpoints"


def autoregressive(sequences: int, steps: int, rho: float, frequency: float) -> NDArray[np.float64]:
    """AR(2) with the poles ρ e^(±iω), by SciPy."""
    noise = np.random.default_rng(0).standard_normal((sequences, steps + 500))
    poles = [1, -2 * rho * math.cos(frequency), rho**2]
    return np.asarray(scipy.signal.lfilter([1.0], poles, noise, axis=1)[:, 500:, None])


def tone(sequences: int, steps: int, frequency: float) -> NDArray[np.float64]:
    """A sinusoid of variance ½ and random phase, in noise of variance 1."""
    random = np.random.default_rng(1)
    phase = 2 * math.pi * random.random((sequences, 1))
    wave = np.sin(frequency * np.arange(steps) + phase)
    return np.asarray((wave + random.standard_normal(wave.shape))[:, :, None])


@pytest.mark.parametrize(("sequences", "steps"), [(64, 1000), (1, 20_000)])
def test_the_poles_of_an_autoregression_are_found(sequences: int, steps: int) -> None:
    found = estimate_autocorrelation(autoregressive(sequences, steps, 0.98, 0.3), lags=300)
    (cosine,) = [part for part in found.autocorrelation.parts if part.frequency > 0]
    assert cosine.frequency == pytest.approx(0.3, abs=0.006)
    assert cosine.rho == pytest.approx(0.98, abs=0.004)
    assert cosine.weight > 0.8 * found.autocorrelation.variance


@pytest.mark.parametrize(("sequences", "steps"), [(32, 300), (1, 4000)])
def test_a_tone_in_noise_is_two_parts(sequences: int, steps: int) -> None:
    found = estimate_autocorrelation(tone(sequences, steps, 0.2))
    noise, cosine = found.autocorrelation.parts
    assert (noise.rho, noise.frequency, cosine.rho) == (0, 0, 1)
    assert cosine.frequency == pytest.approx(0.2, abs=1e-3)
    assert cosine.weight == pytest.approx(0.5, abs=0.05)
    assert noise.weight == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("rho", [0.0, 0.9, 0.99, 0.999])
@pytest.mark.parametrize(("sequences", "steps"), [(1, 300), (12, 300)])
def test_decays_stay_decays(rho: float, sequences: int, steps: int) -> None:
    source = Autocorrelation.from_rho(rho)
    for seed in range(6):
        assert not estimate_autocorrelation(
            gaussian(source, (sequences, steps, 1), seed)
        ).oscillates


def test_the_input_of_the_paper_is_two_parts_without_a_cosine() -> None:
    found = estimate_autocorrelation(gaussian(PAPER, (64, 1000, 4), 3)).components
    (white, _), (weight, rho) = [component[:2] for component in found]
    assert all(len(component) == 2 for component in found)
    assert white == pytest.approx(0.332, rel=0.02)
    assert weight == pytest.approx(0.044, rel=0.2)
    assert rho == pytest.approx(0.997, abs=2e-3)


def test_its_json_goes_into_every_command(tmp_path: Path) -> None:
    estimate = estimate_autocorrelation(tone(32, 300, 0.2))
    path = tmp_path / "tone.json"
    path.write_text(json.dumps(to_json(estimate.document)))
    source = read_autocorrelation(path)
    assert source == estimate.autocorrelation
    assert source == read_autocorrelation(",".join(":".join(map(repr, c)) for c in source))

    report = inspect(SAMPLES / "lru.safetensors", autocorrelation=str(path))
    assert report.input.autocorrelation == estimate.components
    assert from_json(to_json(report)) == report
    white = inspect(SAMPLES / "lru.safetensors")
    assert report.layers[0].parameters != white.layers[0].parameters
    hessian = hessian_of(SAMPLES / "lru.safetensors", autocorrelation=str(path))
    assert hessian.input.autocorrelation == estimate.components

    still, resonant = predict(autocorrelation=str(path), modulus=0.99, angle=[0.0, 0.2]).rows
    assert still.second_moment is not None
    assert resonant.second_moment is not None
    assert resonant.second_moment > 10 * still.second_moment


def test_a_single_cosine_is_not_taken_for_a_decay() -> None:
    found = predict(autocorrelation="1:0.9:0.5")
    assert found.autocorrelation == ((1.0, 0.9, 0.5),)
    assert {row.rho for row in found.rows} == {None}


def test_the_page_shows_frequency_and_period() -> None:
    page = to_text(estimate_autocorrelation(tone(32, 300, 0.2)), width=80)
    assert "R(Δ) = Σ weight·ρ^|Δ|·cos(ωΔ)" in page
    assert "undamped" in page
    assert "period" in page
    assert "|the mixture|" in page
    plain = to_text(estimate_autocorrelation(gaussian(PAPER, (4, 300, 1), 0)), width=80)
    assert "period" not in plain


def test_a_document_with_a_wrong_frequency_is_refused(tmp_path: Path) -> None:
    document = to_json(estimate_autocorrelation(tone(4, 300, 0.2)).document)
    path = tmp_path / "tone.json"
    for wrong, message in ((4.0, "frequency 4"), ("0.2", "not weights and rhos")):
        document["components"][-1]["frequency"] = wrong
        path.write_text(json.dumps(document))
        with pytest.raises(UsageError, match=message):
            read_autocorrelation(path)
