"""Keras's files: HDF5 weights and models of every version, and .keras archives.

A model's configuration names classes that Keras would import and build. Here it stays text: it is
handed on as metadata, for whoever needs to know a layer's activations.
"""

from __future__ import annotations

from memcurse_cli.checkpoints.archive import Archive, first_member, member_names
from memcurse_cli.checkpoints.hdf5 import HDF5_MAGIC, Hdf5File
from memcurse_cli.checkpoints.json_header import parse_object
from memcurse_cli.checkpoints.keras_names import name_keras
from memcurse_cli.checkpoints.lazy import LazyStore
from memcurse_cli.checkpoints.source import Directory, File
from memcurse_cli.errors import CheckpointError

CONFIG = "model_config"
VERSION = "keras_version"
MAX_CONFIG_BYTES = 100_000_000


class KerasHdf5:
    """One HDF5 file: ``.weights.h5``, a whole model, or weights by layer name."""

    name = "Keras HDF5"
    extensions = (".h5", ".hdf5")
    recognised_by = "the signature of HDF5"

    def recognises(self, head: bytes, file: File) -> bool:
        """The eight bytes with which every HDF5 file begins."""
        return head.startswith(HDF5_MAGIC)

    def open(self, file: File) -> LazyStore:
        """Read every group and the header of every dataset."""
        return open_hdf5(file, self.name, file.size)


class KerasArchive:
    """One ``.keras`` archive."""

    name = "Keras archive"
    extensions = (".keras",)
    recognised_by = "a zip archive with a model.weights.h5 beside its config.json"
    weights = "model.weights.h5"

    def recognises(self, head: bytes, file: File) -> bool:
        """An archive with the member that holds the weights."""
        return first_member(head) == self.weights or self.weights in member_names(head, file)

    def open(self, file: File) -> LazyStore:
        """Read the archive's directory, its configuration as text, and the weights' headers."""
        archive = Archive(file)
        metadata = {}
        if "config.json" in archive:
            metadata[CONFIG] = _text(archive, "config.json")
        if "metadata.json" in archive:
            metadata[VERSION] = _version(_text(archive, "metadata.json"))
        if self.weights not in archive:  # a first member that the directory does not list
            raise CheckpointError(
                f"a corrupt zip archive: its directory lists no {self.weights}",
                where=file.path,
                remedy="copy or download it again",
            )
        return open_hdf5(_Member(file, archive, self.weights), self.name, file.size, metadata)


def open_hdf5(
    file: File, format: str, size: int, metadata: dict[str, str] | None = None
) -> LazyStore:
    """The store of an HDF5 file.

    Args:
        file: the file, or a member of an archive.
        format: the format's name.
        size: the bytes of the checkpoint, archive included.
        metadata: what is known of the model from elsewhere.

    Raises:
        CheckpointError: the file is damaged or hostile.
    """
    content = Hdf5File(file)
    try:
        tensors, notes = name_keras(content.datasets, content.groups)
    except ValueError as error:
        raise CheckpointError(
            f"this HDF5 file cannot be read: {error}",
            where=file.path,
            remedy="the file is corrupt or hostile: use another copy",
        ) from error
    found = {key: content.attribute(key) for key in (CONFIG, VERSION)}
    if not found[VERSION]:  # beside the weights in the files that Keras 3 writes for Keras 2
        found[VERSION] = content.attribute(VERSION, ("model_weights",))
    return LazyStore(
        path=file.path,
        format=format,
        bytes=size,
        tensors=tensors,
        metadata={key: value for key, value in found.items() if value} | (metadata or {}),
        notes=[*content.notes, *notes],
        resources=[file],
        contents=content,
    )


class _Member:
    """A member of an archive as a file; a compressed one is inflated once."""

    def __init__(self, file: File, archive: Archive, name: str) -> None:
        self._file, self._archive, self._name = file, archive, name
        self.path, self.size = file.path, archive.size(name)
        self._content = bytes(archive.read(name)) if archive.compressed(name) else None

    def read(self, offset: int, length: int) -> bytes | bytearray:
        if self._content is None:
            return self._archive.read(self._name, offset, length)
        if offset + length > self.size:
            raise CheckpointError(
                f"its {KerasArchive.weights} ends at byte {self.size}, before the {length} bytes "
                f"from byte {offset}",
                where=self.path,
                remedy="copy or download it again",
            )
        return self._content[offset : offset + length]

    def directory(self) -> Directory:
        return self._file.directory()

    def close(self) -> None:
        self._file.close()


def _text(archive: Archive, name: str) -> str:
    if archive.size(name) > MAX_CONFIG_BYTES:
        return ""
    return bytes(archive.read(name)).decode("utf-8", "replace")


def _version(text: str) -> str:
    try:
        version = parse_object(text.encode()).get(VERSION, "")
    except ValueError:
        return ""
    return version if isinstance(version, str) else ""
