"""`memcurse predict --ring`: what is averaged, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memcurse_cli import predict
from memcurse_cli.errors import UsageError
from memcurse_cli.reports.terminal.prediction import to_text
from memcurse_cli.schema.json_codec import to_json


def test_the_radii_are_the_moduli_where_no_others_are_given() -> None:
    found = predict(ring="0.9:0.999", rho=0.5)
    assert [row.modulus for row in found.rows] == [0.9, 0.999]
    assert found.ring == predict(ring=(0.9, 0.999), time_constant=10.0).ring
    assert [row.modulus for row in predict(ring=(0.9, 0.999), modulus=0.5).rows] == [0.5]
    page = to_text(found, file=Path("page.txt"))
    assert "E|h|² is 24.2 on average and E|dh/dλ|² 1.33e6" in " ".join(page.split())
    assert to_json(found.document)["ring"]["second_moment"] == pytest.approx(
        np.log(0.19 / (1 - 0.999**2)) / (0.999**2 - 0.81)
    )


def test_a_mixture_counts_with_its_variance() -> None:
    white = predict(ring=(0, 0.9)).ring
    mixed = predict(ring=(0, 0.9), autocorrelation="0.5:0.9,1.5:0").ring
    assert white is not None
    assert mixed is not None
    assert mixed.second_moment == pytest.approx(2 * (white.second_moment or 0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ring": "0.9"}, "MIN:MAX"),
        ({"ring": "a:b"}, "MIN:MAX"),
        ({"ring": "0.9:0.5", "modulus": 0.5}, "smaller radius first"),
        ({"ring": "-1:0.5", "modulus": 0.5}, "no ring"),
        ({"ring": "nan:0.5", "modulus": 0.5}, "no ring"),
        ({"ring": (0.9, 1.0)}, "--horizon"),
        ({"ring": (0.9, 1.1), "horizon": 9, "normalization": "coupled", "modulus": 0.5}, "below 1"),
        ({"ring": (0, 0.9), "normalization": "gru", "parametrization": "sigmoid-gate"}, "angles"),
    ],
)
def test_what_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict(**given)  # type: ignore[arg-type]  # by name
