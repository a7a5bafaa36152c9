"""What DeepSpeed keeps in a file of weights, ``mp_rank_00_model_states.pt`` and the like.

The weights stand under ``module``, whole unless tensors are split over several ranks (tensor
parallel), over layers (pipeline parallel), or over all of them (ZeRO stage 3)
(https://github.com/deepspeedai/DeepSpeed, deepspeed/runtime/engine.py).
"""

from __future__ import annotations

from typing import Any

from memcurse_cli.checkpoints.directory import MERGE
from memcurse_cli.checkpoints.lazy import LazyTensor
from memcurse_cli.errors import CheckpointError


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
            remedy=MERGE,
        )
    ranks = root.get("mp_world_size")
    if type(ranks) is int and ranks > 1:
        return module, [f"one of {ranks} tensor-parallel parts: matrices may be slices"]
    return module, []
