"""Every bad input: one line on standard error, exit code 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from end_to_end.calls import SAMPLE, words
from end_to_end.command import assert_refused, memcurse
from safetensors.numpy import save

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


def gru(name: str, bias: float) -> dict[str, np.ndarray]:
    """A GRU whose input bias is this throughout."""
    return {
        f"{name}.weight_ih_l0": np.zeros((12, 3)),
        f"{name}.weight_hh_l0": np.zeros((12, 4)),
        f"{name}.bias_ih_l0": np.full(12, bias),
        f"{name}.bias_hh_l0": np.zeros(12),
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "model.safetensors"),
        (Path(SAMPLE).read_bytes()[:-1000], "model.safetensors"),
        (POINTER, "git lfs pull"),
        (save({"encoder.weight_hh": np.zeros((3, 5)), "norm": np.zeros(4)}), "encoder.weight_hh"),
        (save(gru("rnn", np.nan)), "rnn.bias_ih_l0"),
    ],
    ids=["missing", "truncated", "LFS pointer", "no recurrence", "only NaN"],
)
def test_a_bad_checkpoint_is_one_line(content: bytes | None, said: str, tmp_path: Path) -> None:
    folder, target = tmp_path / "in", tmp_path / "report.json"
    folder.mkdir()
    path = folder / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    assert_refused(memcurse("inspect", path, "--json", "--output", target), said)
    assert list(tmp_path.iterdir()) == [folder]


REFUSED = {
    "inspect": ["PATH"],
    "inspect LRU --nonsense": ["--nonsense"],
    "inspect LRU --horzion 3": ["--horzion", "--horizon"],
    "nonsense": ["nonsense: no such command; see memcurse --help"],
    "Inspct LRU --lr 1": [f"did you mean: memcurse inspect {SAMPLE} --lr 1"],
    "LRU --lr 1": [f"did you mean: memcurse inspect {SAMPLE} --lr 1"],
    "runs/*.pt": ["did you mean: memcurse inspect 'runs/*.pt'"],
    "https://me:secret@host/model": ["did you mean: memcurse inspect https://host/model"],
    "inspect no*.pt": ["no*.pt: no file matches"],
    "check LRU no*/**": ["no*/**: no file matches"],
    "check s4://a/*": ["s4:// is not a kind of path"],
    "inspect LRU --rho 1.5": ["rho", "1.5"],
    "inspect LRU --rho nan": ["rho"],
    "inspect LRU --autocorrelation 1:2": ["rho"],
    "inspect LRU --autocorrelation nonsense": ["autocorrelation"],
    "inspect LRU --rho 0.5 --autocorrelation 1:0": ["--rho"],
    "inspect LRU --horizon 0": ["--horizon"],
    f"inspect LRU --horizon {10**400}": ["--horizon", "number of steps"],
    "inspect LRU --family perceptron": ["perceptron", "lru"],
    "inspect missing --section spectra": ["'spectra' is not known", "layers, parameters, hessian"],
    "inspect LRU --layer nowhere.*": ["nowhere.*"],
    "inspect LRU --assume discretization": ["KEY=VALUE"],
    "inspect LRU --assume nonsense=1": ["nonsense"],
    "inspect LRU --device abacus": ["abacus"],
    "inspect LRU --lr 0": ["--lr"],
    "inspect LRU --lr 1e308": ["--lr"],
    "inspect LRU --as cosine": ["--as: 'cosine' is not known"],
    "inspect LRU --as lru --normalize yes": ["--normalize: 'yes' is not known"],
    f"check LRU --max-unstable {10**400}": ["--max-unstable", "not a number"],
    "check LRU --format yaml": ["--format", "junit"],
    "check LRU --forbid E501": ["--forbid", "E501"],
    "check LRU --forbid MC9": ["MC9", "memcurse rule"],
    "check LRU --max-verdict cursed": ["--max-verdict", "watch"],
    "check LRU --max-step-effect -1": ["--max-step-effect"],
    "check LRU --max-step-effect nan": ["--max-step-effect"],
    "check LRU --max-rounding-error 0.1": ["DTYPE=ERROR"],
    "check LRU --max-rounding-error bfloat16=x": ["DTYPE=ERROR"],
    "check LRU --max-rounding-error bfloat16=nan": ["DTYPE=ERROR"],
    "check LRU --fail-on watch": ["--fail-on", "not-judged"],
    "check LRU --baseline absent.json": ["absent.json"],
    "check LRU --config absent.toml": ["absent.toml"],
    "check LRU --tolerance -1": ["--tolerance"],
    "predict --rho 1.5": ["outside [0, 1]"],
    "predict --rho x": ["--rho"],
    "predict --autocorrelation 0.5": ["write WEIGHT:RHO pairs"],
    "predict --modulus -1": ["modulus: -1"],
    "predict --time-constant -1": ["time-constant: -1"],
    "predict --parametrization complex": ["choose one of real-imaginary, polar"],
    "predict --normalization batch": ["choose one of none, lru, coupled, gru, zoh"],
    "predict --normalization gru --angle 1": ["leave the angle at 0"],
    "predict --parametrization sigmoid-gate --modulus 1": ["cannot reach"],
    "predict --output absent/folder/file": ["cannot be written"],
    "autocorrelation noise.csv --lags 256": ["--lags"],
    "autocorrelation noise.csv --estimator best": ["unbiased or biased"],
    "autocorrelation noise.csv --padding x": ["--padding"],
    "hessian LRU --plot figure.bmp": ["no format of a figure"],
    "hessian LRU --plot missing/figure.png": ["cannot be written"],
    "schema nonsense": ["known are report, check"],
    "rule MC999": ["MC999", "known are"],
    "train marble --output x": ["marble"],
    "train lru --output x --save-every 10": ["--save-every", "{step}"],
    "train lru --output x --modulus 1": ["--modulus"],
    "train lru --output x --initial-modulus -1": ["--initial-modulus"],
    "train lru --output x --learning-rate 0": ["--learning-rate"],
    "train lru --output x --steps 0": ["--steps"],
    "train lru --output x --seed -1": ["--seed"],
    "train lru --output x --dtype float16": ["--dtype"],
}


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: call[:60])
def test_a_bad_option_is_one_line(call: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert_refused(memcurse(*words(call), folder=folder), *REFUSED[call])
    assert sorted(folder.iterdir()) == before


def test_a_layer_with_nan_is_named_and_the_others_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    path.write_bytes(save(gru("good", 0.0) | gru("bad", np.nan)))
    result = memcurse("inspect", path)
    assert result.returncode == 0
    assert "1 gru layer, 4 units, 1 not read" in result.stdout
    assert "bad.bias_ih_l0" in result.stdout.replace("\n", "")
