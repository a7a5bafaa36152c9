from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from memcurse_cli.checkpoints.series import read_series
from memcurse_cli.errors import CheckpointError, UsageError

DATA = np.arange(24.0).reshape(2, 4, 3)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int16", ">f8"])
def test_arrays_of_every_format_are_the_same(dtype: str, tmp_path: Path) -> None:
    data = DATA.astype(dtype)
    np.save(tmp_path / "a.npy", data)
    np.savez(tmp_path / "a.npz", x=data)
    save_file({"x": data.astype(data.dtype.newbyteorder("="))}, tmp_path / "a.safetensors")
    for path in tmp_path.iterdir():
        assert np.array_equal(read_series(path), DATA)
        assert read_series(path).dtype == np.float64


def test_the_array_is_chosen_by_name(tmp_path: Path) -> None:
    path = tmp_path / "two.npz"
    np.savez(path, x=DATA, y=DATA + 1)
    assert np.array_equal(read_series(path, "y"), DATA + 1)
    with pytest.raises(UsageError, match=r"2 arrays \(x, y\).*--array"):
        read_series(path)
    with pytest.raises(UsageError, match=r"'z'.*there are x, y"):
        read_series(path, "z")
    (tmp_path / "a.csv").write_text("1\n2\n")
    with pytest.raises(UsageError, match="leave --array out"):
        read_series(tmp_path / "a.csv", "x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1\n2\n3\n", [1, 2, 3]),
        ("1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("a,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
        ('\ufeff"a";"b"\n1;-2e3\n3;4\n', [[1, -2000], [3, 4]]),
        ("1\t2\r\n3\t4\r\n", [[1, 2], [3, 4]]),
        ("# comment\n\n1 2\n 3  4 \n", [[1, 2], [3, 4]]),
        ("1,\n3,nan\n", [[1, np.nan], [3, np.nan]]),
    ],
    ids=["column", "csv", "headed", "semicolon", "tab", "blanks", "missing"],
)
@pytest.mark.parametrize("extension", ["csv", "txt", "tsv", "DAT"])
def test_a_table_has_a_step_per_line(
    text: str, expected: list[object], extension: str, tmp_path: Path
) -> None:
    path = tmp_path / f"data.{extension}"
    path.write_text(text)
    assert np.array_equal(read_series(path), np.array(expected), equal_nan=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3,x\n", "line 3 holds 'x', which is not a number"),
        (b"a,b\nc,d\n1,2\n", "line 2 holds 'c'"),
        (b"1,2\n\n3\n", "line 3 has 1 columns, the lines before it 2"),
        (b"1\n\xff\xfe\n", "line 2 holds bytes that are not text"),
        (b"1\nx\x1b[31m\n", r"line 2 holds 'x\x1b[31m'"),
    ],
)
def test_a_bad_table_names_its_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_series(path)
    assert message in str(caught.value)
    assert "bad.csv" in str(caught.value)
    os.truncate(path, 1 << 40)
    with pytest.raises(CheckpointError, match=r"has 1099511627776 bytes, more than the"):
        read_series(path)
