"""PyTorch files: what training checkpoints hold, every type, and what is refused."""

from __future__ import annotations

import argparse
import io
import pickle
import warnings
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import readers

from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.untrusted.source import LocalFile
from memcurse_cli.errors import CheckpointError

ZIP_AND_LEGACY = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex128,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
)


def saved(content: Any, directory: Path, zipped: bool = True) -> TensorStore:
    path = directory / "checkpoint"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return open_checkpoint(path)


def weights() -> OrderedDict[str, torch.Tensor]:
    return OrderedDict({"rnn.weight_hh_l0": torch.eye(3), "rnn.bias_hh_l0": torch.ones(3)})


NAMES = ["rnn.weight_hh_l0", "rnn.bias_hh_l0"]


@ZIP_AND_LEGACY
def test_every_type_is_read_as_torch_reads_it(tmp_path: Path, zipped: bool) -> None:
    source = torch.linspace(0, 7, 12, dtype=torch.complex128).reshape(3, 4) * (1 + 2j)
    tensors = {str(t): (source if t.is_complex else source.real).clone().to(t) for t in TYPES}
    store = saved(tensors, tmp_path, zipped)
    for name, tensor in tensors.items():
        assert f"torch.{store.tensors[name].dtype}" == name
        assert store.tensors[name].bytes == 12 * tensor.itemsize
        np.testing.assert_array_equal(store.read(name), readers.double(tensor), strict=True)


@ZIP_AND_LEGACY
def test_every_view_is_read_as_torch_reads_it(tmp_path: Path, zipped: bool) -> None:
    matrix = torch.randn(6, 8)
    complex_numbers = torch.randn(5, dtype=torch.complex64)
    tensors = {
        "transposed": matrix.T,
        "slice": matrix[1:3, 2:7:2],
        "expanded": torch.randn(1, 4).expand(5, 4),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(matrix),
        "buffer": torch.nn.Buffer(matrix),
        "conjugate": complex_numbers.conj(),
        "negative": complex_numbers.clone().conj().imag,
        "of a larger storage": torch.arange(10**6, dtype=torch.float32)[999_990:],
    }
    store = saved(tensors, tmp_path, zipped)
    assert list(store.tensors) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(store.read(name), readers.double(tensor), strict=True)


@ZIP_AND_LEGACY
def test_a_tensor_that_is_no_plain_array_is_listed_and_refused(
    tmp_path: Path, zipped: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = {
            "sparse": torch.eye(3).to_sparse(),
            "compressed": torch.eye(3).to_sparse_csr(),
            "quantised": torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8),
            "meta": torch.empty(3, 3, device="meta"),
            "plain": torch.eye(3),
        }
    store = saved(tensors, tmp_path, zipped)
    for name in tensors:
        assert store.tensors[name].shape == (3, 3)
    np.testing.assert_array_equal(store.read("plain"), np.eye(3))
    np.testing.assert_allclose(store.read("quantised"), np.ones((3, 3)), rtol=1e-7)
    for name in ("sparse", "compressed", "meta"):
        with pytest.raises(CheckpointError, match=f"checkpoint: {name}: a .* tensor .*is not read"):
            store.read(name)
    assert store.bytes_read == 36 + 9


@pytest.mark.parametrize(
    "content",
    [
        weights(),
        {"model": weights(), "epoch": 3, "loss": 0.5, "best": None, "name": "run"},
        {"my_network": weights()},
        {"state": {"model": weights(), "step": 7}},
        {"state_dict": weights(), "hyper_parameters": argparse.Namespace(lr=1e-3)},
        {"model": weights(), "score": np.float64(0.5)},
        {"model": weights(), "args": {"path": Path("x"), "device": torch.device("cpu")}},
        {"model": weights(), "metrics": defaultdict(list, a=[1, 2]), "lists": [1, [2, (3,)]]},
        {"module": weights(), "optimizer": None, "ds_config": {"zero": 1}},
    ],
    ids=range(9),
)
def test_the_key_of_the_only_model_is_dropped(tmp_path: Path, content: Any) -> None:
    assert list(saved(content, tmp_path).tensors) == NAMES


