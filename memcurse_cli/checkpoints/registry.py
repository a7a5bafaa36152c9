"""The formats that are read, in the order in which they are asked.

A format is told by data: its first or last bytes, the names in its archive, a text that its JSON
holds. Only the reader of the format that fits is imported. A new format is one file with
``open_file(file)`` and one entry here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.names import MAX_JSON_BYTES, printable
from memcurse_cli.checkpoints.untrusted.source import File
from memcurse_cli.errors import COPY, CheckpointError

if TYPE_CHECKING:
    from memcurse_cli.checkpoints.untrusted.archive import Archive

HEAD_BYTES = 4096
INDEX = "download the index and its shards again"


class Format(Struct, frozen=True):
    """One format."""

    name: str  # what reports and `memcurse formats` call it
    # the module of `memcurse_cli.checkpoints` and its function that reads the headers, of the file
    # and, where ``member`` is given, of the archive; the store that it returns owns the file
    reader: str
    recognised_by: str  # what in the content tells the format, in words
    # the usual ones; they choose among a directory's files, never how one is read
    extensions: tuple[str, ...] = ()
    begins: bytes = b""  # a pattern of the first bytes
    ends: bytes = b""  # the last bytes
    member: str = ""  # a pattern of the name of one of the members of a zip archive
    # what stands in the file as a whole, where that is of the size of an index
    holds: tuple[bytes, ...] = ()
    # whether the reader's own ``recognises(head, file)`` decides where all of these fit
    asks: bool = False
    fault: str = ""  # the first part of the sentence on a file that cannot be read
    remedy: str = COPY  # what to do about it

    def recognises(self, head: bytes, file: File, archive: Archive | None) -> bool:
        """Whether the file has this format, judged by its first bytes and, if need be, more."""
        if not re.match(self.begins, head, re.DOTALL):
            return False
        if self.member:
            return any(re.fullmatch(self.member, name) for name in archive or ())
        if self.ends:
            size = len(self.ends)
            return file.size >= size and file.read(file.size - size, size) == self.ends
        if self.holds:
            content = file.first(MAX_JSON_BYTES)
            return all(text in content for text in self.holds)
        return not self.asks or bool(self._function("recognises")(head, file))

    def open(self, file: File, archive: Archive | None) -> TensorStore:
        """Read the headers; the store owns the file from then on."""
        try:
            read = self._function(self.reader.partition(":")[2])
            store: TensorStore = read(file, archive) if self.member else read(file)
        except ValueError as error:
            what = f"{self.fault}{': ' if self.fault else ''}{printable(str(error), 500)}"
            raise CheckpointError(what, remedy=self.remedy) from error
        store.format = self.name
        return store

    def _function(self, name: str) -> Any:
        module = import_module(f"memcurse_cli.checkpoints.{self.reader.partition(':')[0]}")
        return getattr(module, name)


FORMATS: tuple[Format, ...] = (
    Format(
        "safetensors",
        "safetensors:open_file",
        "eight bytes of header length, then a JSON object that describes the tensors",
        (".safetensors",),
        begins=rb"(?![ -~]{8}).{8}\{",  # eight letters are not taken for a length
        fault="a corrupt safetensors file",
    ),
    Format(
        "PyTorch",
        "torch.files:open_zip",
        "a zip archive with a data.pkl beside its storages; TorchScript too",
        (".pt", ".pth", ".bin", ".ckpt", ".tar", ".jit"),
        member=r".*/data\.pkl",
        fault="this PyTorch file cannot be read",
        remedy=f"{COPY}, or export its weights with `torch.save(model.state_dict(), 'weights.pt')`",
    ),
    Format(
        "PyTorch legacy",
        "torch.files:open_legacy",
        "a pickle of PyTorch's magic number, then the pickles and the storages",
        (".pt", ".pth", ".bin", ".ckpt", ".tar"),
        # The integer 0x1950a86a20f9469cfc6c (torch/serialization.py, MAGIC_NUMBER).
        begins=rb"\x80.\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e",
        fault="this legacy PyTorch file cannot be read",
        remedy=f"{COPY}, or save it anew with `torch.save`",
    ),
    Format(
        "Stable-Baselines3",
        "torch.files:open_policy",
        "a zip archive with a policy.pth",
        # Any archive ends in .zip: one in a folder of weights is not among the candidates.
        member=r"policy\.pth",
    ),
    Format(
        "NeMo",
        "torch.files:open_nemo",
        "a tar archive, compressed by gzip or not; it must hold a model_weights.ckpt",
        (".nemo",),
        begins=rb"\x1f\x8b|.{257}ustar",
        fault="this tar archive cannot be read",
        remedy=f"{COPY}, or unpack it and name the file of weights",
    ),
    Format(
        "PyTorch distributed",
        "torch.files:open_distributed",
        "a directory with .metadata, a pickle of torch.distributed.checkpoint",
        begins=rb"\x80.{0,25}torch\.distributed\.checkpoint\.metadata",
        fault="this distributed checkpoint cannot be read",
        remedy="copy the whole folder again",
    ),
    Format(
        "GGUF",
        "gguf:open_file",
        "its first four letters, GGUF",
        (".gguf",),
        begins=b"GGUF",
        fault="this GGUF file cannot be read",
        remedy=f"{COPY}, or convert it to F32 or Q8_0",
    ),
    Format(
        "pickle",
        "torch.files:open_pickle",
        "a pickle's protocol mark (2 to 5) or its first instructions (0 and 1); run as data, "
        "never as code",
        (".pkl", ".pickle", ".pdparams"),
        # The mark, or any instruction of protocols 0 and 1 that puts something on the stack.
        begins=rb"\x80[\x02-\x05]|[(\])}IJKLMNFGSTUVXc]",
        asks=True,
        fault="this pickle cannot be read",
        remedy="save the weights as safetensors or .npz",
    ),
    Format(
        "NumPy .npz",
        "npy:open_archive",
        "a zip archive whose members are .npy arrays",
        (".npz",),
        member=r".*\.npy",
    ),
    Format(
        "Keras archive",
        "hdf5.keras:open_archive",
        "a zip archive with a model.weights.h5 beside its config.json",
        (".keras",),
        member=r"model\.weights\.h5",
        fault="this HDF5 file cannot be read",
        remedy=f"{COPY}, or save the weights with Keras once more",
    ),
    Format(
        "Keras HDF5",
        "hdf5.keras:open_file",
        "the signature of HDF5",
        (".h5", ".hdf5"),
        begins=rb"\x89HDF\r\n\x1a\n",
        fault="this HDF5 file cannot be read",
        remedy=f"{COPY}, or save the weights with Keras once more",
    ),
    Format(
        "ONNX",
        "onnx.model:open_file",
        "a protocol buffer that begins with an IR version and has a graph",
        (".onnx",),
        begins=rb"\x08",
        asks=True,
        fault="this ONNX file cannot be read",
        remedy=f"{COPY}, with the files of its external data beside it",
    ),
    Format(
        "Flax msgpack",
        "jax.flax:open_file",
        "a msgpack map whose first key is text",
        (".msgpack",),
        begins=rb"[\x81-\x8f\xde\xdf]",
        asks=True,
        fault="a corrupt Flax msgpack file",
    ),
    Format(
        "Orbax",
        "jax.orbax:open_file",
        "a directory with _METADATA (or _CHECKPOINT_METADATA, or manifest.ocdbt)",
        begins=rb'\x0c\xdb\x3a\x2a|\s*\{.*"(?:tree_metadata|item_handlers)"',
        fault="a corrupt Orbax checkpoint",
    ),
    Format(
        "Keras shards",
        "hdf5.keras:open_shards",
        "a JSON index whose weight_map names .weights.h5 files",
        (".weights.json",),
        begins=rb"\s*\{",
        holds=(b'"weight_map"', b'.weights.h5"'),
        remedy=INDEX,
    ),
    Format(
        "TensorFlow checkpoint",
        "tensorflow:open_file",
        "the end of a sorted table whose first entry is a bundle's header",
        (".index",),
        ends=0xDB4775248B80FB57.to_bytes(8, "little"),
        fault="a corrupt TensorFlow checkpoint",
    ),
    Format(
        "Hugging Face shards",
        "safetensors:open_shards",
        "a JSON index whose weight_map names the shard of each tensor",
        (".index.json",),
        begins=rb"\s*\{",
        holds=(b'"weight_map"',),
        remedy=INDEX,
    ),
    Format(
        "Equinox leaves",
        "npy:open_leaves",
        "several .npy arrays one after another, a line of JSON before them or not",
        (".eqx",),
        begins=rb"\x93NUMPY|\{",
        asks=True,
        fault="corrupt Equinox leaves",
    ),
    # After Equinox's, of which its first array alone would be NumPy's. A directory of arrays is one
    # checkpoint, so that the suffix does not choose one of them.
    Format(
        "NumPy .npy",
        "npy:open_file",
        "a .npy header; a directory of such files is read as one checkpoint",
        begins=rb"\x93NUMPY",
    ),
)


EXTENSIONS = tuple(sorted({extension for format in FORMATS for extension in format.extensions}))


def open_known(file: File, names: Collection[str] = ()) -> TensorStore | None:
    """The store, which owns the file, in the first format (of ``names``) that fits, or None."""
    head = file.first(HEAD_BYTES)
    archive = None
    try:
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):  # a zip archive, or an empty one
            from memcurse_cli.checkpoints.untrusted.archive import Archive

            archive = Archive(file)
        for format in FORMATS:
            if (not names or format.name in names) and format.recognises(head, file, archive):
                return format.open(file, archive)
    except CheckpointError as error:
        error.where = error.where or file.path
        raise
    return None
