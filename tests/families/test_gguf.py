"""The recurrent layers of GGUF files, under llama.cpp's names."""

from __future__ import annotations

import numpy as np
import pytest
from families.derivatives import check_derivatives, match_of, read_layer
from families.oracles import ZooFile, oracle_eigenvalues, read_layers, zoo_files
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.errors import TensorError
from memcurse_cli.families.selective.mamba import GgufMamba, Mamba
from memcurse_cli.families.selective.mamba2 import Mamba2

FAMILY_OF_KIND = {
    "mamba1": "gguf_mamba",
    "mamba2": "gguf_mamba",
    "rwkv6": "rwkv",
    "rwkv7": "rwkv7",
}


@pytest.mark.parametrize("file", zoo_files("gguf", ".gguf"))
def test_zoo(file: ZooFile) -> None:
    layers = read_layers(file.path)
    for each, (name, recurrence) in zip(file.layers, layers.items(), strict=True):
        assert name == each["name"]
        assert recurrence.family == FAMILY_OF_KIND[each["kind"]]
        assert recurrence.input_dependent
        # llama.cpp rounds the e^(-1/2) of RWKV-7 to 0.606531.
        tolerance = 1e-6 if each["kind"] == "rwkv7" else 1e-14
        ours = np.exp(recurrence.log_eigenvalues)
        assert_allclose(ours, oracle_eigenvalues(each), rtol=0, atol=tolerance)
        if each["kind"] == "mamba2":
            assert recurrence.multiplicity == each["multiplicity"]


@pytest.mark.parametrize("file", zoo_files("gguf", "q4_0.forced.gguf"))
def test_an_eigenvalue_that_quantisation_rounded_to_one_is_reported(file: ZooFile) -> None:
    for each, recurrence in zip(file.layers, read_layers(file.path).values(), strict=True):
        ones = np.count_nonzero(recurrence.log_eigenvalues == 0)
        assert ones == each["extra"]["zero_A_count"] > 0
        assert not recurrence.stable_by_construction


def mamba() -> dict[str, NDArray]:
    rng = np.random.default_rng(0)
    return {
        "blk.0.ssm_a": -np.exp(rng.standard_normal((4, 3))),
        "blk.0.ssm_dt.bias": rng.standard_normal(4),
        "blk.0.ssm_dt.weight": np.ones((4, 2)),
        "blk.0.ssm_x.weight": np.ones((8, 4)),
    }


def mamba2() -> dict[str, NDArray]:
    # 2 heads of 3 channels in 2 groups, with a state of 5: 6 + 2·2·5 convolved channels.
    rng = np.random.default_rng(1)
    return {
        "blk.3.ssm_a": -np.exp(rng.standard_normal((2, 1))),
        "blk.3.ssm_dt.bias": rng.standard_normal(2),
        "blk.3.ssm_d": np.ones((2, 1)),
        "blk.3.ssm_norm.weight": np.ones((2, 3)),
        "blk.3.ssm_conv1d.weight": np.ones((26, 4)),
        "blk.3.ssm_out.weight": np.ones((7, 6)),
    }


@pytest.mark.parametrize("arrays", [mamba(), mamba2()], ids=["mamba", "mamba2"])
def test_derivatives(arrays: dict[str, NDArray]) -> None:
    check_derivatives(arrays, GgufMamba())


def test_it_is_the_layer_that_was_converted() -> None:
    arrays = mamba()
    original = {
        "mixer.A_log": np.log(-arrays["blk.0.ssm_a"]),
        "mixer.dt_proj.bias": arrays["blk.0.ssm_dt.bias"],
    }
    ours, theirs = read_layer(arrays, GgufMamba()), read_layer(original, Mamba())
    assert_allclose(ours.log_eigenvalues, theirs.log_eigenvalues, rtol=1e-14)
    assert_allclose(ours.log_gain, theirs.log_gain, rtol=1e-14)
    by_rate, by_log_rate = ours.parameters[0], theirs.parameters[0]
    assert_allclose(
        by_rate.eigenvalue_derivative * by_rate.values, by_log_rate.eigenvalue_derivative
    )
    assert read_layer(mamba2(), GgufMamba()).multiplicity == 3 * 5


def test_no_other_family_claims_it() -> None:
    for family in (Mamba(), Mamba2()):
        assert match_of(mamba() | mamba2(), family) == []
    assert [match.layer for match in match_of(mamba() | mamba2(), GgufMamba())] == [
        "blk.0",
        "blk.3",
    ]
    for name in ("blk.0.ssm_x.weight", "blk.0.ssm_dt.bias"):
        assert match_of({k: v for k, v in mamba().items() if k != name}, GgufMamba()) == []


@pytest.mark.parametrize(
    ("arrays", "tensor", "values", "message"),
    [
        (mamba(), "blk.0.ssm_a", np.full((4, 3), np.nan), "blk.0.ssm_a: 12 NaN"),
        (mamba(), "blk.0.ssm_a", np.full((4, 3), 1e9), "blk.0.ssm_a: .*λ overflows"),
        (mamba(), "blk.0.ssm_dt.bias", np.ones(5), r"blk.0.ssm_dt.bias: its shape \(5\)"),
        (mamba2(), "blk.3.ssm_conv1d.weight", np.ones((25, 4)), "does not fit 2 heads"),
        (mamba2(), "blk.3.ssm_norm.weight", np.ones((2, 4)), "does not fit 2 heads"),
    ],
)
def test_bad_tensors_are_named(
    arrays: dict[str, NDArray], tensor: str, values: NDArray, message: str
) -> None:
    with pytest.raises(TensorError, match=message):
        read_layer({**arrays, tensor: values}, GgufMamba())
