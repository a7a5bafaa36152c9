"""What is recognised, what is said when nothing is, and what is attention."""

from __future__ import annotations

import sys
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
import torch
from end_to_end.command import program

from memcurse_cli import inspect
from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.errors import NoRecurrenceError, UsageError
from memcurse_cli.families.detect import (
    COMPARED_NAMES,
    attention_layers,
    characteristic_names,
    detect,
    validate_assumptions,
)
from memcurse_cli.families.registry import all_families


def specs(**shapes: tuple[int, ...]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(shape, "float32", 4) for name, shape in shapes.items()}


MIXED = {
    "embed.weight": TensorSpec((11, 5), "float32", 220),
    "z.weight_hh_l0": TensorSpec((12, 3), "float32", 144),
    "z.bias_ih_l0": TensorSpec((12,), "float32", 48),
    "b.A_re": TensorSpec((4,), "float32", 16),
    "b.A_im": TensorSpec((4,), "float32", 16),
    "a.weight_hh": TensorSpec((9, 3), "float32", 108),
    "rnn.weight_hh_l0": TensorSpec((3, 3), "float32", 36),
}


def names(found: list) -> list[tuple[str, str]]:
    return [(family.name, match.layer) for family, match in found]


def test_an_unknown_family_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"no family is called transformer; choose one of .*lstm"):
        detect(MIXED, "transformer")


def test_layers_are_selected_by_globs() -> None:
    assert names(detect(MIXED, layers=["z.*", "[ab]"])) == [
        ("lstm", "z.l0"),
        ("complex_diagonal", "b"),
        ("gru", "a"),
    ]


def test_a_glob_without_layers_is_refused_with_their_names() -> None:
    with pytest.raises(
        UsageError, match=r"no layer matches x\*; the layers are z.l0, b, a, rnn.l0"
    ):
        detect(MIXED, layers=["z.*", "x*"])
    many = {f"m{index}.weight_hh_l0": TensorSpec((3, 3), "float32", 36) for index in range(50)}
    with pytest.raises(UsageError, match=r"m9\.l0 and 40 more"):
        detect(many, layers=["x"])


def test_nothing_found_says_what_was_looked_for_and_what_is_near() -> None:
    tensors = specs(weight=(3, 3), my_weights_hh_l0=(3, 3), bias=(3,), gama_log=(4,))
    with pytest.raises(NoRecurrenceError) as error:
        detect(tensors)
    message = str(error.value)
    assert "among its 4 tensors" in message
    assert f"looked for {len(all_families())} families, which memcurse families lists" in message
    nearest = message.partition("nearest names are ")[2].split(", ")
    assert set(nearest) == {"my_weights_hh_l0", "gama_log"}


def test_one_family_says_what_it_is_recognised_by() -> None:
    with pytest.raises(NoRecurrenceError, match=r"lru is recognised by .*nu_log"):
        detect(specs(weight=(3, 3)), "lru")


def test_one_family_says_which_tensor_stands_in_its_way() -> None:
    with pytest.raises(NoRecurrenceError, match="log_step would stand beside"):
        detect(specs(A=(3, 3), B=(3, 1), log_step=(3,)), "dense_linear")
    lstm = specs(**{"rnn.weight_hh_l0": (16, 4)})
    with pytest.raises(NoRecurrenceError, match=r"names are rnn\.weight_hh_l0 \(16, 4\)"):
        detect(lstm, "gru")


@pytest.mark.parametrize("family", [None, "mamba2"])
@pytest.mark.parametrize(("down", "up"), [("lora_A", "lora_B"), ("lora_down", "lora_up")])
def test_an_adapter_alone_is_called_so(family: str | None, down: str, up: str) -> None:
    module = "base_model.model.layers.0.mixer.in_proj"
    tensors = specs(**{f"{module}.{down}.weight": (2, 8), f"{module}.{up}.weight": (8, 2)})
    with pytest.raises(NoRecurrenceError, match=r"an adapter \(LoRA\) alone"):
        detect(tensors, family)


def test_a_shard_alone_asks_for_the_others() -> None:
    with pytest.raises(NoRecurrenceError, match=r"^a/b-00002-of-00007\.bin: ") as error:
        detect(specs(weight=(3, 3)), path="a/b-00002-of-00007.bin")
    assert "it is one of 7 shards: give their directory" in str(error.value)


def test_hostile_names_are_escaped_and_shortened() -> None:
    with pytest.raises(NoRecurrenceError) as error:
        detect(specs(**{"\x1b[2J\u202eweight_hh": (3,), "x" * 5000: (3,)}))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("distinct", [True, False])
