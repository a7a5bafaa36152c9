"""Units in pieces: every one once, those alike together, and no piece too large."""

from __future__ import annotations

import numpy as np
import pytest

from memcurse_cli.theory.gates.laws import Keep, StepSize
from memcurse_cli.theory.gates.moments import Preactivation, normal_nodes, pieces, shared_by


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1, 1, 2, 2, 2], 3),
        ([1, 1, 1, 1, 2, 2], 2),
        ([1, 1, 2, 2, 2], 1),
        ([1, 2, 3], 1),
        ([4, 4, 4], 3),
        ([np.nan, np.nan], 1),
        ([7], 1),
        ([], 1),
    ],
)
def test_how_many_in_a_row_are_alike(values: list[float], expected: int) -> None:
    assert shared_by(np.array(values, dtype=np.float64)) == expected


def test_units_are_alike_in_every_array() -> None:
    assert shared_by(np.array([1.0, 1, 1, 1]), np.array([1.0, 1, 2, 2])) == 2
    assert shared_by(np.array([1.0, 1, 1, 1]), np.array([1.0, 2, 2, 2])) == 1


@pytest.mark.parametrize("shared", [1, 16, 600])
def test_every_unit_is_in_one_piece_that_fits(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = 4000
    monkeypatch.setattr("memcurse_cli.theory.gates.moments.CHUNK", chunk)
    random = np.random.default_rng(2)
    gate, write_gate = (
        Preactivation(
            np.repeat(random.normal(size=5), shared),
            np.repeat(random.choice([0.0, 0.1, 1.0, 4.0], 5), shared),
        )
        for _ in range(2)
    )
    rates = random.random(5 * shared)
    seen: list[int] = []
    widest = []
    for units, law, some, some_write in pieces(StepSize(rates), gate, write_gate):
        seen += units.ravel().tolist()
        widest.append(some.spread.max())
        np.testing.assert_array_equal(law.rate, rates[units])
        for part, whole in ((some, gate), (some_write, write_gate)):
            for values, every in ((part.mean, whole.mean), (part.spread, whole.spread)):
                assert values.shape == (len(units), 1)
                np.testing.assert_array_equal(values + 0 * units, every[units])
        nodes, _ = normal_nodes(some.mean, some.spread)
        assert nodes.size * units.size <= chunk
    assert sorted(seen) == list(range(5 * shared))
    assert widest == sorted(widest, reverse=True)


def test_a_law_with_corners_takes_its_fine_step_into_account() -> None:
    gate = Preactivation(np.zeros(3000), np.linspace(0.5, 2.0, 3000))
    smooth = len(list(pieces(Keep(), gate, None)))

    class Cornered(Keep):
        smooth = False

    assert len(list(pieces(Cornered(), gate, None))) > 10 * smooth


def test_no_units_are_no_pieces() -> None:
    nothing = np.zeros(0)
    assert list(pieces(Keep(), Preactivation(nothing, nothing), None)) == []