def test_an_array_beside_the_model_keeps_its_own_name(tmp_path: Path) -> None:
    content = {"model": weights(), "losses": np.ones(9), "rng_state": torch.get_rng_state()}
    assert list(saved(content, tmp_path).tensors) == [*NAMES, "losses", "rng_state"]


def test_several_models_keep_their_keys(tmp_path: Path) -> None:
    content = {"agents": {"actor": weights(), "critic": weights()}, "step": 1}
    expected = [f"{agent}.{name}" for agent in ("actor", "critic") for name in NAMES]
    assert list(saved(content, tmp_path).tensors) == expected


@pytest.mark.parametrize("key", ["optimizer", "opt", "optim_g", "trainer"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_the_state_of_an_optimiser_is_left_out(tmp_path: Path, key: str, kind: Any) -> None:
    module = torch.nn.GRU(3, 3)
    optimizer = kind(module.parameters())
    module(torch.ones(1, 3))[0].sum().backward()
    optimizer.step()
    content = {"model": module.state_dict(), key: optimizer.state_dict()}
    store = saved(content, tmp_path)
    assert list(store.tensors) == list(module.state_dict())
    assert any("optimiser state" in note and "left out" in note for note in store.notes)


def test_an_averaged_copy_is_left_out_only_where_it_is_a_copy(tmp_path: Path) -> None:
    copied = saved({"model": weights(), "ema": weights()}, tmp_path)
    assert list(copied.tensors) == NAMES
    assert any("EMA" in note and "left out" in note for note in copied.notes)
    alone = saved({"ema": weights(), "epoch": 1}, tmp_path)
    assert list(alone.tensors) == NAMES
    assert any("EMA" in note and "read" in note for note in alone.notes)
    # Mega's recurrent layer is called ema, and is no copy.
    layer = {"ema.damping_factor": torch.ones(2), "ema.decay_factor": torch.ones(2)}
    mega = saved(weights() | layer, tmp_path)
    assert list(mega.tensors) == [*NAMES, *layer]


class _Shaped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(2, 3) for _ in range(2)])
        self.register_buffer("step", torch.ones(3))
        self.register_buffer("cache", torch.ones(3), persistent=False)
        self.not_registered = [torch.ones(4)]


@ZIP_AND_LEGACY
def test_a_pickled_module_has_the_names_of_its_state_dict(tmp_path: Path, zipped: bool) -> None:
    module = _Shaped()
    for content in (module, {"network": module, "epoch": 1}):
        store = saved(content, tmp_path, zipped)
        assert list(store.tensors) == list(module.state_dict())
        assert "_Shaped is a pickled module" in store.notes[0]
        for name, tensor in module.state_dict().items():
            np.testing.assert_array_equal(store.read(name), readers.double(tensor))


