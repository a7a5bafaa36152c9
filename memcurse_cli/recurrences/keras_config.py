"""What a Keras model's configuration says of a layer. It is read as text, and nothing is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from memcurse_cli.checkpoints.json_header import parse_object
from memcurse_cli.checkpoints.names import printable
from memcurse_cli.checkpoints.store import TensorStore

MAX_NODES = 200_000
KERAS1_KEYS = {"recurrent_activation": "inner_activation"}


def configured(store: TensorStore, layer: str, kind: str, key: str) -> str | None:
    """A text value in a layer's configuration, or None where it is not stored or not unique.

    Args:
        store: the open checkpoint.
        layer: the layer's name, ``bidirectional/forward_layer``.
        kind: the layer's class without prefix and suffix: ``LSTM``, ``GRU``, ``SimpleRNN``.
        key: what to look for.
    """
    named = _layers(store.metadata.get("model_config", ""))
    # The innermost part of the name that a layer of the configuration bears.
    inside = next(
        (named[part] for part in reversed(re.split(r"[./,]", layer)) if part in named), None
    )
    if inside is None:
        return None
    old = KERAS1_KEYS.get(key, key)
    classes = (kind, f"{kind}Cell", f"CuDNN{kind}")
    values = {
        printable(value, 40)
        for node in _described(inside)
        if node["class_name"] in classes
        and isinstance(value := node["config"].get(key, node["config"].get(old)), str)
    }
    return values.pop() if len(values) == 1 else None


def keras_version(store: TensorStore) -> tuple[int, int] | None:
    """The major and minor version of stand-alone Keras that wrote the file, if it did."""
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})\.[\w.]*", store.metadata.get("keras_version", ""))
    return (int(found[1]), int(found[2])) if found else None


@lru_cache(maxsize=4)
def _layers(text: str) -> Mapping[str, Any]:
    """Every layer's description by the layer's name."""
    try:
        root = parse_object(text.encode()) if text else {}
    except ValueError:
        return {}
    layers: dict[str, Any] = {}
    for node in _described(root):
        name = node["config"].get("name")
        if isinstance(name, str):
            layers.setdefault(name, node)
    return layers


def _described(root: object) -> Iterator[dict[str, Any]]:
    """The objects with a class and a configuration, outermost first."""
    pending = [root]
    for _ in range(MAX_NODES):
        if not pending:
            return
        node = pending.pop()
        if isinstance(node, dict):
            if isinstance(node.get("class_name"), str) and isinstance(node.get("config"), dict):
                yield node
            pending += reversed(node.values())
        elif isinstance(node, list):
            pending += reversed(node)
