"""What libraries call the rates and the step sizes of a Mamba mixer, direction by direction."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.recurrences.family import Match
from memcurse_cli.recurrences.reading import group_by_module

RATE, BIAS = "A_log", "dt_proj.bias"
DIRECTIONS_RATE, DIRECTIONS_BIAS = "A_logs", "dt_projs_bias"

# A_b_log of Vision Mamba, A_log_b of mamba.py, A_log_0 of LocalVim and A_log.0 of Hymba.
_RATE_NAME = re.compile(r"(?:^|[./,])(?:A_([a-z]{1,2})_log|A_log[._/]([a-z]{1,2}|\d{1,3}))$")
_BACKWARD = "b"


def find_mixers(tensors: Mapping[str, TensorSpec], default: str) -> list[Match]:
    """Every rate of two or more dimensions beside its step-size bias, as roles `RATE` and `BIAS`.

    A second direction without a step size of its own shares the first one's (Vision Mamba's
    ``bimamba_type="v1"``). `DIRECTIONS_RATE` holds the rates of all directions of an image at once
    (VMamba), in one layer.

    Args:
        tensors: every tensor's name, shape and type.
        default: the name of a mixer whose tensors have no module.
    """
    matches = []
    for module, names in group_by_module(tensors, _roles(tensors)).items():
        rates = {_tag(role): role for role in names if _tag(role) is not None}
        for tag, role in rates.items():
            bias = next((names[each] for each in _biases(tag or "") if each in names), None)
            if bias is None or len(tensors[names[role]].shape) < 2:
                continue
            direction = _shown(tag or "", alone=len(rates) == 1)
            matches.append(Match((module or default) + direction, {RATE: names[role], BIAS: bias}))
        if DIRECTIONS_RATE in names and DIRECTIONS_BIAS in names:
            kept = {RATE: names[DIRECTIONS_RATE], BIAS: names[DIRECTIONS_BIAS]}
            kept |= {role: names[role] for role in ("Ds", "x_proj_weight") if role in names}
            if len(tensors[kept[RATE]].shape) == len(tensors[kept[BIAS]].shape) == 2:
                matches.append(Match(module or default, kept))
    return matches


def _roles(tensors: Mapping[str, TensorSpec]) -> dict[str, None]:
    """The names of rates and biases that may be there."""
    roles = dict.fromkeys((RATE, DIRECTIONS_RATE, DIRECTIONS_BIAS, "Ds", "x_proj_weight"))
    # The first test spares 10⁵ other names the expression.
    candidates = (_tag(name) for name in tensors if "A_" in name)
    for tag in {"", *(found for found in candidates if found is not None)}:
        rates = (f"A_{tag}_log", f"A_log_{tag}", f"A_log.{tag}") if tag else ()
        roles |= dict.fromkeys((*rates, *_biases(tag)))
    return roles


def _tag(name: str) -> str | None:
    """The direction that the name of a rate says, empty for the only one; None for other names."""
    if name == RATE:
        return ""
    found = _RATE_NAME.search(name)
    return (found[1] or found[2]) if found else None


def _biases(tag: str) -> tuple[str, ...]:
    """The names of a direction's step-size bias."""
    if not tag:
        return BIAS, "dt_proj_bias"
    own = (f"dt_proj_{tag}.bias", f"dt_proj.{tag}.bias")
    return (*own, BIAS) if tag == _BACKWARD else own


def _shown(tag: str, *, alone: bool) -> str:
    """The direction in the name of a layer."""
    if not tag or (tag.isdigit() and alone):
        return ""
    return " (backward)" if tag == _BACKWARD else f" ({tag})"
