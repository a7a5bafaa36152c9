"""Run a pickle's stack machine on inert data: nothing is imported and nothing is called.

Python's own unpickler looks up the callables that a file names and calls them. This one pushes a
`Global` for a name and a `Record` for a call. A caller passes the few constructors whose meaning
it knows; they see plain data and build plain data.

Protocols 0 and 1 have no mark, and write values as lines of text, raw bytes too, with escapes
(Python's Lib/pickletools.py); `begins_like_a_pickle` tells them from text.
"""

from __future__ import annotations

import codecs
import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.source import ByteRange, Bytes, Cursor

MAX_OPCODES = 10_000_000
MAX_TEXT = 1 << 26
MAX_INTEGER_BYTES = 4096
# Shorter byte strings are small data; longer ones are arrays, and stay in the file until read.
INLINE_BYTES = 256
MAX_LINE_LENGTH = 1000  # of a name or number; the line of an array may be longer
MAX_ARRAY_LINE = 1 << 28
# Of all long lines together: each is decoded once to learn how many bytes it stands for.
MAX_ARRAY_LINES = 1 << 29
_QUOTED, _UNICODE = "string", "raw-unicode-escape"  # how a line of text is written
# By so many instructions a pickle of protocol 0 or 1 is told, if one of these is among them.
FIRST_INSTRUCTIONS = 8
_TELLING = ("PUT", "BINPUT", "LONG_BINPUT", "REDUCE", "INST", "OBJ")

Constructor = Callable[..., object]


class Global(Struct, frozen=True):
    """A name in a module, as the file spells it."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


# A call of a tensor's subclass, of which (call, class, arguments) are the first arguments.
_WRAPPERS = tuple(Global("torch._tensor", f"_rebuild_from_type{v}") for v in ("", "_v2"))


@dataclass(eq=False, repr=False, slots=True)
class Record:
    """An object that the pickle would make: what it would call, with what, and what it holds."""

    function: object
    arguments: tuple[object, ...] = ()
    state: object = None
    items: list[object] = field(default_factory=list)
    entries: dict[Any, object] = field(default_factory=dict)

    def build(self, state: object) -> None:
        """Keep the state that the object would be given."""
        self.state = state


def begins_like_a_pickle(head: bytes) -> bool:
    """Whether a file begins with instructions of protocol 0 or 1.

    The first of them must have well-formed arguments, and marks before what needs them; and one
    must make an object or number one for later reference, as every pickle of a container does at
    once. Text does not: words are no arguments of instructions.
    """
    marks, tells = 0, False
    with suppress(ValueError):  # a malformed argument, no instruction, or the end
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
    return False


class EscapedBytes(ByteRange):
    """Bytes that the file spells with escapes; they are decoded again whenever they are read."""

    def __init__(self, source: Bytes, offset: int, length: int, codec: str) -> None:
        self._source, self._start, self._length, self._codec = source, offset, length, codec
        self.size = len(self._decoded())

    def _read(self, offset: int, length: int) -> bytes:
        return self._decoded()[offset : offset + length]

    def _decoded(self) -> bytes:
        content = self._source.read(self._start, self._length)
        if self._codec == _QUOTED:
            return _unescaped(content)
        return content.decode(self._codec).encode("latin-1")


def _unescaped(line: bytes | bytearray) -> bytes:
    """What Python 2's str in quotes holds."""
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in b"'\"":
        raise ValueError("it has a string without quotes")
    return codecs.escape_decode(bytes(line[1:-1]))[0]


def _no_persistent(identity: object) -> object:
    raise ValueError("it refers to a storage outside itself")


