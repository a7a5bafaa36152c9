"""The multiplicative LSTM of Krause et al. 2017: OpenAI's sentiment neuron, UniRep, and ports.

It is no relation of xLSTM's mLSTM, which has a matrix for a state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.gated_layer import GateBias, Sigmoid, lstm_recurrence
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.gate_inputs import RowNorms, squared_rows
from memcurse_cli.families.reading import read_finite, read_real, sigmoid
from memcurse_cli.families.recurrence import Floats, HiddenSpectra, Recurrence

GATES = ("input", "forget", "output", "cell")
WEIGHTS = ("wx", "wh", "wmx", "wmh")
# wmh, mlstm_wmh:0, wmh.weight, and wmh.weight_v or .original1 where its norm is apart.
_MULTIPLIED = re.compile(
    r"(?P<before>(?:.*[./,_])?)wmh"
    r"(?P<after>|:0|\.weight|\.weight_v|\.parametrizations\.weight\.original1)"
)


class MultiplicativeLSTM:
    """``c[t+1] = σ(f) c[t] + σ(i) tanh(u)``, gates from x and ``m = (W_mx x) ∘ (W_mh h)``.

    The rows are i, f, o, u. At zero input m is zero, whatever the state, so that no hidden weight
    adds to the memory there: the step's Jacobian has the eigenvalues σ(b_f) and 0.
    """

    name = "multiplicative_lstm"
    title = "Multiplicative LSTM (sentiment neuron, UniRep)"
    recognised_by = "wmx, wmh, wx, wh and b; or wmh.weight, wx.weight beside wh.bias (4H)"
    equation = "λ = σ(b_f), γ = σ(b_i), rows i, f, o, u"
    source = (
        "openai/generating-reviews-discovering-sentiment; tape's UniRep; Krause et al. 2017, "
        "arXiv 1609.07959"
    )
    assumptions: tuple[Assumption, ...] = ()

    def find(self, tensors: Mapping[str, TensorSpec]) -> list[Match]:
        """Modules with the four matrices under one naming, and the bias of the gates."""
        matches = []
        for name, spec in tensors.items():
            parts = _MULTIPLIED.fullmatch(name) if "wmh" in name else None
            if parts is None or len(spec.shape) != 2 or spec.shape[0] != spec.shape[1]:
                continue
            before, after = parts["before"], parts["after"]
            roles = {weight: f"{before}{weight}{after}" for weight in WEIGHTS}
            roles["b"] = f"{before}wh.bias" if after.startswith(".") else f"{before}b{after}"
            held = all(role in tensors for role in roles.values())
            if held and tensors[roles["b"]].shape == (4 * spec.shape[0],):
                matches.append(Match(before.rstrip("./,_") or self.name, roles))
        return matches

    def read(self, store: TensorStore, match: Match, options: ReadOptions) -> Recurrence:
        """Read the bias.

        Raises:
            TensorError: NaN or inf in the bias.
        """
        tensor = match.tensors["b"]
        dtype = store.tensors[tensor].dtype
        blocks = np.split(read_real(store, tensor, (None,)), len(GATES))
        role = "wh.bias" if tensor.endswith(".bias") else "b"
        biases = {
            gate: GateBias(block, ((role, tensor, block, dtype),))
            for gate, block in zip(GATES, blocks, strict=True)
        }
        hidden = None
        if options.spectra:
            kept = sigmoid(biases["forget"].total)
            jacobian = np.concatenate([kept, np.zeros_like(kept)]).astype(np.complex128)
            hidden = HiddenSpectra({}, jacobian)
        return lstm_recurrence(
            match,
            family=self.name,
            biases=biases,
            function=Sigmoid(),
            hidden=hidden,
            norms=_norms(store, match.tensors) if options.gates else None,
        )


def _norms(store: TensorStore, names: Mapping[str, str]) -> dict[str, RowNorms] | None:
    """Those of what the gates see of x, and of ``m = (W_mx x) ∘ (W_mh h)``, of independent entries.

    None where a weight is not whole in one tensor, and where their shapes do not fit.
    """
    weights = {role: _weight(store, names[role], role) for role in WEIGHTS}
    if any(weight is None for weight in weights.values()):
        return None
    wx, wh, wmx, wmh = (weight for weight in weights.values() if weight is not None)
    units = len(wmh)
    if wx.shape[0] != 4 * units or wh.shape != (4 * units, units) or len(wmx) != units:
        return None
    product = squared_rows(wmx) * squared_rows(wmh)
    return {
        gate: RowNorms(squared_rows(wx[rows]), np.zeros(units), np.square(wh[rows]) @ product)
        for gate, rows in (
            (gate, slice(i * units, (i + 1) * units)) for i, gate in enumerate(GATES)
        )
    }


def _weight(store: TensorStore, tensor: str, role: str) -> Floats | None:
    """(outputs, inputs), with the length of its rows where TensorFlow's names keep it apart."""
    if ".weight" in tensor:
        if not tensor.endswith(".weight"):
            return None
        stored: Floats = read_finite(store, tensor)
        return stored
    weight: Floats = read_finite(store, tensor).T
    start = tensor.rindex(role)
    length = f"{tensor[:start]}g{role[1:]}{tensor[start + len(role) :]}"
    if length in store.tensors:
        rows = np.sqrt(np.maximum(squared_rows(weight), np.finfo(np.float64).tiny))
        weight = weight * (read_real(store, length, (len(weight),)) / rows)[:, None]
    return weight
