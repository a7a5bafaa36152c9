"""NeMo's archives: a tar, compressed by gzip or not, with the weights among a model's files.

``model_weights.ckpt`` is a state dict as torch.save writes it; ``model_config.yaml`` and whatever a
tokenizer needs lie beside it, and are not opened (nemo/core/connectors/save_restore_connector.py).
Nothing is extracted: the weights are read where they lie in the tar, which is inflated in memory
where it is compressed.
"""

from __future__ import annotations

import tarfile

from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.registry import open_known
from memcurse_cli.checkpoints.untrusted.archive import Stream
from memcurse_cli.checkpoints.untrusted.compression import LARGE_BLOCK, inflate
from memcurse_cli.checkpoints.untrusted.ranges import ByteRange, Bytes, InlineBytes
from memcurse_cli.checkpoints.untrusted.source import File, Part
from memcurse_cli.errors import CheckpointError

WEIGHTS = "model_weights.ckpt"
MAX_MEMBERS = 10_000
# Trained weights reach 10 to 1; what a small archive may be inflated to is bounded by itself.
MAX_RATIO = 10
GZIP_MAGIC = b"\x1f\x8b"


def open_file(file: File) -> LazyStore:
    """Find the weights in the tar, and read them as the PyTorch file that they are."""
    content: Bytes = file
    if bytes(file.read(0, 2)) == GZIP_MAGIC:
        limit = max(LARGE_BLOCK, MAX_RATIO * file.size)
        content = InlineBytes(inflate(bytes(file.read(0, file.size)), limit))
    weights = _weights(content)
    return open_inside(file, WEIGHTS, weights, "save the model again with model.save_to()")


def open_inside(file: File, name: str, content: Bytes, remedy: str) -> LazyStore:
    """The store of a file of torch.save that lies in an archive.

    Args:
        file: the archive.
        name: what the file in it is called.
        content: its bytes.
        remedy: what to do where it is none.

    Raises:
        CheckpointError: it is no file of torch.save, damaged or hostile.
    """
    inside = Part(content, file, f"{file.path}: {name}")
    store = open_known(inside, ("PyTorch", "PyTorch legacy"))
    if store is None:
        raise CheckpointError(
            f"its member {name} is not a file of torch.save", where=file.path, remedy=remedy
        )
    store.bytes, store.path = file.size, file.path
    return store


def _weights(content: Bytes) -> ByteRange:
    try:
        with tarfile.TarFile(fileobj=Stream(content)) as archive:
            for count, member in enumerate(archive):
                if count >= MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS} members")
                if member.name.removeprefix("./") != WEIGHTS:
                    continue
                if not member.isreg() or member.sparse is not None:
                    raise ValueError(f"its {WEIGHTS} is a link or of another kind than a file")
                if member.offset_data + member.size > content.size:
                    raise ValueError(f"its {WEIGHTS} claims {member.size} bytes, beyond its end")
                return ByteRange(content, member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError, OverflowError) as error:
        raise ValueError("it is truncated or corrupt") from error
    raise ValueError(f"it holds no {WEIGHTS}")
