"""The complex diagonal linear recurrence, by its real and imaginary parts or in polar form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import layer_projections
from memcurse_cli.families.reading import (
    complex_roles,
    log_of_eigenvalues,
    one_to_one,
    read_finite,
    read_readin,
    read_readout,
    read_real,
)
from memcurse_cli.families.recurrence import Complexes, ParameterGroup, Recurrence

PARTS = (("A_re", "A_im"), ("lambda_re", "lambda_im"), ("Lambda_re", "Lambda_im"))
VECTORS = ("lambda", "Lambda", "lambda_", "A")
POLAR = ("nu", "theta")
# A layer with a step size is a discretised one: S5, S4 and their kin.
STEPS = ("log_step", "log_dt", "inv_dt", "dt", "gamma_log")


class ComplexDiagonalRNN:
    """``h[t+1] = λ h[t] + B x[t+1]``, ``y = Re[C h]``, λ free in the complex plane.

    ``λ = a + ib`` (dλ/da = 1, dλ/db = i), a stored complex vector likewise, or ``λ = ν e^{iθ}``
    (dλ/dν = e^{iθ}, dλ/dθ = iλ). Nothing keeps |λ| below 1.
    """

    name = "complex_diagonal"
    title = "Complex diagonal RNN"
    recognised_by = "A_re and A_im, lambda_re and lambda_im, a complex vector lambda, nu and theta"
    equation = "λ = A_re + i A_im, or nu e^(i theta)"
    source = "memcurse_cli.experiments; Zucchet & Orvieto 2024, section 4"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with a diagonal under one of the names, and no step size."""
        diagonal = {name for pair in PARTS for name in pair} | set(VECTORS) | set(POLAR)
        roles = (*sorted(diagonal), *complex_roles("B"), *complex_roles("C"), "D", *STEPS)
        matches = []
        for module, names in group_by_module(tensors, roles).items():
            form = _form(names, tensors)
            if form is None or names.keys() & set(STEPS):
                continue
            kept = {role: name for role, name in names.items() if role not in diagonal - set(form)}
            matches.append(Match(module or self.name, kept))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read λ, B and C.

        Raises:
            TensorError: NaN or inf, or tensors whose shapes do not fit together.
        """
        form = _form(match.tensors, store.tensors)
        assert form is not None
        log_eigenvalues, parameters = _read_diagonal(store, match, form)
        size = log_eigenvalues.size
        readin = read_readin(store, match.tensors, size)
        readout = read_readout(store, match.tensors, size)
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=tuple(match.tensors.values()),
            log_eigenvalues=log_eigenvalues,
            log_gain=np.zeros(size, dtype=np.complex128),
            parameters=parameters,
            readin=readin,
            readout=readout,
            projections=layer_projections(store, match.tensors, readin, readout),
        )


def _form(names: Mapping[str, str], tensors: Mapping[str, TensorSpec]) -> tuple[str, ...] | None:
    """The roles that hold the diagonal, or None."""
    for pair in (*PARTS, POLAR):
        if all(role in names and len(tensors[names[role]].shape) == 1 for role in pair):
            return pair
    for role in VECTORS:
        if role in names:
            spec = tensors[names[role]]
            if len(spec.shape) == 1 and spec.dtype.startswith("complex"):
                return (role,)
    return None


def _read_diagonal(
    store: TensorStore, match: Match, form: tuple[str, ...]
) -> tuple[Complexes, tuple[ParameterGroup, ...]]:
    tensors = [match.tensors[role] for role in form]
    dtypes = [store.tensors[tensor].dtype for tensor in tensors]
    size = store.tensors[tensors[0]].shape[0]
    if len(form) == 1:
        eigenvalues = read_finite(store, tensors[0]).astype(np.complex128)
        first, second = eigenvalues.real.copy(), eigenvalues.imag.copy()
        names = [f"{form[0]}[real]", f"{form[0]}[imaginary]"]
        tensors, dtypes = tensors * 2, dtypes * 2
    else:
        first, second = (read_real(store, tensor, (size,)) for tensor in tensors)
        names = list(form)
    if form == POLAR:
        direction = np.exp(1j * second)
        # A negative modulus turns the angle by π.
        log_eigenvalues = log_of_eigenvalues(first) + 1j * second
        derivatives = (direction, 1j * first * direction)
    else:
        log_eigenvalues = log_of_eigenvalues(first + 1j * second)
        derivatives = (np.ones(size, dtype=np.complex128), np.full(size, 1j))
    groups = tuple(
        one_to_one(name, tensor, values, dtype, derivative)
        for name, tensor, values, dtype, derivative in zip(
            names, tensors, (first, second), dtypes, derivatives, strict=True
        )
    )
    return log_eigenvalues, groups
