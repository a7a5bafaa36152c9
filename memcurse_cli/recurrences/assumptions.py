"""What a layer's reader assumed, said in the report."""

from __future__ import annotations

from memcurse_cli.recurrences.family import Assumption, ReadOptions


class Assumed:
    """The user's choices, and a sentence for each thing that the checkpoint left open.

    Attributes:
        sentences: what was assumed so far, in the order it was asked for.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.sentences: list[str] = []

    def choose(
        self, assumption: Assumption, *, default: str | None = None, silent: bool = False
    ) -> str:
        """The value to use.

        Args:
            assumption: what is not stored.
            default: the default of this layer, where it is not the family's.
            silent: the library's code leaves no choice, so that its default is no assumption.
        """
        value, given = self._options.choose(assumption)
        if not given and default is not None:
            value = default
        if given or not silent:
            origin = "as given" if given else "the library's default"
            self.sentences.append(f"{assumption.key}={value} ({origin}): {assumption.meaning}")
        return value
