"""Attack files in HDF5 and in Keras's archives."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
from attacks.build import Executes, attack


def _secret(directory: Path) -> Path:
    outside = directory.parent / f"{directory.name}-outside"
    outside.mkdir(exist_ok=True)
    with h5py.File(outside / "secret.h5", "w") as file:
        file["w"] = np.eye(3)
    return outside / "secret.h5"


def _edited(directory: Path, old: bytes, new: bytes) -> Path:
    """A small file with some bytes changed wherever they stand."""
    path = directory / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("layer/w", data=np.ones((7, 5)))
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    return path


@attack("link to another file")
def hdf5_external_link(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file["w"] = np.eye(3)
        file["stolen"] = h5py.ExternalLink(str(_secret(directory)), "/w")
    return directory / "a.h5"


@attack("opens")
def hdf5_soft_link_that_leads_nowhere(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file["w"] = np.eye(3)
        file["stolen"] = h5py.SoftLink("/../../etc/passwd")
    return directory / "a.h5"


@attack("view of other files")
def hdf5_virtual_dataset(directory: Path) -> Path:
    layout = h5py.VirtualLayout((3, 3), "f8")
    layout[:] = h5py.VirtualSource(str(_secret(directory)), "w", (3, 3))
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_virtual_dataset("stolen", layout)
    return directory / "a.h5"


@attack("elements in another file")
def hdf5_external_storage(directory: Path) -> Path:
    external = [(str(_secret(directory)), 0, 32)]
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("stolen", (4,), "f8", external=external)
    return directory / "a.h5"


@attack("claims")
def hdf5_dataset_of_10_to_the_15_elements(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("w", (10**15,), "f4", chunks=(10**6,), compression="gzip")
    return directory / "a.h5"


@attack("claims")
def hdf5_dataset_without_elements(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("w", (10**6, 10**6), "f4")
    return directory / "a.h5"


@attack("claims")
def hdf5_chunk_that_inflates_to_a_gibibyte(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        made = file.create_dataset("w", (2**27,), "f8", chunks=(2**27,), compression="gzip")
        made.id.write_direct_chunk((0,), b"\x78\x9c" + bytes(2**20))
    return directory / "a.h5"


@attack("which needs a plug-in")
def hdf5_filter_that_names_a_plug_in(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file.create_dataset("w", data=np.eye(8), compression="lzf")
    return directory / "a.h5"


@attack("opens")
def hdf5_group_within_itself(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file["g/w"] = np.eye(3)
        file["g/g"] = file["g"]
    return directory / "a.h5"


@attack("nested more than")
def hdf5_groups_1000_deep(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file["/".join("g" * 400)] = np.eye(3)
    return directory / "a.h5"


@attack("characters")
def hdf5_name_of_2000_characters(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        file["w" * 2000] = np.eye(3)
    return directory / "a.h5"


@attack("opens")
def hdf5_names_that_write_to_the_terminal(directory: Path) -> Path:
    with h5py.File(directory / "a.h5", "w") as file:
        variables = file.create_group("layers/lstm/vars")
        variables.attrs["name"] = "\x1b]0;owned\x07"
        variables["0\x1b[2J"] = np.eye(3)
        file.attrs["model_config"] = "\x1b[31m"
    return directory / "a.h5"


@attack("claims")
def hdf5_shape_that_is_negative(directory: Path) -> Path:
    return _edited(directory, struct.pack("<QQ", 7, 5), struct.pack("<qq", -7, -5))


@attack("back to itself")
def hdf5_list_of_names_within_itself(directory: Path) -> Path:
    path = _edited(directory, b"SNOD", b"SNOD")
    content = bytearray(path.read_bytes())
    tree = content.index(b"TREE")
    content[tree + 5] = 1  # its child is now a node of the tree: the node itself
    content[tree + 32 : tree + 40] = struct.pack("<Q", tree)
    path.write_bytes(content)
    return path


@attack("truncated")
def hdf5_half_written(directory: Path) -> Path:
    path = _edited(directory, b"SNOD", b"SNOD")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@attack("ends at byte")
def hdf5_header_alone(directory: Path) -> Path:
    (directory / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    return directory / "a.h5"


def _archive(directory: Path, weights: bytes, config: str = "{}") -> Path:
    with zipfile.ZipFile(directory / "a.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", weights)
    return directory / "a.keras"


@attack("opens")
def keras_configuration_that_names_code(directory: Path) -> Path:
    path = _edited(directory, b"SNOD", b"SNOD")
    command = f"touch {directory / 'executed'}"
    config = (
        '{"class_name": "Lambda", "module": "os", "config": {"function": '
        f'{{"class_name": "__lambda__", "config": "os.system({command!r})"}}}}}}'
    )
    return _archive(directory, path.read_bytes(), config)


@attack("opens")
def keras_pickle_beside_the_weights(directory: Path) -> Path:
    import pickle

    path = _archive(directory, _edited(directory, b"SNOD", b"SNOD").read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("assets/layer.pkl", pickle.dumps(Executes(directory)))
    return path


@attack("claims")
def keras_archive_that_inflates_to_half_a_gibibyte(directory: Path) -> Path:
    return _archive(directory, bytes(2**29))


@attack("HDF5")
def keras_archive_without_hdf5_in_it(directory: Path) -> Path:
    return _archive(directory, b"PK\x03\x04" * 100)
