"""Text from a file, made safe to print: no control character of a checkpoint reaches a terminal."""

from __future__ import annotations

MAX_NAME_LENGTH = 1000


def printable(text: str, limit: int = 200, keep: str = "") -> str:
    r"""``text`` with every character that is not printable escaped (``\x1b``), and shortened.

    Unicode counts controls, bidirectional overrides, lone surrogates and line separators as not
    printable; letters of any script stay as they are. The result is printable in turn.

    Args:
        text: a name, path or message that may come from an untrusted file.
        limit: the largest number of characters returned; the middle is replaced by ``…``.
        keep: characters that stay as they are although they are not printable.
    """
    if len(text) <= limit and text.isprintable():
        return text
    if len(text) > limit:
        head = (limit - 1) // 2
        text = f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"
    escaped = "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1]
        for character in text
    )
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 1]}…"