def test_torchscript_has_the_names_of_its_state_dict(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GRU(3, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(module)
        torch.jit.save(script, tmp_path / "a.pt")
    with open_checkpoint(tmp_path / "a.pt") as store:
        assert set(store.tensors) == set(module.state_dict())
        for name, tensor in module.state_dict().items():
            np.testing.assert_array_equal(store.read(name), readers.double(tensor))


@ZIP_AND_LEGACY
def test_only_the_bytes_of_what_is_read_are_touched(
    tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    read = LocalFile.read

    def counted(file: LocalFile, offset: int, length: int) -> bytearray:
        touched.append(length)
        return read(file, offset, length)

    monkeypatch.setattr(LocalFile, "read", counted)
    large = torch.zeros(3000, 1000)
    with saved(
        {"large": large, "rows": large[7:9], "small": torch.ones(10, 10)}, tmp_path, zipped
    ) as store:
        assert store.bytes > large.nbytes
        assert store.bytes_read == 0
        store.read("small")
        store.read("rows")
        assert store.bytes_read == 400 + 8000
    # The headers are read in pieces of up to 1 MiB.
    assert sum(touched) < 3_000_000 < large.nbytes


class FlatMapping:
    """As Haiku's: it is made from one dictionary, and has no state that is pickled."""

    def __init__(self, mapping: dict[str, Any]) -> None:
        self.mapping = mapping

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return FlatMapping, (self.mapping,)


def test_an_object_that_is_made_from_one_dictionary_is_that_dictionary(tmp_path: Path) -> None:
    tree = {"params": FlatMapping({"gru": FlatMapping({"b": np.arange(3.0)})}), "step": 1}
    (tmp_path / "haiku.pkl").write_bytes(pickle.dumps(tree))
    with open_checkpoint(tmp_path / "haiku.pkl") as store:
        assert list(store.tensors) == ["params/gru/b"]
        np.testing.assert_array_equal(store.read("params/gru/b"), np.arange(3.0))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_of_every_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    jax_numpy = pytest.importorskip("jax.numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    cell = {
        "kernel": np.linspace(0, 1, 200).reshape(40, 5),
        "big_endian": np.arange(3, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(600.0).reshape(20, 30)),
        "bfloat16": np.full(100, 1.5, ml_dtypes.bfloat16),
        "jax": jax_numpy.arange(50.0),
        "jax_bfloat16": jax_numpy.full((4, 5), 3, jax_numpy.bfloat16),
        "complex": np.array([1 + 2j, 3]),
        "bool": np.array([True, False]),
    }
    tree = {
        "params": {"lstm": cell},
        "opt_state": {"mu": np.ones(3)},
        "step": 3,
        "names": np.array(["a", None], dtype=object),
        "loss": np.float32(3),
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(tree, protocol=protocol))
    with open_checkpoint(tmp_path / "a.pkl") as store:
        assert list(store.tensors) == [f"params/lstm/{name}" for name in cell]
        for name, array in cell.items():
            array = np.asarray(array)
            spec = store.tensors[f"params/lstm/{name}"]
            assert (spec.shape, spec.dtype, spec.bytes) == (
                array.shape,
                array.dtype.name,
                array.nbytes,
            )
            np.testing.assert_array_equal(
                store.read(f"params/lstm/{name}"), readers.double(array), strict=True
            )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_of_torch_tensors_are_read(tmp_path: Path, protocol: int) -> None:
    state = weights() | {"large": torch.randn(40, 50), "half": torch.ones(3, dtype=torch.bfloat16)}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": state}, protocol=protocol))
    with open_checkpoint(tmp_path / "a.pkl") as store:
        assert list(store.tensors) == list(state)
        for name, tensor in state.items():
            np.testing.assert_array_equal(store.read(name), readers.double(tensor), strict=True)


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    # What Python 2 wrote for {'w': numpy.arange(4, dtype='<f4')}, in protocol 2.
    array = np.arange(4, dtype="<f4").tobytes()
    content = (
        b"\x80\x02}q\x00U\x01wq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\n"
        b"q\x03K\x00\x85U\x01bq\x04\x87Rq\x05(K\x01K\x04\x85cnumpy\ndtype\nq\x06U\x02f4K\x00K\x01"
        b"\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x10" + array + b"tbs."
    )
    (tmp_path / "a.pkl").write_bytes(content)
    with open_checkpoint(tmp_path / "a.pkl") as store:
        np.testing.assert_array_equal(store.read("w"), [0, 1, 2, 3])


def test_a_storage_that_is_changed_on_disk_is_refused_when_it_is_read(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(weights(), buffer)
    path = tmp_path / "checkpoint"
    path.write_bytes(buffer.getvalue())
    with open_checkpoint(path) as store:
        path.write_bytes(buffer.getvalue()[:600])
        with pytest.raises(CheckpointError, match=r"checkpoint: rnn\.weight_hh_l0: the file ends"):
            store.read("rnn.weight_hh_l0")
