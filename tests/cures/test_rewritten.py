from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from end_to_end.command import SAMPLES, memcurse
from safetensors.torch import load_file

from memcurse_cli.cures import rewritten
from memcurse_cli.cures.rewritten import FORMS

STEPS = 60
RANDOM = np.random.default_rng(2)
INPUTS = RANDOM.standard_normal((STEPS, 2))


def dense(moduli: tuple[float, ...] = (0.97, 0.9), real: float = -0.8) -> dict[str, np.ndarray]:
    """A layer with a pair of eigenvalues of each modulus and a real one, h0 included."""
    size = 2 * len(moduli) + 1
    matrix = np.zeros((size, size))
    for k, modulus in enumerate(moduli):
        c, s = modulus * np.cos(0.4 + k), modulus * np.sin(0.4 + k)
        matrix[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[c, -s], [s, c]]
    matrix[-1, -1] = real
    basis = RANDOM.standard_normal((size, size))
    return {
        "rnn.A": basis @ matrix @ np.linalg.inv(basis),
        "rnn.B": RANDOM.standard_normal((size, 2)),
        "rnn.C": RANDOM.standard_normal((3, size)),
        "rnn.D": RANDOM.standard_normal((3, 2)),
        "rnn.h0": RANDOM.standard_normal(size),
    }


BESIDE = {
    "head.weight": RANDOM.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
    "head.bias": RANDOM.standard_normal(2).astype(ml_dtypes.float8_e4m3fn),
    "step": np.array([2**62 + 1]),
}


def run_dense(t: dict[str, np.ndarray]) -> np.ndarray:
    state, shown = t["rnn.h0"], []
    for x in INPUTS:
        state = t["rnn.A"] @ state + t["rnn.B"] @ x
        shown.append(t["rnn.C"] @ state + t["rnn.D"] @ x)
    return np.array(shown)


def run_rewritten(t: dict[str, np.ndarray]) -> np.ndarray:
    """The layer as its equations say, of whichever form the tensors are."""
    if "rnn.A" in t:
        blocks, state, shown = t["rnn.A"], t["rnn.h0"].reshape(-1, 2), []
        for x in INPUTS:
            state = np.einsum("kij,kj->ki", blocks, state) + (t["rnn.B"] @ x).reshape(-1, 2)
            shown.append(t["rnn.C"] @ state.ravel() + t["rnn.D"] @ x)
        return np.array(shown)
    b, c, state = (t[f"rnn.{one}_re"] + 1j * t[f"rnn.{one}_im"] for one in ("B", "C", "h0"))
    if "rnn.nu_log" in t:
        turn = np.exp(-np.exp(t["rnn.nu_log"]) + 1j * np.exp(t["rnn.theta_log"]))
        b = b * np.exp(t.get("rnn.gamma_log", np.zeros(len(b))))[:, None]
    elif "rnn.nu" in t:
        turn = t["rnn.nu"] * np.exp(1j * t["rnn.theta"])
    else:
        turn = t["rnn.lambda_re"] + 1j * t["rnn.lambda_im"]
    shown = []
    for x in INPUTS:
        state = turn * state + b @ x
        shown.append((c @ state).real + t["rnn.D"] @ x)
    return np.array(shown)


def written(
    tensors: dict[str, np.ndarray], folder: Path, *options: str, command: str = "diagonalize"
) -> Path:
    source, target = folder / "in.safetensors", folder / "out.safetensors"
    safetensors.numpy.save_file(tensors, source, {"who": "me"})
    done = memcurse(command, source, "--output", target, "--horizon", "50", *options)
    assert done.returncode == 0, done.stderr
    return target


def layer(path: Path) -> dict[str, np.ndarray]:
    with safetensors.safe_open(path, "np") as file:
        names = [name for name in contents(path) if name.startswith("rnn.")]
        return {name: file.get_tensor(name) for name in names}


def contents(path: Path) -> dict[str, bytes]:
    return {name: bytes(one["data"]) for name, one in safetensors.deserialize(path.read_bytes())}


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_dense_layer_computes_the_same_in_every_form(
    form: str, folded: bool, tmp_path: Path
) -> None:
    tensors = dense()
    options = ("--parametrization", form, *["--fold-gain"] * folded)
    target = written({**tensors, **BESIDE}, tmp_path, *options)
    found = layer(target)
    np.testing.assert_allclose(run_rewritten(found), run_dense(tensors), rtol=1e-10)
    assert ("rnn.gamma_log" in found) is (form == "lru" and not folded)
    states = next(
        one for name, one in found.items() if name.startswith(("rnn.A", "rnn.nu", "rnn.la"))
    )
    assert len(states) == 3  # two pairs and one real
    kept = contents(tmp_path / "in.safetensors")
    assert all(contents(target)[name] == kept[name] for name in (*BESIDE, "rnn.D"))
    with safetensors.safe_open(target, "np") as file:
        assert file.metadata()["who"] == "me"
        assert file.metadata()["memcurse.rewritten"].startswith(f"rnn: dense_linear of 5 is {form}")


