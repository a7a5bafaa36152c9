from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from diagnosis.build import SAMPLES
from numpy.typing import NDArray
from theory.sequences import PAPER, gaussian

from memcurse_cli.diagnosis.autocorrelation import estimate_autocorrelation
from memcurse_cli.diagnosis.inspection import hessian as hessian_of
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.diagnosis.prediction import predict
from memcurse_cli.diagnosis.settings import read_autocorrelation
from memcurse_cli.errors import MemcurseError, UsageError
from memcurse_cli.schema.figures import components_of
from memcurse_cli.schema.json_codec import from_json, to_json
from memcurse_cli.theory.autocorrelation import Autocorrelation


def test_every_shape_is_a_set_of_sequences() -> None:
    data = gaussian(PAPER, (1, 300, 1), 0)
    found = estimate_autocorrelation(data)
    assert estimate_autocorrelation(data[0, :, 0]) == estimate_autocorrelation(data[0]) == found
    assert (found.data.sequences, found.data.steps, found.data.features) == (1, 300, 1)
    assert len(found.empirical.values) == 151  # lags to half the steps
    assert found.empirical.standard_error_method == "gaussian"
    many = estimate_autocorrelation(gaussian(PAPER, (9, 300, 2), 0), lags=20)
    assert many.empirical.standard_error_method == "sequences"
    assert (
        len(many.empirical.values)
        == len(many.empirical.fitted)
        == len(many.empirical.standard_errors)
        == 21
    )


def test_the_biased_estimator_has_the_same_mixture() -> None:
    data = gaussian(PAPER, (20, 200, 4), 1)
    unbiased, biased = (estimate_autocorrelation(data, estimator=e) for e in ("unbiased", "biased"))
    assert biased.components == unbiased.components
    share = 1 - np.arange(101) / 200
    assert biased.empirical.values == pytest.approx(
        share * np.array(unbiased.empirical.values), rel=1e-12
    )
    assert biased.empirical.fitted == pytest.approx(
        share * np.array(unbiased.empirical.fitted), rel=1e-12
    )


def test_a_mean_is_a_constant_input_until_it_is_subtracted_with_its_variance() -> None:
    data = 3 + gaussian(Autocorrelation.from_rho(0.0), (50, 200, 4), 2)
    weights = {rho: weight for weight, rho in estimate_autocorrelation(data).components}
    assert weights[1.0] == pytest.approx(9, rel=0.02)
    assert weights[0.0] == pytest.approx(1, rel=0.02)
    centred = estimate_autocorrelation(data, centred=True)
    assert [*map(tuple, centred.components)] == [(pytest.approx(1, rel=0.02), 0.0)]
    assert centred.centring_bias == pytest.approx(1 / (50 * 200), rel=0.02)
    # Of 2 sequences of 60 steps with R = 0.9^|Δ|: Σ (1-|k|/60) R(k) / 120, summed by hand.
    taken = (1 + 2 * sum((1 - k / 60) * 0.9**k for k in range(1, 60))) / 120
    data = gaussian(Autocorrelation.from_rho(0.9), (4000, 60, 1), 0)
    many = estimate_autocorrelation(data, lags=30, centred=True)
    assert many.centring_bias * 4000 == pytest.approx(taken * 2, rel=0.05)


def test_masked_samples_change_nothing_that_is_left() -> None:
    data = gaussian(PAPER, (8, 100, 3), 3)
    padded = np.concatenate([data, np.zeros((8, 30, 3))], axis=1)
    bare = estimate_autocorrelation(data, lags=40)
    found = estimate_autocorrelation(padded, lags=40, padding=0.0)
    assert found.data.masked == 8 * 30 * 3
    assert found.empirical.values == pytest.approx(bare.empirical.values, rel=1e-12)
    holes = padded.copy()
    holes[:, 100:] = np.nan
    assert (
        estimate_autocorrelation(holes, lags=40, padding=np.nan).empirical.values
        == found.empirical.values
    )
    # Without --lags, they end where no two samples are far enough apart.
    assert len(estimate_autocorrelation(holes[:, 60:], padding=np.nan).empirical.values) == 36


def test_pairs_are_still_pairs() -> None:
    assert read_autocorrelation("0.332:0,0.044:0.997") == PAPER
    assert read_autocorrelation(PAPER) is PAPER
    with pytest.raises(UsageError, match="write WEIGHT:RHO pairs such as") as caught:
        read_autocorrelation("0.5")
    assert "file" not in str(caught.value)
    with pytest.raises(UsageError, match="neither a file nor a list of pairs"):
        read_autocorrelation("absent.json")


