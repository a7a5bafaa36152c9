"""Mamba and Mamba-2 as llama.cpp stores them in GGUF, at their nominal input."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import GateDrive
from memcurse_cli.families.gate_weights import low_rank_gate, projected_gate, repeated
from memcurse_cli.families.module_names import group_by_module
from memcurse_cli.families.projections import beside
from memcurse_cli.families.reading import (
    LARGEST_DECAY,
    one_to_one,
    read_real,
    require_finite,
    shown_shape,
)
from memcurse_cli.families.recurrence import Floats, ParameterGroup, Recurrence
from memcurse_cli.families.state_space.discretization import apply_transform
from memcurse_cli.theory.gates.laws import StepSize

_RATE, _BIAS = "ssm_a", "ssm_dt.bias"
# Mamba projects the step of each channel; Mamba-2 has none of these, and one step per head.
_MAMBA = ("ssm_x.weight", "ssm_dt.weight")
_MAMBA_2 = ("ssm_d", "ssm_norm.weight", "ssm_conv1d.weight", "ssm_out.weight")

_NOMINAL = (
    "Δ = softplus(ssm_dt.bias) is the step at a zero input; what the bias of the convolution adds"
    " to it is left out"
)
_CONVERTED = (
    "ssm_a is -exp(A_log), as llama.cpp's converter has stored it; training moves A_log, whose unit"
    " moves ssm_a by its own size"
)


class GgufMamba:
    """``λ = exp(Δ a)``, ``γ = Δ`` and ``Δ = softplus(ssm_dt.bias)``, where ``a`` is ssm_a.

    The equations of Mamba (a of each channel and state) and of Mamba-2 (a of each head). The
    converter has stored ``a = -exp(A_log)`` (llama.cpp, convert_hf_to_gguf.py), so that a value
    which was rounded to zero or beyond gives |λ| >= 1: nothing in the file keeps it negative.
    """

    name = "gguf_mamba"
    title = "Mamba and Mamba-2 in GGUF"
    recognised_by = "ssm_a beside ssm_dt.bias, and ssm_x and ssm_dt.weight or ssm_d and ssm_norm"
    equation = "λ = exp(Δ ssm_a), Δ = softplus(ssm_dt.bias)"
    source = "llama.cpp; Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024, arXiv 2405.21060"
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Blocks with the decay rates, the bias of the step and the tensors of either version."""
        modules = group_by_module(tensors, (_RATE, _BIAS, *_MAMBA, *_MAMBA_2))
        return [
            Match(module or self.name, names)
            for module, names in modules.items()
            if {_RATE, _BIAS} <= names.keys()
            and (names.keys() >= {*_MAMBA} or names.keys() >= {*_MAMBA_2})
            and len(tensors[names[_RATE]].shape) == 2
        ]

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read ssm_a and the bias.

        Raises:
            TensorError: NaN or inf, or shapes that do not fit together.
        """
        names = match.tensors
        shape = store.tensors[names[_RATE]].shape
        bias = read_real(store, names[_BIAS], shape[:1])
        rate = read_real(store, names[_RATE], (None, None))
        step = apply_transform(bias, "softplus")
        log_eigenvalue = np.maximum(step.value[:, None] * rate, -LARGEST_DECAY)
        with np.errstate(over="ignore"):
            eigenvalue = np.exp(log_eigenvalue)
        require_finite(eigenvalue, names[_RATE], "λ")
        by_rate = one_to_one(
            _RATE,
            names[_RATE],
            rate.ravel(),
            store.tensors[names[_RATE]].dtype,
            (eigenvalue * step.value[:, None]).ravel(),
        )
        by_bias = ParameterGroup(
            name=_BIAS,
            tensor=names[_BIAS],
            values=bias,
            dtype=store.tensors[names[_BIAS]].dtype,
            scalar=np.repeat(np.arange(bias.size), shape[1]),
            eigenvalue=by_rate.eigenvalue,
            eigenvalue_derivative=(
                (eigenvalue * rate * step.slope[:, None]).ravel().astype(np.complex128)
            ),
            log_gain_derivative=np.repeat(step.log_slope, shape[1]).astype(np.complex128),
            keeps_stable=True,
        )
        return Recurrence(
            name=match.layer,
            family=self.name,
            tensors=(names[_RATE], names[_BIAS]),
            log_eigenvalues=log_eigenvalue.ravel().astype(np.complex128),
            log_gain=np.repeat(step.log, shape[1]),
            parameters=(by_rate, by_bias),
            multiplicity=1 if names.keys() >= {*_MAMBA} else _states_per_head(store, names),
            input_dependent=True,
            stable_by_construction=False,
            assumptions=(_NOMINAL, _CONVERTED),
            gate=_drive(store, names, bias, rate) if options.gates else None,
        )


def _drive(
    store: TensorStore, names: Mapping[str, str], bias: Floats, rate: Floats
) -> GateDrive | None:
    """The step's projection of Mamba, or the last rows of that of Mamba-2."""
    if names.keys() >= {*_MAMBA}:
        gate = low_rank_gate(store, bias, names["ssm_dt.weight"], names["ssm_x.weight"])
        sees = "what ssm_x sees, the convolution's output"
    else:
        inner = beside(store, names[_RATE], "ssm_in.weight")
        gate = projected_gate(store, bias, inner, rows=slice(-bias.size, None))
        sees = "what ssm_in sees, the mixer's input"
    if gate is None or np.any(rate >= 0):
        return None
    return GateDrive(
        law=StepSize(-rate.ravel()),
        gate=repeated(gate, rate.shape[1]),
        # A_log, by which the law moves, has one unit for every |a| of the stored a = -exp(A_log).
        motions={_RATE: ("A_log", 1 / rate.ravel()), _BIAS: ("dt_bias", 1.0)},
        sees=sees,
    )


def _states_per_head(store: TensorStore, names: Mapping[str, str]) -> int:
    """Head dimension × state of Mamba-2: the convolution has the channels of x, B and C.

    Raises:
        TensorError: the shapes contradict each other.
    """
    shapes = {role: store.tensors[names[role]].shape for role in (_RATE, *_MAMBA_2)}
    heads, width = shapes[_RATE][0], shapes["ssm_out.weight"][-1]
    groups = shapes["ssm_norm.weight"][0]
    shared = shapes["ssm_conv1d.weight"][0] - width
    fits = (
        prod(shapes["ssm_norm.weight"]) == width
        and 0 < heads <= width
        and width % heads == 0
        and shared > 0
        and shared % (2 * groups) == 0
    )
    if not fits:
        raise TensorError(
            f"its shape {shown_shape(shapes['ssm_conv1d.weight'])} does not fit {heads} heads of"
            f" {width} channels in {groups} groups",
            where=names["ssm_conv1d.weight"],
            remedy="name the right family with --family, or convert the model again",
        )
    return width // heads * (shared // (2 * groups))
