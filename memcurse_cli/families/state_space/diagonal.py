"""Diagonal layers of discrete time: the LRU, λ by its parts or in polar form, modal filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.family import Assumption, Layer, Layout, LayoutFamily, Match
from memcurse_cli.families.reading import (
    IMAGINARY,
    LARGEST_DECAY,
    REAL,
    beside,
    complex_roles,
    direct_part,
    group_by_module,
    log_of_eigenvalues,
    misfit,
    read_finite,
    require_finite,
    shown_shape,
    split_name,
)
from memcurse_cli.families.recurrence import Floats, Recurrence

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
_LOGARITHMS = ("nu_log", "theta_log", "gamma_log")
_STACKED = "params_log"
_MATRICES = (*complex_roles("B"), *complex_roles("C"), "D")
_PROJECTIONS = {"in_proj.weight": "B", "out_proj.weight": "C"}


class LRU(LayoutFamily):
    """``h[t+1] = λ h[t] + γ B x[t+1]``, ``y = Re[C h]``, without conjugate partners.

    ``log λ = -e^{nu_log} + i e^{theta_log}``, so dλ/dnu_log = -e^{nu_log} λ and
    dλ/dtheta_log = i e^{theta_log} λ. nu and theta beside gamma_log are logarithms too, unless
    ``exp_param`` was false, where ``log λ = -nu + i theta``.
    """

    name = "lru"
    title = "LRU"
    recognised_by = "nu_log and theta_log, with gamma_log; or params_log (3, n) or (n, 3)"
    equation = "λ = exp(-e^nu_log + i e^theta_log), γ = e^gamma_log"
    source = "minimal-LRU, online LRU, LRURec; Orvieto et al. 2023, arXiv 2303.06349"
    assumptions = (NORMALISATION, EXPONENTIAL)
    axes: Mapping[str, int] = {
        **dict.fromkeys(_LOGARITHMS, 1),
        _STACKED: 2,
        **dict.fromkeys((*complex_roles("B"), *complex_roles("C")), 2),
    }
    layouts = (
        Layout((_STACKED,), (*_MATRICES, *_PROJECTIONS), fits=lambda shapes: 3 in shapes[_STACKED]),
        Layout(("nu_log", "theta_log"), ("gamma_log", *_MATRICES)),
        Layout(_LOGARITHMS, _MATRICES, called={"nu_log": "nu", "theta_log": "theta"}),
    )

    def _kept(self, match: Match, tensors: Mapping[str, TensorSpec]) -> Match:
        kept = {role: name for role, name in match.tensors.items() if role not in _PROJECTIONS}
        # LRURec keeps B and C in complex linear layers; real ones are something else.
        for projection, role in _PROJECTIONS.items():
            name = match.tensors.get(projection, "")
            if name and tensors[name].dtype.startswith("complex"):
                kept[role] = name
        return replace(match, tensors=kept)

    def _recurrence(self, layer: Layer) -> Recurrence:
        names = layer.names
        stacked = _STACKED in names
        vectors = _read_exponents(layer)
        nu, theta = vectors["nu_log"], vectors["theta_log"]
        size = nu.size
        plain = not stacked and split_name(names["nu_log"])[1] == "nu"
        direct = plain and layer.options.choose(EXPONENTIAL)[0] == "false"
        if direct:
            decay, angle = np.clip(nu, -LARGEST_DECAY, LARGEST_DECAY), theta
            decay_slope, angle_slope = np.ones(size), np.ones(size)
        else:
            with np.errstate(over="ignore"):
                decay = decay_slope = np.minimum(np.exp(nu), LARGEST_DECAY)
                angle = angle_slope = np.exp(theta)
            theta_tensor = names[_STACKED if stacked else "theta_log"]
            require_finite(angle, theta_tensor, "the angle e^theta_log")
        log_eigenvalues = -decay + 1j * angle
        eigenvalues = np.exp(log_eigenvalues)
        # γ is a parameter of its own, 1, or √(1-|λ|²) computed from λ.
        log_gain, along_nu = np.zeros(size), None
        also: tuple[str, ...] = ()
        normalisation, chosen = layer.options.choose(NORMALISATION)
        if "gamma_log" in vectors:
            log_gain = vectors["gamma_log"]
        elif normalisation == "none":
            also = () if chosen else ("the gain γ is 1, since no gamma_log is stored",)
        else:
            # log γ = ½ log(1 - e^{-2 decay}), and d decay / d nu_log = decay
            lost = np.maximum(-np.expm1(-2 * decay), np.exp(-LARGEST_DECAY))
            log_gain, along_nu = 0.5 * np.log(lost), decay * np.exp(-2 * decay) / lost
        slopes = {
            "nu_log": (-decay_slope * eigenvalues, along_nu),
            "theta_log": (1j * angle_slope * eigenvalues, None),
            "gamma_log": (np.zeros(size), np.ones(size)),
        }
        groups = [
            layer.group(
                _STACKED if stacked else role,
                values,
                *slopes[role],
                name=role.removesuffix("_log") if direct and role != "gamma_log" else role,
                keeps_stable=role == "theta_log",
            )
            for role, values in vectors.items()
        ]
        # minimal-LRU's bidirectional layers have a C of twice the width.
        widths = {layer.shape(role)[-1:] for role in complex_roles("C") if role in names}
        if both := widths == {(2 * size,)}:
            also += ("C reads a pass backward in time too, and is left out",)
        return layer.recurrence(
            log_eigenvalues,
            groups,
            log_gain=log_gain,
            stable_by_construction=not direct,
            also=also,
            **layer.mixing(size, readout=not both),
        )


def _read_exponents(layer: Layer) -> dict[str, Floats]:
    """nu_log, theta_log and, where it is there, gamma_log."""
    if _STACKED in layer.names:
        shape = layer.shape(_STACKED)
        if len(shape) != 2 or 3 not in shape:
            what = f"its shape {shown_shape(shape)} is neither (3, n) nor (n, 3)"
            raise misfit(what, layer.names[_STACKED], "name the right family with --family")
        values = layer.real(_STACKED, (None, None))
        # A (3, 3) one is taken by rows, as the ports that stack them do.
        rows = np.ascontiguousarray(values if shape[0] == 3 else values.T)
        return dict(zip(_LOGARITHMS, rows, strict=True))
    # Some JAX ports keep an axis of one for the batch.
    shape = layer.shape("nu_log")
    wanted = (1, shape[1]) if len(shape) == 2 and shape[0] == 1 else (*shape[:1],) or (None,)
    return {role: layer.real(role, wanted).ravel() for role in _LOGARITHMS if role in layer.names}


_PARTS = (("A_re", "A_im"), ("lambda_re", "lambda_im"), ("Lambda_re", "Lambda_im"))
_VECTORS = ("lambda", "Lambda", "lambda_", "A")
_POLAR = ("nu", "theta")
# A layer with a step size is a discretised one: S5, S4 and their kin.
_STEPS = ("log_step", "log_dt", "inv_dt", "dt", "gamma_log")


class ComplexDiagonalRNN(LayoutFamily):
    """``h[t+1] = λ h[t] + B x[t+1]``, ``y = Re[C h]``, λ free in the complex plane.

    ``λ = a + ib`` (dλ/da = 1, dλ/db = i), a stored complex vector likewise, or ``λ = ν e^{iθ}``
    (dλ/dν = e^{iθ}, dλ/dθ = iλ). Nothing keeps |λ| below 1.
    """

    name = "complex_diagonal"
    title = "Complex diagonal RNN"
    recognised_by = "A_re and A_im, lambda_re and lambda_im, a complex vector lambda, nu and theta"
    equation = "λ = A_re + i A_im, or nu e^(i theta)"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 4"

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a diagonal under one of the names, and no step size."""
        diagonal = {name for pair in _PARTS for name in pair} | set(_VECTORS) | set(_POLAR)
        roles = (*sorted(diagonal), *complex_roles("B"), *complex_roles("C"), "D", *_STEPS)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            form = _form(names, tensors)
            if form is None or names.keys() & set(_STEPS):
                continue
            kept = {role: name for role, name in names.items() if role not in diagonal - set(form)}
            matches.append(Match(module or self.name, kept))
        return matches

    def _recurrence(self, layer: Layer) -> Recurrence:
        store, names = layer.store, layer.names
        form = _form(names, store.tensors)
        assert form is not None
        if len(form) == 1:
            eigenvalues = read_finite(store, names[form[0]]).astype(np.complex128)
            first, second = eigenvalues.real.copy(), eigenvalues.imag.copy()
            called: tuple[str, ...] = (f"{form[0]}[{REAL}]", f"{form[0]}[{IMAGINARY}]")
        else:
            first, second = (layer.real(role, layer.shape(form[0])) for role in form)
            called = form
        size = first.size
        if form == _POLAR:
            direction = np.exp(1j * second)
            # A negative modulus turns the angle by π.
            log_eigenvalues = log_of_eigenvalues(first) + 1j * second
            slopes = (direction, 1j * first * direction)
        else:
            log_eigenvalues = log_of_eigenvalues(first + 1j * second)
            slopes = (np.ones(size), np.full(size, 1j))
        return layer.recurrence(
            log_eigenvalues,
            (
                layer.group(form[0], first, slopes[0], name=called[0]),
                layer.group(form[-1], second, slopes[1], name=called[1]),
            ),
            **layer.mixing(size),
        )