AUTOCORRELATION = '{"schema": "memcurse.autocorrelation/1"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not the JSON"),
        ("[]", "schema is 'None'"),
        ('{"schema": "memcurse.report/1"}', "schema is 'memcurse.report/1'"),
        (AUTOCORRELATION + "}", "components"),
        (AUTOCORRELATION + ', "components": []}', "components"),
        (AUTOCORRELATION + ', "components": [{"weight": "1", "rho": 0}]}', "components"),
        (AUTOCORRELATION + ', "components": [{"weight": 1, "rho": NaN}]}', "not the JSON"),
        (AUTOCORRELATION + ', "components": [{"weight": 1, "rho": 1e999}]}', "outside"),
    ],
)
def test_a_file_that_is_something_else_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "input.json"
    path.write_text(text)
    with pytest.raises(MemcurseError, match=message):
        read_autocorrelation(path)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (np.zeros((2, 2, 2, 2)), {}, r"shape \(2, 2, 2, 2\) is no set of sequences"),
        (np.zeros((3, 0)), {}, "no sample"),
        (np.ones((5, 1, 2)), {}, "one step"),
        (np.ones(8) * 1j, {}, "complex"),
        (np.array([1.0, 2, np.nan, np.nan]), {}, r"NaN at step 2 \(from 0\), and 1 more"),
        (np.array([[1.0, 2], [np.inf, 1]]), {}, "infinite value at step 1, feature 0"),
        (np.array([[[1.0], [2]], [[1], [np.nan]]]), {}, "step 1, feature 0.*--padding nan"),
        (np.array([1.0, np.inf, 2]), {"padding": np.nan}, "infinite value at step 1"),
        (np.ones(8), {"lags": 8}, "8 lags of 8 steps; give 1 to 7"),
        (np.ones(8), {"lags": 0}, "give 1 to 7"),
        (np.zeros(8), {}, "all are zero"),
        (np.full(8, 1e5 / 3), {"centred": True}, "do not vary about their mean"),
        (np.full(8, 1e200), {}, "beyond the range of a float"),
        (np.full(8, 2.0), {"padding": 2.0}, "every sample is masked"),
        (np.array([1, 2, np.nan, np.nan]), {"padding": np.nan, "lags": 3}, "are 2 steps apart"),
    ],
)
def test_bad_data_are_refused_with_their_place(
    data: np.ndarray, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        estimate_autocorrelation(np.asarray(data), **options)


def tone(sequences: int, steps: int) -> NDArray[np.float64]:
    """A sinusoid of 0.2 rad a step, variance ½ and random phase, in noise of variance 1."""
    random = np.random.default_rng(1)
    phase = 2 * math.pi * random.random((sequences, 1))
    wave = np.sin(0.2 * np.arange(steps) + phase)
    return np.asarray((wave + random.standard_normal(wave.shape))[:, :, None])


@pytest.mark.parametrize(("sequences", "steps"), [(32, 300), (1, 4000)])
def test_a_tone_in_noise_is_two_parts(sequences: int, steps: int) -> None:
    found = estimate_autocorrelation(tone(sequences, steps))
    noise, cosine = Autocorrelation.from_components(found.components).parts
    assert (noise.rho, noise.frequency, cosine.rho) == (0, 0, 1)
    assert cosine.frequency == pytest.approx(0.2, abs=1e-3)
    assert cosine.weight == pytest.approx(0.5, abs=0.05)
    assert noise.weight == pytest.approx(1, abs=0.06)


def test_its_json_goes_into_every_command(tmp_path: Path) -> None:
    estimate = estimate_autocorrelation(tone(32, 300))
    path = tmp_path / "tone.json"
    path.write_text(json.dumps(to_json(estimate)))
    source = read_autocorrelation(path)
    assert components_of(source) == estimate.components
    assert source == read_autocorrelation(",".join(":".join(map(repr, c)) for c in source))

    report = inspect(SAMPLES / "lru.safetensors", autocorrelation=str(path))
    assert report.input.autocorrelation == estimate.components
    assert from_json(to_json(report)) == report
    hessian = hessian_of(SAMPLES / "lru.safetensors", autocorrelation=str(path))
    assert hessian.input.autocorrelation == estimate.components
    still, resonant = predict(autocorrelation=str(path), modulus=0.99, angle=[0.0, 0.2]).rows
    assert resonant.second_moment > 10 * still.second_moment
