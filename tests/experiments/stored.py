"""The settings of the run that wrote a checkpoint, from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_type_hints

from memcurse_cli.experiments.settings import PREFIX, TrainingSettings


def settings_in(metadata: Mapping[str, str]) -> TrainingSettings:
    types = get_type_hints(TrainingSettings)
    names = TrainingSettings.__struct_fields__
    return TrainingSettings(**{name: types[name](metadata[PREFIX + name]) for name in names})
