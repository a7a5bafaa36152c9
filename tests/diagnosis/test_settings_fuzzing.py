"""Any settings file either says what it says or is refused with its place; nothing else escapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcurse_cli.diagnosis.policy import KEYS, boolean, positive, rule_sets
from memcurse_cli.diagnosis.settings import ConfigurationError, read_settings

SCALARS = (
    st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["ok", "watch", "cursed", "MC1", "MC101", "encoder.*", "", "E501"])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
SCOPE = ("layers", "families", "nonsense")


@st.composite
def tables(draw: st.DrawFn) -> str:
    """The text of a file with a table `check` and some overrides, right or wrong."""
    lines = ["[check]"]
    lines += _lines(draw(st.dictionaries(st.sampled_from([*KEYS, "nonsense"]), VALUES)))
    for override in draw(st.lists(st.dictionaries(st.sampled_from([*KEYS, *SCOPE]), VALUES))):
        lines += ["[[check.overrides]]", *_lines(override)]
    return "\n".join(lines)


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "memcurse.toml"


def refusal(file: Path) -> ConfigurationError | None:
    """Why a file is refused; None where it is read."""
    try:
        settings = read_settings(file)
        assert settings is not None
        rule_sets(settings)
        boolean(settings, "allow-missing")
        positive(settings, "tolerance")
    except ConfigurationError as error:
        return error
    return None


@given(text=tables())
def test_a_table_is_read_or_refused_with_its_line(text: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")
    error = refusal(file)
    if error is not None:
        name, _, line = error.where.rpartition(":")
        assert name == str(file)
        assert 1 <= int(line) <= text.count("\n") + 1
        assert error.remedy


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    error = refusal(file)
    assert error is None or error.where.startswith(str(file))