def _form(names: Mapping[str, str], tensors: Mapping[str, TensorSpec]) -> tuple[str, ...] | None:
    """The roles that hold the diagonal, or None."""
    for pair in (*_PARTS, _POLAR):
        if all(role in names and len(tensors[names[role]].shape) == 1 for role in pair):
            return pair
    for role in _VECTORS:
        if role in names:
            spec = tensors[names[role]]
            if len(spec.shape) == 1 and spec.dtype.startswith("complex"):
                return (role,)
    return None


_PRODUCT = (
    "what the state takes in is a product of two projections of the input, after short filters"
)


class StripedHyena(LayoutFamily):
    """``h[t] = λ h[t-1] + x[t]``, ``y = Re[Σ_n residues h]``, one input and N modes per filter.

    `ParallelHyenaFilter` in togethercomputer/stripedhyena (stripedhyena/model.py), Evo too:
    ``λ = poles``, complex and free (dλ/dRe = 1, dλ/dIm = i). `HyenaCascade` in Zymrael/vortex, the
    code of Evo 2: ``λ = e^log_poles``, real. Nothing keeps |λ| below 1 in either.
    """

    name = "striped_hyena"
    title = "StripedHyena and Evo (modal filters)"
    recognised_by = (
        "poles and residues (filters, N, 1, 2), or log_poles (filters, N, 1) and residues"
        " (filters, N)"
    )
    equation = "λ = poles, or exp(log_poles)"
    source = (
        "togethercomputer/stripedhyena and Zymrael/vortex; Massaroli et al. 2023, arXiv 2310.18780"
    )

    layouts = (
        Layout(
            ("poles", "residues"),
            fits=lambda shapes: (
                shapes["residues"][2:] == (1, 2) and shapes["poles"] == shapes["residues"]
            ),
        ),
        Layout(
            ("log_poles", "residues"),
            fits=lambda shapes: (
                len(shapes["residues"]) == 2 and shapes["log_poles"] == (*shapes["residues"], 1)
            ),
        ),
    )

    def _recurrence(self, layer: Layer) -> Recurrence:
        filters, modes = layer.shape("residues")[:2]
        size = filters * modes
        pairs = "poles" in layer.names
        if pairs:
            eigenvalues = layer.pairs("poles", (filters, modes, 1)).ravel()
            readout = layer.pairs("residues", (filters, modes, 1)).reshape(1, size)
            log_eigenvalues = log_of_eigenvalues(eigenvalues)
            both = np.stack([eigenvalues.real, eigenvalues.imag], axis=-1)
            slopes, mode = np.tile(np.array([1, 1j]), (size, 1)), np.arange(size)[:, None]
            group = layer.group("poles", both, slopes, eigenvalue=mode)
        else:
            stored = layer.real("log_poles", (filters, modes, 1)).ravel()
            residues = layer.real("residues", (filters, modes))
            readout = residues.reshape(1, size).astype(np.complex128)
            log_eigenvalues = np.clip(stored, -LARGEST_DECAY, LARGEST_DECAY)
            group = layer.group("log_poles", stored, np.exp(log_eigenvalues))
        direct = beside(layer.store, layer.names["residues"], "D")
        return layer.recurrence(
            log_eigenvalues,
            (group,),
            channels=filters,
            readin=np.ones((size, 1), dtype=np.complex128),
            readout=readout,
            projections=(
                *layer.parts("residues", "C", readout.shape, pairs=pairs),
                *direct_part(layer.store, direct, 1, filters, channels=True),
            ),
            also=(_PRODUCT,),
        )
