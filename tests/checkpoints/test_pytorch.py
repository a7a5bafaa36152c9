"""PyTorch's files: torch.save, pickles, agents, tar archives and DeepSpeed's folders."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import tarfile
import warnings
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from attacks.build import rewritten
from attacks.build import saved as torch_saved
from checkpoints import readers
from numpy.testing import assert_array_equal
from torch.ao.quantization import quantize_dynamic

import memcurse_cli
from memcurse_cli.checkpoints.open import open_checkpoint
from memcurse_cli.checkpoints.store import TensorStore
from memcurse_cli.checkpoints.torch.pickle_machine import begins_like_a_pickle
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import CheckpointError

ZIP_AND_LEGACY = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex128, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
)


def saved(content: Any, directory: Path, zipped: bool = True) -> TensorStore:
    path = directory / "checkpoint"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return open_checkpoint(path)


def weights() -> OrderedDict[str, torch.Tensor]:
    return OrderedDict({"rnn.weight_hh_l0": torch.eye(3), "rnn.bias_hh_l0": torch.ones(3)})


@ZIP_AND_LEGACY
def test_every_type_and_every_view_is_read_as_torch_reads_it(tmp_path: Path, zipped: bool) -> None:
    source = torch.linspace(0, 7, 12, dtype=torch.complex128).reshape(3, 4) * (1 + 2j)
    types = {str(t): (source if t.is_complex else source.real).clone().to(t) for t in TYPES}
    matrix = torch.randn(6, 8)
    complex_numbers = torch.randn(5, dtype=torch.complex64)
    tensors = types | {
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
    for name, tensor in types.items():
        assert f"torch.{store.tensors[name].dtype}" == name
        assert store.tensors[name].bytes == 12 * tensor.itemsize


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
    ("content", "prefixes"),
    [
        (weights(), [""]),
        ({"model": weights(), "epoch": 3, "loss": 0.5, "best": None, "name": "run"}, [""]),
        ({"my_network": weights()}, [""]),
        ({"state": {"model": weights(), "step": 7}}, [""]),
        ({"state_dict": weights(), "hyper_parameters": argparse.Namespace(lr=1e-3)}, [""]),
        ({"model": weights(), "args": {"path": Path("x"), "device": torch.device("cpu")}}, [""]),
        ({"model": weights(), "a": defaultdict(list, a=[1]), "b": [np.float64(1), [2]]}, [""]),
        ({"agents": {"a": weights(), "b": weights()}, "step": 1}, ["a.", "b."]),
    ],
    ids=range(8),
)
def test_the_key_of_the_only_model_is_dropped(
    tmp_path: Path, content: Any, prefixes: list[str]
) -> None:
    names = [f"{prefix}{name}" for prefix in prefixes for name in weights()]
    assert list(saved(content, tmp_path).tensors) == names


class Shaped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList([torch.nn.GRUCell(2, 3) for _ in range(2)])
        self.register_buffer("step", torch.ones(3))
        self.register_buffer("cache", torch.ones(3), persistent=False)
        self.not_registered = [torch.ones(4)]


@ZIP_AND_LEGACY
def test_a_pickled_module_has_the_names_of_its_state_dict(tmp_path: Path, zipped: bool) -> None:
    module = Shaped()
    store = saved({"network": module, "epoch": 1}, tmp_path, zipped)
    assert list(store.tensors) == list(module.state_dict())
    assert "Shaped is a pickled module" in store.notes[0]
    readers.same(store, module.state_dict())


@ZIP_AND_LEGACY
def test_only_the_bytes_of_what_is_read_are_touched(
    tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = readers.lengths_read(monkeypatch)
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


def test_a_tree_of_a_pickle_keeps_its_parameters(tmp_path: Path) -> None:
    tree = {
        "params": FlatMapping({"gru": FlatMapping({"b": np.arange(3.0)})}),
        "opt_state": {"mu": np.ones(3)},
        "names": np.array(["a", None], dtype=object),
        "loss": np.float32(3),
    }
    found = read_back(tmp_path / "haiku.pkl", pickle.dumps(tree))
    assert list(found) == ["params/gru/b"]
    np.testing.assert_array_equal(found["params/gru/b"], np.arange(3.0))


def test_a_storage_that_is_changed_on_disk_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path, content = tmp_path / "checkpoint", torch_saved(weights())
    path.write_bytes(content)
    with open_checkpoint(path) as store:
        path.write_bytes(content[:600])
        with pytest.raises(
            CheckpointError, match=r"checkpoint: rnn\.weight_hh_l0: the file changed"
        ):
            store.read("rnn.weight_hh_l0")


ARRAYS = {
    "weight_hh": np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32),
    "every_byte": np.arange(512, dtype=np.uint8),
    "newlines": np.full(300, 0x0A0A5C5C, dtype="<u4"),
    "fortran": np.asfortranarray(np.arange(140.0).reshape(20, 7)),
    "big_endian": np.arange(100, dtype=">f8"),
    "short": np.array([1.5, -2.5]),
    "complex": np.array([1 + 2j, 3]),
    "bool": np.array([True, False]),
}


class Python2(pickle._Pickler):
    """Writes bytes as Python 2 wrote its str: one instruction for names and for raw data."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_str(self, value: bytes | str) -> None:
        content = value.encode("latin-1") if isinstance(value, str) else value
        if not self.bin:
            self.write(b"S" + repr(content)[1:].encode("ascii") + b"\n")
        elif len(content) < 256:
            self.write(b"U" + bytes([len(content)]) + content)
        else:
            self.write(b"T" + len(content).to_bytes(4, "little") + content)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_str


