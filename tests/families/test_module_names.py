"""Modules and their tensors, against the definition tried on every name and role."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from memcurse_cli.checkpoints.store import TensorSpec
from memcurse_cli.families.module_names import IndexedTensors, group_by_module, split_name

SPEC = TensorSpec((1,), "float32", 4)
PARTS = st.lists(st.sampled_from(["a", "b", "w", ".", "/", ",", "a.w", "a/b.w", "\n"]), max_size=8)
ROLES = st.lists(st.sampled_from(["a", "b", "w"]), min_size=1, max_size=4).map(".".join)


def by_definition(names: list[str], roles: list[str]) -> dict[str, dict[str, str]]:
    """Every role whose parts the end of a name has, whatever joins them; plain roles first."""
    modules: dict[str, dict[str, str]] = {}
    for name in names:
        for role in sorted(dict.fromkeys(roles), key=lambda role: "." in role):
            pattern = "[./,]".join(map(re.escape, role.split(".")))
            found = re.fullmatch(rf"(?:((?:.|\n)*)[./,])?{pattern}", name)
            if found:
                modules.setdefault(found[1] or "", {})[role] = name
    return modules


@settings(max_examples=500)
@given(st.lists(PARTS.map("".join), max_size=12, unique=True), st.lists(ROLES, max_size=6))
def test_modules_and_their_order_are_those_of_the_definition(
    names: list[str], roles: list[str]
) -> None:
    tensors = dict.fromkeys(names, SPEC)
    expected = [(key, list(own.items())) for key, own in by_definition(names, roles).items()]
    for given_as in (tensors, IndexedTensors(tensors)):
        found = group_by_module(given_as, roles)
        assert [(key, list(own.items())) for key, own in found.items()] == expected


@given(PARTS.map("".join))
def test_a_name_is_split_at_its_last_separator(name: str) -> None:
    module, last = split_name(name)
    assert not set("./,") & set(last)
    assert name in (last, *(f"{module}{separator}{last}" for separator in "./,"))


def test_an_index_is_a_copy_in_the_order_of_the_file() -> None:
    tensors = dict.fromkeys(["b.w", "a.w"], SPEC)
    assert list(IndexedTensors(tensors).items()) == list(tensors.items())
