"""What a layer's reader assumed, said in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.errors import TensorError, UsageError
from memcurse_cli.families.family import Assumption, Match, ReadOptions
from memcurse_cli.families.reading import read_real, shown_shape


class Assumed:
    """The user's choices, and a sentence for each thing that the tensors left open.

    Args:
        options: what the user chose.
        config: the model's configuration, which settles what the user did not.
        store: the checkpoint, where a layer may hold what is assumed as a scalar of its own.
        match: that layer.

    Attributes:
        sentences: what was assumed so far, in the order it was asked for.
    """

    def __init__(
        self,
        options: ReadOptions,
        config: Mapping[str, Any] | None = None,
        store: TensorStore | None = None,
        match: Match | None = None,
    ) -> None:
        self._options = options
        self._config = config or {}
        self._store, self._match = store, match
        self.sentences: list[str] = []

    def choose(
        self,
        assumption: Assumption,
        *,
        default: str | None = None,
        configured: str | None = None,
        silent: bool = False,
    ) -> str:
        """The value to use: the user's, else the layer's own, the configuration's, the default.

        Args:
            assumption: what the tensors do not say.
            default: the default of this layer, where it is not the family's.
            configured: what the configuration says, where `config_keys` do not tell it.
            silent: the library's code leaves no choice, so that its default is no assumption.

        Raises:
            TensorError: the layer holds more than one value for it.
        """
        value, given = self._options.choose(assumption)
        configured = configured or configured_choice(self._config, assumption)
        origin = "the library's default"
        stored = None if given else self._stored(assumption)
        if given:
            origin = "as given"
        elif stored is not None:
            value, origin = f"{stored[0]:g}", f"stored as {stored[1]}"
        elif configured is not None:
            value, origin = configured, "from config.json"
        elif default is not None:
            value = default
        if given or not silent:
            self.sentences.append(f"{assumption.key}={value} ({origin}): {assumption.meaning}")
        return value if stored is None else repr(stored[0])

    def fraction(self, assumption: Assumption, *, default: str | None = None) -> float:
        """As `choose`, a number in (0, 1].

        Raises:
            UsageError: the user gave another one.
            TensorError: the layer holds another one.
        """
        value = float(self.choose(assumption, default=default))
        if 0 < value <= 1:
            return value
        what, remedy = f"{assumption.key}={value:g} is outside (0, 1]", f"give {assumption.meaning}"
        if self._match is None or self._options.choose(assumption)[1]:
            raise UsageError(what, where="--assume", remedy=remedy)
        raise TensorError(what, where=self._match.layer, remedy=f"{remedy}, with --assume")

    def _stored(self, assumption: Assumption) -> tuple[float, str] | None:
        """The value that the layer holds, and the names of its tensors.

        Raises:
            TensorError: the layer holds one of two parts alone, or more than one value.
        """
        held = self._match.tensors if self._match else {}
        for name in assumption.tensors:
            roles = name.split("/")
            if held.keys() >= set(roles):
                first, *rest = (self._scalar(held[role], assumption) for role in roles)
                value = first if not rest else first / rest[0] if rest[0] else math.inf
                return value, "/".join(held[role] for role in roles)
        for role in assumption.roles:
            if role in held:
                raise TensorError(
                    f"it does not tell {assumption.key} without its other part",
                    where=held[role],
                    remedy=f"give {assumption.meaning}, with --assume {assumption.key}=",
                )
        return None

    def _scalar(self, tensor: str, assumption: Assumption) -> float:
        assert self._store is not None
        shape = self._store.tensors[tensor].shape
        if math.prod(shape) != 1:
            raise TensorError(
                f"its shape {shown_shape(shape)} does not fit, one number is needed",
                where=tensor,
                remedy=f"give one for the whole layer with --assume {assumption.key}=",
            )
        return float(read_real(self._store, tensor, shape).item())


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
