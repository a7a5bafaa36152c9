"""Writes each attack file; `ATTACKS` says what it tries. None of them is kept in the repository."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Builder = Callable[[Path], Path]
ATTACKS: dict[str, tuple[Builder, str]] = {}
MARKER = "executed"


def attack(outcome: str) -> Callable[[Builder], Builder]:
    """Register a builder; the outcome is a part of the error, or "opens" for a harmless read."""

    def register(build: Builder) -> Builder:
        ATTACKS[build.__name__] = (build, outcome)
        return build

    return register


def attacks(file: str, table: dict[str, tuple[str, bytes | Callable[[], bytes]]]) -> None:
    """Register files that are made of bytes alone, each by its outcome and its content."""

    def registered(name: str, outcome: str, content: bytes | Callable[[], bytes]) -> None:
        def build(directory: Path) -> Path:
            (directory / file).write_bytes(content() if callable(content) else content)
            return directory / file

        ATTACKS[name] = (build, outcome)

    for name, (outcome, content) in table.items():
        registered(name, outcome, content)


def builders(table: dict[str, tuple[str, Builder]]) -> None:
    """Register whole folders, each by its outcome and what writes it."""
    ATTACKS.update({name: (build, outcome) for name, (outcome, build) in table.items()})


def peak() -> int:
    """Kilobytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Executes:
    """Unpickles by running a command that leaves a marker in the directory, or in the current."""

    def __init__(self, directory: Path = Path()) -> None:
        self._command = f"touch {directory / MARKER}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


class Evaluates(Executes):
    """The same through eval."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"__import__('os').system({self._command!r})",)


def saved(content: object, zipped: bool = True) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def weights() -> dict[str, Any]:
    return {"rnn.weight_hh_l0": torch.eye(3), "rnn.bias_hh_l0": torch.zeros(3)}


def safetensors(header: object, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def rewritten(archive: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """A zip archive with the content of its members changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


def with_pickle(change: Callable[[bytes], bytes]) -> bytes:
    """A file of torch.save with its pickle changed."""
    return rewritten(
        saved(weights()), lambda name, old: change(old) if name.endswith("data.pkl") else old
    )


# Pickles that would run code


def _torchscript() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), buffer)
    evil = pickle.dumps((Executes(),), protocol=2)
    return rewritten(
        buffer.getvalue(), lambda name, old: evil if name.endswith("/constants.pkl") else old
    )


def _object_array() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, w=np.eye(3), evil=np.array([Executes()], dtype=object))
    return buffer.getvalue()


COMMAND = f"touch {MARKER}".encode()
attacks(
    "a",
    {
        "pickle_in_pt": ("opens", lambda: saved(weights() | {"evil": Executes()})),
        "pickle_in_legacy_pt": ("opens", lambda: saved(weights() | {"evil": Evaluates()}, False)),
        "plain_pickle": ("opens", lambda: pickle.dumps({"w": np.eye(20), "evil": Executes()})),
        # _rebuild_from_type_v2(func, …) calls whatever function it is given.
        "pickle_called_through_a_rebuild": (
            "no tensor",
            b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nN"
            + (b"X" + struct.pack("<I", len(COMMAND)) + COMMAND + b"\x85NtR."),
        ),
        "pickle_in_npz": ("opens", _object_array),
        "pickle_in_torchscript": ("opens", _torchscript),
    },
)


# Pickles that exhaust memory or time


def _copies() -> bytes:
    """A text that is copied again and again."""
    text = b"X" + struct.pack("<I", 10**6) + b"x" * 10**6
    content = b"\x80\x02" + text + b"q\x000X\x06\0\0\0latin1q\x010c_codecs\nencode\nq\x020"
    return content + b"h\x02h\x00h\x01\x86R" * 10**5 + b"."


