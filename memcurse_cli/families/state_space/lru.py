"""The linear recurrent unit of Orvieto et al. 2023, in JAX and in its ports to torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.layers import member_of, split_stack
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.projections import layer_projections
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    complex_roles,
    one_to_one,
    read_readin,
    read_readout,
    read_real,
    require_finite,
    shown_shape,
)
from memcurse_cli.families.recurrence import Complexes, Floats, Recurrence

NORMALISATION = Assumption(
    key="normalization",
    default="none",
    choices=("none", "lru"),
    meaning="the gain of an LRU without gamma_log: 1, or √(1-|λ|²) computed from λ",
)
EXPONENTIAL = Assumption(
    key="lru-exponential",
    default="true",
    choices=("true", "false"),
    meaning="whether an LRU's nu and theta beside gamma_log are logarithms (exp_param)",
)
LOGARITHMS = ("nu_log", "theta_log", "gamma_log")
STACKED = "params_log"
# How many axes a single layer's tensors have; one more where layers are stacked.
_AXES = {
    **dict.fromkeys(LOGARITHMS, 1),
    STACKED: 2,
    **dict.fromkeys((*complex_roles("B"), *complex_roles("C")), 2),
}
PROJECTIONS = {"B": "in_proj.weight", "C": "out_proj.weight"}


class LRU:
    """``h[t+1] = λ h[t] + γ B x[t+1]``, ``y = Re[C h]``.

    ``log λ = -e^{nu_log} + i e^{theta_log}``, so dλ/dnu_log = -e^{nu_log} λ and
    dλ/dtheta_log = i e^{theta_log} λ; ``γ = e^{gamma_log}`` is a parameter of its own. Only the
    names nu and theta beside gamma_log mean logarithms too, unless ``exp_param`` was false, where
    ``log λ = -nu + i theta``. No conjugate partners are implied.
    """

    name = "lru"
    title = "LRU"
    recognised_by = "nu_log and theta_log, with gamma_log; or params_log (3, n) or (n, 3)"
    equation = "λ = exp(-e^nu_log + i e^theta_log), γ = e^gamma_log"
    source = "minimal-LRU, online LRU, LRURec; Orvieto et al. 2023, arXiv 2303.06349"
    assumptions: tuple[Assumption, ...] = (NORMALISATION, EXPONENTIAL)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with nu_log and theta_log, or with all of them stacked in params_log."""
        roles = (
            *LOGARITHMS,
            *("nu", "theta", STACKED),
            *complex_roles("B"),
            *complex_roles("C"),
            "D",
            *PROJECTIONS.values(),
        )
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            if STACKED in names:
                if 3 not in tensors[names[STACKED]].shape:
                    continue
                names = _with_projections(names, tensors)
            elif not {"nu_log", "theta_log"} <= names.keys():
                if not {"nu", "theta", "gamma_log"} <= names.keys():
                    continue
                names = {
                    f"{role}_log" if role in ("nu", "theta") else role: name
                    for role, name in names.items()
                }
            kept = {
                role: name
                for role, name in names.items()
                if role not in (*PROJECTIONS.values(), "nu", "theta")
            }
            matches += split_stack(Match(module or self.name, kept), tensors, _AXES)
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the three vectors, B and C.

        Raises:
            TensorError: NaN or inf, or tensors whose shapes do not fit together.
        """
        store = member_of(store, match, _AXES)
        vectors = _read_exponents(store, match.tensors)
        (nu_tensor, nu), (theta_tensor, theta) = vectors["nu_log"], vectors["theta_log"]
        size = nu.size
        plain = split_name(nu_tensor)[1] == "nu"
        direct = plain and options.choose(EXPONENTIAL)[0] == "false"
        if direct:
            decay, angle = np.clip(nu, -LARGEST_DECAY, LARGEST_DECAY), theta
            decay_slope, angle_slope = np.ones(size), np.ones(size)
        else:
            with np.errstate(over="ignore"):
                decay = decay_slope = np.minimum(np.exp(nu), LARGEST_DECAY)
                angle = angle_slope = np.exp(theta)
            require_finite(angle, theta_tensor, "the angle e^theta_log")
        log_eigenvalues = -decay + 1j * angle
        eigenvalues = np.exp(log_eigenvalues)
        # γ is a parameter of its own, 1, or √(1-|λ|²) computed from λ.
        log_gain, along_nu = np.zeros(size), None
        assumptions: tuple[str, ...] = ()
        normalisation, chosen = options.choose(NORMALISATION)
        if "gamma_log" in vectors:
            log_gain = vectors["gamma_log"][1]
        elif normalisation == "none":
            assumptions = () if chosen else ("the gain γ is 1, since no gamma_log is stored",)
        else:
            # log γ = ½ log(1 - e^{-2 decay}), and d decay / d nu_log = decay
            lost = np.maximum(-np.expm1(-2 * decay), np.exp(-LARGEST_DECAY))
            log_gain, along_nu = 0.5 * np.log(lost), decay * np.exp(-2 * decay) / lost
        nothing, one = np.zeros(size), np.ones(size)
        parts = {
            "nu_log": (-decay_slope * eigenvalues, along_nu),
            "theta_log": (1j * angle_slope * eigenvalues, None),
            "gamma_log": (nothing, one),
        }
        parameters = []
        for role, (tensor, values) in vectors.items():
            named = role.removesuffix("_log") if direct and role != "gamma_log" else role
            group = one_to_one(named, tensor, values, store.tensors[tensor].dtype, *parts[role])
            parameters.append(replace(group, keeps_stable=role == "theta_log"))
        readin = read_readin(store, match.tensors, size)
        readout, sentence = _read_readout(store, match, size)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=log_eigenvalues,
            log_gain=log_gain.astype(np.complex128),
            parameters=tuple(parameters),
            readin=readin,
            readout=readout,
            projections=layer_projections(store, match.tensors, readin, readout),
            stable_by_construction=not direct,
            assumptions=assumptions + sentence,
        )


def _with_projections(
    names: Mapping[str, str], tensors: Mapping[str, TensorSpec]
) -> dict[str, str]:
    """LRURec keeps B and C in complex linear layers; real ones are something else."""
    found = dict(names)
    for role, projection in PROJECTIONS.items():
        tensor = names.get(projection)
        if tensor is not None and tensors[tensor].dtype.startswith("complex"):
            found[role] = tensor
    return found


def _read_exponents(store: TensorStore, names: Mapping[str, str]) -> dict[str, tuple[str, Floats]]:
    """The tensor and the values of nu_log, theta_log and, where it is there, gamma_log."""
    if STACKED in names:
        tensor = names[STACKED]
        shape = store.tensors[tensor].shape
        if len(shape) != 2 or 3 not in shape:
            raise TensorError(
                f"its shape {shown_shape(shape)} is neither (3, n) nor (n, 3)",
                where=tensor,
                remedy="name the right family with --family",
            )
        values = read_real(store, tensor, (None, None))
        # A (3, 3) one is taken by rows, as the ports that stack them do.
        rows = np.ascontiguousarray(values if shape[0] == 3 else values.T)
        return {role: (tensor, row) for role, row in zip(LOGARITHMS, rows, strict=True)}
    # Some JAX ports keep an axis of one for the batch.
    shape = store.tensors[names["nu_log"]].shape
    wanted = (1, shape[1]) if len(shape) == 2 and shape[0] == 1 else (*shape[:1],) or (None,)
    return {
        role: (names[role], read_real(store, names[role], wanted).ravel())
        for role in LOGARITHMS
        if role in names
    }


def _read_readout(
    store: TensorStore, match: Match, size: int
) -> tuple[Complexes | None, tuple[str, ...]]:
    """C, unless it reads a second pass backward in time, as minimal-LRU's bidirectional layers."""
    columns = {
        store.tensors[match.tensors[role]].shape[-1:]
        for role in complex_roles("C")
        if role in match.tensors
    }
    if columns == {(2 * size,)}:
        return None, ("C reads a pass backward in time too, and is left out",)
    return read_readout(store, match.tensors, size), ()
