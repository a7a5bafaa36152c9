"""What holds for every family: bad values and shapes, and what stands unread beside a layer."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import shared
from families.examples import EXAMPLES
from numpy.typing import NDArray

from memcurse_cli.checkpoints.open import MemoryStore, open_checkpoint
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.diagnosis.inspection import inspect
from memcurse_cli.errors import CheckpointError, MemcurseError, NoRecurrenceError, TensorError
from memcurse_cli.families.detect import detect, read_layer
from memcurse_cli.families.family import ReadOptions
from memcurse_cli.families.recurrence import Recurrence
from memcurse_cli.families.registry import all_families, families_marked
from memcurse_cli.reports.console import text_for
from memcurse_cli.reports.html.report import to_html
from memcurse_cli.reports.terminal.report import render
from memcurse_cli.schema.json_codec import to_text

ROOT = Path(__file__).parents[2]
CORPORA = (shared.SHARED_DATA / "zoo", shared.SHARED_DATA / "trained", ROOT / "sample_checkpoints")
# They match only where nothing else stands in their module.
STRICT = {"retnet", "qrnn"}
# They are never guessed.
BY_NAME = {"linear_system"}


def assert_marked(tensors: Mapping[str, TensorSpec]) -> None:
    """No family is in a file whose names do not have its marks in the registry."""
    assert set(EXAMPLES) == {family.name for family in all_families()}
    found = {family.name for family in all_families() if family.find(tensors)}
    assert found - BY_NAME <= {family.name for family in families_marked(tensors)}


def small(family: str) -> dict[str, NDArray[np.float64]]:
    """A small layer of a family: decays and logarithms are negative, square matrices are 1."""
    return {
        name: np.eye(*shape) if len(shape) == 2 and shape[0] == shape[1] else np.full(shape, -0.3)
        for name, shape in EXAMPLES[family].items()
    }


def notes(
    arrays: dict[str, NDArray[np.float64]], named: str | None = None
) -> list[tuple[str, list[str]]]:
    """The family of every layer, and what is said of its neighbours."""
    store = MemoryStore(arrays)
    found = []
    for family, match in detect(store.tensors, named):
        said = read_layer(family, store, match, ReadOptions()).assumptions
        found.append((family.name, [each for each in said if "what is beside it" in each]))
    return found


@pytest.mark.parametrize("family", EXAMPLES)
@pytest.mark.parametrize("neighbour", ["made_up", "made_up.weight"])
def test_every_family_names_a_neighbour(family: str, neighbour: str) -> None:
    arrays = small(family)
    named = family if family in BY_NAME else None
    assert_marked(MemoryStore(arrays).tensors)
    layers = notes(arrays, named)
    assert layers
    assert set(map(str, layers)) == {str((family, []))}
    layer = detect(MemoryStore(arrays).tensors, named)[0][1].layer
    joint = next((j for j in "./," if any(name.startswith(layer + j) for name in arrays)), "")
    arrays[f"{layer}{joint}{neighbour}" if joint else neighbour] = np.ones(3)
    if family in STRICT:
        with pytest.raises(NoRecurrenceError):
            notes(arrays)
        return
    said = f"λ is taken without what is beside it: {neighbour}, which this family does not read"
    assert notes(arrays, named) == [(family, [said])] * len(layers)


@pytest.mark.parametrize("corpus", CORPORA, ids=lambda path: path.name)
def test_nothing_is_unexplained_in_real_checkpoints(corpus: Path) -> None:
    if not corpus.is_dir():
        pytest.skip(shared.REASON)
    layers = 0
    for path in sorted(corpus.rglob("*")):
        try:
            with open_checkpoint(path) as store:
                assert_marked(store.tensors)
                found = detect(store.tensors, path=store.path, aliases=store.aliases)
        except (CheckpointError, NoRecurrenceError):
            continue
        layers += len(found)
        assert {name for _, match in found for name in match.beside} == set(), path
    assert layers > 3


REFUSED = [
    ("gated_delta_net", "a_proj.bias"),
    ("kda", "f_proj.1.bias"),
    ("gla", "gk_proj.0.bias"),
    ("hgrn", "f_proj.bias"),
    ("mamba", "mixer.x_proj.bias"),
    ("mamba3", "mixer.in_proj.bias"),
    ("keras_lstm", "lstm/recurrent_norm/beta"),
    ("keras_lstm", "lstm/forget_gate_peephole_weights"),
    ("keras_gru", "gru/recurrent_norm/gamma"),
    ("keras_simple_rnn", "rnn/layernorm/gamma"),
    ("leaky_rnn", "log_tau"),
    ("low_rank_rnn", "taus"),
    ("tf_rnn", "rnn/basic_rnn_cell/leak_rate"),
    ("tf_lstm", "rnn/lstm_cell/gx"),
    ("dense_linear", "Delta"),
    ("block_diagonal", "tau"),
    ("complex_diagonal", "log_delta"),
]


@pytest.mark.parametrize(("family", "neighbour"), REFUSED)
def test_what_changes_the_eigenvalues_is_refused(family: str, neighbour: str) -> None:
    arrays = small(family) | {neighbour: np.ones(3)}
    with pytest.raises(TensorError, match=rf"^{neighbour}: .*{family} does not read it; remove"):
        notes(arrays)


def beside(*names: str, **arrays: NDArray[np.float64]) -> list[dict[str, str]]:
    """What stands beside each layer of these tensors."""
    tensors = MemoryStore({name: np.ones((3, 3)) for name in names} | arrays).tensors
    return [dict(match.beside) for _, match in detect(tensors)]


def test_a_tensor_stands_beside_the_innermost_layer() -> None:
    names = ("a.weight_hh", "a.b.weight_hh", "a.b.x", "a.c.x", "c.x", "x")
    assert beside(*names) == [{"c.x": "a.c.x"}, {"x": "a.b.x"}]
    # Layers and directions of a module share what stands in it; none has what others read.
    names = ("a.weight_hh_l0", "a.weight_hh_l0_reverse", "a.weight_hh_l1", "ab.x", "a-x")
    assert beside(*names) == [{}] * 3
    assert beside(*names, "a.x.y") == [{"x.y": "a.x.y"}] * 3
    # What comes before an underscore is a module of g2p's.
    assert beside("enc_w_hh", "enc_x", "dec_x") == [{"x": "enc_x"}]
    # A name may end in what joins names.
    assert beside("a.weight_hh", "a.") == [{"": "a."}]
    assert notes({"a.weight_hh": np.eye(3), "a.": np.eye(3)})[0][1]


def test_layers_of_families_that_are_not_asked_for_are_no_neighbours() -> None:
    arrays = small("leaky_rnn") | {"a.weight_hh": np.eye(3), "a.x": np.eye(3)}
    ((family, match),) = detect(MemoryStore(arrays).tensors, "leaky_rnn")
    assert (family.name, match.beside) == ("leaky_rnn", {})


def test_counters_and_second_names_are_no_neighbours() -> None:
    counter = np.ones(1, dtype=np.int64)
    assert beside("a.weight_hh", **{"a.steps": counter}) == [{}]
    held = np.ones((3, 3))
    arrays = {"a.weight_hh": held, "a.again": held, "b.weight_hh": np.eye(3)}
    store = MemoryStore(arrays)
    aliases = {"a.again": "a.weight_hh"}
    assert [dict(match.beside) for _, match in detect(store.tensors, aliases=aliases)] == [{}, {}]


def test_every_report_names_neighbours_once() -> None:
    arrays = {
        f"blocks.{index}.{name}": value
        for index in range(2)
        for name, value in small("complex_diagonal").items()
    }
    for name in ("w1", "w2", "w3", "w4", "\x1b[2J"):
        arrays |= {f"blocks.{index}.{name}": np.ones(2) for index in range(2)}
    report = inspect(arrays)
    said = r"what is beside it: \x1b[2J, w1, w2 and 2 more, which this family does not read"
    assert [layer.assumptions[-1] for layer in report.layers] == [f"λ is taken without {said}"] * 2
    assert text_for(render(report), None, width=200).count(said) == 1
    assert said in html.unescape(to_html([report]))
    assert to_text(report).count(json.dumps(said)[1:-1]) == 2


def read(arrays: Mapping[str, NDArray], family: str) -> Recurrence | MemcurseError:
    """The first layer of a family, or why it cannot be read."""
    store = MemoryStore(arrays)
    try:
        reader, match = detect(store.tensors, family if family in BY_NAME else None)[0]
        return read_layer(reader, store, match, ReadOptions())
    except (TensorError, NoRecurrenceError) as error:
        return error


@pytest.mark.parametrize("family", EXAMPLES)
@pytest.mark.parametrize(
    ("bad", "said"),
    [(np.nan, "NaN"), (np.inf, "inf"), (1e80, "beyond"), *((x, "") for x in (0.0, 1e-300, 800.0))],
)
def test_a_value_that_is_not_finite_is_named_and_an_extreme_one_gives_no_other(
    family: str, bad: float, said: str
) -> None:
    arrays = small(family)
    for name, values in arrays.items():
        found = read(arrays | {name: np.full_like(values, bad)}, family)
        if isinstance(found, TensorError):
            assert name in str(found)
            assert said in str(found)
            continue
        # What drives the gates alone, or only tells by its shape, is not read.
        assert isinstance(found, Recurrence)
        figures = [found.log_eigenvalues, found.log_gain, found.readin, found.readout]
        figures += [group.values for group in found.parameters]
        figures += [group.eigenvalue_derivative for group in found.parameters]
        assert all(np.isfinite(each).all() for each in figures if each is not None), name


@pytest.mark.parametrize("family", EXAMPLES)
def test_a_tensor_of_another_shape_is_refused_or_read(family: str) -> None:
    arrays = small(family)
    for name, values in arrays.items():
        longer, wider = (np.repeat(values, 2, axis=axis) for axis in (0, -1))
        for other in (longer, wider, values[None], values[:0], values.ravel()[0]):
            found = read(arrays | {name: other}, family)
            if isinstance(found, TensorError):
                assert any(each in str(found) for each in arrays), str(found)


def test_the_marks_of_the_original_layers(paper: Path) -> None:
    for path in sorted(paper.rglob("*.npz")):
        with open_checkpoint(path) as store:
            assert_marked(store.tensors)