attacks(
    "a.pkl",
    {
        "pickle_of_a_number_of_control_characters": (
            "could not convert string to float",
            b"\x80\x02F" + b"\x1b[31m" * 190 + b"\n.",
        ),
        # CPython's own unpickler allocates 16 GiB for this index.
        "pickle_memo_index": ("no tensor", b"\x80\x02Nr\xff\xff\xff\x7fr\xff\xff\xff\xff."),
        "pickle_nested_a_million_deep": (
            "nested more than",
            lambda: b"\x80\x02" + b"]" * 10**6 + b"a" * (10**6 - 1) + b".",
        ),
        # Hashing such a tuple overflows the C stack.
        "pickle_key_nested_a_million_deep": (
            "no tensor",
            lambda: b"\x80\x02})" + b"\x85" * 10**6 + b"Ns.",
        ),
        "pickle_of_a_billion_laughs": (
            "entries",
            b"\x80\x02]q\x00"
            + b"".join(b"](" + b"h%c" % (i - 1) * 10 + b"eq%c" % i for i in range(1, 40))
            + b".",
        ),
        "pickle_that_holds_itself": ("nested more than", b"\x80\x02}q\x00X\x01\0\0\0ah\x00s."),
        "pickle_that_copies_a_text_again_and_again": ("more than", _copies),
    },
)


# Storages and views that lie


def _pickled_view(
    count: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> bytes:
    # torch._utils._rebuild_tensor_v2(('storage', FloatStorage, '0', 'cpu', count), …)
    body = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"
    body += b"X\x01\0\0\x000X\x03\0\0\0cpu" + pickle.dumps(count, 2)[2:-1] + b"tQ"
    for value in (offset, shape, stride):
        body += pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b"")
    return body + b"\x89NtR."


def _view(outcome: str, *view: Any) -> tuple[str, Callable[[], bytes]]:
    return outcome, lambda: with_pickle(lambda _: _pickled_view(*view))


def _hidden() -> bytes:
    """An archive whose directory names another member than stands there."""
    content = saved(weights())
    first = content.index(b"data.pkl") + 8
    return content[:first] + content[first:].replace(b"data.pkl", b"hidden.x")


attacks(
    "a.pt",
    {
        "storage_of_10_to_the_18_elements": _view("a storage claims", 10**18, (3,), (1,), 0),
        "view_beyond_its_storage": _view("reaches element", 9, (3, 3), (4, 1), 0),
        "view_with_a_negative_stride": _view("not a natural number", 9, (3,), (-1,), 2),
        "view_with_a_negative_offset": _view("not a natural number", 9, (3,), (1,), -4),
        "view_whose_extent_overflows_64_bits": _view(
            "reaches element", 9, (2**61, 2**61), (2**61, 2**61), 0
        ),
        "view_expanded_to_10_to_the_18": _view("expanded view", 9, (10**9, 10**9), (0, 0), 0),
        "storage_outside_the_archive": (
            "the storage ../../../e is not in the archive",
            lambda: with_pickle(
                lambda old: old.replace(b"X\x01\0\0\x000", b"X\x0a\0\0\x00../../../e")
            ),
        ),
        "names_that_write_to_the_terminal": (
            "opens",
            lambda: saved({"\x1b]0;owned\x07\x1b[2J": torch.eye(3), "\u202eevil": torch.eye(2)}),
        ),
        "name_of_a_million_characters": ("characters", lambda: saved({"w" * 10**6: torch.eye(3)})),
        "archive_whose_directory_hides_a_member": ("not a format that memcurse reads", _hidden),
    },
)


# safetensors headers that lie


def _header(
    outcome: str, header: object, content: int = 4, length: int | None = None
) -> tuple[str, Callable[[], bytes]]:
    """A header, or what makes it, before so many bytes."""
    return outcome, lambda: safetensors(
        header() if callable(header) else header, bytes(content), length
    )


