"""The learning rates and the kind of optimizer that a checkpoint records.

Adam moves every parameter by about its rate: m̂/√v̂ of a steady gradient is ±1 (arXiv:1412.6980,
§2.1). So does what divides each gradient by its own running size, or takes its sign. Adagrad
divides by what grows, Adadelta has a scale of its own, LAMB and Adafactor multiply by the size of a
tensor, and SGD, Muon and LBFGS move each parameter by an amount of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from memcurse_cli.checkpoints.open import OPTIMIZERS, TRAINER_LOG, open_file, trainer_state
from memcurse_cli.checkpoints.optimizer import (
    MAX_CHILDREN,
    NAMED,
    OPTAX_RATE,
    SECOND_MOMENTS,
    VARIABLES,
    AdamState,
    Tree,
    expand,
    leaf,
    mappings,
    number,
    optax_state,
    paths_of,
    torch_state,
)
from memcurse_cli.checkpoints.select import Path
from memcurse_cli.checkpoints.store import LazyTensor, TensorStore
from memcurse_cli.checkpoints.torch.files import SB3_DATA, mapping
from memcurse_cli.checkpoints.untrusted.names import parse_object
from memcurse_cli.checkpoints.untrusted.source import Directory
from memcurse_cli.errors import CheckpointError

# Where Lightning, scripts and Stable-Baselines3 keep the settings of a run.
SETTINGS = ("hyper_parameters", "hparams", "args", SB3_DATA)

# Whether an optimizer moves every parameter by about its rate; None where that is not told.
_ADAPTIVE: Mapping[str, bool | None] = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Lion"), True),
    **dict.fromkeys(("SGD", "Muon", "LBFGS", "Adagrad", "Adadelta", "Adafactor", "LAMB"), False),
    "Adam(W)": True, "Adam's kin": True, "momentum": False, "SOAP": None, "": None,
}  # fmt: skip
_UNNAMED = ("Adam's kin", "momentum", "")
# The first key of a parameter group that tells; before 2.7 torch wrote AdamW's like Adam's. SOAP is
# Adam in other coordinates than the parameters.
_GROUP_KEYS = {
    "ns_steps": "Muon", "line_search_fn": "LBFGS", "grad_averaging": "LAMB",
    "precondition_frequency": "SOAP", "momentum_decay": "NAdam", "amsgrad": "Adam(W)",
    "decoupled_weight_decay": "RAdam", "betas": "Adam's kin", "use_muon": "Muon",
    "beta2_decay": "Adafactor", "scale_parameter": "Adafactor", "centered": "RMSprop",
    "lr_decay": "Adagrad", "dampening": "SGD", "momentum": "momentum", "rho": "Adadelta",
}  # fmt: skip
# What torch.distributed.checkpoint and optax call a state's tensors, and the trees of them that
# optax keeps, below which stand the names of weights. Its lamb is not told from its adam.
_STATES = {"exp_avg_sq": "Adam's kin", "momentum_buffer": "momentum", "ns_coeffs": "Muon"}
_TREES = {
    "mu": "Adam's kin", "nu": "Adam's kin", "v_row": "Adafactor", "sum_of_squares": "Adagrad",
    "trace": "SGD",
}  # fmt: skip
_GROUP_RATES = ("initial_lr", "max_lr", "lr")  # OneCycleLR begins at a part of its max_lr
_OPTIMIZER = "the optimizer"
_BASES = {f"{_OPTIMIZER}'s initial_lr", "the scheduler's base_lrs"}


class RecordedRates(Struct, frozen=True):
    """What a checkpoint says of the optimizer that trained it."""

    # its name, "Adam(W)" where it may be either; "" where the file does not tell it
    optimizer: str
    # whether it moves every parameter by about its rate, as Adam does; None where it is not told
    adaptive: bool | None
    largest: float | None  # the largest rate recorded for any weight
    current: float | None  # the rate at the last step, of the group with the largest
    # the largest rate of each weight's group, where groups differ and the weights are told
    groups: Mapping[str, float]
    source: str  # where ``largest`` was read, in words; "" where it is None


def recorded_rates(weights: TensorStore, source: TensorStore | None = None) -> RecordedRates | None:
    """The rates and the optimizer's kind that a checkpoint records; None where it records neither.

    Asked are the optimizer's state and its schedulers, HF Trainer's log beside the weights, and,
    where no scheduler has kept the rate it began with, the settings of the run. A rate lies between
    0 and 1: as 1 a file keeps the factor of a schedule (Noam's) or of an optimizer (D-Adaptation).
    ``source`` is the open file that holds the optimizer's state, by default the checkpoint itself.
    """
    found, source = _Found(), source or weights
    if source.format.startswith("Keras"):
        _read_keras(found, source)
    else:
        _read_torch(found, source.contents, weights)
        if not found.kinds:
            _read_tree(found, source.contents, weights)
    if weights.beside is not None:
        _read_beside(found, weights.beside, weights)
    if isinstance(weights.contents, Mapping) and not _BASES & found.rates.keys():
        for key in SETTINGS:
            settings = mapping(expand(weights.contents.get(key)))
            found.add(key, settings.get("learning_rate"), settings.get("lr"))
    return found.told()


@dataclass
class _Found:
    """What the parts of a checkpoint have told so far."""

    kinds: set[str] = field(default_factory=set)
    rates: dict[str, float] = field(default_factory=dict)  # the largest of each source
    last: list[float] = field(default_factory=list)
    groups: set[float] = field(default_factory=set)  # their rates
    weights: dict[str, float] = field(default_factory=dict)  # and those of weights in them

    def add(self, source: str, *nodes: object) -> list[float]:
        """Take what is a rate among nodes, and return it."""
        numbers = [number(leaf(node) or node) for node in nodes]
        rates = [_rounded(rate) for rate in numbers if rate is not None and 0 < rate < 1]
        if rates:
            self.rates[source] = max(*rates, self.rates.get(source, 0))
        return rates

    def take_groups(self, state: AdamState | None) -> None:
        """Take the rate of each weight whose state is known."""
        for name, slot in state.slots.items() if state else ():
            if slot.learning_rate:
                self.weights[name] = _rounded(slot.learning_rate)

    def told(self) -> RecordedRates | None:
        if not self.rates and not self.kinds:
            return None
        adaptive = {_ADAPTIVE[kind] for kind in self.kinds or ("",)}
        name = " and ".join(sorted(self.kinds)) if self.kinds.isdisjoint(_UNNAMED) else ""
        source = max(self.rates, key=self.rates.__getitem__, default="")
        largest, several = self.rates.get(source), len(self.groups) > 1
        said = source.replace(_OPTIMIZER, name) if name in _ADAPTIVE and name else source
        if several and largest == max(self.groups):
            said += ", the largest of its groups"
        return RecordedRates(
            optimizer=name,
            adaptive=False if False in adaptive else None if None in adaptive else True,
            largest=largest,
            current=max(self.last, default=None),
            groups=self.weights if several else {},
            source=said,
        )


def _rounded(rate: float) -> float:
    """A rate with the seven digits of single precision, which it may be kept in."""
    return float(f"{rate:.7g}")


def _read_torch(found: _Found, contents: object, weights: TensorStore) -> None:
    optimizers: list[Tree] = []
    for node in mappings(contents):
        for key in ("base_lrs", "max_lrs"):
            bases = node.get(key)
            found.add(f"the scheduler's {key}", *(bases if isinstance(bases, list) else ()))
        groups = node.get("param_groups")
        if not isinstance(groups, list | tuple):
            continue
        largest = []
        for group in filter(None, map(mapping, groups)):
            found.kinds.add(_kind(group))
            rates = [found.add(f"{_OPTIMIZER}'s {key}", group.get(key)) for key in _GROUP_RATES]
            found.last += rates[-1]
            rate = max((rate for some in rates for rate in some), default=None)
            largest.append({**group, "lr": rate})
            if rate:
                found.groups.add(rate)
        optimizers.append({"state": _moments(mapping(node.get("state"))), "param_groups": largest})
    # As if they were Adam's: torch_state finds the weights that states and groups belong to.
    found.take_groups(torch_state(optimizers, weights))


def _kind(group: Tree) -> str:
    if "amsgrad" in group and "decoupled_weight_decay" in group:
        return "AdamW" if group["decoupled_weight_decay"] is True else "Adam"
    if group.get("scale_parameter") is False:  # HF's Adafactor without what tells it from Adam
        return "Adam's kin"
    return next((kind for key, kind in _GROUP_KEYS.items() if key in group), "")


def _moments(states: Tree) -> Tree:
    """The largest tensor of each parameter's state, which has the parameter's shape."""
    moments = {}
    for key, state in states.items():
        tensors = list(filter(None, map(leaf, mapping(state).values())))
        if tensors:
            largest = max(tensors, key=lambda tensor: math.prod(tensor.spec.shape))
            moments[key] = {SECOND_MOMENTS[0]: largest}
    return moments


def _read_tree(found: _Found, contents: object, weights: TensorStore) -> None:
    """What stands among the tensors of a JAX tree or of torch.distributed.checkpoint."""
    groups: dict[Path, dict[Path, LazyTensor]] = {}
    tensors = paths_of(contents)
    for path, tensor in tensors.items():
        if "/".join(map(str, path)) in weights.stored:  # a layer of weights may be called nu
            continue
        trees = (_TREES[key] for key in path[:-1] if key in _TREES)
        found.kinds |= {_STATES.get(path[-1]) or next(trees, "")} - {""}
        if path[-2:] == OPTAX_RATE and (rates := found.add("optax's hyperparams", tensor)):
            found.last += rates
            found.groups |= {*rates}
            groups[path[:-2]] = {}
    if not 1 < len(groups) <= MAX_CHILDREN:
        return
    for path, tensor in tensors.items():
        above = (path[:length] for length in range(len(path), -1, -1))
        groups.get(next((root for root in above if root in groups), ()), {})[path] = tensor
    for group in groups.values():
        found.take_groups(optax_state(group, weights))


def _read_keras(found: _Found, source: TensorStore) -> None:
    from memcurse_cli.checkpoints.hdf5.keras import CONFIG, Hdf5File

    file, origin = source.contents, "Keras's optimizer"
    if not isinstance(file, Hdf5File):
        return
    for path, tensor in file.datasets.items():
        named = path[0] == NAMED and path[-1].removesuffix(":0") == "learning_rate"
        if named or (path == (*VARIABLES, "1") and not tensor.spec.shape):
            found.last += found.add(origin, tensor)
    optimizer: Mapping[str, Any] = {}
    with suppress(CheckpointError, ValueError):  # of a file, then of an archive
        text = file.attribute("training_config") or source.metadata.get(CONFIG, "")
        saved = parse_object(text.encode())
        compiled = mapping(saved.get("compile_config"))
        optimizer = mapping(compiled.get("optimizer", saved.get("optimizer_config")))
    rate = mapping(optimizer.get("config")).get("learning_rate")
    schedule = mapping(mapping(rate).get("config"))
    found.add(origin, rate, schedule.get("initial_learning_rate"), schedule.get("warmup_target"))
    name = str(optimizer.get("class_name", file.groups.get(VARIABLES, ""))).lower()
    if name:
        known = {kind.lower(): kind for kind in _ADAPTIVE}
        found.kinds.add(known.get(re.sub(r"_\d+$|_", "", name), ""))


def _read_beside(found: _Found, directory: Directory, weights: TensorStore) -> None:
    """What HF Trainer and Accelerate write beside the weights."""
    for name in OPTIMIZERS if not found.kinds else ():
        with (
            suppress(CheckpointError),  # there is none, or none that can be read
            open_file(directory.open(name), weights=False) as store,
        ):
            _read_torch(found, store.contents, weights)
    history = trainer_state(directory).get("log_history")
    entries = map(mapping, history if isinstance(history, list) else ())
    logged = found.add(TRAINER_LOG, *(entry.get("learning_rate") for entry in entries))
    found.last = found.last or logged[-1:]
