"""Mamba-2 (state space duality) of Dao & Gu 2024, arXiv 2405.21060, at its nominal input."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.assumptions import Assumed, setting
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import projected_gate
from memcurse_cli.families.module_names import group_by_module, split_name
from memcurse_cli.families.reading import read_real, require_shape, shown_shape, softplus
from memcurse_cli.families.recurrence import Floats, Recurrence
from memcurse_cli.families.selective.law import Slot, law_recurrence
from memcurse_cli.families.state_space.discretization import apply_transform
from memcurse_cli.theory.gates.laws import StepSize

_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups", "ssm_cfg.ngroups")

# Their mixers clamp at the smallest step of the initialisation, whatever time_step_limit says.
_CLAMPED_AT_THE_SMALLEST = ("nemotron_h", "zamba2")
_LIMITS = ("time_step_limit", "ssm_cfg.dt_limit")

LARGEST_FACTOR = 1e6
LARGEST_COUNT = 10**6
"""Of the factor and the groups that a configuration may claim."""

UNCLAMPED = (
    "Δ is not clamped: the limits of time_step_limit are in the configuration, not in the"
    " checkpoint, and act on whole sequences only"
)


def clamp_sentence(config: Mapping[str, Any], step: Floats) -> tuple[str, ...]:
    """What is left out where the library clamps Δ; nothing where the limits are known to be open.

    Args:
        config: the model's configuration.
        step: (heads,) Δ at zero input.
    """
    pair: Any = next(
        (found for key in _LIMITS if (found := setting(config, key)) is not None), None
    )
    if setting(config, "model_type") in _CLAMPED_AT_THE_SMALLEST:
        pair = [setting(config, "time_step_min"), math.inf]
    low, high = map(_number, pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
    if low is None or high is None or low > high:
        return (UNCLAMPED,)
    if low <= 0 and high == math.inf:
        return ()
    outside = int(((step < low) | (step > high)).sum())
    sentence = (
        f"Δ is not clamped: config.json holds it in [{low:g}, {high:g}] over whole sequences, not"
        f" in single steps; {outside} of {step.size} heads lie outside at zero input"
    )
    return (sentence,)


def _number(value: Any) -> float | None:
    if isinstance(value, Mapping):  # how transformers 5 writes an infinity into JSON
        return math.inf if value.get("__float__") == "Infinity" else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 or value == math.inf else None


def _bias_scale(config: Mapping[str, Any]) -> float:
    """The factor that Falcon-H1 puts on the rows of in_proj, its bias included, that make Δ."""
    factors = setting(config, "ssm_multipliers")
    if setting(config, "model_type") != "falcon_h1" or not isinstance(factors, list):
        return 1.0
    factor = _number(factors[-1]) if len(factors) == 5 else None
    return 1.0 if factor is None or abs(factor) > LARGEST_FACTOR else factor


GROUPS = Assumption(
    key="groups",
    default="1",
    choices=(),
    meaning="how many groups of heads share B and C (n_groups); the size of the state rests on it",
)

# A gated delta net has A_log and dt_bias too, but no D, and other names for its projections.
_REQUIRED = ("A_log", "dt_bias", "D", "in_proj.weight", "conv1d.weight")
# Hydra's mixer runs in both directions of time, and only it has fc_D.
_BOTH_DIRECTIONS = "fc_D.weight"
_OPTIONAL = ("in_proj.bias", "norm.weight", _BOTH_DIRECTIONS)
_BACKWARD = " (backward)"
_SHARED = "A_log and dt_bias are those of both directions: each of them moves two layers"
# Nemotron-H keeps what needs single precision in a module of its own inside the mixer.
_SINGLE_PRECISION = "_fp32_params"


class Mamba2:
    """``λ = exp(-Δ e^{A_log})``, ``γ = Δ`` and ``Δ = softplus(dt_bias + in_proj.bias[-heads:])``.

    One eigenvalue per head, which drives (head dimension × state) scalar states:
    ``h[t] = λ h[t-1] + Δ B x[t]``, mamba_ssm/modules/mamba2.py, `Mamba2.step`. The rows of in_proj
    are z, x, B, C and Δ, so that the last entries of its bias, where it has one, add to Δ; a
    Falcon-H1 multiplies them with a factor from its configuration. Hydra's two directions are two
    layers, whose Δ have rows and biases of their own.
    """

    name = "mamba2"
    title = "Mamba-2 (SSD)"
    recognised_by = "A_log, dt_bias and D (heads) beside in_proj.weight and conv1d.weight"
    equation = "λ = exp(-Δ e^A_log), Δ = softplus(dt_bias + in_proj.bias[-heads:])"
    source = "mamba_ssm and transformers; Dao & Gu 2024, arXiv 2405.21060"
    assumptions = (GROUPS,)

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Every one-dimensional ``A_log`` that has all of a Mamba-2 mixer's tensors beside it."""
        modules = group_by_module(tensors, _REQUIRED + _OPTIONAL)
        matches = []
        for module, names in modules.items():
            if "A_log" not in names or len(tensors[names["A_log"]].shape) != 1:
                continue
            parent, last = split_name(module)
            mixer = parent if last == _SINGLE_PRECISION else module
            roles = modules.get(mixer, {}) | names
            if all(role in roles for role in _REQUIRED):
                directions = ("", _BACKWARD) if _BOTH_DIRECTIONS in roles else ("",)
                matches += [Match((mixer or self.name) + each, roles) for each in directions]
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read A_log, dt_bias and the end of in_proj.bias.

        Raises:
            TensorError: NaN or inf, or shapes that do not make a Mamba-2 mixer.
            UsageError: the number of groups is none.
        """
        names = match.tensors
        assumed = Assumed(options, store.config)
        groups = assumed.choose(GROUPS, configured=_configured_groups(store.config))
        if not re.fullmatch(r"0*[1-9]\d{0,8}", groups):
            raise UsageError(
                f"{printable(groups, 60)} is not a value of {GROUPS.key}",
                where="--assume",
                remedy="give the number of groups, 1 or more",
            )
        multiplicity = _multiplicity(store, names, int(groups))
        log_rate = read_real(store, names["A_log"], (None,))
        heads = log_rate.size
        both = _BOTH_DIRECTIONS in names
        forward = both and not match.layer.endswith(_BACKWARD)
        rows = slice(-2 * heads, -heads) if forward else slice(-heads, None)
        biases = {"dt_bias": read_real(store, names["dt_bias"], (heads,))}
        scales = {"dt_bias": 1.0, "in_proj.bias": _bias_scale(store.config)}
        if "in_proj.bias" in names:
            biases["in_proj.bias"] = read_real(store, names["in_proj.bias"], (None,))[rows]

        total = np.sum([scales[role] * bias for role, bias in biases.items()], axis=0)
        return law_recurrence(
            store,
            match,
            options,
            family=self.name,
            law=StepSize(apply_transform(log_rate, "exp").value),
            at=total,
            slots=[
                Slot("A_log", names["A_log"], log_rate, "A_log"),
                *(
                    Slot(role, names[role], biases[role], "dt_bias", scales[role])
                    for role in biases
                ),
            ],
            # The last rows of in_proj make Δ.
            gates=lambda: projected_gate(
                store,
                total,
                names["in_proj.weight"],
                rows=rows,
                factor=scales["in_proj.bias"],
            ),
            sees="what in_proj sees, the mixer's input",
            # The B and C of the other direction are among the convolved channels too.
            multiplicity=multiplicity // 2 if both else multiplicity,
            assumptions=(
                *assumed.sentences,
                *clamp_sentence(store.config, softplus(total)),
                *([_SHARED] if both else []),
            ),
        )


def _configured_groups(config: Mapping[str, Any]) -> str | None:
    """How many groups of heads share B and C; None where that is not said or is no count."""
    values = (setting(config, key) for key in _GROUPS)
    counts = (value for value in values if type(value) is int and 0 < value < LARGEST_COUNT)
    return next(map(str, counts), None)


def _multiplicity(store: TensorStore, names: Mapping[str, str], groups: int) -> int:
    """Head dimension × state, from the rows of in_proj (z, x, B, C, Δ) and conv1d (x, B, C).

    Raises:
        TensorError: the shapes contradict each other.
    """
    shapes = {role: store.tensors[name].shape for role, name in names.items()}
    require_shape(store, names["in_proj.weight"], (None, None))
    require_shape(store, names["conv1d.weight"], (None, None, None))
    heads, rows, convolved = (
        shapes[role][0] for role in ("A_log", "in_proj.weight", "conv1d.weight")
    )
    if "in_proj.bias" in names:
        require_shape(store, names["in_proj.bias"], (rows,))
    # A mixer may carry a gated MLP in the same projection; its norm is as wide as its heads.
    gate = rows - convolved - heads
    width = shapes["norm.weight"][0] if len(shapes.get("norm.weight", ())) == 1 else gate
    shared = convolved - width
    if heads < 1 or width % heads or not 0 < width <= gate or shared < 1 or shared % (2 * groups):
        raise TensorError(
            f"its shape {shown_shape(shapes['in_proj.weight'])} does not fit {heads} heads,"
            f" {convolved} convolved channels and groups={groups}",
            where=names["in_proj.weight"],
            remedy="give the number of groups with --assume groups=, or export the layer again",
        )
    return width // heads * (shared // (2 * groups))