class Machine(Cursor):
    """One pickle after another from the same bytes.

    ``constructors`` builds, from plain arguments, what some names call; ``persistent`` says what a
    persistent id stands for.
    """

    chunk = 1 << 16

    def __init__(
        self,
        source: Bytes,
        constructors: Mapping[Global, Constructor],
        persistent: Callable[[object], object] = _no_persistent,
        position: int = 0,
    ) -> None:
        super().__init__(source, position)
        self._constructors = constructors
        self._persistent = persistent
        self._opcodes = 0
        self._array_lines = 0
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, object] = {}

    def load(self) -> object:
        """What the next pickle holds."""
        self._stack, self._marks, self._memo = [], [], {}
        try:
            while True:
                self._opcodes += 1
                if self._opcodes > MAX_OPCODES:
                    raise ValueError(f"it has more than {MAX_OPCODES} instructions")
                opcode = self.take(1)[0]
                if opcode == 0x2E:  # STOP
                    return self._stack.pop()
                _DISPATCH[opcode](self)
        except KeyError as error:
            shown = printable(str(error), 60)
            raise ValueError(f"it has an unknown instruction or reference ({shown})") from error
        except (IndexError, AttributeError, TypeError) as error:
            raise ValueError("its instructions do not fit together") from error

    def _construct(self, function: object, arguments: object) -> object:
        """What a call stands for."""
        while function in _WRAPPERS and isinstance(arguments, tuple):
            self._opcodes += 1
            function, _, arguments = arguments[:3]
        if not isinstance(arguments, tuple):
            raise ValueError("it passes arguments that are not a tuple")
        known = self._constructors.get(function) if isinstance(function, Global) else None
        if known is None:
            return Record(function, arguments)
        # The copy of what it is made of is work beyond the one instruction.
        self._opcodes += (
            sum(len(a) for a in arguments if isinstance(a, list | dict | tuple | str)) // 8
        )
        return known(*arguments)

    def _text(self, count: int) -> str:
        if count > MAX_TEXT:
            raise ValueError(f"it has a text of {count} bytes")
        return self.take(count).decode("utf-8", "surrogatepass")

    def _line(self) -> bytes:
        return self._pass_line(MAX_LINE_LENGTH)[1]

    def _pass_line(self, longest: int) -> tuple[int, bytes]:
        """The length of the line that is passed over, and as much as a short line has of it."""
        line, length, step = bytearray(), 0, 64
        while True:
            piece, end, rest = self.take(max(1, min(step, self.left))).partition(b"\n")
            length += len(piece)
            if length > longest:
                raise ValueError(f"it has a line of more than {longest} bytes")
            if len(line) <= MAX_LINE_LENGTH:
                line += piece
            if end:
                self.position -= len(rest)
                return length, bytes(line)
            step = min(2 * step, self.chunk)

    def _value_line(self, codec: str) -> object:
        # Python 2 and protocol 0 write names and data alike: short lines are names, others arrays.
        start = self.position
        length, line = self._pass_line(MAX_ARRAY_LINE)
        if length <= INLINE_BYTES:
            return _unescaped(line).decode("latin-1") if codec == _QUOTED else line.decode(codec)
        self._array_lines += length
        if self._array_lines > MAX_ARRAY_LINES:
            raise ValueError(f"its long lines have more than {MAX_ARRAY_LINES} bytes")
        try:
            return EscapedBytes(self.source, start, length, codec)
        except UnicodeEncodeError:  # text of other letters
            return self.source.read(start, length).decode(codec)

    def _integer_line(self) -> int | bool:
        line = self._line()
        # A truth value, which protocols 0 and 1 spell 00 and 01; or an integer, or Python 2's long.
        return line == b"01" if line in (b"00", b"01") else int(line.rstrip(b"L"))

    def _bytes(self, count: int) -> bytes | ByteRange:
        return self.take(count) if count <= INLINE_BYTES else self.skip(count)

    def _legacy_string(self, count: int) -> object:
        # As in lines, short ones are names.
        content = self._bytes(count)
        return content.decode("latin-1") if isinstance(content, bytes) else content

    def _global(self, module: object, name: object) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("it names a global by something that is not text")
        if len(module) + len(name) > MAX_LINE_LENGTH:
            raise ValueError(f"it names a global by more than {MAX_LINE_LENGTH} characters")
        return Global(module, name)

    def _pop_mark(self) -> list[Any]:
        items = self._stack
        self._stack = self._marks.pop()
        return items

    def _memoize(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _set_items(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        entries = target.entries if isinstance(target, Record) else target
        if not isinstance(entries, dict) or len(pairs) % 2:
            raise ValueError("it sets keys of what is not a dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            entries[_key(key)] = value

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        items = target.items if isinstance(target, Record) else target
        if not isinstance(items, list):
            raise ValueError("it appends to what is not a list")
        items.extend(values)

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        # A dict's own attributes, such as a state_dict's _metadata, hold no tensors.
        if not isinstance(target, dict | list) and hasattr(target, "build"):
            target.build(state)

    def _global_lines(self) -> Global:
        return self._global(self._line().decode(), self._line().decode())

    def _object(self) -> None:
        function, *arguments = self._pop_mark()
        self._push(self._construct(function, tuple(arguments)))

    def _reduce(self, arguments: object, keywords: object = None) -> None:
        self._stack[-1] = self._construct(self._stack[-1], arguments)

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise ValueError("its stack is too short")
        split = len(self._stack) - count
        self._stack[split:] = [tuple(self._stack[split:])]

    def _mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _integer(self, count: int) -> int:
        if count > MAX_INTEGER_BYTES:
            raise ValueError(f"it has an integer of {count} bytes")
        return self.number(count, signed=True)

    def _dict(self) -> None:
        pairs = self._pop_mark()
        self._push({})
        self._set_items(pairs)

    def _push(self, value: object) -> None:
        self._stack.append(value)


def _key(key: object) -> object:
    """A key as it may stand in a dict: deep tuples and chosen integers must not be hashed."""
    if isinstance(key, str | bytes | bool | None) or (isinstance(key, int) and abs(key) < 2**60):
        return key
    return Record(key)


_STEPS: dict[bytes, Callable[[Machine], object]] = {
    pickle.PROTO: lambda m: m.take(1),
    pickle.FRAME: lambda m: m.take(8),
    pickle.MARK: lambda m: m._mark(),
    pickle.POP: lambda m: m._stack.pop() if m._stack else m._pop_mark(),
    pickle.POP_MARK: lambda m: m._pop_mark(),
    pickle.DUP: lambda m: m._push(m._stack[-1]),
    pickle.NONE: lambda m: m._push(None),
    pickle.NEWTRUE: lambda m: m._push(True),
    pickle.NEWFALSE: lambda m: m._push(False),
    pickle.INT: lambda m: m._push(m._integer_line()),
    pickle.LONG: lambda m: m._push(m._integer_line()),
    pickle.BININT: lambda m: m._push(m._integer(4)),
    pickle.BININT1: lambda m: m._push(m.number(1)),
    pickle.BININT2: lambda m: m._push(m.number(2)),
    pickle.LONG1: lambda m: m._push(m._integer(m.number(1))),
    pickle.LONG4: lambda m: m._push(m._integer(m.number(4))),
    pickle.FLOAT: lambda m: m._push(float(m._line())),
    pickle.BINFLOAT: lambda m: m._push(struct.unpack(">d", m.take(8))[0]),
    pickle.STRING: lambda m: m._push(m._value_line(_QUOTED)),
    pickle.BINSTRING: lambda m: m._push(m._legacy_string(m.number(4))),
    pickle.SHORT_BINSTRING: lambda m: m._push(m._legacy_string(m.number(1))),
    pickle.UNICODE: lambda m: m._push(m._value_line(_UNICODE)),
    pickle.SHORT_BINUNICODE: lambda m: m._push(m._text(m.number(1))),
    pickle.BINUNICODE: lambda m: m._push(m._text(m.number(4))),
    pickle.BINUNICODE8: lambda m: m._push(m._text(m.number(8))),
    pickle.SHORT_BINBYTES: lambda m: m._push(m._bytes(m.number(1))),
    pickle.BINBYTES: lambda m: m._push(m._bytes(m.number(4))),
    pickle.BINBYTES8: lambda m: m._push(m._bytes(m.number(8))),
    pickle.BYTEARRAY8: lambda m: m._push(m._bytes(m.number(8))),
    pickle.EMPTY_LIST: lambda m: m._push([]),
    pickle.EMPTY_DICT: lambda m: m._push({}),
    pickle.EMPTY_SET: lambda m: m._push([]),
    pickle.EMPTY_TUPLE: lambda m: m._push(()),
    pickle.LIST: lambda m: m._push(m._pop_mark()),
    pickle.TUPLE: lambda m: m._push(tuple(m._pop_mark())),
    pickle.FROZENSET: lambda m: m._push(tuple(m._pop_mark())),
    pickle.DICT: lambda m: m._dict(),
    pickle.TUPLE1: lambda m: m._tuple(1),
    pickle.TUPLE2: lambda m: m._tuple(2),
    pickle.TUPLE3: lambda m: m._tuple(3),
    pickle.APPEND: lambda m: m._append([m._stack.pop()]),
    pickle.APPENDS: lambda m: m._append(m._pop_mark()),
    pickle.ADDITEMS: lambda m: m._append(m._pop_mark()),
    pickle.SETITEM: lambda m: m._set_items([m._stack.pop(-2), m._stack.pop()]),
    pickle.SETITEMS: lambda m: m._set_items(m._pop_mark()),
    pickle.PUT: lambda m: m._memoize(int(m._line())),
    pickle.BINPUT: lambda m: m._memoize(m.number(1)),
    pickle.LONG_BINPUT: lambda m: m._memoize(m.number(4)),
    pickle.MEMOIZE: lambda m: m._memoize(len(m._memo)),
    pickle.GET: lambda m: m._push(m._memo[int(m._line())]),
    pickle.BINGET: lambda m: m._push(m._memo[m.number(1)]),
    pickle.LONG_BINGET: lambda m: m._push(m._memo[m.number(4)]),
    pickle.GLOBAL: lambda m: m._push(m._global_lines()),
    pickle.STACK_GLOBAL: lambda m: m._push(m._global(m._stack.pop(-2), m._stack.pop())),
    pickle.REDUCE: lambda m: m._reduce(m._stack.pop()),
    pickle.NEWOBJ: lambda m: m._reduce(m._stack.pop()),
    pickle.NEWOBJ_EX: lambda m: m._reduce(m._stack.pop(-2), m._stack.pop()),
    pickle.INST: lambda m: m._push(m._construct(m._global_lines(), tuple(m._pop_mark()))),
    pickle.OBJ: lambda m: m._object(),
    pickle.BUILD: lambda m: m._build(),
    pickle.PERSID: lambda m: m._push(m._persistent(m._line().decode())),
    pickle.BINPERSID: lambda m: m._push(m._persistent(m._stack.pop())),
}
_DISPATCH = {opcode[0]: step for opcode, step in _STEPS.items()}