ONE = json.dumps(entry([1], 0, 4))
attacks(
    "a.safetensors",
    {
        "safetensors_name_of_a_million_characters": _header(
            "characters", {"w" * 10**6: entry([1], 0, 4)}
        ),
        "header_of_10_to_the_18_bytes": _header(
            "claims 1000000000000000000 bytes", {}, 0, length=10**18
        ),
        "shape_of_10_to_the_36_elements": _header("needs", {"w": entry([10**18, 10**18], 0, 4)}),
        "shape_with_a_negative_dimension": _header("no valid shape", {"w": entry([-1, -1], 0, 4)}),
        "offsets_beyond_the_file": _header("lies at bytes", {"w": entry([1], 4, 8)}),
        "offsets_that_overlap": _header(
            "overlaps", {"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12
        ),
        "offsets_that_hide_a_gap": _header(
            "gap", {"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, 12
        ),
        "key_that_stands_twice": _header("twice", f'{{"w": {ONE}, "w": {ONE}}}'.encode()),
        "header_nested_a_million_deep": _header(
            "nested too deeply", lambda: b'{"w":' + b"[" * 10**6 + b"]" * 10**6 + b"}", 0
        ),
        "header_of_ten_million_lists": _header(
            "lists and objects", lambda: b'{"w":[' + b"[]," * 10**7 + b"[]]}", 0
        ),
        "safetensors_of_no_element_and_10_to_the_36": _header(
            "no array can have", {"w": entry([0, 10**18, 10**18], 0, 0)}, 0
        ),
    },
)


# Zip archives that lie


def _npy(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def _npz(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that stands twice
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def _overlapping() -> bytes:
    """Two names for the same bytes, as in the archives that expand 46 MB to 4.5 PB."""
    content = bytearray(_npz(("a.npy", ARRAY), ("b.npy", ARRAY)))
    second = content.rindex(b"PK\x01\x02")
    content[second + 42 : second + 46] = bytes(4)
    return bytes(content)


def _bomb() -> bytes:
    """A gibibyte of zeros in a mebibyte."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("w.npy", "w") as member,
    ):
        member.write(_npy((1 << 28,)))
        for _ in range(1 << 10):
            member.write(bytes(1 << 20))
    return buffer.getvalue()


ARRAY = _npy((4,)) + bytes(16)
attacks(
    "a.npz",
    {
        "npz_shape_that_lies": ("needs", lambda: _npz(("w.npy", _npy((10**9, 10**9)) + bytes(16)))),
        "npz_negative_shape": ("no valid", lambda: _npz(("w.npy", _npy((-4,)) + bytes(16)))),
        "npz_members_that_overlap": ("overlap", _overlapping),
        "npz_name_that_stands_twice": ("twice", lambda: _npz(("w.npy", ARRAY), ("w.npy", ARRAY))),
        "npz_bomb": ("claims", _bomb),
        "npz_name_that_climbs": ("opens", lambda: _npz(("../../w.npy", ARRAY))),
        "npz_of_no_element_and_10_to_the_36": (
            "no array can have",
            lambda: _npz(("w.npy", _npy((0, 10**9, 10**9, 10**9)))),
        ),
    },
)


# Indexes and links that lead outside


def _secret(directory: Path) -> Path:
    outside = directory.parent / f"{directory.name}-outside"
    outside.mkdir(exist_ok=True)
    secret = outside / "secret.safetensors"
    secret.write_bytes(safetensors({"w": entry([1], 0, 4)}, bytes(4)))
    return secret


def _index(directory: Path, shard: str) -> Path:
    text = json.dumps({"weight_map": {"w": shard}})
    (directory / "model.safetensors.index.json").write_text(text)
    return directory


def _linked(name: str, shard: str = "") -> Builder:
    """A link to the secret or its folder, and an index that names it where the link is no model."""

    def build(directory: Path) -> Path:
        secret = _secret(directory)
        (directory / name).symlink_to(secret if name.endswith("safetensors") else secret.parent)
        return _index(directory, shard) if shard else directory

    return build


def _fifo(directory: Path) -> Path:
    os.mkfifo(directory / "shard.safetensors")
    return _index(directory, "shard.safetensors")


def _circle(directory: Path) -> Path:
    (directory / "a.safetensors").symlink_to(directory / "a.safetensors")
    return directory / "a.safetensors"


builders(
    {
        "index_that_climbs": (
            "outside",
            lambda path: _index(path, f"../{_secret(path).parent.name}/secret.safetensors"),
        ),
        "index_that_names_an_absolute_path": (
            "outside",
            lambda path: _index(path, str(_secret(path))),
        ),
        "index_with_backslashes": ("outside", lambda path: _index(path, "..\\a.safetensors")),
        "index_that_names_a_link": ("outside", _linked("a.safetensors", "a.safetensors")),
        "directory_with_a_link": ("outside", _linked("model.safetensors")),
        "index_through_a_linked_directory": ("outside", _linked("sub", "sub/secret.safetensors")),
        "index_that_names_a_fifo": ("neither a regular file", _fifo),
        "link_to_itself": ("itself", _circle),
    }
)
