"""The recurrent cells of Flax, linen and nnx: LSTM, GRU, MGU and the simple cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.families.cells.layout import IFGO, RZN, STATE, CellFamily, Layout, Variant, elman
from memcurse_cli.families.dense.dense_layer import ACTIVATION
from memcurse_cli.families.family import Assumed, Assumption, Match, ReadOptions
from memcurse_cli.families.layers import split_stack
from memcurse_cli.families.module_names import group_by_module

RESIDUAL = Assumption(
    key="residual",
    default="no",
    choices=("no", "yes"),
    meaning="whether a SimpleCell of Flax adds its state before the activation",
)


def _linen(sides: Mapping[str, str]) -> Layout:
    """A module of each gate and side, named by letters: ``ii`` and ``hi`` of the input gate."""
    names = {gate: (f"i{letter}", f"h{letter}") for gate, letter in sides.items()}
    return Layout(
        {f"{inputs}.kernel": (gate,) for gate, (inputs, _) in names.items()},
        {f"{hidden}.kernel": (gate,) for gate, (_, hidden) in names.items()},
        {f"{side}.bias": (gate,) for gate, both in names.items() for side in both},
        inner="hn.bias",
    )


def _fused(gates: tuple[str, ...]) -> Layout:
    """nnx: one module of each side."""
    return Layout(
        {"dense_i.kernel": gates},
        {"dense_h.kernel": gates},
        {"dense_h.bias": gates, "dense_i.bias": gates},
        inner="",
    )


LSTMS = (_linen({"input": "i", "forget": "f", "cell": "g", "output": "o"}), _fused(IFGO))
GRUS = (_linen({"reset": "r", "update": "z", "new": "n"}), _fused(RZN))
MGUS = (_linen({"update": "f", "new": "n"}),)
SIMPLES = (_linen({"state": ""}), _fused(STATE))


def _matches(
    layouts: tuple[Layout, ...], foreign: tuple[str, ...] = ()
) -> Callable[[Mapping[str, TensorSpec], str], list[Match]]:
    """Modules with the square hidden kernels of one layout, of one layer or of a scan's.

    Args:
        layouts: those of the cell.
        foreign: hidden kernels that only other cells have.
    """
    known = {role for layout in layouts for role in (*layout.matrices, *layout.biases)}
    # `if` is a keyword, so that nnx's attribute is called if_.
    roles = (*known, *(role.replace("if.", "if_.") for role in known if "if." in role), *foreign)

    def find(tensors: Mapping[str, TensorSpec], family: str) -> list[Match]:
        found = []
        for module, named in group_by_module(tensors, roles).items():
            names = {role.replace("if_.", "if."): name for role, name in named.items()}
            layout = next((one for one in layouts if one.matrices <= names.keys()), None)
            if layout is None or names.keys() & set(foreign):
                continue
            shapes = {role: tensors[names[role]].shape for role in layout.hidden}
            if (
                all(
                    len(shape) in (2, 3) and shape[-1] == len(layout.hidden[role]) * shape[-2] > 0
                    for role, shape in shapes.items()
                )
                and len(set(shapes.values())) == 1
            ):
                axes = dict.fromkeys(layout.hidden, 2)
                found += split_stack(Match(module or family, names), tensors, axes)
        return found

    return find


def _simple(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    residual = Assumed(options)
    if residual.choose(RESIDUAL) == "no":
        return elman(options, residual.sentences)
    return replace(
        elman(options, residual.sentences), matrix=lambda stored: stored + np.eye(len(stored))
    )


FLAX_LSTM = CellFamily(
    name="flax_lstm",
    title="Flax LSTM",
    recognised_by="hi, hf, hg, ho beside ii, if, ig, io; or dense_h (H, 4H) beside dense_i",
    equation="λ = σ(b_f), γ = σ(b_i), fused columns i, f, g, o",
    source="flax.linen and flax.nnx LSTMCell and OptimizedLSTMCell; Gers et al. 2000",
    layouts=LSTMS,
    matches=_matches(LSTMS),
)
# linen has the biases of r and z on the input side alone, and a second one of n inside the reset
# gate; nnx has all three on the input side.
FLAX_GRU = CellFamily(
    name="flax_gru",
    title="Flax GRU",
    recognised_by="hr, hz, hn beside ir, iz, in; or dense_h (H, 3H) beside dense_i",
    equation="λ = σ(b_z), γ = 1 - λ, fused columns r, z, n",
    source="flax.linen and flax.nnx GRUCell; Cho et al. 2014",
    layouts=GRUS,
    matches=_matches(GRUS),
)
FLAX_MGU = CellFamily(
    name="flax_mgu",
    title="Flax MGU (minimal gated unit)",
    recognised_by="hf, hn beside if, in, and no other gate",
    equation="λ = σ(b_f), γ = 1 - λ",
    source="flax.linen.MGUCell; Zhou et al. 2016, arXiv 1603.09420",
    layouts=MGUS,
    matches=_matches(MGUS, ("hi.kernel", "hr.kernel", "hz.kernel")),
)
# Linearised: A = kernelᵀ, and I more with ``residual``.
FLAX_SIMPLE = CellFamily(
    name="flax_simple",
    title="Flax SimpleCell (dense)",
    recognised_by="h (H, H) beside i (inputs, H); or dense_h (H, H) beside dense_i",
    equation="λ = eig(kernelᵀ), plus 1 where residual=yes",
    source="flax.linen and flax.nnx SimpleCell; Elman 1990",
    layouts=SIMPLES,
    matches=_matches(SIMPLES),
    variant=_simple,
    assumptions=(ACTIVATION, RESIDUAL),
)