def test_many_names_are_not_all_compared(distinct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    class Counted(SequenceMatcher):
        def __init__(self, isjunk: None, name: str, role: str) -> None:
            compared.append(name)
            super().__init__(isjunk, name, role)

    monkeypatch.setattr("memcurse_cli.families.detect.SequenceMatcher", Counted)
    spec = TensorSpec((3, 3), "float32", 36)
    last = [f"w{index:x}{chr(97 + index % 26)}" if distinct else "weight" for index in range(10**4)]
    tensors = {f"layers.{index}.{name}": spec for index, name in enumerate(last)}
    with pytest.raises(NoRecurrenceError):
        detect(tensors)
    assert len(set(compared)) <= COMPARED_NAMES


def test_assumptions_are_checked_before_anything_is_read() -> None:
    validate_assumptions({"activation": "relu", "alpha": "0.2"})
    with pytest.raises(UsageError, match="under the name actvation; choose one of activation"):
        validate_assumptions({"actvation": "relu"})
    with pytest.raises(UsageError, match=r"gelu is not a value of activation; .* tanh, relu"):
        validate_assumptions({"activation": "gelu"})
    with pytest.raises(UsageError, match="x is not a value of alpha; choose one of a number"):
        validate_assumptions({"alpha": "x"})


def test_every_family_says_what_it_is() -> None:
    assert len({family.name for family in all_families()}) == len(all_families())
    for family in all_families():
        texts = (family.title, family.recognised_by, family.equation, family.source)
        assert all(text and "\n" not in text for text in texts)
        for assumption in family.assumptions:
            assert not assumption.choices or assumption.default in assumption.choices
    assert characteristic_names(all_families()[0])


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (
            (
                "from memcurse_cli.families.registry import families_marked; "
                "families_marked(['layer.nu_log', 'layer.theta_log']); "
                "print(*[m for m in sys.modules if m.startswith('memcurse_cli.families.')"
                " and m.count('.') > 2])"
            ),
            "memcurse_cli.families.state_space.diagonal",
        ),
        (
            (
                "import memcurse_cli.families.detect; "
                "print({'torch', 'jax', 'scipy', 'rich', 'typer'} & {name.partition('.')[0] "
                "for name in sys.modules})"
            ),
            "set()",
        ),
    ],
)
def test_only_the_code_of_marked_families_is_imported(code: str, printed: str) -> None:
    assert program(sys.executable, "-c", f"import sys; {code}").stdout.strip() == printed


def squares(*names: str, shape: tuple[int, ...] = (4, 4)) -> dict[str, TensorSpec]:
    return {name: TensorSpec(shape, "float32", 64) for name in names}


def weights(module: str, *parts: str) -> dict[str, TensorSpec]:
    return squares(*(f"{module}.{part}.weight" for part in parts))


@pytest.mark.parametrize(
    "parts",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"),
        ("Wqkv", "out_proj"),
        ("qkv_proj", "o_proj"),
        ("query_key_value", "dense"),
        ("query", "key", "value"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "relative_k_proj"),
        ("linear_q", "linear_k", "linear_v", "linear_out", "linear_pos"),
        ("att_proj", "out_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "indexer.index_qk_proj", "indexer.q_layernorm"),
        ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "dense", "g_proj"),
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"),
    ],
)
def test_attention_by_its_projections(parts: tuple[str, ...]) -> None:
    tensors = weights("layers.3.self_attn", *parts)
    assert attention_layers(tensors, ()) == ("layers.3.self_attn",)


@pytest.mark.parametrize(
    "parts",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj", "gk_proj.0"),  # a decay that may not be known
        ("q_proj", "k_proj", "v_proj", "b_proj", "o_norm"),
        ("q_proj", "k_proj", "v_proj", "q_conv1d"),
        ("qkv_proj", "out_proj", "output_gate", "norm"),
        ("q_proj", "k_proj", "v_proj", "o_proj", "gk_proj.0", "indexer.index_qk_proj"),
        ("q_proj", "k_proj"),
        ("up_proj", "down_proj", "gate_proj"),
    ],
)
def test_what_may_have_a_decay_is_not_called_attention(parts: tuple[str, ...]) -> None:
    assert attention_layers(weights("layers.3.attn", *parts), ()) == ()


def test_the_attention_of_torch_flax_and_keras() -> None:
    names = {
        "attn": [f"attn.{name}" for name in torch.nn.MultiheadAttention(4, 2).state_dict()],
        "block/attn": [f"block/attn/{part}/kernel" for part in ("query", "key", "value", "out")],
        "block/mha": [
            f"block/mha/{part}_dense/vars/{index}"
            for part in ("query", "key", "value", "output")
            for index in (0, 1)
        ],
        "mha": [f"mha/{part}/kernel" for part in ("query", "key", "value", "attention_output")],
    }
    for module, stored in names.items():
        assert attention_layers(squares(*stored), ()) == (module,)


@pytest.mark.parametrize(
    ("module", "rows", "found"), [("mixer", 4, ()), ("mixer", 8, ("mixer",)), ("mlp", 8, ())]
)
def test_a_gated_mlp_named_as_a_mixer_is_not_attention(
    module: str, rows: int, found: tuple[str, ...]
) -> None:
    tensors = squares(f"{module}.in_proj.weight", shape=(rows, 4))
    tensors |= squares(f"{module}.out_proj.weight")
    assert attention_layers(tensors, ()) == found


@pytest.mark.parametrize(
    ("folder", "count"),
    [
        ("hf_qwen3_next/fp32", 1),
        ("hf_recurrent_gemma/fp32", 1),
        ("hf_xlstm/fp32", 0),
        ("mamba_ssm/mamba2_attn_hybrid", 1),
    ],
)
def test_hybrids_of_the_zoo(zoo: Path, folder: str, count: int) -> None:
    report = inspect(zoo / folder)
    assert sum(other.count for other in report.not_recurrent) == count


def test_linear_attention_is_never_called_attention(zoo: Path) -> None:
    for folder in sorted((zoo / "fla").iterdir()):
        if folder.is_dir():
            assert inspect(folder).not_recurrent == ()


def test_attention_is_told_whatever_family_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    tensors = {f"attn.{name}_proj.weight": rng.normal(size=(4, 4)) for name in "qkv"}
    tensors |= {"rnn.weight_hh_l0": 0.1 * rng.normal(size=(4, 4)), "rnn.weight_ih_l0": np.eye(4)}
    assert [other.count for other in inspect(tensors).not_recurrent] == [1]
    assert inspect(tensors, layers=["rnn*"]).not_recurrent[0].names == ("attn",)
    assert inspect(tensors, family="dense_rnn").not_recurrent[0].names == ("attn",)
