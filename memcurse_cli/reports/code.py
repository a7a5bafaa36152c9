"""Parameter groups as Python that builds an optimizer of PyTorch or optax.

Names come from a checkpoint: they stand in the code as `repr` has them, in ASCII, so that none ends
its string or its comment.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pprint import pformat

from memcurse_cli.reports.console import to_ascii, visible
from memcurse_cli.reports.numbers import setting
from memcurse_cli.schema.derived import ParameterGroups

WIDTH = 79
TORCH = """\
import torch

{recurrent}
rest = dict(model.named_parameters())
for group in recurrent:
    group['params'] = [rest.pop(name) for name in group['params']]
groups = [*recurrent, {{'params': [*rest.values()]}}]
optimizer = torch.optim.AdamW(groups, lr={rate})
"""
OPTAX = """\
import jax
import optax

{recurrent}
rates = {{name: group['lr'] for group in recurrent for name in group['params']}}


def label(path, _):
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    inner = name.replace('/', '.').rpartition('params.')[2]
    return str(rates.get(inner, 'rest'))


labels = jax.tree_util.tree_map_with_path(label, params)
found = [one for one in jax.tree.leaves(labels) if one != 'rest']
assert len(found) == len(rates), 'params are not those of the checkpoint'
rules = {{str(rate): optax.adam(rate) for rate in rates.values()}}
rules['rest'] = optax.adamw({rate})
optimizer = optax.multi_transform(rules, labels)
"""


def torch_code(made: ParameterGroups) -> str:
    """What makes an AdamW of a module ``model``; a name that it has not is a KeyError there."""
    return _code(TORCH, made)


def optax_code(made: ParameterGroups) -> str:
    """What makes Adam of the recurrent and AdamW of the other leaves of a tree ``params``.

    Names count from the last ``params.`` on, which a Flax tree may have or lack.
    """
    return _code(OPTAX, made, called=lambda name: name.replace("/", ".").rpartition("params.")[2])


def _code(
    template: str, made: ParameterGroups, *, called: Callable[[str], str] = lambda name: name
) -> str:
    lines = []
    for left in made.not_judged:
        said = f"Not judged, so at your rate: {left.layer!r}, {to_ascii(visible(left.reason))}."
        lines.append(textwrap.fill(said, WIDTH, initial_indent="# ", subsequent_indent="#   "))
    lines.append("recurrent = [")
    for one in made.groups:
        names = [*map(called, one.params)]
        # Three digits of a rate that was derived, all of one that was given.
        rate = one.lr if one.lr == made.learning_rate else float(f"{one.lr:.3g}")
        group = {"params": names, "lr": rate, "weight_decay": one.weight_decay}
        text = pformat(group, width=WIDTH - 5, sort_dicts=False)
        lines.append(textwrap.indent(text, "    ") + ",")
    recurrent = "\n".join((*lines, "]"))
    written = template.format(recurrent=recurrent, rate=setting(made.learning_rate))
    # A log may be read for commands that begin with ##; in a string the escape is the same.
    return written.encode("ascii", "backslashreplace").decode().replace("##", r"#\x23")
