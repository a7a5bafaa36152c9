"""Every JSON that a command prints is what its schema says, with no field beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from end_to_end.calls import words
from end_to_end.command import memcurse
from reports.strategies import closed

from memcurse_cli.schema.documents import DOCUMENTS, document_schema, find_document

COMMANDS = {
    "report": [
        "inspect LRU --values --as polar --normalize own",
        "inspect CURSED --rho 0.5",
        "inspect GRU --spectra --horizon 100 --readout every",
        "inspect CURSED --horizon 1000000",
    ],
    "comparison": ["compare COMPLEX LRU", "compare CURSED GRU"],
    "check": [
        "check LRU --exit-zero",
        "check CURSED --exit-zero --max-verdict ok --max-step-effect 1",
        "check GRU --exit-zero --min-diagonality 0.5",
    ],
    "tracking": ["track RUN HERE", "track RUN HERE --rho 0.5 --layer *"],
    "groups": ["groups CURSED", "groups GRU --no-simulate"],
    "prediction": [
        "predict --rho 0.5 --parametrization s4 --ring 0.9:0.99",
        "predict --autocorrelation 0.5:0,0.5:0.9 --modulus 1 --horizon 9",
    ],
    "landscape": ["landscape", "landscape --modulus 1.01 --horizon 50 --parametrization polar"],
    "hessian": ["hessian LRU", "hessian GRU"],
    "initialization": [
        "init s4d --memory 2:50 --horizon 40 --units 4",
        "init gru --memory 2:50 --horizon 40 --units 8 --method critical",
    ],
    "autocorrelation": ["autocorrelation noise.npy"],
    "families": ["families"],
    "formats": ["formats"],
    "rules": ["rule", "rule MC204"],
    "settings": ["settings", "settings --config settings.toml"],
}
SETTINGS = """\
lr = 3e-4
rho = [0.1]
spectra = true
[check]
forbid = ["MC101"]
[[check.overrides]]
layers = ["encoder.*"]
max-rounding-error = { bfloat16 = 0.1 }
"""


def strictly(text: str) -> Any:
    """JSON without the NaN and Infinity that Python's reader lets pass."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints_is_what_its_schema_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS)
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).standard_normal((2, 50, 3)))
    schema = closed(find_document(name))
    for call in COMMANDS[name]:
        result = memcurse(*words(call), "--json", folder=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        jsonschema.Draft202012Validator(schema).validate(strictly(result.stdout))


def test_every_document_is_tried_and_its_schema_printed() -> None:
    assert set(COMMANDS) == {document.name for document in DOCUMENTS}
    for document in DOCUMENTS:
        result = memcurse("schema", document.name)
        assert (result.returncode, result.stderr) == (0, "")
        assert strictly(result.stdout) == json.loads(json.dumps(document_schema(document)))
        assert result.stdout.isascii()
