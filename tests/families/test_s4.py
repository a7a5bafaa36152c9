"""S4's eigenvalues against dense matrices, its authors' own, and differences."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from families.derivatives import check_derivatives, read_layer
from families.impulse import impulse_response
from families.oracles import as_complex, assert_same_spectrum
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.detect import detect
from memcurse_cli.families.family import Family
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.state_space.s4_dplr import S4DPLR, AnnotatedS4
from memcurse_cli.families.state_space.s4d import AnnotatedS4D

H, N = 2, 3


def layer(
    version: str, *, systems: int = H, rank: int = 1, tied: bool = True
) -> dict[str, NDArray]:
    """A layer whose eigenvalues are well apart, under one version's names."""
    rng = np.random.default_rng(4)
    real = rng.uniform(-1, 0, (systems, N))
    imag = np.array([2.0, 6.0, 12.0]) + rng.uniform(0, 1, (systems, N))
    p = rng.normal(scale=0.3, size=(rank, systems, N, 2))
    tensors = {"P": p, "B": rng.normal(size=(1, systems, N, 2))}
    if version == "4":
        tensors |= {"A_real": real, "A_imag": imag}
        tensors |= {"inv_dt": rng.uniform(-1.8, -1.6, (H, 1 if tied else N))}
        tensors |= {"l_kernel": np.array(64), "C": rng.normal(size=(1, H, N, 2))}
        return {f"kernel.{role}": values for role, values in tensors.items()}
    tensors["log_dt"] = rng.uniform(-1.8, -1.6, H)
    if version == "3":
        tensors |= {"inv_w_real": real, "w_imag": imag}
    elif version == "2 hurwitz":
        tensors |= {"log_w_real": real, "w_imag": imag}
    else:
        tensors["w"] = np.stack([-np.exp(real), imag], axis=-1)
        tensors["Q"] = rng.normal(scale=0.3, size=(rank, systems, N, 2))
    return {f"kernel.{role}": values for role, values in tensors.items()}


