"""Two reports layer by layer: known moves are found, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from diagnosis.build import SAMPLES, drawn_lru

from memcurse_cli import Report, inspect
from memcurse_cli.diagnosis.comparison import compare, match_eigenvalues
from memcurse_cli.schema.derived import SpectrumMove

UNITS = 12


def lru(prefix: str = "") -> dict[str, Any]:
    return {prefix + name: value for name, value in drawn_lru(UNITS).items()}


def dense(matrix: np.ndarray) -> dict[str, Any]:
    return {"rnn.weight_hh_l0": matrix, "rnn.weight_ih_l0": np.ones((len(matrix), 1))}


def report(state: dict[str, Any], **options: Any) -> Report:
    return inspect(state, values=True, **options)


def move(before: dict[str, Any], after: dict[str, Any]) -> SpectrumMove:
    (layer,) = compare(report(before), report(after)).layers
    return layer.spectrum


def test_permuted_and_conjugated_eigenvalues_have_not_moved() -> None:
    state = lru()
    order = np.random.default_rng(1).permutation(UNITS)
    permuted = {**state, **{n: state[n][order] for n in ("nu_log", "theta_log", "gamma_log")}}
    for found in (move(state, state), move(state, permuted)):
        assert (found.matched, found.outward, found.inward) == (UNITS, 0, 0)
        assert found.time_constant_least == found.time_constant_most == 1
        assert found.largest_angle_change == 0
    values = np.random.default_rng(2).standard_normal(20) * np.exp(1j)
    rows, columns, method = match_eigenvalues(values, np.conj(values)[::-1])
    assert method == "assignment"
    assert np.array_equal(columns[np.argsort(rows)], np.arange(20)[::-1])


def test_known_moves_are_found_and_nothing_else() -> None:
    state = lru()
    halved = move(state, {**state, "nu_log": state["nu_log"] - np.log(2)})
    assert (halved.outward, halved.inward) == (UNITS, 0)
    assert halved.time_constant_least == pytest.approx(2)
    assert halved.time_constant_most == pytest.approx(2)
    assert halved.largest_angle_change == pytest.approx(0, abs=1e-12)
    turned = move(state, {**state, "theta_log": np.log(np.exp(state["theta_log"]) + 0.01)})
    assert (turned.outward, turned.inward) == (0, 0)
    assert turned.largest_angle_change == pytest.approx(0.01)


def test_a_similar_matrix_has_not_moved_and_a_larger_one_crosses_the_circle() -> None:
    random = np.random.default_rng(3)
    matrix = random.standard_normal((16, 16))
    matrix *= 0.9 / np.max(np.abs(np.linalg.eigvals(matrix)))
    turn = np.linalg.qr(random.standard_normal((16, 16)))[0]
    similar = move(dense(matrix), dense(turn @ matrix @ turn.T))
    assert (similar.outward, similar.inward) == (0, 0)
    assert similar.largest_angle_change < 1e-9
    crossing = int(np.sum(np.abs(np.linalg.eigvals(matrix)) >= 1 / 1.2))
    assert crossing > 0
    assert move(dense(matrix), dense(1.2 * matrix)).left_unit_disk == crossing
    assert move(dense(1.2 * matrix), dense(matrix)).entered_unit_disk == crossing


def test_large_spectra_are_paired_by_modulus() -> None:
    values = np.random.default_rng(4).uniform(0.1, 0.9, 2049) + 0j
    rows, columns, method = match_eigenvalues(values, values[::-1])
    assert method == "modulus"
    assert np.array_equal(values[rows], values[::-1][columns])
    with pytest.raises(ValueError, match="different sizes"):
        match_eigenvalues(values, values[1:])


def test_how_layers_are_matched_and_those_of_one_side_listed() -> None:
    for after, how in (("a.", "name"), ("_orig_mod.module.a.", "prefix"), ("b.", "sizes")):
        (layer,) = compare(report(lru(prefix="a.")), report(lru(prefix=after))).layers
        assert layer.matched_by == how
    one = report({**lru(prefix="a."), **lru(prefix="b.")})
    found = compare(one, report(lru(prefix="a.")))
    assert [layer.name for layer in found.layers] == ["a"]
    assert (found.before.alone, found.after.alone) == (("b",), ())
    two = report({**lru(prefix="a."), **dense(np.eye(3) / 2)})
    assert [layer.matched_by for layer in compare(one, two).layers] == ["name", "alone"]


def test_every_figure_stands_on_both_sides_under_the_name_of_its_scalar() -> None:
    before, after = (
        report({"A": size * np.eye(3), "B": np.eye(3), "C": np.eye(3)}) for size in (0.5, 1.0)
    )
    (layer,) = compare(before, after).layers
    changes = {one.figure: one for one in layer.changes}
    for side, given in (("before", before), ("after", after)):
        found = given.scalars("")
        for name, change in changes.items():
            assert getattr(change, side) == found.get(f"{layer.name}/{name}"), name
    assert (changes["memory"].after, changes["memory"].divergent_after) == (None, True)
    made = compare(before, after)
    assert (made.before.memory, made.after.memory) == (before.memory, None)
    assert (made.after.verdict, made.after.usable_rate) == (after.verdict, after.usable_rate)
    gated = compare(inspect(SAMPLES / "gru.safetensors", simulate=False), after)
    assert (gated.before.gates_alone, gated.after.gates_alone) == (True, False)
