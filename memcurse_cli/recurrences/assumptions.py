"""What a layer's reader assumed, said in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memcurse_cli.recurrences.family import Assumption, ReadOptions


class Assumed:
    """The user's choices, and a sentence for each thing that the tensors left open.

    Args:
        options: what the user chose.
        config: the model's configuration, which settles what the user did not.

    Attributes:
        sentences: what was assumed so far, in the order it was asked for.
    """

    def __init__(self, options: ReadOptions, config: Mapping[str, Any] | None = None) -> None:
        self._options = options
        self._config = config or {}
        self.sentences: list[str] = []

    def choose(
        self,
        assumption: Assumption,
        *,
        default: str | None = None,
        configured: str | None = None,
        silent: bool = False,
    ) -> str:
        """The value to use: the user's, else the configuration's, else the default.

        Args:
            assumption: what the tensors do not say.
            default: the default of this layer, where it is not the family's.
            configured: what the configuration says, where `config_keys` do not tell it.
            silent: the library's code leaves no choice, so that its default is no assumption.
        """
        value, given = self._options.choose(assumption)
        configured = configured or configured_choice(self._config, assumption)
        origin = "the library's default"
        if given:
            origin = "as given"
        elif configured is not None:
            value, origin = configured, "from config.json"
        elif default is not None:
            value = default
        if given or not silent:
            self.sentences.append(f"{assumption.key}={value} ({origin}): {assumption.meaning}")
        return value


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value under a key, whose parts dots join; None where there is none.

    A model that sees and hears keeps the configuration of its language model in ``text_config``.
    """
    for root in (config, config.get("text_config")):
        value: Any = root
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def configured_choice(config: Mapping[str, Any], assumption: Assumption) -> str | None:
    """What a configuration says of an assumption, where that is a value that it understands."""
    for key in assumption.config_keys:
        value = setting(config, key)
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            text = f"{value:.17g}" if isinstance(value, float) else str(value)[:40]
        else:
            continue
        if text in assumption.choices or (not assumption.choices and not isinstance(value, bool)):
            return text
    return None
