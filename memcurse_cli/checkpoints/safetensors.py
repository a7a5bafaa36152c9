"""safetensors; and the index of Hugging Face's shards, which names the file of each tensor.

Eight bytes of header length, a JSON header, then the elements. The layout and the limits are those
of the format's own description (https://huggingface.co/docs/safetensors, "Format"): a header of at
most 100 MB that begins with ``{``, no duplicate keys, and tensors that fill the rest of the file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from memcurse_cli.checkpoints.registry import open_known
from memcurse_cli.checkpoints.rewrites import with_scales
from memcurse_cli.checkpoints.select import counted, select_flat
from memcurse_cli.checkpoints.store import (
    FLOAT4,
    Array,
    LazyTensor,
    TensorSpec,
    TensorStore,
    element_bytes,
)
from memcurse_cli.checkpoints.untrusted.names import (
    MAX_JSON_BYTES,
    MAX_NAME_LENGTH,
    about,
    parse_object,
    printable,
)
from memcurse_cli.checkpoints.untrusted.source import File, naturals
from memcurse_cli.errors import CheckpointError

ELEMENT_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": FLOAT4,
}  # fmt: skip
# Types that the format knows and no reader has; tensors of theirs are left out.
BITS_OF_UNREAD = {"F6_E2M3": 6, "F6_E3M2": 6}


def open_file(file: File) -> TensorStore:
    """Read and check the header."""
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_JSON_BYTES:
        raise ValueError(f"its header claims {length} bytes, more than {MAX_JSON_BYTES}")
    start = 8 + length
    if start > file.size:
        raise ValueError(f"its header claims {length} bytes and the file has {file.size}")
    with about("its header is damaged:"):
        header = parse_object(bytes(file.read(8, length)))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its __metadata__ is not an object of strings")
    tensors: dict[str, LazyTensor] = {}
    unread: list[str] = []
    ranges = []
    for name, entry in header.items():
        spec, begin, end = _entry(name, entry, file.size - start)
        ranges.append((begin, end, name))
        if spec.dtype in BITS_OF_UNREAD:
            unread.append(name)
        else:
            tensors[name] = LazyTensor.at(file, start + begin, spec)
    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            fault = "overlaps another tensor" if begin < position else "leaves a gap before it"
            raise ValueError(f"tensor {printable(name, 60)} {fault}")
        position = end
    if position != file.size - start:
        raise ValueError(f"its tensors end at byte {position} of {file.size - start}")
    scaled, of_scales = with_scales(tensors)
    selected, notes = select_flat(scaled)
    notes += counted(unread, "of 6-bit numbers", "left out")
    return TensorStore(
        file, selected, [*of_scales, *notes], metadata=metadata, listed_names=metadata
    )


def encode(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """The tensors as a file, the same bytes for the same tensors and metadata."""
    import safetensors.numpy

    contiguous = {name: np.ascontiguousarray(one) for name, one in tensors.items()}
    content = safetensors.numpy.save(contiguous, dict(metadata))
    end = 8 + int.from_bytes(content[:8], "little")
    # The library writes metadata in no fixed order.
    header = {**json.loads(content[8:end]), "__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data behind it stay aligned to 8 bytes
    return len(text).to_bytes(8, "little") + text + content[end:]


def _entry(name: str, entry: object, room: int) -> tuple[TensorSpec, int, int]:
    label = f"tensor {printable(name, 60)}"
    if not isinstance(entry, dict):
        raise ValueError(f"{label} has no description")
    code = entry.get("dtype")
    if not isinstance(code, str) or not (code in ELEMENT_NAMES or code in BITS_OF_UNREAD):
        raise ValueError(f"{label} has the unknown element type {printable(str(code), 40)}")
    shape = naturals(entry.get("shape"), f"{label} has no valid shape")
    begin, end = naturals(entry.get("data_offsets"), f"{label} has no valid data_offsets", 2)
    if not begin <= end <= room:
        raise ValueError(f"{label} lies at bytes {begin} to {end} of {room}")
    dtype = ELEMENT_NAMES.get(code, code)
    bits = BITS_OF_UNREAD.get(code) or (4 if dtype == FLOAT4 else 8 * element_bytes(dtype))
    spec = TensorSpec(shape, dtype, -(-math.prod(shape) * bits // 8))
    spec.require(end - begin, label)
    return spec, begin, end


MAX_SHARDS = 10_000
SHARD_FORMATS = ("safetensors", "PyTorch", "PyTorch legacy")


def sibling_shards(path: str) -> str:
    """What to do about a file whose name says that it is one of several shards; or nothing."""
    numbered = re.search(r"-\d+-of-0*(\d+)\.\w+$", path)
    if numbered is None or numbered[1] == "1":
        return ""
    return f"it is one of {numbered[1]} shards: give their directory"


def read_index(
    file: File, *, several: bool = False
) -> tuple[dict[str, Any], list[str], Mapping[str, list[str]]]:
    """The index, the names of its shards, and those that hold what each key stands for.

    ``several`` says whether a key may stand for what lies in several shards.
    """
    with about("the index is damaged:"):
        index = parse_object(file.whole(MAX_JSON_BYTES))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError("the index's weight_map is not an object that names shards")
    held = {
        key: names if several and isinstance(names, list) else [names]
        for key, names in weight_map.items()
    }
    if not all(isinstance(name, str) for names in held.values() for name in names):
        raise ValueError("the index's weight_map names something that is not a file")
    shards = sorted({name for names in held.values() for name in names})
    if len(shards) > MAX_SHARDS:
        raise ValueError(f"the index names more than {MAX_SHARDS} shards")
    return index, shards, held


def open_shards(file: File) -> TensorStore:
    """Read the index and the headers of its shards."""
    index, names, held = read_index(file)
    stores: dict[str, TensorStore] = {}
    with ExitStack() as shards:
        for name in names:
            stores[name] = shards.enter_context(_open_shard(file, name))
        tensors = _of_shards(held, stores)
        opened = shards.pop_all()
    said = index.get("metadata")
    listed = {key: name for store in stores.values() for key, name in store.listed_names.items()}
    if isinstance(said, dict):
        listed |= {name: holder for name, holder in said.items() if isinstance(holder, str)}
    first = stores[names[0]]
    notes = dict.fromkeys(note for store in stores.values() for note in store.notes)
    return TensorStore(
        file,
        tensors,
        [f"{len(names)} shards of {first.format}", *notes],
        size=file.size + sum(store.bytes for store in stores.values()),
        owned=[opened],
        metadata=first.metadata,
        listed_names=listed,
    )


def _open_shard(index: File, name: str) -> TensorStore:
    with ExitStack() as opened:
        shard = opened.enter_context(closing(index.directory().open(name)))
        store = open_known(shard, SHARD_FORMATS)
        if store is None:
            what = f"this shard is not a {' or '.join(SHARD_FORMATS)} file"
            raise CheckpointError(what, where=shard.path)
        opened.pop_all()  # the store owns it now
        return store


def _of_shards(
    held: Mapping[str, list[str]], stores: Mapping[str, TensorStore]
) -> dict[str, LazyTensor]:
    """The tensors of the index in its order."""
    tensors = {
        shown: stores[shard].entries[shown]
        for name, (shard, *_) in held.items()
        if (shown := printable(name, MAX_NAME_LENGTH)) in stores[shard].entries
    }
    # What a shard's own reader left out as training state is not missing.
    expected, _ = select_flat(held)
    missing = [name for name in expected if printable(name, MAX_NAME_LENGTH) not in tensors]
    if missing:
        tensor, shard = (printable(name, 60) for name in (missing[0], held[missing[0]][0]))
        raise ValueError(f"tensor {tensor} is not in {shard} (and {len(missing) - 1} more)")
    return tensors
