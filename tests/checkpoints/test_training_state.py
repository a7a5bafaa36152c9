"""What a training checkpoint holds beside the weights is told from them."""

from __future__ import annotations

import pytest

from memcurse_cli.checkpoints.select import select, select_flat

WEIGHTS = ("cell.weight_hh_l0", "cell.bias_hh_l0", "out.weight")


def kept(*names: str) -> tuple[set[str], str]:
    weights, notes = select_flat(dict.fromkeys(names, 0))
    return set(weights), "; ".join(notes)


@pytest.mark.parametrize(
    "container",
    ["exp_avg", "exp_avg_sq", "grads", "gradients", "acc_grads", "optimizer.0.momentum_buffer"],
)
def test_moments_and_gradients_by_the_name_of_their_weight(container: str) -> None:
    weights, note = kept(*WEIGHTS, *(f"{container}.{name}" for name in WEIGHTS))
    assert weights == set(WEIGHTS)
    assert note.startswith("3 tensors of optimiser state")


@pytest.mark.parametrize("copy", ["model_ema", "ema_model", "average_model_state", "a.b.swa_model"])
def test_averaged_copies_by_their_own_names(copy: str) -> None:
    weights, note = kept(*WEIGHTS, *(f"{copy}.{name}" for name in WEIGHTS))
    assert weights == set(WEIGHTS)
    assert "averaged (EMA) copy" in note


@pytest.mark.parametrize(
    ("trained", "averaged"),
    [("net", "net_ema"), ("actor", "ema_actor"), ("agent.net", "agent.net_EMA")],
)
def test_a_copy_is_called_after_what_it_averages(trained: str, averaged: str) -> None:
    names = {f"{trained}.{name}" for name in WEIGHTS}
    copies = {f"{averaged}.{name}" for name in WEIGHTS}
    assert kept(*names, *copies) == (
        names,
        f"3 tensors of an averaged (EMA) copy (such as {averaged}.cell.bias_hh_l0): left out",
    )
    # Without what it averages it is no copy, and neither is a part with other names in it.
    assert kept(*copies) == (copies, "")
    others = {f"{trained}.decoder.{name}" for name in WEIGHTS}
    assert kept(*others, *copies) == (others | copies, "")


def test_lightning_averages_where_the_weights_were() -> None:
    names = [(outer, name) for outer in ("state_dict", "current_model_state") for name in WEIGHTS]
    weights, notes = select(dict.fromkeys(names, 0))
    assert set(weights) == {("current_model_state", name) for name in WEIGHTS}
    assert len(notes) == 1
    alone = {("state_dict", name): 0 for name in WEIGHTS}
    assert select(alone) == (alone, [])


def test_moments_of_optax_without_a_container() -> None:
    moments = [f"0/{moment}/{name}" for moment in ("mu", "nu") for name in WEIGHTS]
    assert kept("0/count", *moments, *WEIGHTS)[0] == {"0/count", *WEIGHTS}
    # An LRU of DeepMind's port has a nu of its own, and no count.
    assert kept("lru/nu", "lru/theta", "count")[0] == {"lru/nu", "lru/theta", "count"}
    assert kept("lru/count", "lru/nu")[0] == {"lru/count", "lru/nu"}


@pytest.mark.parametrize("moments", [("mu", "nu"), ("m", "v"), ("momentum",)])
def test_moments_beside_the_weights_that_they_repeat(moments: tuple[str, ...]) -> None:
    weights = {f"params/{name}" for name in WEIGHTS}
    slots = [f"{moment}/{name}" for moment in moments for name in WEIGHTS]
    assert kept(*weights, *slots)[0] == weights
    # Keys, queries and values repeat each other's names too.
    attention = {f"{part}/{name}" for part in "qkv" for name in WEIGHTS}
    assert kept(*attention)[0] == attention
    others = {f"{moment}/layer/{name}" for moment in moments for name in WEIGHTS}
    assert kept(*weights, *others)[0] == weights | others


@pytest.mark.parametrize("copy", ["EMA", "Shadow", "polyak", "model_avg", "swa"])
def test_outermost_copies_repeat_another_tree(copy: str) -> None:
    weights = {f"model.{name}" for name in WEIGHTS}
    copies = [f"{copy}.{name}" for name in WEIGHTS]
    found, note = kept(*weights, *copies)
    assert found == weights
    assert "averaged (EMA) copy" in note
    assert kept(*WEIGHTS, *copies)[0] == set(WEIGHTS)
    assert kept(*copies) == (set(copies), "")
