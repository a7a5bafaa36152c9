"""DeepSpeed's checkpoints: a folder for each step, and in it a file of weights for each rank.

``mp_rank_00_model_states.pt`` holds the weights under ``module``, whole unless tensors are split
over several ranks (tensor parallel), over layers (pipeline parallel), or over all of them (ZeRO
stage 3). ``*_optim_states.pt`` hold the optimiser's
(https://github.com/deepspeedai/DeepSpeed, deepspeed/runtime/engine.py).
"""

from __future__ import annotations

import re
from typing import Any

from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.checkpoints.untrusted.source import Directory, LocalDirectory
from memcurse_cli.errors import CheckpointError

OPTIMIZER_SUFFIX = "_optim_states.pt"
LATEST = "latest"
MAX_TAG_BYTES = 255
_WEIGHTS = re.compile(r"mp_rank_\d+_model_states\.pt")
_PARTITIONED = re.compile(r"zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
_LAYER = re.compile(r"layer_\d+-model_\d+-model_states\.pt")
_STEP = re.compile(r"global_step\d+")
_MERGE = "run the zero_to_fp32.py that DeepSpeed left beside the folder, and name what it writes"


def deepspeed_files(directory: Directory) -> list[str]:
    """The file of weights in a folder of one step or of several; none where it is neither.

    Of several steps it is the one that the file ``latest`` names, else all are equally good.

    Raises:
        CheckpointError: the weights are split over several files.
    """
    found = _of_step(directory)
    if found or not isinstance(directory, LocalDirectory):
        return found
    steps = [name for name in directory.names if _STEP.fullmatch(name)]
    latest = _latest(directory) if LATEST in directory.names else ""
    inside: list[str] = []
    for step in [latest] if latest in directory.names and latest else steps:
        if directory.locate(step).is_dir():
            inside += [f"{step}/{name}" for name in _of_step(directory.inside(step))]
    return inside


def deepspeed_weights(root: object, where: str) -> tuple[object, list[str]]:
    """What a file of weights keeps under ``module``, and notes; any other object as it is.

    Raises:
        CheckpointError: the file holds no whole weights.
    """
    if not isinstance(root, dict) or not {"module", "ds_version"} <= root.keys():
        return root, []
    module: Any = root["module"]
    if not isinstance(module, dict):
        raise CheckpointError(
            "a DeepSpeed file without its model, whose layers lie in files of their own",
            where=where,
            remedy="save model.state_dict() from the training script",
        )
    named = root.get("param_shapes")
    groups = named if isinstance(named, list) else [named]
    trained = {name for group in groups if isinstance(group, dict) for name in group}
    empty = [
        name
        for name, tensor in module.items()
        if name in trained and isinstance(tensor, LazyTensor) and 0 in tensor.spec.shape
    ]
    if empty:
        raise CheckpointError(
            f"DeepSpeed (ZeRO stage 3) keeps {len(empty)} parameters of this model in pieces",
            where=where,
            remedy=_MERGE,
        )
    ranks = root.get("mp_world_size")
    if type(ranks) is int and ranks > 1:
        return module, [f"one of {ranks} tensor-parallel parts: matrices may be slices"]
    return module, []


def _of_step(directory: Directory) -> list[str]:
    names = list(directory.files())
    found = [name for name in names if _WEIGHTS.fullmatch(name)]
    if len(found) > 1:
        raise CheckpointError(
            f"its matrices are split over {len(found)} ranks (tensor parallel)",
            where=directory.path,
            remedy=f"merge them with the framework that trained it, or name one, such as "
            f"{found[0]}, to read its part alone",
        )
    partitioned = [name for name in names if _PARTITIONED.fullmatch(name)]
    if partitioned and not found:
        raise CheckpointError(
            f"DeepSpeed (ZeRO stage 3) keeps its parameters in pieces, in {len(partitioned)} files",
            where=directory.path,
            remedy=_MERGE,
        )
    layers = [name for name in names if _LAYER.fullmatch(name)]
    if found and layers:
        raise CheckpointError(
            f"its layers lie in {len(layers)} files of their own (pipeline parallel)",
            where=directory.path,
            remedy=f"name the one of a recurrent layer, such as {layers[0]}",
        )
    return found


def _latest(directory: LocalDirectory) -> str:
    file = directory.open(LATEST)
    try:
        return bytes(file.read(0, min(file.size, MAX_TAG_BYTES))).decode("utf-8", "replace").strip()
    finally:
        file.close()
