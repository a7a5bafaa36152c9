"""Attention layers beside the recurrent ones: what a hybrid has that no family reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.module_names import split_name

# The projections by which an attention layer is known, as the libraries spell them.
_SPELLINGS = (
    {"q_proj", "k_proj", "v_proj"},
    {"linear_q", "linear_k", "linear_v"},
    {"query", "key", "value"},
    {"query_dense", "key_dense", "value_dense"},  # Keras
    {"to_q", "to_k", "to_v"},
    {"wq", "wk", "wv"},
    {"Wqkv"},
    {"qkv"},
    {"qkv_proj"},
    {"query_key_value"},
    {"c_attn"},
    {"att_proj"},
    {"in_proj_weight"},  # torch.nn.MultiheadAttention
)
# What else such a layer may hold. Anything more, and it may be a linear attention whose state
# decays by a rule that is not known here: it is then not called attention.
_BESIDE = {
    *("o_proj", "out_proj", "out", "to_out", "wo", "dense", "c_proj", "proj", "in_proj_bias"),
    *("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm", "rotary_emb"),
    *("linear_q_adapter_list", "linear_k_adapter_list", "linear_v_adapter_list"),  # Zamba2
    *("sinks", "bias", "masked_bias"),
    *("output_dense", "attention_output"),
    "indexer",  # Qwen4-Exp: it chooses the tokens that are attended to, and keeps no state
    # Relative positions, of Conformers and of the image encoder of SAM.
    *("relative_k_proj", "bias_u", "bias_v", "linear_out", "linear_pos", "pos_bias_u"),
    *("pos_bias_v", "rel_pos_h", "rel_pos_w"),
}
# Multi-head latent attention is known by the matrix that expands its cache, whatever is beside it.
_LATENT = {"kv_a_proj_with_mqa", "kv_b_proj"}
# mamba_ssm calls the projections of its attention as those of its mixers, and both a mixer.
_MIXER = "mixer"
# A layer of a Keras archive keeps its tensors in a folder of their own, by number.
_KERAS_VARIABLES = re.compile(r"/vars/(?=\d+$)")
_KNOWN = (*_SPELLINGS, {"in_proj"}, {"in_proj", "conv1d"})


def attention_layers(
    tensors: Mapping[str, TensorSpec],
    claimed: Iterable[str],
    aliases: Collection[str] = (),
) -> tuple[str, ...]:
    """The names of the attention layers, in the order of the file.

    A layer is a module with the projections of queries, keys and values and nothing that attention
    does not have. A block that several layers share is stored, and counted, once.

    Args:
        tensors: every tensor of the checkpoint.
        claimed: the tensors that recurrent layers were read from; a module that holds one of them
            is not attention.
        aliases: further names of tensors; a module that has nothing else is another's.
    """
    parts: dict[str, set[str]] = {}
    names = [_KERAS_VARIABLES.sub("/", name) for name in tensors]
    for name in names:
        module, last = split_name(name)
        parent, child = split_name(module)
        parts.setdefault(module, set()).add(last)
        parts.setdefault(parent, set()).add(child)
    found = {module: own for module, own in parts.items() if _projects(own, module, tensors)}
    if not found:
        return ()
    # Now with what lies deeper in them.
    for name in names:
        module, part = split_name(name)
        while module:
            if module in found:
                found[module].add(part)
            module, part = split_name(module)
    recurrent = {ancestor for name in claimed for ancestor in _ancestors(name)}
    if aliases:
        stored = {
            ancestor for name in tensors if name not in aliases for ancestor in _ancestors(name)
        }
        found = {module: own for module, own in found.items() if module in stored}
    return tuple(
        module
        for module, own in found.items()
        if module not in recurrent and (own >= _LATENT or own - _BESIDE in _KNOWN)
    )


def _projects(parts: set[str], module: str, tensors: Mapping[str, TensorSpec]) -> bool:
    """Whether a module has the projections of an attention layer."""
    if parts >= _LATENT or any(parts >= spelling for spelling in _SPELLINGS):
        return True
    if split_name(module)[1] != _MIXER:
        return False
    weights = [tensors.get(f"{module}.{part}.weight") for part in ("in_proj", "out_proj")]
    if not all(weights):
        return False
    projected, put_out = (spec.shape for spec in weights if spec is not None)
    # Queries, keys and values together have more rows than the heads put out.
    return len(projected) == len(put_out) == 2 and projected[0] > put_out[1]


def _ancestors(name: str) -> Iterator[str]:
    while name:
        name, _ = split_name(name)
        yield name
