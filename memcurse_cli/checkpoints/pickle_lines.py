"""The instructions of pickle protocols 0 and 1: values in lines of text, and how a file begins.

Protocol 0 writes every value as a line of ASCII, raw bytes too, with escapes (Python's
Lib/pickletools.py). Neither protocol has a mark; `begins_like_a_pickle` tells them from text.
"""

from __future__ import annotations

import codecs
import pickletools

from memcurse_cli.checkpoints.pickle_values import ByteRange, Bytes, PickleError

MAX_LINE_LENGTH = 1000
# A longer line is an array. It stays in the file until it is read.
MAX_ARRAY_LINE = 1 << 28
# Of all long lines together: each is decoded once to learn how many bytes it stands for.
MAX_ARRAY_LINES = 1 << 29
FIRST_INSTRUCTIONS = 8


class EscapedBytes(ByteRange):
    """Bytes that the file spells with escapes; they are decoded again whenever they are read."""

    def __init__(self, source: Bytes, offset: int, length: int, codec: str) -> None:
        self._source, self._start, self._length, self._codec = source, offset, length, codec
        self.size = len(self._decoded())

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise PickleError(f"it needs {length} bytes from byte {offset} of {self.size}")
        return self._decoded()[offset : offset + length]

    def _decoded(self) -> bytes:
        content = self._source.read(self._start, self._length)
        if self._codec == "string":
            return unescaped(content)
        return unicode_line(content).encode("latin-1")


def long_line(source: Bytes, offset: int, length: int, codec: str) -> EscapedBytes | str:
    """A line that is too long for a name: bytes, or the text that it is if it has other letters.

    Args:
        source: the pickle.
        offset: where the line begins.
        length: of the line.
        codec: "string" for Python 2's str, in quotes; "unicode" for text.
    """
    try:
        return EscapedBytes(source, offset, length, codec)
    except UnicodeEncodeError:
        return unicode_line(source.read(offset, length))


def unescaped(line: bytes | bytearray) -> bytes:
    """What Python 2's str in quotes holds.

    Raises:
        PickleError: the quotes are missing.
    """
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in b"'\"":
        raise PickleError("it has a string without quotes")
    return codecs.escape_decode(bytes(line[1:-1]))[0]


def unicode_line(line: bytes | bytearray) -> str:
    """The text of a line."""
    return line.decode("raw-unicode-escape")


def integer_line(line: bytes) -> int | bool:
    """An integer, a Python 2 long, or a truth value, which protocols 0 and 1 spell 00 and 01."""
    if line in (b"00", b"01"):
        return line == b"01"
    return int(line.rstrip(b"L"))


def begins_like_a_pickle(head: bytes) -> bool:
    """Whether a file begins with instructions of protocol 0 or 1.

    The first `FIRST_INSTRUCTIONS`, or all of them up to STOP, must be instructions of these
    protocols with well-formed arguments; a mark must stand before whatever needs one; and one of
    them must make an object or number one for later reference, as every pickle of a container
    does at once. Text does not: words are no arguments of instructions.

    Args:
        head: the first bytes of the file.
    """
    marks, tells = 0, False
    try:
        for count, (opcode, _, _) in enumerate(pickletools.genops(head), 1):
            if opcode.proto > 1:
                return False
            marks += opcode.name == "MARK"
            if pickletools.markobject in opcode.stack_before:
                marks -= 1
            if marks < 0:
                return False
            tells |= opcode.name in _TELLING
            if opcode.name == "STOP" or count == FIRST_INSTRUCTIONS:
                return tells
    except ValueError:  # a malformed argument, no instruction, or the end
        pass
    return False


_TELLING = ("PUT", "BINPUT", "LONG_BINPUT", "REDUCE", "INST", "OBJ")
