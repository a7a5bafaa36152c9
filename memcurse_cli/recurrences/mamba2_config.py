"""What a model's configuration says of a Mamba-2 mixer and its tensors do not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memcurse_cli.recurrences.assumptions import setting
from memcurse_cli.recurrences.recurrence import Floats

_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups", "ssm_cfg.ngroups")

# Their mixers clamp at the smallest step of the initialisation, whatever time_step_limit says.
_CLAMPED_AT_THE_SMALLEST = ("nemotron_h", "zamba2")
_LIMITS = ("time_step_limit", "ssm_cfg.dt_limit")

LARGEST_FACTOR = 1e6
LARGEST_COUNT = 10**6

UNCLAMPED = (
    "Δ is not clamped: the limits of time_step_limit are in the configuration, not in the"
    " checkpoint, and act on whole sequences only"
)


def configured_groups(config: Mapping[str, Any]) -> str | None:
    """How many groups of heads share B and C; None where that is not said or is no count."""
    for key in _GROUPS:
        value = setting(config, key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST_COUNT:
            return str(value)
    return None


def clamp_sentence(config: Mapping[str, Any], step: Floats) -> tuple[str, ...]:
    """What is left out where the library clamps Δ; nothing where the limits are known to be open.

    Args:
        config: the model's configuration.
        step: (heads,) Δ at zero input.
    """
    limits = _limits(config)
    if limits is None:
        return (UNCLAMPED,)
    low, high = limits
    if low <= 0 and high == math.inf:
        return ()
    outside = int(((step < low) | (step > high)).sum())
    sentence = (
        f"Δ is not clamped: config.json holds it in [{low:g}, {high:g}] over whole sequences, not"
        f" in single steps; {outside} of {step.size} heads lie outside at zero input"
    )
    return (sentence,)


def _limits(config: Mapping[str, Any]) -> tuple[float, float] | None:
    if setting(config, "model_type") in _CLAMPED_AT_THE_SMALLEST:
        pair: Any = [setting(config, "time_step_min"), math.inf]
    else:
        found = (setting(config, key) for key in _LIMITS)
        pair = next((value for value in found if value is not None), None)
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    low, high = map(_number, pair)
    return None if low is None or high is None or low > high else (low, high)


def _number(value: Any) -> float | None:
    if isinstance(value, Mapping):  # how transformers 5 writes an infinity into JSON
        return math.inf if value.get("__float__") == "Infinity" else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 or value == math.inf else None


def bias_scale(config: Mapping[str, Any]) -> float:
    """The factor that Falcon-H1 puts on the rows of in_proj, its bias included, that make Δ."""
    factors = setting(config, "ssm_multipliers")
    if setting(config, "model_type") != "falcon_h1" or not isinstance(factors, list):
        return 1.0
    factor = _number(factors[-1]) if len(factors) == 5 else None
    return 1.0 if factor is None or abs(factor) > LARGEST_FACTOR else factor