class Cell:
    """An object of a class, whose attributes hold the weights."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.__dict__.update(arrays)


def instance(arrays: dict[str, Any], protocol: int) -> bytes:
    """An instance of a Python 2 class without `object`: INST in protocol 0, OBJ in those after."""
    made = b"(imodel\nCell\np9\n" if protocol == 0 else b"(cmodel\nCell\nq\x08oq\x09"
    content = pickle.dumps(arrays, protocol)
    return content[: 2 * (protocol > 1)] + made + content[2 * (protocol > 1) : -1] + b"b."


def python_2(arrays: dict[str, Any], protocol: int) -> bytes:
    buffer = io.BytesIO()
    Python2(buffer, protocol).dump(arrays)
    return buffer.getvalue()


def read_back(path: Path, content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    path.write_bytes(content)
    with open_checkpoint(path) as store:
        assert store.format == "pickle"
        return {name: store.read(name) for name in store.tensors}


FORMS = [
    *(
        (pickle.dumps, kind, protocol)
        for kind in (dict, OrderedDict, Cell)
        for protocol in range(6)
    ),
    *((dump, dict, protocol) for dump in (instance, python_2) for protocol in range(3)),
]


@pytest.mark.parametrize(("dump", "kind", "protocol"), FORMS)
def test_plain_pickles_of_every_protocol_are_read(
    tmp_path: Path, dump: Callable[[Any, int], bytes], kind: Callable[[Any], Any], protocol: int
) -> None:
    jnp = pytest.importorskip("jax.numpy")
    arrays = ARRAYS | {"torch": torch.randn(30, 30), "half": torch.ones(3, dtype=torch.bfloat16)}
    if dump is pickle.dumps:
        arrays |= {"jax": jnp.arange(50.0), "jax_half": jnp.ones((4, 5), jnp.bfloat16)}
    found = read_back(tmp_path / "a", dump(kind(arrays), protocol))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        expected = readers.double(array if isinstance(array, torch.Tensor) else np.asarray(array))
        np.testing.assert_array_equal(found[name], expected, strict=True)


@pytest.mark.parametrize("protocol", [0, 1])
def test_lines_across_every_border_of_a_chunk(tmp_path: Path, protocol: int) -> None:
    for length in range(65_400, 65_600, 17):
        tree = {"a": np.zeros(length, np.uint8) + 65, "b": np.arange(3.0)}
        found = read_back(tmp_path / "a", pickle.dumps(tree, protocol))
        assert found["a"].size == length
        np.testing.assert_array_equal(found["b"], [0, 1, 2])


def test_text_is_not_taken_for_a_pickle() -> None:
    texts = [
        "(lambda x: x)\n", "(see below)\np1\n", "cat\ndog\ncow\nelk\n" * 4, "}\n", "]\n", "N.",
        "I1\n", "1\n2\n3\n", "0.5 0.25\n", "{'a': 1}", "[[1, 2], [3, 4]]\n", "import numpy\n",
        "", ".", "(dp\n", "(i)\n(ii)\n", "((((((((((.", "Some words\nVery few\nFor a list\n" * 100,
    ]  # fmt: skip
    for text in texts:
        assert not begins_like_a_pickle(text.encode()), text


DATA = json.dumps({"policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": "gASV"}})


class Policy(torch.nn.Module):
    """The recurrent parts of sb3_contrib's RecurrentActorCriticPolicy."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm_actor = torch.nn.LSTM(3, 4)
        self.lstm_critic = torch.nn.LSTM(3, 4)
        self.action_net = torch.nn.Linear(4, 2)