def continuous(tensors: Mapping[str, NDArray], channel: int) -> tuple[NDArray, NDArray, NDArray]:
    """``(diag(Δ), A, B)`` of one channel on the complex state and its conjugate."""
    roles = {name.removeprefix("kernel."): values for name, values in tensors.items()}
    step = np.exp(roles.get("inv_dt", roles.get("log_dt")))[channel]
    system = channel % roles["P"].shape[1]
    if "w" in roles:
        w = as_complex(roles["w"])
    elif "A_real" in roles:
        w = -np.exp(roles["A_real"]) - 1j * roles["A_imag"]
    else:
        w = -np.exp(roles.get("inv_w_real", roles.get("log_w_real"))) + 1j * roles["w_imag"]
    p = as_complex(roles["P"])[:, system]
    q = as_complex(roles["Q"])[:, system] if "Q" in roles else p.conj()
    b = as_complex(roles["B"])[0, system]
    w, p, q, b = (np.concatenate([half, half.conj()], axis=-1) for half in (w[system], p, q, b))
    steps = np.diag(np.tile(np.broadcast_to(step, b.size // 2), 2))
    return steps, np.diag(w) - p.T @ q, b


def bilinear(steps: NDArray, matrix: NDArray, readin: NDArray) -> tuple[NDArray, NDArray]:
    """Gu et al. 2022, equation 3."""
    half = steps @ matrix / 2
    inverse = np.linalg.inv(np.eye(len(matrix)) - half)
    return inverse @ (np.eye(len(matrix)) + half), inverse @ steps @ readin


LAYERS = {
    "version 4": layer("4"),
    "version 4, rank 2, one system": layer("4", rank=2, systems=1),
    "version 4, untied step": layer("4", tied=False),
    "version 4, untied step, one system": layer("4", systems=1, tied=False),
    "version 3": layer("3"),
    "version 2": layer("2"),
    "version 2, hurwitz": layer("2 hurwitz"),
}


def assert_of_dense_matrices(
    recurrence: Recurrence, matrices: list[tuple[NDArray, NDArray, NDArray]]
) -> None:
    """Eigenvectors are free in phase, so that what each of them carries is compared by size."""
    eigenvalues = np.exp(recurrence.log_eigenvalues).reshape(len(matrices), -1)
    driven = (np.exp(recurrence.log_gain) * recurrence.readin[:, 0]).reshape(eigenvalues.shape)
    for channel, matrix in enumerate(matrices):
        discrete, readin = bilinear(*matrix)
        values, vectors = np.linalg.eig(discrete)
        assert_same_spectrum(eigenvalues[channel], values, 1e-12)
        share = np.abs(np.linalg.solve(vectors, readin))
        nearest = np.abs(eigenvalues[channel][:, None] - values).argmin(axis=1)
        assert_allclose(np.abs(driven[channel]), share[nearest], rtol=1e-11)
    assert_allclose(recurrence.channel, np.repeat(np.arange(len(matrices)), eigenvalues.shape[1]))


@pytest.mark.parametrize("name", LAYERS)
def test_eigenvalues_drive_and_derivatives_are_those_of_the_dense_matrix(name: str) -> None:
    recurrence = read_layer(LAYERS[name], S4DPLR())
    assert_of_dense_matrices(recurrence, [continuous(LAYERS[name], each) for each in range(H)])
    assert recurrence.stable_by_construction == (name != "version 2")
    check_derivatives(LAYERS[name], S4DPLR(), tolerance=1e-9)


def first_layer(
    *, rank: int = 1, shared: bool = False, untied_w: bool = False
) -> dict[str, NDArray]:
    """`SSKernelNPLR.__init__` of the first release: P and Q are rows of B and C."""
    rng = np.random.default_rng(14)
    w = np.stack([-rng.uniform(0.4, 1, (H, N)), np.array([[2.0, 6.0, 12.0]] * H)], axis=-1)
    rows = rng.normal(scale=0.3, size=(H, 1 + rank, N, 2))
    layer = {
        "log_dt": rng.uniform(-1.8, -1.6, H),
        "w": w if untied_w else w[0],
        "B": rows[0] if shared else rows,
        "C": rng.normal(scale=0.3, size=(H, 1 + rank, N, 2)),
        "z": rng.normal(size=(9, 2)),
        "nodes": rng.normal(size=(9, 2)),
    }
    return {f"layer.kernel.krylov.{role}": values for role, values in layer.items()}


FIRST = {
    "default": first_layer(),
    "rank 2": first_layer(rank=2),
    "B not trained": first_layer(shared=True),
    "w for each channel": first_layer(untied_w=True),
}


def first_continuous(layer: dict[str, NDArray], channel: int) -> tuple[NDArray, NDArray, NDArray]:
    """``(diag(Δ), A, B)`` as the slow kernel builds A: diag(w) - Σ_r p_r q̄_r over both halves."""
    log_dt, w, b, c = (layer[f"layer.kernel.krylov.{role}"] for role in ("log_dt", "w", "B", "C"))
    w = as_complex(w if w.ndim == 2 else w[channel])
    b = as_complex(b if b.ndim == 3 else b[channel])
    c = as_complex(c[channel])
    w, b, c = (np.concatenate([half, half.conj()], axis=-1) for half in (w, b, c))
    matrix = np.diag(w) - np.einsum("rp,rq->pq", b[1:], c[1:].conj())
    return np.exp(log_dt[channel]) * np.eye(2 * N), matrix, b[0]


@pytest.mark.parametrize("name", FIRST)
def test_the_first_version_keeps_its_low_rank_part_in_b_and_c(name: str) -> None:
    layer = FIRST[name]
    ((family, match),) = detect(MemoryStore(layer).tensors)
    assert (family.name, match.layer) == ("s4_dplr", "layer.kernel.krylov")
    recurrence = read_layer(layer, S4DPLR())
    assert_of_dense_matrices(recurrence, [first_continuous(layer, each) for each in range(H)])
    assert not recurrence.stable_by_construction
    elements = {}
    for role, tensor in {"P": "B", "Q": "C"}.items():
        shape = FIRST[name][f"layer.kernel.krylov.{tensor}"].shape
        index = np.arange(np.prod(shape)).reshape(-1, *shape[-3:])
        elements[role] = np.swapaxes(index[:, 1:], 0, 1).ravel()
    check_derivatives(FIRST[name], S4DPLR(), tolerance=1e-9, elements=elements)


def test_an_untied_low_rank_part_can_explode() -> None:
    exploding = layer("2")
    exploding["kernel.Q"] = -3 * exploding["kernel.P"] * [1, -1]
    recurrence = read_layer(exploding, S4DPLR())
    assert recurrence.log_eigenvalues.real.max() > 0
    assert "version 2 keeps them fixed" in " ".join(recurrence.assumptions)


def test_a_matrix_without_eigenvectors_is_refused() -> None:
    tensors = layer("2", systems=1)
    # w = 0 and Q ⟂ P leave a nilpotent matrix, [[0, 1], [0, 0]] on (Re s, Im s).
    tensors["kernel.w"] = np.zeros((1, N, 2))
    tensors["kernel.P"] = np.zeros((1, 1, N, 2))
    tensors["kernel.Q"] = np.zeros((1, 1, N, 2))
    tensors["kernel.P"][..., 0, 0] = -0.5
    tensors["kernel.Q"][..., 0, 1] = 1.0
    with pytest.raises(TensorError, match=r"kernel\.P: the state matrix cannot be diagonalised"):
        read_layer(tensors, S4DPLR())


MODES, CHANNELS, STEPS = 4, 3, 16


def annotated(real: str, imag: str, **more: NDArray) -> dict[str, NDArray]:
    rng = np.random.default_rng(13)
    layer = {
        real: -rng.uniform(0.3, 1, (MODES, CHANNELS)),
        imag: 2 * np.arange(MODES)[:, None] - 3 + rng.uniform(-0.2, 0.2, (MODES, CHANNELS)),
        "C": rng.normal(size=(MODES, CHANNELS, 2)),
        "D": np.ones((1, CHANNELS)),
        "log_step": rng.uniform(-2, -1, (1, CHANNELS)),
    }
    return {f"params/layers_0/seq/{role}": values for role, values in (layer | more).items()}


_UNUSED = np.ones((MODES, CHANNELS))
_P, _B = 0.3 * np.random.default_rng(14).normal(size=(2, MODES, CHANNELS, 2)) @ np.array([1, 1j])
S4D_LAYER = annotated("A_re", "A_im", B_re=_UNUSED, B_im=_UNUSED)
S4_LAYER = annotated("Lambda_re", "Lambda_im", P=_P, B=_B)
REAL_S4 = annotated("Lambda_re", "Lambda_im", P=_P.real, B=_B.real)


def part(layer: dict[str, NDArray], role: str) -> NDArray:
    return layer[f"params/layers_0/seq/{role}"]


def test_the_kernel_of_annotated_s4d() -> None:
    layer = S4D_LAYER | {"params/layers_0/seq/A_re": part(S4D_LAYER, "A_re").copy()}
    part(layer, "A_re")[0, 0] = 0.5
    recurrence = read_layer(layer, AnnotatedS4D())
    assert recurrence.name == "params/layers_0/seq"
    # s4d_kernel_zoh(C, A, L, step) of every channel
    a = np.clip(part(layer, "A_re"), None, -1e-4) + 1j * part(layer, "A_im")
    step = np.exp(part(layer, "log_step")[0])
    driven = as_complex(part(layer, "C")) * (np.exp(step * a) - 1) / a
    expected = np.einsum("nc,ncl->cl", driven, np.exp((step * a)[..., None] * np.arange(STEPS)))
    assert_allclose(impulse_response(recurrence, STEPS)[0], expected.real, rtol=0, atol=1e-12)
    assert recurrence.stable_by_construction
    assert [group.matrix for group in recurrence.projections] == ["C", "C", "D"]
    stored = part(layer, "C").reshape(-1, 2)
    assert_allclose(recurrence.readout[0].real, stored[recurrence.projections[0].scalar, 0])


@pytest.mark.parametrize("layer", [S4_LAYER, REAL_S4], ids=["complex", "real"])
def test_the_state_of_annotated_s4(layer: dict[str, NDArray]) -> None:
    recurrence = read_layer(layer, AnnotatedS4())
    assert recurrence.readout is None
    matrices = []
    for channel in range(CHANNELS):  # of discrete_DPLR
        real, imag, p, b = (
            part(layer, role)[:, channel] for role in ("Lambda_re", "Lambda_im", "P", "B")
        )
        a = np.diag(np.clip(real, None, -1e-4) + 1j * imag) - np.outer(p, p.conj())
        matrices.append((np.exp(part(layer, "log_step")[0, channel]) * np.eye(MODES), a, b))
    assert_of_dense_matrices(recurrence, matrices)


@pytest.mark.parametrize(
    ("layer", "family"),
    [(S4D_LAYER, AnnotatedS4D()), (S4_LAYER, AnnotatedS4()), (REAL_S4, AnnotatedS4())],
    ids=["s4d", "s4", "real P"],
)
def test_derivatives_of_the_annotated_s4(layer: dict[str, NDArray], family: Family) -> None:
    check_derivatives(layer, family, imaginary=("P[imaginary]",))
