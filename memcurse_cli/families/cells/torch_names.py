"""Hidden-to-hidden weights under torch's names, and the tensors that stand beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import Layout
from memcurse_cli.families.family import Match
from memcurse_cli.families.reading import read_real
from memcurse_cli.families.recurrence import Floats

# encoder.weight_hh_l0_reverse of nn.LSTM, cell.weight_hh of nn.LSTMCell, enc_w_hh of a port.
_HIDDEN_WEIGHT = re.compile(
    r"(?P<module>(?:.*[./,_])?)(?P<stem>weight|[wW])_hh(?P<suffix>(?:_l\d+)?(?:_reverse)?)"
)
# PaddlePaddle saves the cells of a network under its own names as well.
_PADDLE_CELL = re.compile(
    r"(?P<network>(?:.*\.)?)(?P<index>\d{1,6})\.cell(?P<direction>|_fw|_bw)\."
)
_BIAS_STEMS: dict[str, tuple[str, ...]] = {
    "weight": ("bias",),
    "w": ("b", "bias"),
    "W": ("b", "bias"),
}


@dataclass(frozen=True)
class HiddenWeight:
    """One layer and direction.

    Attributes:
        layer: the module's name and ``l0``, ``l0_reverse``, …; empty for a cell at the root.
        rows: the number of rows: H, 3H or 4H.
        columns: the number of columns: H, or the projected size of an LSTM.
        projected: whether ``weight_hr`` projects the state.
        tensors: the names of weight_hh, weight_ih, weight_hr, bias_ih, bias_hh, bias and bias_n,
            as far as they are there.
    """

    layer: str
    rows: int
    columns: int
    projected: bool
    tensors: Mapping[str, str]

    def match(self, family: str) -> Match:
        """The layer as a match; one without any name bears its family's."""
        return Match(self.layer or family, self.tensors)


def hidden_weights(tensors: Mapping[str, TensorSpec]) -> list[HiddenWeight]:
    """Every two-dimensional hidden-to-hidden weight in the order of the file."""
    found = []
    for name, spec in tensors.items():
        parts = _HIDDEN_WEIGHT.fullmatch(name) if "_hh" in name and len(spec.shape) == 2 else None
        if parts is None:
            continue
        stem, suffix = parts["stem"], parts["suffix"]
        module = parts["module"]
        if _is_alias(tensors, module, spec):
            continue
        roles = {"weight_hh": name}
        beside: dict[str, tuple[str, ...]] = {
            "weight_ih": (f"{stem}_ih", f"{stem}_xh"),
            "weight_hr": (f"{stem}_hr",),
        }
        for side in ("ih", "hh"):
            beside[f"bias_{side}"] = tuple(f"{bias}_{side}" for bias in _BIAS_STEMS[stem])
        for role, candidates in beside.items():
            for candidate in candidates:
                if f"{module}{candidate}{suffix}" in tensors:
                    roles[role] = f"{module}{candidate}{suffix}"
        # Equinox keeps one bias for both sides.
        if f"{module}bias" in tensors and not roles.keys() & {"bias_ih", "bias_hh"} and not suffix:
            roles["bias"] = f"{module}bias"
            if f"{module}bias_n" in tensors:  # what the reset gate of its GRU multiplies
                roles["bias_n"] = f"{module}bias_n"
        rows, columns = spec.shape
        found.append(
            HiddenWeight(_layer(module, suffix), rows, columns, "weight_hr" in roles, roles)
        )
    return found


def split_hidden_weight(name: str) -> tuple[str, str, str]:
    """What stands before ``weight_hh``, ``weight``, ``w`` or ``W``, and ``_l0`` and its like."""
    parts = _HIDDEN_WEIGHT.fullmatch(name)
    assert parts is not None
    return parts["module"], parts["stem"], parts["suffix"]


def _is_alias(tensors: Mapping[str, TensorSpec], module: str, spec: TensorSpec) -> bool:
    """Whether a cell's weight stands in the file again, as its network's."""
    cell = _PADDLE_CELL.fullmatch(module)
    if cell is None:
        return False
    end = "_reverse" if cell["direction"] == "_bw" else ""
    return tensors.get(f"{cell['network']}weight_hh_l{cell['index']}{end}") == spec


def _layer(module: str, suffix: str) -> str:
    joint = module[-1:] if module[-1:] in (".", "/", ",") else "."
    return joint.join(part for part in (module.rstrip("./,_"), suffix.lstrip("_")) if part)


def read_weight(store: TensorStore, match: Match, role: str) -> Floats | None:
    """A weight matrix; None if absent.

    Raises:
        TensorError: NaN or inf, or not a matrix.
    """
    if role not in match.tensors:
        return None
    return read_real(store, match.tensors[role], (None, None))


def torch_layout(gates: tuple[str, ...], hidden: tuple[str, ...] = ()) -> Layout:
    """The rows of weight_ih, weight_hh and the biases, of which the hidden side may have others."""
    sides = {"ih": gates, "hh": hidden or gates}
    return Layout(
        {"weight_ih": sides["ih"]},
        {"weight_hh": sides["hh"]},
        {"bias_ih": sides["ih"], "bias_hh": sides["hh"], "bias": gates},
        columns=False,
        projection="weight_hr",
    )