def test_an_lru_keeps_its_output_through_every_form_and_back(tmp_path: Path) -> None:
    n = 4
    tensors = {
        "rnn.nu_log": np.log(np.linspace(0.01, 0.3, n)),
        "rnn.theta_log": np.log(np.linspace(0.2, 6.1, n)),  # beyond π: conjugated
        "rnn.gamma_log": RANDOM.standard_normal(n),
        **{f"rnn.B_{part}": RANDOM.standard_normal((n, 2)) for part in ("re", "im")},
        **{f"rnn.C_{part}": RANDOM.standard_normal((3, n)) for part in ("re", "im")},
        "rnn.D": RANDOM.standard_normal((3, 2)),
    }
    zero = {"rnn.h0_re": np.zeros(n), "rnn.h0_im": np.zeros(n), "rnn.h0": np.zeros(2 * n)}
    wanted = run_rewritten(tensors | zero)
    for form in ("real-imaginary", "lru", "polar", "lru", "real-blocks"):
        target = written(tensors, tmp_path, "--parametrization", form, command="reparametrize")
        tensors = safetensors.numpy.load_file(target)
        np.testing.assert_allclose(run_rewritten(tensors | zero), wanted, rtol=1e-10)


def test_a_pickle_of_torch_becomes_the_same_in_safetensors(tmp_path: Path) -> None:
    tensors = {name: one.astype(np.float32) for name, one in dense().items()}
    state = {name: torch.tensor(one) for name, one in tensors.items()}
    state["head.weight"] = torch.randn(3, 2).to(torch.bfloat16)
    state["step"] = torch.tensor([7])
    torch.save(state, tmp_path / "in.pt")
    target = tmp_path / "out.safetensors"
    done = memcurse("diagonalize", tmp_path / "in.pt", "--output", target)
    assert done.returncode == 0, done.stderr
    found = load_file(target)
    assert torch.equal(found["head.weight"], state["head.weight"])
    assert found["step"].dtype == torch.int64
    assert found["rnn.nu"].dtype == torch.float32
    found = {name: one.double().numpy() for name, one in found.items()}
    np.testing.assert_allclose(run_rewritten(found), run_dense(tensors), rtol=1e-3, atol=1e-3)


def test_what_grows_is_clipped_where_that_is_asked_for(tmp_path: Path) -> None:
    target = written(dense((1.01, 0.9)), tmp_path, "--clip-modulus", "0.99")
    nu = safetensors.numpy.load_file(target)["rnn.nu"]
    np.testing.assert_allclose(sorted(nu), [0.8, 0.9, 0.99], rtol=1e-12)


REFUSED = {
    "no LRU holds |λ| >= 1": (dense((1.01, 0.9)), ("--parametrization", "lru"), "|λ| >= 1"),
    "nor a real λ > 0": (dense(real=0.5), ("--parametrization", "lru"), "a real λ > 0"),
    "one eigenvector": ({**dense(), "rnn.A": np.eye(5, k=1) + 0.9 * np.eye(5)}, (), "rnn"),
    "an unknown form": (dense(), ("--parametrization", "s4"), "choose one of polar"),
    "a modulus of 1": (dense(), ("--clip-modulus", "1"), "below 1"),
    "heads": (
        {
            **dense(),
            "rnn.A": np.stack([0.5 * np.eye(5)] * 2),
            "rnn.B": np.ones((10, 2)),
            "rnn.C": np.ones((3, 10)),
        },
        (),
        "other layers",
    ),
    "no C": ({name: dense()[name] for name in ("rnn.A", "rnn.B")}, (), "its B and C"),
    "a name that is taken": ({**dense(), "rnn.nu": np.ones(2)}, (), "rnn.nu is there"),
    "no dense layer": (safetensors.numpy.load_file(SAMPLES / "lru.safetensors"), (), "is dense"),
    "a tanh": (safetensors.numpy.load_file(SAMPLES / "gru.safetensors"), (), "is dense"),
}


@pytest.mark.parametrize(("tensors", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_such_form_is_refused_and_nothing_is_written(
    tensors: dict[str, np.ndarray], options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    source = tmp_path / "in.safetensors"
    safetensors.numpy.save_file(tensors, source)
    done = memcurse("diagonalize", source, "--output", tmp_path / "out.safetensors", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["in.safetensors"]


def test_the_checkpoint_itself_is_not_written_over() -> None:
    done = memcurse("reparametrize", SAMPLES / "lru.safetensors", "-o", SAMPLES / "lru.safetensors")
    assert (done.returncode, "the checkpoint itself" in done.stderr) == (2, True)


def test_a_link_stays_one_and_what_cannot_be_read_back_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.safetensors").symlink_to(tmp_path / "real.safetensors")
    assert written(dense(), tmp_path).is_symlink()
    assert layer(tmp_path / "real.safetensors")
    os.mkfifo(tmp_path / "pipe")
    done = memcurse("diagonalize", tmp_path / "in.safetensors", "-o", tmp_path / "pipe")
    assert (done.returncode, "no file that can be read back" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["rnn.nu", "rnn.B_re", "rnn.h0_im", "head.weight"])
def test_a_file_that_is_not_what_was_meant_is_not_moved_into_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
        changed = tensors[name] + tensors[name].dtype.type(1)
        return safetensors.numpy.save({**tensors, name: changed}, metadata)

    monkeypatch.setattr(rewritten, "encode", damaged)
    safetensors.numpy.save_file({**dense(), **BESIDE}, tmp_path / "in.safetensors")
    done = memcurse(
        "diagonalize",
        tmp_path / "in.safetensors",
        "-o",
        tmp_path / "out.safetensors",
        "--horizon",
        "50",
    )
    assert done.returncode == 2
    assert [one.name for one in tmp_path.iterdir()] == ["in.safetensors"]
