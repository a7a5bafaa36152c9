"""safetensors: eight bytes of header length, a JSON header, then the elements.

The layout and the limits are those of the format's own description
(https://huggingface.co/docs/safetensors, "Format"): a header of at most 100 MB that begins with
``{``, no duplicate keys, and tensors that fill the rest of the file without gaps or overlaps.
"""

from __future__ import annotations

from typing import Any

from memcurse_cli.checkpoints.elements import FLOAT4, element_bytes, element_count
from memcurse_cli.checkpoints.lazy import LazyStore, LazyTensor, elements_at
from memcurse_cli.checkpoints.rewrites.scales import with_scales
from memcurse_cli.checkpoints.select import select_flat
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.checkpoints.untrusted.json_header import MAX_JSON_BYTES, parse_object
from memcurse_cli.checkpoints.untrusted.names import printable
from memcurse_cli.checkpoints.untrusted.ranges import naturals
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import CheckpointError

ELEMENT_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": FLOAT4,
}
# Types that the format knows and no reader has; tensors of theirs are left out.
BITS_OF_UNREAD = {"F6_E2M3": 6, "F6_E3M2": 6}


def open_file(file: File) -> LazyStore:
    """Read and check the header."""
    header, start = _header(file)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its __metadata__ is not an object of strings")
    tensors: dict[str, LazyTensor] = {}
    unread: list[str] = []
    ranges = []
    for name, entry in header.items():
        spec, begin, end = _entry(file, name, entry, file.size - start)
        ranges.append((begin, end, name))
        if spec.dtype in BITS_OF_UNREAD:
            unread.append(name)
        else:
            tensors[name] = elements_at(file, start + begin, spec)
    _check_layout(ranges, file.size - start)
    scaled, of_scales = with_scales(tensors)
    selected, notes = select_flat(scaled)
    if unread:
        shown = printable(unread[0], 80)
        count = "1 tensor" if len(unread) == 1 else f"{len(unread)} tensors"
        notes.append(f"{count} of 6-bit numbers (such as {shown}): left out")
    return LazyStore(
        path=file.path,
        bytes=file.size,
        tensors=selected,
        metadata=metadata,
        notes=[*of_scales, *notes],
        resources=[file],
        listed_names=metadata,
    )


def _header(file: File) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_JSON_BYTES:
        raise ValueError(f"its header claims {length} bytes, more than {MAX_JSON_BYTES}")
    if 8 + length > file.size:
        raise CheckpointError(
            f"its header claims {length} bytes and the file has {file.size}",
            where=file.path,
            remedy="it is truncated: copy or download it again",
        )
    try:
        return parse_object(bytes(file.read(8, length))), 8 + length
    except ValueError as error:
        raise ValueError(f"its header is damaged: {error}") from error


def _entry(file: File, name: str, entry: object, room: int) -> tuple[TensorSpec, int, int]:
    label = f"tensor {printable(name, 60)}"
    if not isinstance(entry, dict):
        raise ValueError(f"{label} has no description")
    code, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(code, str) or not (code in ELEMENT_NAMES or code in BITS_OF_UNREAD):
        raise CheckpointError(
            f"{label} has the unknown element type {printable(str(code), 40)}",
            where=file.path,
            remedy=f"known are {', '.join(ELEMENT_NAMES)}",
        )
    sizes, place = naturals(shape), naturals(offsets)
    if sizes is None:
        raise ValueError(f"{label} has no valid shape")
    if place is None or len(place) != 2:
        raise ValueError(f"{label} has no valid data_offsets")
    begin, end = place
    dtype = ELEMENT_NAMES.get(code, code)
    if not begin <= end <= room:
        raise CheckpointError(
            f"{label} lies at bytes {begin} to {end} of {room}",
            where=file.path,
            remedy="the file is truncated or corrupt: copy or download it again",
        )
    bits = BITS_OF_UNREAD.get(code) or (4 if dtype == FLOAT4 else 8 * element_bytes(dtype))
    needed, rest = divmod(element_count(sizes) * bits, 8)
    if rest or needed != end - begin:
        raise ValueError(
            f"{label} of {code} {printable(str(shape), 80)} needs {printable(str(needed), 40)} "
            f"bytes and has {end - begin}"
        )
    return TensorSpec(sizes, dtype, needed), begin, end


def _check_layout(ranges: list[tuple[int, int, str]], room: int) -> None:
    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            fault = "overlaps another tensor" if begin < position else "leaves a gap before it"
            raise ValueError(f"tensor {printable(name, 60)} {fault}")
        position = end
    if position != room:
        raise ValueError(f"its tensors end at byte {position} of {room}")