def agent(path: Path, policy: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("data", DATA)
        archive.writestr("pytorch_variables.pth", torch_saved({}))
        with archive.open("policy.pth", "w", force_zip64=True) as member:
            member.write(policy)
        optimizer = torch_saved({"lstm_actor.weight_hh_l0": torch.ones(9)})
        archive.writestr("policy.optimizer.pth", optimizer)
        archive.writestr("_stable_baselines3_version", "2.3.2")
    return path


def nemo(path: Path, weights: bytes, mode: Any = "w") -> Path:
    """As NeMo's SaveRestoreConnector writes it: a folder's content under ``./``."""
    with tarfile.open(path, mode) as archive:
        for name, content in (
            ("./model_config.yaml", b"target: nemo.Model\n" * 40),
            ("./" + "tokenizer/" * 15 + "vocabulary.txt", b"a\nb\n"),  # a name of two headers
            ("./model_weights.ckpt", weights),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1700000000.5
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("build", "format"),
    [
        (agent, "Stable-Baselines3"),
        (partial(agent, compression=zipfile.ZIP_DEFLATED), "Stable-Baselines3"),
        (nemo, "NeMo"),
        (partial(nemo, mode="w:gz"), "NeMo"),
    ],
)
def test_the_weights_are_read_and_nothing_else(
    tmp_path: Path, build: Callable[[Path, bytes], Path], format: str, legacy: bool
) -> None:
    torch.manual_seed(0)
    policy = Policy().state_dict()
    path = build(tmp_path / "archive", torch_saved(policy, not legacy))
    with open_checkpoint(path) as store:
        assert store.format == format
        assert store.path == str(path)
        assert store.bytes == path.stat().st_size
        assert list(store.tensors) == list(policy)
        readers.same(store, policy)
    report = memcurse_cli.inspect(path)
    assert [layer.name for layer in report.layers] == ["lstm_actor.l0", "lstm_critic.l0"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("build", [agent, nemo])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (b"gASV", "is not a file of torch.save"),
        (torch_saved({"weight": torch.ones(50, 50)})[:-2000], ": a truncated or corrupt"),
    ],
)
def test_what_is_no_torch_file_is_refused(
    tmp_path: Path, build: Callable[[Path, bytes], Path], weights: bytes, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(build(tmp_path / "archive", weights))


WEIGHTS = "mp_rank_00_model_states.pt"


def states(module: Any, ranks: int = 1, **more: Any) -> dict[str, Any]:
    """The entries of one rank's file, as engine.py's _save_checkpoint writes them."""
    shapes = {name: torch.Size([4, 4]) for name in module or ()}
    ranks_of = {"dp_world_size": 2, "mp_world_size": ranks, "ds_version": "0.16.2"}
    return {"module": module, "optimizer": None, "param_shapes": [shapes], **ranks_of, **more}


def step(folder: Path, **more: Any) -> Path:
    folder.mkdir()
    module = torch.nn.GRU(3, 4).state_dict()
    frozen = {"weight_hh_l0": torch.zeros(48)}
    torch.save(states(module, frozen_param_fragments=frozen, **more), folder / WEIGHTS)
    optimizer = {"optimizer_state_dict": {"single_partition_of_fp32_groups": [torch.ones(9)]}}
    torch.save(optimizer, folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return folder


def test_the_weights_of_a_step_are_read_and_of_several_latest_names_one(tmp_path: Path) -> None:
    step(tmp_path / "global_step100")
    folder = step(tmp_path / "global_step200")
    (tmp_path / "zero_to_fp32.py").write_text("raise SystemExit")
    with pytest.raises(CheckpointError, match="2 checkpoints: global_step100/mp_rank_00_model_st"):
        open_checkpoint(tmp_path)
    (tmp_path / "latest").write_text("global_step200\n")
    saved = torch.load(folder / WEIGHTS)["module"]
    for path in (folder, folder / WEIGHTS, tmp_path):
        with open_checkpoint(path) as store:
            assert list(store.tensors) == list(saved)
            readers.same(store, saved)
            assert path == tmp_path or not store.notes


def test_parts_of_matrices_are_refused_or_noted(tmp_path: Path) -> None:
    folder = step(tmp_path / "global_step100", ranks=2)
    torch.save(states({}, 2), folder / "mp_rank_01_model_states.pt")
    with pytest.raises(CheckpointError, match=r"split over 2 ranks \(tensor parallel\); merge"):
        open_checkpoint(folder)
    with open_checkpoint(folder / WEIGHTS) as store:
        assert store.notes == ("one of 2 tensor-parallel parts: matrices may be slices",)


def test_zero_stage_3_and_a_pipeline_say_where_the_weights_are(tmp_path: Path) -> None:
    folder = tmp_path / "zero" / "global_step100"
    folder.mkdir(parents=True)
    path = folder / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    torch.save(states({"rnn.weight_hh_l0": torch.empty(0), "buffer": torch.ones(3)}), path)
    for place in (folder.parent, folder, path):
        with pytest.raises(CheckpointError, match=r"ZeRO stage 3.*; run the zero_to_fp32.py"):
            open_checkpoint(place)
    torch.save(states(None), tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="whose layers lie in files of their own"):
        open_checkpoint(tmp_path)
    layer = tmp_path / "layer_01-model_00-model_states.pt"
    torch.save(torch.nn.GRU(3, 4).state_dict(), layer)
    with pytest.raises(CheckpointError, match="name the one of a recurrent layer, such as layer_0"):
        open_checkpoint(tmp_path)
    with open_checkpoint(layer) as store:
        assert len(store.tensors) == 4


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def number(tensor: torch.Tensor) -> np.ndarray:
    """A tensor in double precision; torch dequantises in single."""
    if tensor.is_quantized:
        return np.asarray((tensor.int_repr().double() - tensor.q_zero_point()) * tensor.q_scale())
    return tensor.double().detach().numpy()


SAVE: dict[str, Callable[[torch.nn.Module, Path], object]] = {
    "state_dict": lambda module, path: torch.save(module.state_dict(), path),
    "module": torch.save,
    "script": lambda module, path: torch.jit.save(torch.jit.script(module), path),
}
LAYERS = {
    "lstm": partial(torch.nn.LSTM, 3, 4, 2, bidirectional=True),
    "gru": partial(torch.nn.GRU, 3, 4),
    "lstm cell": partial(torch.nn.LSTMCell, 3, 4),
    "gru cell": partial(torch.nn.GRUCell, 3, 4),
    "rnn cell": partial(torch.nn.RNNCell, 3, 4),
}


CASES = [
    *(("script", kind, torch.qint8) for kind in ("lstm", "gru")),
    *((how, kind, torch.qint8) for how in ("state_dict", "module") for kind in LAYERS),
    *((how, kind, torch.float16) for how in SAVE for kind in ("lstm", "gru")),
]


@pytest.mark.parametrize(("how", "kind", "dtype"), CASES)
def test_a_quantised_layer_has_the_names_and_numbers_of_before(
    tmp_path: Path, how: str, kind: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(OrderedDict(rnn=LAYERS[kind]()))
    module = quantize_dynamic(plain, {type(plain.rnn)}, dtype=dtype)
    SAVE[how](module, tmp_path / "model.pt")
    with open_checkpoint(tmp_path / "model.pt") as store:
        assert any("quantised" in note for note in store.notes) == (dtype == torch.qint8)
        for held in module.rnn._weight_bias().values():
            for name, tensor in held.items():
                assert_array_equal(store.read(f"rnn.{name}"), number(tensor), err_msg=name)
        for name, tensor in plain.state_dict().items():
            scale = 1e-2 if "weight" in name else 1e-6
            np.testing.assert_allclose(store.read(name), tensor.numpy(), atol=scale)
    found, before = (
        [(layer.name, layer.family) for layer in inspect(model, simulate=False).layers]
        for model in (tmp_path / "model.pt", plain.state_dict())
    )
    assert found == before


def test_rows_have_a_scale_each_and_another_way_is_refused_when_it_is_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    scales = torch.tensor([0.1, 0.2, 0.5], dtype=torch.double)
    zeros = torch.tensor([0, 3, -2])
    tensor = torch.quantize_per_channel(torch.randn(2, 3, 4), scales, zeros, 1, torch.qint8)
    content, path = torch_saved({"weight": tensor}), tmp_path / "rows.pt"
    path.write_bytes(content)
    with open_checkpoint(path) as store:
        expected = (tensor.int_repr().double() - zeros[:, None]) * scales[:, None]
        np.testing.assert_allclose(store.read("weight"), expected.numpy(), rtol=1e-15)
        assert store.tensors["weight"].dtype == "int8"
    assert content.count(b"per_channel_affine") == 1
    path.write_bytes(
        rewritten(content, lambda _, old: old.replace(b"channel_affine", b"channel_afline"))
    )
    with open_checkpoint(path) as store:
        assert store.tensors["weight"].shape == (2, 3, 4)
        with pytest.raises(CheckpointError, match="quantised in another way"):
            store.read("weight")
