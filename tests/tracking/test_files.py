"""Which checkpoints a run consists of."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracking.build import write, write_run

from memcurse_cli.errors import CheckpointError
from memcurse_cli.tracking.discovery import find_checkpoints


def names(given: list[str | Path], root: Path) -> list[str]:
    """What is found, relative to a folder."""
    found = find_checkpoints([str(one) for one in given])
    return [Path(path).relative_to(root).as_posix() for path in found]


def test_a_glob_is_expanded_and_each_file_stands_once(tmp_path: Path) -> None:
    write_run(tmp_path, (0.5, 0.9))
    both = ["step_0.safetensors", "step_100.safetensors"]
    assert names([tmp_path / "step_*.safetensors"], tmp_path) == both
    again = [tmp_path / "step_0.safetensors", tmp_path / "*.safetensors", tmp_path]
    assert names(again, tmp_path) == both
    write(tmp_path / "deep" / "er" / "step_7.safetensors", 0.9)
    assert "deep/er/step_7.safetensors" in names([tmp_path / "**" / "*.safetensors"], tmp_path)


def test_a_name_with_brackets_that_exists_is_no_glob(tmp_path: Path) -> None:
    write(tmp_path / "run[1]" / "step_1.safetensors", 0.9)
    assert names([tmp_path / "run[1]"], tmp_path) == ["run[1]/step_1.safetensors"]


def test_a_directory_stands_for_its_numbered_files(tmp_path: Path) -> None:
    write_run(tmp_path, (0.5, 0.9))
    for other in ("last.safetensors", "optimizer.pt", "notes_3.txt", ".step_4.safetensors"):
        (tmp_path / other).write_bytes(b"")
    assert names([tmp_path], tmp_path) == ["step_0.safetensors", "step_100.safetensors"]


def test_files_without_numbers_are_taken_where_there_are_no_others(tmp_path: Path) -> None:
    write(tmp_path / "first.safetensors", 0.5)
    write(tmp_path / "last.safetensors", 0.9)
    assert names([tmp_path], tmp_path) == ["first.safetensors", "last.safetensors"]


def test_directories_of_checkpoints_are_the_run(tmp_path: Path) -> None:
    for step in (500, 1000):
        write(tmp_path / f"checkpoint-{step}" / "model.safetensors", 0.9)
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    write(tmp_path / "tmp-checkpoint-1500" / "model.safetensors", 0.9)
    write(tmp_path / "logs" / "model.safetensors", 0.9)
    write(tmp_path / "model.safetensors", 0.9)  # what the trainer writes at its end
    (tmp_path / "checkpoint-9").mkdir()
    assert names([tmp_path], tmp_path) == ["checkpoint-1000", "checkpoint-500"]


def test_a_directory_that_is_one_checkpoint_stands_for_itself(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-7" / "model.safetensors", 0.9)
    assert names([tmp_path / "checkpoint-7"], tmp_path) == ["checkpoint-7"]
    assert names([tmp_path / "checkpoint-*"], tmp_path) == ["checkpoint-7"]


def test_what_is_not_there_is_an_error_unless_it_is_waited_for(tmp_path: Path) -> None:
    for missing in (tmp_path / "absent", tmp_path / "*.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match=r"check the path|no checkpoint matches"):
            find_checkpoints([str(missing)])
        assert find_checkpoints([str(missing)], waiting=True) == []


def test_a_url_is_passed_on(tmp_path: Path) -> None:
    url = "https://example.org/step_1.safetensors"
    assert find_checkpoints([url, url]) == [url]
