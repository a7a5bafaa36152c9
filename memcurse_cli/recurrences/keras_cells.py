"""Keras's LSTM, GRU and SimpleRNN, of every version, with cuDNN's layouts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from memcurse_cli.checkpoints.store import TensorSpec, TensorStore
from memcurse_cli.errors import TensorError
from memcurse_cli.recurrences.assumptions import Assumed
from memcurse_cli.recurrences.dense_layer import ACTIVATION
from memcurse_cli.recurrences.family import Assumption, Match, ReadOptions
from memcurse_cli.recurrences.gate_functions import HardSigmoid, Sigmoid
from memcurse_cli.recurrences.keras1_names import is_keras1_name, keras1_cells
from memcurse_cli.recurrences.keras_config import configured, keras_version
from memcurse_cli.recurrences.layout import IFGO, STATE, ZRN, CellFamily, Layout, Variant
from memcurse_cli.recurrences.reading import group_by_module

RECURRENT_ACTIVATION = Assumption(
    key="recurrent_activation",
    default="sigmoid",
    choices=("sigmoid", "hard_sigmoid"),
    meaning="the function of a Keras layer's gates, which its configuration would say",
)
ROLES = ("kernel", "recurrent_kernel", "bias")
# Keras 3 stores a cell's variables by the order in which it made them.
VARIABLES = dict(zip(("0", "1", "2"), ROLES, strict=True))
_CELL = re.compile(r"(?:.*[./,])?(?:\w+_)?cell(?:_\d+)?")
_CELL_NAME = re.compile(r"[./,](?:cell|(?:lstm|gru|simple_rnn)_cell(?:_\d+)?)$")


@dataclass(frozen=True)
class Cell:
    """A cell's tensors.

    Attributes:
        module: the name of the module that holds them.
        gates: how many blocks of columns the kernels have: 4, 3 or 1.
        tensors: the kernel, the recurrent kernel and the bias, as far as they are there; of Keras 1
            those of each gate.
    """

    module: str
    gates: int
    tensors: Mapping[str, str]


def keras_cells(tensors: Mapping[str, TensorSpec]) -> list[Cell]:
    """Every module with a kernel (inputs, kU) and a recurrent kernel (U, kU)."""
    found = []
    named = group_by_module(tensors, ROLES)
    numbered = {
        module.removesuffix("/vars"): {VARIABLES[role]: name for role, name in names.items()}
        for module, names in group_by_module(tensors, VARIABLES).items()
        if module.endswith("/vars") or module == "vars"
    }
    for module, names in (*named.items(), *numbered.items()):
        if not {"kernel", "recurrent_kernel"} <= names.keys():
            continue
        kernel, recurrent = (tensors[names[role]].shape for role in ROLES[:2])
        if len(kernel) != 2 or len(recurrent) != 2 or kernel[1] != recurrent[1] or not recurrent[0]:
            continue
        gates, rest = divmod(recurrent[1], recurrent[0])
        # Matrices of one width under numbers could be anything, unless a cell holds them.
        named_so = module in named or _CELL.fullmatch(module)
        if rest or gates not in (1, 3, 4) or (gates == 1 and not named_so):
            continue
        found.append(Cell(module, gates, names))
    found += [Cell(*cell) for cell in keras1_cells(tensors)]
    return found


def _matches(tensors: Mapping[str, TensorSpec], gates: int, family: str) -> list[Match]:
    cells = keras_cells(tensors)
    # A layer holds its weights in a cell; its name is the layer's, unless it holds several.
    short = {cell.module: _CELL_NAME.sub("", cell.module) for cell in cells}
    shared = Counter(short.values())
    return [
        Match(
            (cell.module if shared[short[cell.module]] > 1 else short[cell.module]) or family,
            cell.tensors,
        )
        for cell in cells
        if cell.gates == gates
    ]


def _layouts(gates: tuple[str, ...]) -> tuple[Layout, ...]:
    """A cell whose kernels hold all gates, and one of Keras 1, which may keep a tensor of each."""
    whole = Layout(
        {"kernel": gates},
        {"recurrent_kernel": gates},
        {"bias": gates},
        sides=("bias_input", "bias_recurrent"),
    )
    inputs, hidden, biases = ({f"{role}_{gate}": (gate,) for gate in gates} for role in ROLES)
    return whole, Layout(inputs, hidden, biases)


LSTMS, GRUS, (SIMPLE, _) = _layouts(IFGO), _layouts(ZRN), _layouts(STATE)


def _lstm(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    return _gated(store, match, options, "LSTM")


def _gru(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    """With ``reset_after`` the bias has two parts, of which the recurrent one stands inside."""
    variant = _gated(store, match, options, "GRU")
    if "recurrent_kernel" not in match.tensors:
        return variant
    halves = "bias" not in match.tensors or _halves(store, match)
    return replace(variant, layout=replace(GRUS[0], inner="bias_recurrent" if halves else None))


def _simple(store: TensorStore, match: Match, options: ReadOptions) -> Variant:
    stored = configured(store, match.layer, "SimpleRNN", "activation")
    known = stored if stored in ACTIVATION.choices else None
    assumed = Assumed(options)
    activation = assumed.choose(ACTIVATION, default=known, silent=known is not None)
    if stored and known is None:
        assumed.sentences.append(f"the configuration's activation {stored} is not modelled")
    return Variant(activation=activation, assumptions=tuple(assumed.sentences))


def _halves(store: TensorStore, match: Match) -> bool:
    """Whether the bias has a part of the kernel and one of the recurrent kernel."""
    if not {"bias", "recurrent_kernel"} <= match.tensors.keys():
        return False
    shapes = (store.tensors[match.tensors[role]].shape for role in ("bias", "recurrent_kernel"))
    bias, kernel = shapes
    return prod(bias) == 2 * kernel[1]


def _gated(store: TensorStore, match: Match, options: ReadOptions, kind: str) -> Variant:
    """The function of the gates, and what was assumed of it.

    Raises:
        TensorError: the configuration names another function.
    """
    version = keras_version(store)
    stored = configured(store, match.layer, kind, "recurrent_activation")
    if _halves(store, match) and len(store.tensors[match.tensors["bias"]].shape) == 1:
        stored = "sigmoid"  # cuDNN has no other
    if stored is not None and stored not in RECURRENT_ACTIVATION.choices:
        raise TensorError(
            f"its gates have the activation {stored}, which is not read",
            where=match.layer,
            remedy=f"known are {', '.join(RECURRENT_ACTIVATION.choices)}",
        )
    # Until 2.3 Keras's gates were hard unless told otherwise; tf.keras calls itself 2.2.4-tf.
    old = (
        version < (2, 3)
        if version is not None
        else any(map(is_keras1_name, match.tensors.values()))
    )
    assumed = Assumed(options)
    name = assumed.choose(
        RECURRENT_ACTIVATION,
        default=stored or ("hard_sigmoid" if old else None),
        silent=stored is not None,
    )
    if name == "sigmoid":
        return Variant(Sigmoid(), tuple(assumed.sentences))
    # Keras 3 changed the slope of its hard sigmoid from 1/5 to 1/6.
    slope = 1 / 6 if version is not None and version >= (3, 0) else 0.2
    return Variant(HardSigmoid(slope, 0.5), tuple(assumed.sentences))


def _of(gates: int) -> Callable[[Mapping[str, TensorSpec], str], list[Match]]:
    return lambda tensors, family: _matches(tensors, gates, family)


# unit_forget_bias only initialises, so that nothing is added to what is stored. cuDNN's layers have
# a bias of the input and of the recurrent kernel; the two are summed.
KERAS_LSTM = CellFamily(
    name="keras_lstm",
    title="Keras LSTM",
    recognised_by="recurrent_kernel or cell/vars/1 (U, 4U) beside a kernel (inputs, 4U)",
    equation="λ = σ(b_f), γ = σ(b_i), columns i, f, c, o",
    source="keras.layers.LSTM, CuDNNLSTM of Keras 2; Gers et al. 2000",
    layouts=LSTMS,
    matches=_of(4),
    variant=_lstm,
    assumptions=(RECURRENT_ACTIVATION,),
)
KERAS_GRU = CellFamily(
    name="keras_gru",
    title="Keras GRU",
    recognised_by="recurrent_kernel or cell/vars/1 (U, 3U) beside a kernel (inputs, 3U)",
    equation="λ = σ(b_z), γ = 1 - λ, columns z, r, h",
    source="keras.layers.GRU, CuDNNGRU of Keras 2; Cho et al. 2014",
    layouts=GRUS,
    matches=_of(3),
    variant=_gru,
    assumptions=(RECURRENT_ACTIVATION,),
)
# Linearised; its bias says at which slope.
KERAS_SIMPLE_RNN = CellFamily(
    name="keras_simple_rnn",
    title="Keras SimpleRNN (dense)",
    recognised_by="recurrent_kernel or cell/vars/1 (U, U) beside a kernel (inputs, U)",
    equation="λ = eig(recurrent_kernelᵀ)",
    source="keras.layers.SimpleRNN; Elman 1990",
    layouts=(SIMPLE,),
    matches=_of(1),
    variant=_simple,
    assumptions=(ACTIVATION,),
)
